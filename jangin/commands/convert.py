"""`jangin convert`: a model of any format as one of ONNX or NNEF, kept only where it computes the same."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

import jangin
from jangin.commands.common import Settings, parse_shapes, random_input, terminal
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.nnef import writer as nnef
from jangin.frontends.onnx import writer as onnx
from jangin.ir.graph import Array, CompileError
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.stateful import StatefulExecutable

FOLDERS = ("", ".nnef")
ARCHIVES = (".tgz", ".tar.gz", ".tar")
SIZE = 3
"""The first open size that is tried; the next ones are tried as the next numbers."""


def convert(model: Path, settings: Settings, output: Path, shapes: Sequence[str]) -> None:
    """Write a model as an ONNX file, or an NNEF folder or archive, as `output` ends. CompileError where that
    format can't say it, or where what was written gives other bits on random inputs; then nothing is left."""
    if output.exists():
        raise FileExistsError(f"{output} exists already: remove it, or name another")
    single = output.suffix == ".onnx"
    if not single and output.suffix not in FOLDERS and not output.name.endswith(ARCHIVES):
        raise ValueError(
            f"{output}: an ONNX file is written as NAME.onnx, NNEF as a folder NAME.nnef or an archive "
            "NAME.nnef.tgz"
        )
    bound = parse_shapes(shapes)
    imported = table.load(settings.source(model), bound)
    graph = lower(imported, whole=single)
    files = {output.name: onnx.written(graph, imported.metadata)} if single else nnef.written(graph)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=output.parent, prefix=".convert-") as folder:
        made = Path(folder, "model")
        if single:
            made.write_bytes(files[output.name])
        else:
            _keep(files, made, output.name)
        _check(model, made, settings, bound)
        os.replace(made, output)
    size, many = sum(map(len, files.values())), f"{len(files)} files, " if len(files) > 1 else ""
    terminal().print(f"{output}: {many}{size / 1e6:.1f} MB, the same bits as {model} on random inputs")
    if state := imported.metadata.get("state"):
        terminal().print(f"What it keeps between runs is given and taken now, by inputs: {', '.join(state)}")


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


def _check(model: Path, made: Path, settings: Settings, shapes: Mapping[str, object]) -> None:
    """CompileError unless both give the same bits, where sizes are open for some."""
    first = jangin.compile(settings.source(model), threads=1, shapes=shapes, cache=settings.cache)
    first = first.model if isinstance(first, StatefulExecutable) else first
    second = jangin.compile(made, threads=1, cache=False)
    open_sizes = {d: SIZE + n for n, d in enumerate(_symbols(first.inputs))}
    feeds = [random_input(spec, open_sizes, seed) for seed, spec in enumerate(first.inputs)]
    pairs = zip(_tuple(first(*feeds)), _tuple(second(*feeds)), strict=True)
    for spec, (x, y) in zip(first.outputs, pairs, strict=True):
        if x.dtype != y.dtype or x.tobytes() != y.tobytes():
            far = f" by up to {np.abs(x.astype(float) - y).max():.2g}" if x.dtype == y.dtype else ""
            raise CompileError(
                f"read back, output '{spec.name}' differs{far}: what the model computes can't be said exactly"
            )


def _symbols(specs: Iterable[TensorSpec]) -> list[str]:
    return sorted({d for spec in specs for d in spec.shape if isinstance(d, str)})


def _tuple(found: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)
