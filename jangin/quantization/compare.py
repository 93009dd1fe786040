"""`jangin.compare`: find where two models, formats, precisions or engines differ, value by value.

Values are matched by name. If Jangin runs both models, the names are those of lowered graphs, which a model
shares with its quantized or converted form. Otherwise the names are those of the model's tensors. Outputs are
matched by position.

Every compared value is a kernel's result, so that the compared models have more and other kernels than the
original ones. With `replay`, the values between the original models' own kernels are compared; Jangin must
run both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, Unpack

import numpy as np

from jangin.compiler.cases import imported
from jangin.compiler.pipeline import optimize
from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.ir.core import Kernel
from jangin.ir.graph import Array, CompileError, Graph, Shape
from jangin.ir.limits import within
from jangin.ir.program import IN_STEPS
from jangin.ir.records import dataclass
from jangin.options import Common, Options, takes
from jangin.passes.partition import has_steps
from jangin.quantization.data import Data, Reading, present, read
from jangin.quantization.engine import Engine, Tell
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.threads import counted

ENGINES = ("jangin", "onnxruntime")


@dataclass(frozen=True)
class Difference:
    """The difference of one value between two models, the worst over all runs.

    `largest` is the largest difference, as a share of the reference's largest number. `typical` is the root
    mean square of differences, as a share of that of the reference. `source` names the node."""

    name: str
    source: str
    shape: tuple[int, ...]
    largest: float
    typical: float


@dataclass(frozen=True)
class Comparison:
    """The result of a comparison. `differences` are in the order in which the first model computes, with its
    outputs last.

    `first` is the first difference beyond the tolerance."""

    differences: Sequence[Difference]
    tolerance: float

    @property
    def first(self) -> Difference | None:
        return next((d for d in self.differences if not d.largest <= self.tolerance), None)


class Side(Protocol):
    """One of the two models, as an engine runs it."""

    @property
    def inputs(self) -> Sequence[TensorSpec]:
        """The model's inputs."""

    @property
    def outputs(self) -> Sequence[str]:
        """The names of the outputs."""

    def values(self, tensors: bool) -> dict[str, str]:
        """Return the names of the float values that the model can show, in order, with the node that makes
        each. With `tensors`, the names are those of the model's tensors."""

    def ready(self, names: Sequence[str], tensors: bool) -> None:
        """Compile the model so that `run` also returns these values."""

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        """Run the model once. Return the values and the outputs by name."""


@takes(Common)
def compare(
    a: Any,
    b: Any,
    data: Data,
    *,
    engines: tuple[str, str] = ("jangin", "jangin"),
    tolerance: float = 1e-3,
    shapes: Mapping[str, Any] | None = None,
    threads: int | None = None,
    replay: bool = False,
    progress: Tell | None = None,
    pixels: str = "unit",
    crop: float = 1.0,
    tokenizer: Path | None = None,
    limit: int | None = None,
    **given: Unpack[Common],
) -> Comparison:
    """Compare what the models `a` (the reference) and `b` compute on `data`.

    `engines` run them: "jangin", or "onnxruntime" (without optimizations, for ONNX models). `replay` compares
    the values that kernels pass to each other in the models as they are normally compiled. Outputs then have
    the same bits, but values inside a kernel aren't seen. `data.Reading` describes `pixels`, `crop`,
    `tokenizer` and `limit`.

    Raises ValueError if the models' inputs or numbers of outputs differ, or if data doesn't fit."""
    threads = None if threads is None else counted(threads)
    if tolerance < 0:
        raise ValueError(f"tolerance={tolerance} is negative: give 0 or more")
    if replay and set(engines) != {"jangin"}:
        raise ValueError(
            f"replay= is for Jangin's kernels, and the engines are {' and '.join(engines)}: leave replay= out"
        )
    present(data)
    tell: Tell = progress or (lambda done, total, what: None)
    tell(0, 1, "import")
    options = Options(None, shapes, threads, **given)
    sides = [_side(m, e, options, replay) for m, e in zip((a, b), engines, strict=True)]
    one, other = sides
    _alike(one, other)
    tensors = set(engines) != {"jangin"}
    known, common = one.values(tensors), other.values(tensors)
    names = [n for n in known if n in common and n not in one.outputs]
    tell(0, 1, "compile")
    for side in sides:
        side.ready(names, tensors)
    worst: dict[str, Difference] = {}
    feeds = read(data, one.inputs, Reading(pixels, crop, tokenizer, limit))
    for n, run in enumerate(feeds):
        tell(n, len(feeds), "run")
        same = {s.name: run[i.name] for s, i in zip(other.inputs, one.inputs, strict=True)}
        x, y = one.run(run), other.run(same)
        pairs = [(v, v) for v in names] + list(zip(one.outputs, other.outputs, strict=True))
        for v, w in pairs:
            error = difference(v, known.get(v, "output"), x[v], y[w])
            worst[v] = error if v not in worst else _worse(worst[v], error)
    return Comparison(list(worst.values()), tolerance)


