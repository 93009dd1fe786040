"""Random ONNX models that grow one node at a time. Each node is evaluated as it is added.

Each value is computed twice, with floats in double precision. One result is exact, by ONNX's
ReferenceEvaluator. The other is shaken: each node's result is off by about one rounding of the model's
precision. The difference of the two is the allowed rounding error of a right result. A node that enlarges it
(a step function, a difference of equals) is not added.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, TypeVar

import ml_dtypes
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

Array = NDArray[Any]
T = TypeVar("T")
BF16 = np.dtype(ml_dtypes.bfloat16)
OPSETS = (13, 15, 17, 18, 19, 20, 21, 22, 23, 24)
SIZES = (1, 1, 2, 2, 3, 4, 5, 7, 8, 9, 16, 17)
FLOATS = ("float32",) * 8 + ("float64", "float16", "bfloat16")
INTEGERS = ("int64", "int64", "int32", "int32", "uint8", "int8", "int16", "uint16", "uint32", "uint64")
ROUNDING = {"float64": 3e-8, "float32": 2e-6, "float16": 2e-3, "bfloat16": 1.6e-2}
"""The relative size of a shake, for a result's largest value: a few roundings."""
ELEMENTS = 3000
LARGEST = 200.0
"""The largest float that a node may give."""
OF_SOMETHING = ("ArgMax", "ArgMin", "AveragePool", "MaxPool", "ReduceMax", "ReduceMean", "ReduceMin")
INDEXED = ("Gather", "GatherElements", "GatherND", "ReverseSequence", "ScatterElements", "ScatterND")
DECIDED = 0.03
"""The largest change by shaking, as a share of a value's scale. Beyond it a node is ill-conditioned."""


@dataclass(frozen=True)
class Item:
    """A value of the model, with its name and dtype, and its exact and shaken numbers in one run."""

    name: str
    dtype: str
    exact: Array
    shaken: Array

    @property
    def rank(self) -> int:
        return self.exact.ndim

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.exact.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in ROUNDING

    @property
    def tolerance(self) -> float:
        """The largest allowed error of an element."""
        scale = float(np.abs(self.exact).max(initial=0))
        apart = float(np.abs(self.exact - self.shaken).max(initial=0))
        return 8 * apart + 4 * ROUNDING[self.dtype] * max(scale, 0.1)


@dataclass(frozen=True)
class Step:
    """A node of the model. `wide` is the same node in double precision. `outer` are the values that
    sub-graphs read."""

    node: onnx.NodeProto
    wide: onnx.NodeProto
    dtypes: tuple[str, ...]
    seed: int
    outer: tuple[str, ...] = ()

    @property
    def reads(self) -> list[str]:
        return [*filter(None, self.node.input), *self.outer]


