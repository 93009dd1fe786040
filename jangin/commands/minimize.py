"""`jangin inspect --minimize`: find the smallest part of an ONNX model that still fails.

The method is delta debugging over the model's nodes (Zeller, Hildebrandt: Simplifying and Isolating
Failure-Inducing Input, 2002). The value of a dropped node becomes a constant if it is known at compile time.
Otherwise it becomes an input of the inferred type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnx.reference.ops.op_dequantize_linear import DequantizeLinear_19
from onnx.reference.ops.op_quantize_linear import QuantizeLinear_19

from jangin.commands.common import Settings, fixed_sizes, progress, random_input, terminal
from jangin.compiler.driver import compile_by
from jangin.files import write_whole
from jangin.ir.graph import Array
from jangin.runtime.sizes import TensorSpec

Test = Callable[[onnx.ModelProto], str]
"""A function that returns a description of a model's failure, or "" if the model doesn't fail."""
Tell = Callable[[int, int, str], None]
SMALL = 4096
"""A value known at compile time is kept as a constant if it has at most this many elements. Shapes and
indices have fewer, and the written model stays small."""
TOLERANCE = {"float16": 3e-2, "bfloat16": 1e-1, "float32": 1e-3, "float64": 1e-6}
"""The largest allowed difference of a result, as a share of its largest value."""


def minimize(
    model: Path, settings: Settings, output: Path, shapes: Sequence[str], target: str | None
) -> onnx.ModelProto | None:
    """Write the smallest part that fails like the model, and return it. Return None if the model doesn't
    fail.

    The failure is an error of the compilation. If the model compiles, the failure is a difference from ONNX's
    ReferenceEvaluator on random inputs."""
    options = settings.options(target, shapes, 1, cache=False)
    bound, whole = options.shapes, onnx.load(model)
    console = terminal()

    def compiled(part: onnx.ModelProto) -> Any:
        names = _symbols(part) | {i.name for i in part.graph.input}
        kept = {name: size for name, size in bound.items() if name in names}
        return compile_by(options.but(shapes=kept), part)

    test = failure(compiled)
    reason = test(whole)
    recorded: Mapping[str, Array] = {}
    if not reason:
        recorded = evaluated(whole, bound)
        test = difference(compiled, recorded)
        reason = test(whole)
    if not reason:
        console.print(
            "the model compiles, and gives what ONNX's ReferenceEvaluator gives: nothing to minimize"
        )
        return None
    with progress(settings) as tell:
        part = smallest(whole, test, recorded, tell)
    write_whole(output, lambda file: file.write(part.SerializeToString()))
    console.print(test(part), soft_wrap=True)
    console.print(f"{len(part.graph.node)} of {len(whole.graph.node)} nodes fail so: {output}")
    return part


def failure(compiled: Callable[[onnx.ModelProto], Any]) -> Test:
    """Return a test for compilation errors. A part fails if its error and its cause have the types of the
    first error."""
    alike = _Alike()

    def test(part: onnx.ModelProto) -> str:
        try:
            compiled(part)
        except Exception as error:  # any error may be the one that is looked for
            return alike(error)
        return ""

    return test


class _Alike:
    """Describes an error. The description is "" if the error's type or its cause's differs from the first
    error's."""

    def __init__(self) -> None:
        self.first: list[type] = []

    def __call__(self, error: Exception) -> str:
        kinds = [type(e) for e in (error, error.__cause__) if e is not None]
        self.first = self.first or kinds
        return f"{type(error).__name__}: {error}" if kinds == self.first else ""


def difference(compiled: Callable[[onnx.ModelProto], Any], values: Mapping[str, Array]) -> Test:
    """Return a test for wrong results. A part fails if its run on the recorded inputs raises an error, or
    gives other results than the recorded ones."""
    alike = _Alike()

    def test(part: onnx.ModelProto) -> str:
        constants = {t.name for t in part.graph.initializer}
        try:
            exe = compiled(part)
        except Exception:  # the whole model compiles, so this is another failure
            return ""
        try:
            results = exe.run({i.name: values[i.name] for i in part.graph.input if i.name not in constants})
        except Exception as error:  # any error may be the one that is looked for
            return alike(error)
        wrong = (_apart(name, np.asarray(y), values[name]) for name, y in results.items())
        return next(filter(None, wrong), "")

    return test