def _alike(one: Side, other: Side) -> None:
    if len(one.inputs) != len(other.inputs) or len(one.outputs) != len(other.outputs):
        raise ValueError(
            f"the models have {len(one.inputs)} and {len(other.inputs)} inputs, {len(one.outputs)} and "
            f"{len(other.outputs)} outputs: only models that take and give the same can be compared"
        )
    for x, y in zip(one.inputs, other.inputs, strict=True):
        if len(x.shape) != len(y.shape) or x.dtype != y.dtype:
            raise ValueError(
                f"input {x} of the first model is {y} in the second: only models with equal inputs can be "
                "compared"
            )


def difference(name: str, source: str, a: Array, b: Array) -> Difference:
    """Return the difference of one value. It is infinite if the shapes differ, or if one array has NaN where
    the other has a number."""
    if a.shape != b.shape:
        return Difference(name, f"{source}: {list(a.shape)} against {list(b.shape)}", a.shape, np.inf, np.inf)
    x, y = (v.astype(np.float64) for v in (a, b))
    apart = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    if np.isnan(apart).any():
        return Difference(name, source, a.shape, np.inf, np.inf)
    size = np.abs(x[np.isfinite(x)])
    largest, whole = float(apart.max(initial=0)), float(size.max(initial=0))
    squares = float(np.sqrt((apart**2).mean())) if apart.size else 0.0
    mean = float(np.sqrt((size**2).mean())) if size.size else 0.0
    return Difference(name, source, a.shape, _share(largest, whole), _share(squares, mean))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else (np.inf if part else 0.0)


def _worse(one: Difference, other: Difference) -> Difference:
    largest, typical = max(one.largest, other.largest), max(one.typical, other.typical)
    return replace(one, largest=largest, typical=typical)


def _side(model: Any, engine: str, options: Options, replay: bool) -> Side:
    if engine not in ENGINES:
        raise ValueError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if replay:
        return _Replayed(model, options)
    return _Ours(model, options) if engine == "jangin" else _OnnxRuntime(model, options)


class _Ours:
    """A model that Jangin runs."""

    def __init__(self, model: Any, options: Options) -> None:
        self.options = options
        with within(options.limits):
            self.imported = imported(model, options)
            self.graph = self._lowered(self.imported)
        self.outputs: Sequence[str] = self.graph.outputs
        self.inputs: Sequence[TensorSpec] = [
            TensorSpec(n, self.graph.dtype(n).numpy, tuple(map(_size, self.graph.shape(n))))
            for n in self.graph.inputs
        ]

    def _lowered(self, model: Imported) -> Graph:
        options = self.options
        return _tensors_only(lower(model, options.lowerings, unchecked=options.unchecked))

    def values(self, tensors: bool) -> dict[str, str]:
        nodes = self.imported.graph.nodes if tensors else self.graph.nodes
        titles = {out: n.source.title or n.name for n in nodes for out in n.outputs if out}
        if tensors:
            return titles
        own = {out for n in self.imported.graph.nodes for out in n.outputs}

        def is_told(value: str) -> bool:
            """Tell if a value may be compared: it is the author's, or its generated name has no number.
            Another model's lowering may give the same numbered name to another value."""
            return value in own or not value.rpartition(".")[2].isdecimal()

        return {v: s for v, s in titles.items() if is_told(v) and self.graph.dtype(v).is_float}

    def ready(self, names: Sequence[str], tensors: bool) -> None:
        graph = self.graph
        if tensors:
            whole = replace(self.imported.graph, outputs=(*self.outputs, *names))
            with within(self.options.limits):
                graph = self._lowered(replace(self.imported, graph=whole))
        self.engine = Engine(graph, self.options, () if tensors else names)

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return self.engine.run(feeds)