@dataclass
class Net:
    """A model that grows, with the source of its random decisions. `size` is the size of the symbol `n` while
    it grows."""

    r: Random
    opset: int
    size: int
    symbolic: dict[str, tuple[int | str, ...]] = field(default_factory=dict)
    feeds: dict[str, Array] = field(default_factory=dict)
    constants: dict[str, Array] = field(default_factory=dict)
    steps: list[Step] = field(default_factory=list)
    pool: list[Item] = field(default_factory=list)
    count: int = 0
    """The number of steps that were ever made. Names are made from it."""

    def pick(self, options: Sequence[T]) -> T:
        return self.r.choice(options)

    def number(self, low: int, high: int) -> int:
        return self.r.randint(low, high)

    def flag(self, chance: float = 0.5) -> bool:
        return self.r.random() < chance

    def axis(self, x: Item) -> int:
        return self.number(-x.rank, x.rank - 1)

    def axes(self, x: Item, most: int | None = None) -> list[int]:
        chosen = self.r.sample(range(x.rank), self.number(1, min(x.rank, most or x.rank)))
        return [a - x.rank if self.flag(0.3) else a for a in chosen]

    def random(self, dtype: str, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Array:
        """Draw numbers for an input or a constant: floats in low..high, small integers, or booleans."""
        rng = np.random.default_rng(self.number(0, 1 << 30))
        if dtype == "bool":
            return rng.random(shape) < 0.5
        if dtype in ROUNDING:
            return rng.uniform(low, high, shape).astype(numpy_type(dtype))
        return rng.integers(0 if dtype[0] == "u" else -9, 10, shape).astype(dtype)

    def input(self, dtype: str, shape: Sequence[int | str]) -> Item:
        name = f"x{len(self.feeds)}"
        array = self.random(dtype, [self.size if d == "n" else int(d) for d in shape])
        self.symbolic[name], self.feeds[name] = tuple(shape), array
        self.pool.append(given(name, array))
        return self.pool[-1]

    def const(self, array: Array | Sequence[Any], dtype: str = "") -> Item:
        made = np.asarray(array, numpy_type(dtype) if dtype else None)
        name = f"c{len(self.constants)}"
        self.constants[name] = made
        return given(name, made)

    def weight(self, dtype: str, *shape: int) -> Item:
        scale = 1 / math.sqrt(max(1, math.prod(shape[1:])))
        return self.const(self.random(dtype, shape, -scale, scale))

    def add(
        self, op: str, inputs: Sequence[Item | None], outputs: int = 1, **attrs: Any
    ) -> list[Item] | None:
        """Add a node and return its results. None if it is not allowed, can't be evaluated, or can't be
        compared."""
        given_names = ["" if x is None else x.name for x in inputs]
        while given_names and not given_names[-1]:
            given_names.pop()
        try:
            schema = onnx.defs.get_schema(op, self.opset, "")
        except onnx.defs.SchemaError:
            return None
        if any(a not in schema.attributes for a in attrs) or not allowed(schema, inputs):
            return None
        names = [f"v{self.count}{'abc'[i]}" for i in range(outputs)]
        node = helper.make_node(op, given_names, names, name=f"{op.lower()}{self.count}", **attrs)
        wide, seed = widened(node), self.number(0, 1 << 30)
        known = {x.name: x for x in inputs if x is not None}
        exact = self.evaluated(wide, {n: x.exact for n, x in known.items()})
        dtypes = None if exact is None else result_types(schema, node, inputs, exact)
        if exact is None or dtypes is None:
            return None
        return self.take(Step(node, wide, dtypes, seed), known, exact)

    def evaluated(self, wide: onnx.NodeProto, known: Mapping[str, Array]) -> list[Array] | None:
        """Evaluate a node in double precision. None if the reference refuses it."""
        try:
            return evaluate(wide, known, self.opset)
        except Exception:  # the operator doesn't take the drawn attributes or shapes, so there is no step
            return None

    def take(self, step: Step, known: Mapping[str, Item], exact: Sequence[Array]) -> list[Item] | None:
        """Add a step and return its results. None if they can't be compared."""
        items = self.compared(step, known, exact)
        if items is None:
            return None
        self.count += 1
        self.steps.append(step)
        self.pool += items
        return items

    def compared(self, step: Step, known: Mapping[str, Item], exact: Sequence[Array]) -> list[Item] | None:
        """Return a step's results, exact and shaken. None if they can't be compared."""
        shaken = self.evaluated(step.wide, {n: x.shaken for n, x in known.items()})
        if shaken is None:
            return None
        items = [
            Item(n, d, e, shake(s, d, step.seed + i) if d in ROUNDING else s)
            for i, (n, d, e, s) in enumerate(zip(step.node.output, step.dtypes, exact, shaken, strict=True))
        ]
        return items if all(map(decided, items)) else None

    def one(self, op: str, *inputs: Item | None, **attrs: Any) -> Item | None:
        made = self.add(op, inputs, **attrs)
        return made[0] if made else None

    def model(self) -> onnx.ModelProto:
        """Return the model. Its outputs are all results that nothing reads, and one more."""
        infos = [
            helper.make_tensor_value_info(n, code(str(a.dtype)), self.symbolic[n])
            for n, a in self.feeds.items()
        ]
        read = {n for s in self.steps for n in s.reads}
        made = [o for s in self.steps for o in s.node.output]
        outputs = [n for n in made if n not in read] or [next(iter(self.feeds))]
        inner = [n for n in made if n in read]
        if inner and self.flag():
            outputs.append(self.pick(inner))
        graph = helper.make_graph(
            [s.node for s in self.steps],
            "random",
            infos,
            [helper.make_empty_tensor_value_info(n) for n in outputs],
            [tensor(n, a) for n, a in self.constants.items()],
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)], ir_version=10)

    def results(self, feeds: Mapping[str, Array]) -> dict[str, Item] | None:
        """Return every result for other inputs. None if the model can't run on them, or can't be compared."""
        items = {n: given(n, a) for n, a in {**self.constants, **feeds}.items()}
        for step in self.steps:
            known = {n: items[n] for n in step.reads}
            exact = self.evaluated(step.wide, {n: x.exact for n, x in known.items()})
            made = None if exact is None else self.compared(step, known, exact)
            if made is None:
                return None
            items |= {x.name: x for x in made}
        return items

    def resized(self, size: int) -> dict[str, Array] | None:
        """Return inputs for another value of the symbol. None if indices may then be out of range, or if an
        operator that needs elements would get none."""
        left_out = INDEXED if size else (*INDEXED, *OF_SOMETHING)
        if any(s.node.op_type in left_out for s in self.steps):
            return None
        return {
            n: self.random(str(self.feeds[n].dtype), [size if d == "n" else int(d) for d in shape])
            for n, shape in self.symbolic.items()
        }


def numpy_type(dtype: str) -> np.dtype[Any]:
    return BF16 if dtype == "bfloat16" else np.dtype(dtype)


def code(dtype: str) -> int:
    return int(
        TensorProto.BFLOAT16 if dtype == "bfloat16" else helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    )


