"""Prepare a study's models: inputs, files in the formats that engines read, small numbers, and the results in
float64.

Files are converted by `jangin convert` and quantized by `jangin quantize`, in processes of their own. They
stay in the report's folder, so that a study that is resumed doesn't make them again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from jangin.bench.engine import Job
from jangin.bench.measure import Options as BenchOptions
from jangin.bench.measure import Worker, make_inputs, outputs_of
from jangin.files import write_whole
from jangin.frontends.format import paired
from jangin.frontends.table import load
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.limits import within
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.study.rows import Group
from jangin.study.settings import MODELS, Settings

READS = {"litert": ".tflite", "inductor": ".pt2", "eager": ".pt2", "jangin": ""}
"""The files that an engine reads, by their ending. Others read ONNX, and Jangin reads every format."""
FLAGS = {"int8": "--int8", "float16": "--fp16"}
CALIBRATION = 4
"""Random inputs for quantizing a model if no data are given."""


class Unprepared(Exception):
    """A model can't be had in the form that an engine needs. The message tells why."""


@dataclass(frozen=True)
class Prepared:
    """A model's inputs for one batch size. `sizes` fixes its symbols."""

    inputs: Path
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]


class Models:
    """The models of a study. `compiling` has the options of Jangin's compilation."""

    def __init__(self, folder: Path, settings: Settings, compiling: Options) -> None:
        self.folder, self.settings, self.compiling = folder / MODELS, settings, compiling
        self._graphs: dict[str, Graph] = {}
        self._inputs: dict[tuple[str, int], dict[str, Array]] = {}
        self._failed: dict[str, str] = {}

    def prepared(self, name: str, batch: int) -> Prepared:
        """Return a model's inputs and sizes for a batch, and keep the inputs in a file. Raises as `inputs`
        does."""
        path = self.folder / f"{name}-batch{batch}.npz"
        if not path.is_file():
            _keep(path, self.inputs(name, batch))
        return Prepared(path, tuple(self._graph(name).outputs), self._sizes(name, batch))

    def inputs(self, name: str, batch: int) -> dict[str, Array]:
        """Return a model's inputs for a batch. Raises Unprepared if Jangin can't read the model, or if it
        can't have this batch, and ValueError if sizes aren't given."""
        if (name, batch) not in self._inputs:
            self._inputs[name, batch] = self._random(name, self._sizes(name, batch), seed=0)
        return self._inputs[name, batch]

    def file(self, group: Group, engine: str) -> tuple[Path, str]:
        """Return the file of a group's model for an engine, and how it was made. Raises Unprepared."""
        model, wanted = self.settings.model(group.model), READS.get(engine, ".onnx")
        if group.precision in FLAGS:
            if wanted == ".pt2":
                raise Unprepared(f"jangin quantize writes no {wanted} file")
            return self._quantized(group, wanted or ".onnx")
        if wanted in ("", model.suffix):
            return model, ""
        if wanted == ".pt2":
            raise Unprepared("it takes an exported program (.pt2), which can't be made of another format")
        sizes = self.prepared(group.model, group.batch).sizes if wanted == ".tflite" else {}
        made = self.folder / f"{group.model}{f'-batch{group.batch}' if sizes else ''}{wanted}"
        shapes = [word for name, size in sizes.items() for word in ("--shape", f"{name}={size}")]
        self._make(made, ["convert", str(model), str(made), *shapes])
        return made, f"made by jangin convert from {model.suffix or 'a folder'}"

    def reference(self, name: str, batch: int) -> tuple[dict[str, Array], str]:
        """Return a model's outputs in float64, and what computed them, or nothing and the reason."""
        path = self.folder / f"{name}-batch{batch}-float64.npz"
        told = path.with_suffix(".json")
        if not told.is_file():
            given = self.prepared(name, batch)
            group = Group(name, "float32", batch, 1)
            try:
                model, _ = self.file(group, "onnxruntime")
            except Unprepared as error:
                return {}, f"no reference: {error}"
            threads = max(self.settings.threads)
            job = Job("float64", threads, str(model), str(given.inputs), given.outputs, given.sizes)
            with Worker(job, limit=self.settings.limit) as worker:
                outputs, _ = outputs_of(worker, self.folder)
            if not outputs:
                return {}, f"no reference: {worker.problem}"
            (self.folder / "float64.npz").replace(path)
            told.write_text(json.dumps(worker.ready["version"]), encoding="utf-8")
        with np.load(path) as stored:
            return {n: stored[n] for n in stored.files}, json.loads(told.read_text(encoding="utf-8"))

    def _sizes(self, name: str, batch: int) -> dict[str, int]:
        """Return the sizes of a model's symbols for a batch."""
        if self.settings.is_product(name):
            return {}
        symbol = self.settings.batch_symbol or _first_size(self._graph(name))
        sizes = dict(self.settings.shapes)
        if not symbol.isdecimal():
            sizes |= {symbol: batch} if symbol else {}
        elif int(symbol) != batch:
            raise Unprepared(f"the model's batch is fixed at {symbol}")
        return sizes

    def _graph(self, name: str) -> Graph:
        if name not in self._graphs:
            self._graphs[name] = self._read(name, {})
        return self._graphs[name]

    def _random(self, name: str, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
        return make_inputs(self._read(name, sizes), BenchOptions(seed=seed))

    def _read(self, name: str, sizes: Mapping[str, int]) -> Graph:
        model, how = self.settings.model(name), self.compiling
        try:
            with within(how.limits):
                return load(paired(model, how.weights), sizes, how.formats).graph
        except (CompileError, ValueError) as error:
            told = " ".join(str(error).split())[:500]
            raise Unprepared(f"Jangin can't read it, so its inputs aren't known: {told}") from None

    def _quantized(self, group: Group, ending: str) -> tuple[Path, str]:
        model, data = self.settings.model(group.model), self.settings.data
        given = self.prepared(group.model, group.batch)
        sized = f"-batch{group.batch}" if ending == ".tflite" else ""
        made = self.folder / f"{group.model}-{group.precision}{sized}{ending}"
        calibration = self.folder / f"{group.model}-calibration-batch{group.batch}"
        for n in range(0 if data else CALIBRATION):
            if not (calibration / f"{n}.npz").is_file():
                calibration.mkdir(exist_ok=True)
                _keep(calibration / f"{n}.npz", self._random(group.model, given.sizes, seed=n + 1))
        shapes = [w for n, size in given.sizes.items() if sized for w in ("--shape", f"{n}={size}")]
        command = ["quantize", str(model), FLAGS[group.precision], "--data", data or str(calibration)]
        self._make(made, [*command, "-o", str(made), *shapes])
        return made, f"made by jangin quantize with {data or 'random inputs'}"

    def _make(self, made: Path, command: Sequence[str]) -> None:
        """Run a command of Jangin that makes a file, unless the file exists. Raises Unprepared with the last
        line of its error if it fails, at every further call too."""
        if made.exists():
            return
        key = str(made)
        if key not in self._failed:
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "jangin", *self.settings.before, *command],
                    capture_output=True, text=True, timeout=self.settings.limit, check=False,
                )  # fmt: skip
                words = (done.stderr.strip() or f"status {done.returncode}").splitlines()
                said = "" if made.exists() else next((w for w in words if "error:" in w), words[-1])
            except subprocess.TimeoutExpired:
                said = f"it took more than {self.settings.limit:g} s"
            if not said:
                return
            self._failed[key] = said
        raise Unprepared(f"jangin {command[0]} failed: {self._failed[key].strip()[:300]}")


def _keep(path: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays to a file, whole or not at all."""
    write_whole(path, lambda file: np.savez(file, **arrays))  # type: ignore[arg-type]


def _first_size(graph: Graph) -> str:
    """Return the first size of the first input as text, or "" if no input has axes."""
    shapes = [graph.shape(name) for name in graph.inputs]
    return next((str(shape[0]) for shape in shapes if len(shape)), "")
