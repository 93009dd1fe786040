"""A model that was compiled ahead of time to a shared library, as an engine."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.board import Net, address, aligned
from jangin.bench.engine import Engine, Job
from jangin.ir.dtype import dtype_of
from jangin.ir.graph import Array


def emitted(job: Job) -> Engine:
    """Return Jangin's emitted shared library, called through its C API."""
    held = [_held(a) for a in job.feeds().values()]
    start = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:  # the system keeps an open library
        path, prefix, sizes = emit_library(job, Path(folder))
        seconds = time.perf_counter() - start
        net = Net(str(path), prefix, job.threads, sizes)
    run = net.call([address(memory) for memory in held])
    shapes = [net.shape(n) for n in range(len(net.outputs))]
    types = [net.type(n) for n in range(len(net.outputs))]
    arrays = arrays_of(job.outputs, net.outputs, shapes, types)

    def call(held: object = held) -> Mapping[str, Array]:
        run()
        return arrays

    return Engine(call, net.version.split(",")[0].removeprefix("Jangin "), seconds)


def _held(array: Array) -> Any:
    """Return the bytes of an input in aligned memory."""
    memory = aligned(array.nbytes)
    memory.raw = array.tobytes()
    return memory


def emit_library(job: Job, folder: Path) -> tuple[Path, str, list[int]]:
    """Compile a job's model to a shared library in a folder. Return its path, what its names begin with, and
    the sizes of the model's symbols, in order."""
    from jangin.ahead.emit import emit_by

    package = emit_by(job.options.but(tune=None), job.model, "shared", "model", "inside", None)
    package.save(folder)
    prefix = package.model.prefix
    return folder / f"lib{prefix}.so", prefix, [job.shapes[name] for name in package.model.symbols]


def arrays_of(
    names: Sequence[str], memories: Sequence[Any], shapes: Sequence[Sequence[int]], types: Sequence[str]
) -> dict[str, Array]:
    """Return outputs in memory as arrays, by name."""
    return {
        name: np.frombuffer(memory, dtype_of(kind).numpy).reshape(shape)
        for name, memory, shape, kind in zip(names, memories, shapes, types, strict=True)
    }