def tensor(name: str, array: Array) -> TensorProto:
    if array.dtype == BF16:
        raw = array.view(np.uint16).tobytes()
        return helper.make_tensor(name, TensorProto.BFLOAT16, array.shape, raw, raw=True)
    return numpy_helper.from_array(array, name)


def given(name: str, array: Array) -> Item:
    dtype = str(array.dtype)
    wide = array.astype(np.float64) if dtype in ROUNDING else array
    return Item(name, dtype, wide, wide)


def shake(array: Array, dtype: str, seed: int) -> Array:
    signs = np.random.default_rng(seed).choice((-1.0, 1.0), array.shape)
    scale = float(np.abs(array).max(initial=0))
    with np.errstate(invalid="ignore"):  # infinities are left out by `decided`
        return np.asarray(array + signs * ROUNDING[dtype] * (np.abs(array) + 0.05 * scale))


def decided(x: Item) -> bool:
    """Return whether a result can be compared: rounding changes neither its shape nor, by much, its
    numbers."""
    if x.exact.shape != x.shaken.shape or x.exact.size > ELEMENTS or x.rank > 6:
        return False
    if not x.is_float:
        return bool(np.array_equal(x.exact, x.shaken))
    if not np.isfinite(x.exact).all() or not np.isfinite(x.shaken).all():
        return False
    scale = float(np.abs(x.exact).max(initial=0))
    apart = float(np.abs(x.exact - x.shaken).max(initial=0))
    return scale <= LARGEST and apart <= DECIDED * max(scale, 1e-3) * (4 if x.dtype == "bfloat16" else 1)


def allowed(schema: Any, inputs: Sequence[Item | None]) -> bool:
    """Return whether the standard has the operator for these types."""
    bound: dict[str, str] = {}
    constraints = {c.type_param_str: set(c.allowed_type_strs) for c in schema.type_constraints}
    for i, x in enumerate(inputs):
        if x is None:
            continue
        formal = schema.inputs[min(i, len(schema.inputs) - 1)]
        text = onnx_type(x.dtype)
        if text not in constraints.get(formal.type_str, {formal.type_str}):
            return False
        if formal.is_homogeneous and bound.setdefault(formal.type_str, text) != text:
            return False
    return True


def onnx_type(dtype: str) -> str:
    names = {"float64": "double", "float32": "float"}
    return f"tensor({names.get(dtype, dtype)})"


def result_types(
    schema: Any, node: onnx.NodeProto, inputs: Sequence[Item | None], exact: Sequence[Array]
) -> tuple[str, ...] | None:
    """Return the dtypes of a node's results in the model. None if the evaluator contradicts the standard."""
    by_type = {
        schema.inputs[min(i, len(schema.inputs) - 1)].type_str: x.dtype
        for i, x in reversed(list(enumerate(inputs)))
        if x is not None
    }
    attrs = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    constraints = {c.type_param_str: list(c.allowed_type_strs) for c in schema.type_constraints}
    found = []
    for i, array in enumerate(exact):
        formal = schema.outputs[min(i, len(schema.outputs) - 1)]
        kinds = constraints.get(formal.type_str, [formal.type_str])
        if "to" in attrs or "dtype" in attrs or "output_dtype" in attrs:
            number = attrs.get("to", attrs.get("dtype", attrs.get("output_dtype")))
            dtype = (
                "bfloat16" if number == TensorProto.BFLOAT16 else str(helper.tensor_dtype_to_np_dtype(number))
            )
        elif "value" in attrs:
            dtype = str(helper.tensor_dtype_to_np_dtype(attrs["value"].data_type))
        elif node.op_type == "EyeLike":
            dtype = by_type["T1"]
        elif node.op_type == "DequantizeLinear":
            dtype = by_type[schema.inputs[1].type_str]
        elif formal.type_str in by_type:
            dtype = by_type[formal.type_str]
        elif len(kinds) == 1 and kinds[0].startswith("tensor("):
            text = kinds[0][7:-1]
            dtype = {"float": "float32", "double": "float64"}.get(text, text)
        else:
            return None
        wanted = "float64" if dtype in ROUNDING else dtype
        if not isinstance(array, np.ndarray) and not isinstance(array, np.generic):
            return None
        if str(array.dtype) != wanted and dtype not in ROUNDING:
            return None
        found.append(dtype)
    return tuple(found)


def widened(node: onnx.NodeProto) -> onnx.NodeProto:
    """Return the node with double precision in place of every other float type that an attribute names."""
    wide = onnx.NodeProto()
    wide.CopyFrom(node)
    for a in wide.attribute:
        floats = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
        if a.name in ("to", "dtype", "output_dtype", "stash_type", "softmax_precision") and a.i in floats:
            a.i = TensorProto.DOUBLE
    return wide


def evaluate(node: onnx.NodeProto, feeds: Mapping[str, Array], opset: int) -> list[Array]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        runner = ReferenceEvaluator(node, opsets={"": opset})
        results = runner.run(None, dict(feeds))
    return [np.asarray(r, np.float64) if np.asarray(r).dtype.kind == "f" else np.asarray(r) for r in results]
