"""Prepare a study's models: inputs, files in the formats that engines read, small numbers, and the results in
float64.

Files are converted by `jangin convert` and quantized by `jangin quantize`, in processes of their own. They
stay in the report's folder, so that a study that is resumed doesn't make them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from jangin.bench.arrays import load_arrays, save_arrays
from jangin.bench.engine import Job
from jangin.bench.engines import reads
from jangin.bench.files import Maker, Unprepared, file_for, shape_words
from jangin.bench.measure import Options as BenchOptions
from jangin.bench.measure import Worker, difference, make_inputs, outputs_of
from jangin.compiler.request import with_winners
from jangin.files import write_text, writing
from jangin.frontends.format import paired
from jangin.frontends.table import load
from jangin.ir.expr import Const, Expr, Var
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.limits import within
from jangin.ir.own_names import own_name, own_sizes, own_text
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.study.rows import CPU, Group
from jangin.study.settings import MODELS, Settings

FLAGS = {"int8": "--int8", "float16": "--fp16"}
CALIBRATION = 4
"""Random inputs for quantizing a model if no data are given. They set ranges for a measurement of time, on
which more inputs have no effect."""


@dataclass(frozen=True)
class Prepared:
    """A model's inputs for one batch size, as a file. `sizes` has the sizes of the model's symbols."""

    inputs: Path
    outputs: tuple[str, ...]
    sizes: Mapping[str, int]


class Models:
    """The models of a study, and the files that are made from them. `compiling` has the options of Jangin's
    compilation."""

    def __init__(self, folder: Path, settings: Settings, compiling: Options) -> None:
        self.folder, self.settings, self.compiling = folder / MODELS, settings, compiling
        self._graphs: dict[str, Graph] = {}
        self._inputs: dict[tuple[str, int], dict[str, Array]] = {}
        self._make = Maker(settings.before, settings.limit + settings.tune)

    def prepared(self, name: str, batch: int) -> Prepared:
        """Return a model's inputs and sizes for a batch size. The inputs are saved in a file. Raises the
        errors of `inputs`."""
        path = self._made(name) / f"batch{batch}.npz"
        if not path.is_file():
            save_arrays(path, self.inputs(name, batch))
        return Prepared(path, tuple(self._graph(name).outputs), self._sizes(name, batch))

    def inputs(self, name: str, batch: int) -> dict[str, Array]:
        """Return arrays for a model's inputs, for a batch size. Raises Unprepared if Jangin can't read the
        model, or if the model can't have this batch size. Raises ValueError if other sizes aren't given."""
        if (name, batch) not in self._inputs:
            self._inputs[name, batch] = self._random(name, self._sizes(name, batch), seed=0)
        return self._inputs[name, batch]

    def file(self, group: Group, engine: str) -> tuple[Path, str]:
        """Return the file of a group's model for an engine, and how it was made. Raises Unprepared."""
        model = self.settings.model(group.model)
        if group.precision in FLAGS:
            wanted = reads(engine) or ".onnx"
            if wanted in (".pt2", ".gguf"):
                raise Unprepared(f"jangin quantize writes no {wanted} file")
            return self._quantized(group, wanted)
        sizes = self.prepared(group.model, group.batch).sizes if reads(engine) == ".tflite" else {}
        return file_for(
            engine, model, sizes, self._made(group.model), self._make, sized=f"-batch{group.batch}"
        )

    def tuned(self, group: Group, path: Path) -> Options:
        """Return the options of a compilation with the candidates that tuning chose for a group's model. The
        model is tuned once on this machine, and `path` is the file of the result. Raises Unprepared."""
        folder = self._made(group.model) / "tuned"
        prepared = self.prepared(group.model, group.batch)
        figures = folder / f"{group.precision}-batch{group.batch}-{group.device}-{group.threads}.json"
        shapes = shape_words(prepared.sizes)
        device = [] if group.device == CPU else ["--target", group.device]
        folder.mkdir(exist_ok=True)
        budget = f"{self.settings.tune:g}s"
        command = ["tune", str(path), "--budget", budget, "--threads", str(group.threads), *shapes, *device]
        self._make(figures, [*command, "--json", str(figures)], ["--cache-dir", str(folder)])
        return with_winners(self.untuned(group).but(cache=folder), group.threads)

    def untuned(self, group: Group) -> Options:
        """Return the options of a compilation without tuning, for a group of rows (`study.rows.Group`).
        Raises the errors of `prepared`."""
        sizes = dict(self.prepared(group.model, group.batch).sizes)
        options = self.compiling.but(shapes=sizes, threads=group.threads)
        target = self.settings.target if self.settings.host else group.device
        return options if target == CPU else options.but(target=target)

    def reference(self, name: str, batch: int) -> tuple[dict[str, Array], str]:
        """Return a model's outputs in float64, and the name of the program that computed them. If there are
        none, return an empty dictionary and the reason."""
        path = self._made(name) / f"batch{batch}-float64.npz"
        told = path.with_suffix(".json")
        if not told.is_file():
            prepared = self.prepared(name, batch)
            group = Group(name, "float32", batch, 1)
            try:
                model, _ = self.file(group, "onnxruntime")
            except Unprepared as error:
                return {}, f"no reference: {error}"
            threads = max(self.settings.threads)
            job = Job("float64", threads, str(model), str(prepared.inputs), prepared.outputs, prepared.sizes)
            with Worker(job, limit=self.settings.limit) as worker:
                outputs, _ = outputs_of(worker, self.folder)
            if not outputs:
                return {}, f"no reference: {worker.problem}"
            (self.folder / "float64.npz").replace(path)
            write_text(told, json.dumps(worker.ready["version"]))
        return load_arrays(path), json.loads(told.read_text(encoding="utf-8"))

    def own_error(self, group: Group) -> float:
        """Return the error that quantizing itself makes: the difference between a quantized model in ONNX
        Runtime and the float64 reference. It is a share of an output's largest value. Return 0 for models
        that aren't quantized, and if it isn't known."""
        if group.precision not in FLAGS:
            return 0.0
        path = self._made(group.model) / f"{group.precision}-batch{group.batch}-error.json"
        if not path.is_file():
            prepared = self.prepared(group.model, group.batch)
            model, _ = self.file(replace(group, device=CPU), "reference")
            job = Job(
                "reference", group.threads, str(model), str(prepared.inputs), prepared.outputs, prepared.sizes
            )
            with Worker(job, limit=self.settings.limit) as worker:
                outputs, _ = outputs_of(worker, self.folder)
            (self.folder / "reference.npz").unlink(missing_ok=True)
            wanted, _ = self.reference(group.model, group.batch)
            error = difference(outputs, wanted) if outputs and wanted else 0.0
            write_text(path, json.dumps(error))
        known_error: float = json.loads(path.read_text(encoding="utf-8"))
        return known_error

    def symbols(self, name: str) -> set[str]:
        """Return the names of a model's free sizes. Raises Unprepared if Jangin can't read the model."""
        return {own_name(symbol) for symbol in self._graph(name).symbols}

    def _made(self, name: str) -> Path:
        """Return the folder of the files that are made from a model. Each model has its own folder, because a
        name with a suffix may be another model's name."""
        folder = self.folder / name
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _sizes(self, name: str, batch: int) -> dict[str, int]:
        """Return the sizes of a model's symbols for a batch."""
        if self.settings.is_product(name):
            return {}
        named, known = self.settings.batch_symbol, self.symbols(name)
        first = Var(named) if named else _first_size(self._graph(name))
        sizes = {n: s for n, s in self.settings.shapes.items() if n in known}
        if isinstance(first, int):
            if first != batch:
                raise Unprepared(f"the model's batch is fixed at {first}")
            return sizes
        if not isinstance(first, Var):
            raise Unprepared(f"the model's first size is {first}: name the batch, --batch NAME={batch}")
        if first.name not in known:
            free = ", ".join(sorted(known)) or "none"
            raise Unprepared(f"the model has no size {first.name!r}; its free sizes are {free}")
        return sizes | {first.name: batch}

    def _graph(self, name: str) -> Graph:
        if name not in self._graphs:
            graph = self._read(name, {})
            untold = next((v for v in map(graph.value, graph.inputs) if v.shape is None), None)
            if untold is not None:
                told = own_text(str(untold), graph.symbols)
                raise Unprepared(f"Jangin makes no inputs of the type {told}")
            self._graphs[name] = graph
        return self._graphs[name]

    def _random(self, name: str, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
        return make_inputs(self._read(name, sizes), BenchOptions(seed=seed))

    def _read(self, name: str, sizes: Mapping[str, int]) -> Graph:
        model, how = self.settings.model(name), self.compiling
        try:
            with within(how.limits):
                return load(paired(model, how.weights), sizes, how.formats).graph
        except (CompileError, ValueError, OSError, ModuleNotFoundError) as error:
            told = " ".join(str(error).split())[:500]
            raise Unprepared(f"Jangin can't read the model, so its inputs aren't known: {told}") from None

    def _quantized(self, group: Group, ending: str) -> tuple[Path, str]:
        model, data = self.settings.model(group.model), self.settings.data
        prepared = self.prepared(group.model, group.batch)
        sized = f"-batch{group.batch}" if ending == ".tflite" else ""
        converted = self._made(group.model) / f"{group.precision}{sized}{ending}"
        calibration = self._made(group.model) / f"calibration-batch{group.batch}"
        for n in range(0 if data else CALIBRATION):
            path = calibration / f"{n}.npz"
            if not path.is_file():
                calibration.mkdir(exist_ok=True)
                save_arrays(path, self._random(group.model, prepared.sizes, seed=n + 1))
        shapes = shape_words(prepared.sizes if sized else {})
        command = ["quantize", str(model), FLAGS[group.precision], "--data", data or str(calibration)]
        self._make(converted, [*command, "-o", str(converted), *shapes])
        return converted, f"made by jangin quantize with {data or 'random inputs'}"


def _first_size(graph: Graph) -> int | Expr:
    """Return the first size of the first input under the model's names, or 1 if no input has axes."""
    shapes = [graph.shape(name) for name in graph.inputs]
    first = next((own_sizes(shape[0]) for shape in shapes if len(shape)), None)
    return 1 if first is None else int(first.value) if isinstance(first, Const) else first