class _Replayed(_Ours):
    """A model with the kernels of its normal compilation, whose results can be shown.

    `seen` maps a value's name in the lowered graph to its name in the fused graph."""

    def __init__(self, model: Any, options: Options) -> None:
        super().__init__(model, options)
        with within(options.limits):
            self.fused = optimize(self.graph, options, until="halves")
        kept_values = [o for n in self.fused.nodes if isinstance(n.attrs, Kernel) for o in n.outputs]
        originals = {name: value for value in kept_values if (name := self.original(value))}
        self.seen = {name: value for name, value in originals.items() if self.fused.dtype(value).is_float}

    def original(self, value: str) -> str:
        """Return the name of the lowered graph's value that a value of the fused graph equals, apart from an
        order with channels last. Return "" if there is none."""
        name = next((n for n in (value, *_shorter(value)) if n in self.graph.values), "")
        shapes = (self.graph.shape(name), _last(self.graph.shape(name))) if name else ()
        return name if self.fused.shape(value) in shapes else ""

    def values(self, tensors: bool) -> dict[str, str]:
        return {v: s for v, s in super().values(False).items() if v in self.seen}

    def ready(self, names: Sequence[str], tensors: bool) -> None:
        self.names = names
        wanted = [self.seen[n] for n in names]
        self.engine = Engine(self.fused, self.options, wanted, kernels=True)

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        arrays = dict(self.engine.run(feeds))
        for name in self.names:
            array, first = arrays[self.seen[name]], self.graph.shape(name)
            turned = self.fused.shape(self.seen[name]) != first
            arrays[name] = np.moveaxis(array, -1, 1) if turned else array
        return arrays


def _shorter(value: str) -> list[str]:
    """Return the names that a value may have had before passes appended to its name."""
    parts = value.split(".")
    return [".".join(parts[:n]) for n in range(len(parts) - 1, 0, -1)]


def _last(shape: Shape) -> Shape:
    """Return a shape with the channels last."""
    return (shape[0], *shape[2:], shape[1]) if len(shape) > 2 else shape


def _tensors_only(graph: Graph) -> Graph:
    if has_steps(graph):
        raise CompileError(f"{graph.name or 'the model'} can't be compared value by value: {IN_STEPS}")
    return graph


def _size(d: Any) -> int | str:
    return int(d.value) if hasattr(d, "value") else str(d)


class _OnnxRuntime:
    """An ONNX model that ONNX Runtime runs without optimizations."""

    def __init__(self, model: Any, options: Options) -> None:
        import onnx

        self.proto = onnx.load(model) if isinstance(model, (str, Path)) else onnx.load_from_string(model)
        self.threads = options.threads
        self.outputs: Sequence[str] = [o.name for o in self.proto.graph.output]
        self.inputs: Sequence[TensorSpec] = _Ours(model, options).inputs

    def values(self, tensors: bool) -> dict[str, str]:
        nodes = self.proto.graph.node
        return {out: f"{n.op_type} '{n.name}'" for n in nodes for out in n.output if out}

    def ready(self, names: Sequence[str], tensors: bool) -> None:
        import onnx

        try:
            import onnxruntime as ort
        except ModuleNotFoundError:
            raise ValueError("ONNX Runtime isn't installed: pip install 'jangin[bench]'") from None
        whole = onnx.ModelProto()
        whole.CopyFrom(self.proto)
        whole.graph.output.extend(onnx.ValueInfoProto(name=n) for n in names)
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = self.threads or 0
        options.log_severity_level = 3
        data, providers = whole.SerializeToString(), ["CPUExecutionProvider"]
        self.session = ort.InferenceSession(data, options, providers=providers)
        self.names = [*self.outputs, *names]

    def run(self, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
        return dict(zip(self.names, self.session.run(self.names, dict(feeds)), strict=True))
