"""`jangin convert`: a model of any format as one of ONNX, NNEF or TFLite, kept only where it computes the
same."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import jangin
from jangin.commands.common import Settings, parse_shapes, random_input, terminal
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.nnef import writer as nnef
from jangin.frontends.onnx import writer as onnx
from jangin.frontends.tflite import format as tflite
from jangin.ir.graph import Array, CompileError, Graph
from jangin.passes.batchnorm import batchnorm
from jangin.passes.dce import dce
from jangin.passes.partition import has_steps
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.stateful import StatefulExecutable

FOLDERS = ("", ".nnef")
ARCHIVES = (".tgz", ".tar.gz", ".tar")
FILES = (".onnx", ".tflite")
TOLERANCE = 1e-4
"""Of sums in another order, of the largest number."""
SIZE = 3
"""The first open size that is tried; the next ones are tried as the next numbers."""


def convert(model: Path, settings: Settings, output: Path, shapes: Sequence[str]) -> None:
    """Write a model as an ONNX or TFLite file, or an NNEF folder or archive, as `output` ends. CompileError
    where that format can't say it, or where what was written gives other bits (TFLite, whose channels lie in
    another order: other numbers) on random inputs; then nothing is left."""
    if output.exists():
        raise FileExistsError(f"{output} exists already: remove it, or name another")
    single = output.suffix in FILES
    if not single and output.suffix not in FOLDERS and not output.name.endswith(ARCHIVES):
        raise ValueError(
            f"{output}: a file is written as NAME.onnx or NAME.tflite, NNEF as a folder NAME.nnef or "
            "an archive NAME.nnef.tgz"
        )
    bound = parse_shapes(shapes)
    imported = table.load(settings.source(model), bound)
    graph = lower(imported, whole=output.suffix == ".onnx")
    files = _written(graph, output, imported.metadata)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".convert-") as folder:
        made = Path(folder, "model")
        if single:
            made.write_bytes(files[output.name])
        else:
            _keep(files, made, output.name)
        exact = output.suffix != ".tflite"
        _check(model, made, settings, bound, exact)
        os.replace(made, output)
    size, many = sum(map(len, files.values())), f"{len(files)} files, " if len(files) > 1 else ""
    what = "the same bits as" if exact else "within rounding of"
    terminal().print(f"{output}: {many}{size / 1e6:.1f} MB, {what} {model} on random inputs")
    if state := imported.metadata.get("state"):
        terminal().print(f"What it keeps between runs is given and taken now, by inputs: {', '.join(state)}")


def _written(graph: Graph, output: Path, described: Mapping[str, Any]) -> Mapping[str, bytes]:
    """The files by name."""
    if output.suffix == ".onnx":
        return {output.name: onnx.written(graph, described)}
    if output.suffix != ".tflite":
        return nnef.written(graph)
    plain = graph if has_steps(graph) else dce(batchnorm(graph))
    return {output.name: tflite.written(plain, described.get("description", ""))}


def _keep(files: Mapping[str, bytes], made: Path, name: str) -> None:
    if not name.endswith(ARCHIVES):
        for file, content in files.items():
            made.joinpath(file).parent.mkdir(parents=True, exist_ok=True)
            made.joinpath(file).write_bytes(content)
        return
    with tarfile.open(made, "w" if name.endswith(".tar") else "w:gz") as archive:
        for file, content in files.items():
            member = tarfile.TarInfo(file)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _check(model: Path, made: Path, settings: Settings, shapes: Mapping[str, object], exact: bool) -> None:
    """CompileError unless both give the same bits, or else numbers within TOLERANCE, where sizes are open for
    some."""
    first = jangin.compile(settings.source(model), threads=1, shapes=shapes, cache=settings.cache)
    first = first.model if isinstance(first, StatefulExecutable) else first
    second = jangin.compile(made, threads=1, cache=False)
    open_sizes = {d: SIZE + n for n, d in enumerate(_symbols(first.inputs))}
    feeds = [random_input(spec, open_sizes, seed) for seed, spec in enumerate(first.inputs)]
    pairs = zip(_tuple(first(*feeds)), _tuple(second(*feeds)), strict=True)
    for spec, (x, y) in zip(first.outputs, pairs, strict=True):
        far = np.inf if x.dtype != y.dtype else np.abs(x.astype(float) - y).max(initial=0)
        if x.tobytes() != y.tobytes() and (exact or far > TOLERANCE * np.abs(x).max(initial=0)):
            by = f" by up to {far:.2g}" if x.dtype == y.dtype else ""
            raise CompileError(
                f"read back, output '{spec.name}' differs{by}: what the model computes can't be said exactly"
            )


def _symbols(specs: Iterable[TensorSpec]) -> list[str]:
    return sorted({d for spec in specs for d in spec.shape if isinstance(d, str)})


def _tuple(found: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)