def _apart(name: str, got: Array, want: Array) -> str:
    if got.shape != want.shape:
        return f"result {name} has shape {got.shape}, not {want.shape}"
    limit = TOLERANCE.get(str(want.dtype))
    if limit is None:
        wrong = int((got != want).sum())
        return f"result {name} differs in {wrong} of {got.size} elements" if wrong else ""
    a, b = got.astype(np.float64), want.astype(np.float64)
    scale = float(np.abs(b[np.isfinite(b)]).max(initial=0))
    close = np.isclose(a, b, rtol=0, atol=limit * max(scale, 1e-6), equal_nan=True)
    off = float(np.abs(a - b)[~close].max(initial=0))
    return "" if close.all() else f"result {name} is off by {off:.3g} where its largest value is {scale:.3g}"


def smallest(
    model: onnx.ModelProto, test: Test, recorded: Mapping[str, Array] | None = None, tell: Tell | None = None
) -> onnx.ModelProto:
    """Return a part of the model that fails by `test`, and of which the search finds no smaller part that
    fails. `recorded` values give the shapes of inputs without an inferred shape."""
    cutter = _Cutter(model, recorded or {})
    total = len(model.graph.node)
    best = list(range(total))
    parts = 2
    while len(best) > 1:
        if tell is not None:
            tell(total - len(best), total, f"{len(best)} nodes")
        chunks = _chunks(best, parts)
        others = [[n for n in best if n not in set(c)] for c in chunks] if parts > 2 else []
        subset = next(
            (c for c in (*chunks, *others) if (part := cutter.part(c)) is not None and test(part)), None
        )
        if subset is not None:
            parts = 2 if subset in chunks else max(parts - 1, 2)
            best = subset
        elif parts < len(best):
            parts = min(2 * parts, len(best))
        else:
            break
    return cutter.part(best) or model


def _chunks(items: Sequence[int], parts: int) -> list[list[int]]:
    return [list(c) for c in np.array_split(np.array(items), parts)]


class _Cutter:
    """Makes models of some of a model's nodes."""

    def __init__(self, model: onnx.ModelProto, recorded: Mapping[str, Array]) -> None:
        self.model = model
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
        infos = (*inferred.graph.value_info, *inferred.graph.output, *inferred.graph.input)
        self.infos = {i.name: i for i in infos if _has_type(i)}
        for name, array in recorded.items():
            if name not in self.infos and isinstance(array, np.ndarray) and array.dtype != object:
                code = helper.np_dtype_to_tensor_dtype(array.dtype)
                self.infos[name] = helper.make_tensor_value_info(name, code, array.shape)
        self.constants = {t.name: t for t in model.graph.initializer}
        self.constants |= {n: numpy_helper.from_array(a, n) for n, a in self._known().items()}
        self.reads = [list(dict.fromkeys(_reads(n))) for n in model.graph.node]

    def part(self, kept: Sequence[int]) -> onnx.ModelProto | None:
        """Return the model that consists of these nodes, or None if an input's type isn't known."""
        nodes = [self.model.graph.node[i] for i in kept]
        produced = {o for n in nodes for o in n.output if o}
        read = dict.fromkeys(name for i in kept for name in self.reads[i])
        wanted = {o.name for o in self.model.graph.output}
        outputs = [o for n in nodes for o in n.output if o and (o not in read or o in wanted)]
        inputs = [n for n in read if n not in produced and n not in self.constants]
        if any(n not in self.infos for n in inputs) or not outputs:
            return None
        graph = helper.make_graph(
            nodes,
            self.model.graph.name,
            [self.infos[n] for n in inputs],
            [self.infos.get(n) or helper.make_empty_tensor_value_info(n) for n in outputs],
            [self.constants[n] for n in read if n in self.constants and n not in produced],
        )
        part = onnx.ModelProto()
        part.CopyFrom(self.model)
        part.graph.CopyFrom(graph)
        return part

    def _known(self) -> dict[str, Array]:
        """Return the small values that follow from constants and fixed shapes alone, by name."""
        known = {n: numpy_helper.to_array(t) for n, t in self.constants.items() if np.prod(t.dims) <= SMALL}
        opsets = {o.domain: o.version for o in self.model.opset_import}
        for node in self.model.graph.node:
            if (
                node.op_type in ("Shape", "Size")
                and (shape := _fixed(self.infos.get(node.input[0]))) is not None
            ):
                feeds = {node.input[0]: np.broadcast_to(np.float32(0), shape)}
            elif all(n in known or not n for n in _reads(node)):
                feeds = {n: known[n] for n in _reads(node) if n}
            else:
                continue
            try:
                results = ReferenceEvaluator(node, opsets=opsets).run(None, feeds)
            except Exception:  # the evaluator lacks the operator, so its result becomes an input
                continue
            for name, value in zip(node.output, results, strict=True):
                if isinstance(value, np.ndarray) and value.size <= SMALL and value.dtype != object:
                    known[name] = value
        return {n: a for n, a in known.items() if n not in self.constants}


