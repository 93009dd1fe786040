"""`jangin convert`: write a model of any format as ONNX, NNEF or TFLite. The result is kept only if it
computes the same results."""

from __future__ import annotations

import io
import os
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from jangin.commands.common import Settings, random_input, terminal
from jangin.compiler.cases import imported
from jangin.compiler.driver import compile_by
from jangin.files import writing
from jangin.frontends.lower import lower
from jangin.frontends.nnef import writer as nnef
from jangin.frontends.onnx import writer as onnx
from jangin.frontends.tflite import format as tflite
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.limits import within
from jangin.options import Options
from jangin.passes.algebra.batchnorm import batchnorm
from jangin.passes.algebra.dce import dce
from jangin.passes.partition import has_steps
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.stateful import StatefulExecutable

FOLDERS = ("", ".nnef")
ARCHIVES = (".tgz", ".tar.gz", ".tar")
FILES = (".onnx", ".tflite")
TOLERANCE = 1e-4
"""The largest allowed difference of results, as a share of the largest number. Sums in another order differ
by less."""
SIZE = 3
"""The first size that is tried for the first symbol. The other symbols get the next numbers, so that no two
symbols have one size by chance."""
FACTORS = (1, 2, 8, 32)
"""The tried sizes are multiplied by these factors, because a model may need larger sizes."""
RUNS = 2
"""Results are compared at this number of sizes of each symbol. At a single size they may agree by chance."""


def convert(model: Path, settings: Settings, output: Path, shapes: Sequence[str]) -> None:
    """Write a model as an ONNX or TFLite file, or an NNEF folder or archive, by the ending of `output`.

    Raises CompileError if the format can't express the model. Raises it too, and keeps nothing, if the
    written model gives other bits on random inputs. TFLite's numbers may differ within a tolerance, because
    its channels lie in another order."""
    if output.exists():
        raise FileExistsError(f"{output} exists already: remove it, or name another")
    single = output.suffix in FILES
    if not single and output.suffix not in FOLDERS and not output.name.endswith(ARCHIVES):
        raise ValueError(
            f"{output}: a file is written as NAME.onnx or NAME.tflite, NNEF as a folder NAME.nnef or "
            "an archive NAME.nnef.tgz"
        )
    options = settings.options(None, shapes, 1)
    with within(options.limits):
        read = imported(model, options)
        graph = lower(read, whole=output.suffix == ".onnx")
        files = _written(graph, output, read.metadata)
    with writing(output):
        output.parent.mkdir(parents=True, exist_ok=True)
        aside = tempfile.TemporaryDirectory(dir=output.parent, prefix=".convert-")
    with aside as folder:
        draft = Path(folder, "model")
        with writing(output):
            if single:
                draft.write_bytes(files[output.name])
            else:
                _keep(files, draft, output.name)
        exact = output.suffix != ".tflite"
        _check(model, draft, options, exact)
        os.replace(draft, output)
    size, many = sum(map(len, files.values())), f"{len(files)} files, " if len(files) > 1 else ""
    what = "the same bits as" if exact else "within rounding of"
    terminal().print(f"{output}: {many}{size / 1e6:.1f} MB, {what} {model} on random inputs")
    if state := read.metadata.get("state"):
        terminal().print(f"What it keeps between runs is given and taken now, by inputs: {', '.join(state)}")


def _written(graph: Graph, output: Path, described: Mapping[str, Any]) -> Mapping[str, bytes]:
    """Return the files of the written model, by name."""
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


def _check(model: Path, made: Path, options: Options, exact: bool) -> None:
    """Raise CompileError unless both models give results of the same shapes and types on random inputs. If
    `exact`, the bits must be the same, else the numbers within TOLERANCE.

    Models with symbols are compared at two sizes of each."""
    first: Any = compile_by(options, model)
    first = first.model if isinstance(first, StatefulExecutable) else first
    second = compile_by(options.but(shapes={}, weights=None, cache=False), made)
    for feeds, wanted in _runs(first):
        pairs = zip(wanted, _tuple(second(*feeds)), strict=True)
        for spec, (x, y) in zip(first.outputs, pairs, strict=True):
            if (x.dtype, x.shape) != (y.dtype, y.shape):
                differs = f"is {y.dtype}{list(y.shape)}, not {x.dtype}{list(x.shape)}"
            elif x.tobytes() == y.tobytes():
                continue
            else:
                far, size = _apart(x, y), np.abs(x[np.isfinite(x)].astype(float)).max(initial=0)
                if not exact and far <= TOLERANCE * size:
                    continue
                differs = f"differs by up to {far:.2g}"
            raise CompileError(
                f"read back, output '{spec.name}' {differs}: the format can't express the model exactly"
            )


def _apart(x: Array, y: Array) -> float:
    """Return the largest difference between two arrays' numbers. Two NaNs, or equal infinities, don't
    differ."""
    a, b = x.astype(float), y.astype(float)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    with np.errstate(invalid="ignore"):
        return float(np.nan_to_num(np.where(same, 0, np.abs(a - b)), nan=np.inf).max(initial=0))


def _runs(model: Any) -> Iterator[tuple[Sequence[Array], Sequence[Array]]]:
    """Yield random inputs and the model's results for the first RUNS sizes of its symbols that the model
    accepts.

    Raises ValueError if it accepts none."""
    symbols, done, refused = _symbols(model.inputs), 0, None
    for factor in FACTORS if symbols else FACTORS[:1]:
        sizes = {d: factor * (SIZE + n) for n, d in enumerate(symbols)}
        feeds = [random_input(spec, sizes, seed) for seed, spec in enumerate(model.inputs)]
        try:
            results = _tuple(model(*feeds))
        except ValueError as error:
            refused = error
            continue
        yield feeds, results
        done += 1
        if done == RUNS:
            return
    if refused is not None and not done:
        raise refused


def _symbols(specs: Iterable[TensorSpec]) -> list[str]:
    return sorted({d for spec in specs for d in spec.shape if isinstance(d, str)})


def _tuple(found: Array | tuple[Array, ...]) -> tuple[Array, ...]:
    return found if isinstance(found, tuple) else (found,)