def _reads(node: onnx.NodeProto) -> Iterable[str]:
    """Yield the values that a node reads, including those that its sub-graphs read."""
    yield from filter(None, node.input)
    for a in node.attribute:
        for graph in (a.g, *a.graphs) if a.HasField("g") or a.graphs else ():
            own = {*(i.name for i in graph.input), *(t.name for t in graph.initializer)}
            own |= {o for n in graph.node for o in n.output}
            yield from (n for inner in graph.node for n in _reads(inner) if n not in own)
            yield from (o.name for o in graph.output if o.name not in own)


def _has_type(info: onnx.ValueInfoProto) -> bool:
    kind = info.type.WhichOneof("value")
    return kind is not None and (kind != "tensor_type" or info.type.tensor_type.HasField("shape"))


def _fixed(info: onnx.ValueInfoProto | None) -> tuple[int, ...] | None:
    if info is None or not info.type.HasField("tensor_type"):
        return None
    dims = info.type.tensor_type.shape.dim
    return tuple(d.dim_value for d in dims) if all(d.HasField("dim_value") for d in dims) else None


def _symbols(model: onnx.ModelProto) -> set[str]:
    return {d.dim_param for i in model.graph.input for d in i.type.tensor_type.shape.dim if d.dim_param}


def evaluated(model: onnx.ModelProto, bound: Mapping[str, Any]) -> dict[str, Array]:
    """Run ONNX's ReferenceEvaluator on random inputs, and return every value of the model's main graph by
    name. Sizes that aren't fixed are 2."""
    everything = onnx.ModelProto()
    everything.CopyFrom(model)
    names = [o for n in model.graph.node for o in n.output if o]
    del everything.graph.output[:]
    everything.graph.output.extend(map(helper.make_empty_tensor_value_info, names))
    constants = {t.name for t in model.graph.initializer}
    sizes = dict.fromkeys(_symbols(model), 2) | fixed_sizes(bound)
    feeds: dict[str, Array] = {}
    for i, info in enumerate(v for v in model.graph.input if v.name not in constants):
        declared = info.type.tensor_type
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(declared.elem_type))
        whole = bound.get(info.name)
        shape = tuple(
            (whole[n] if isinstance(whole, tuple) else None) or d.dim_param or d.dim_value
            for n, d in enumerate(declared.shape.dim)
        )
        feeds[info.name] = random_input(TensorSpec(info.name, dtype, shape), sizes, i)
    return feeds | dict(zip(names, _reference(everything).run(None, feeds), strict=True))


def _reference(model: onnx.ModelProto) -> ReferenceEvaluator:
    """Return ONNX's evaluator for a model. For opsets before 19 it gets the quantization operators of opset
    19, which compute the same, because it lacks the older ones."""
    version = next((i.version for i in model.opset_import if i.domain in ("", "ai.onnx")), 1)
    if version >= 19:
        return ReferenceEvaluator(model)

    class QuantizeLinear(QuantizeLinear_19):  # type: ignore[misc]
        op_domain = ""

        def _run(self, *inputs: Array, axis: int | None = None, **_: Any) -> tuple[Array, ...]:
            return super()._run(*inputs, axis=1 if axis is None else axis, saturate=1)  # type: ignore[no-any-return]

    class DequantizeLinear(DequantizeLinear_19):  # type: ignore[misc]
        op_domain = ""

        def _run(self, *inputs: Array, axis: int | None = None, **_: Any) -> tuple[Array, ...]:
            return super()._run(*inputs, axis=1 if axis is None else axis)  # type: ignore[no-any-return]

    return ReferenceEvaluator(model, new_ops=[QuantizeLinear, DequantizeLinear])
