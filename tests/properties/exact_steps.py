"""Steps that only exact models have: conversions between all types, layers between quantizations, branches
and loops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import TensorProto, helper
from onnx_moves import concat, reshape, slice_, transpose
from onnx_nets import Array, Item, Step, code
from onnx_operators import binary, clip, partner, unary

if TYPE_CHECKING:
    from exact_nets import ExactNet

Op = Callable[["ExactNet", Item], Any]
CONVERTIBLE = (
    "float32", "float64", "float16", "bfloat16", "int8", "uint8", "int16", "uint16", "int32", "uint32",
    "int64", "uint64", "bool",
)  # fmt: skip
SMALL = ("int8", "uint8")
COLUMNS = (1, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 40, 49, 63, 64, 65, 97)
"""Numbers of columns of weights: whole vectors, and a little more or less."""
EACH = 3
"""The most turns of a loop."""
CARRIED = 60
"""The largest number that a loop carries. A sum of two such numbers fits every type."""
MOVES = (concat, transpose, reshape, slice_, unary, clip)
"""Further steps that may lie between quantizations."""


def cast(t: ExactNet, x: Item) -> Any:
    return t.one("Cast", x, to=code(t.pick(CONVERTIBLE)))


def arithmetic(t: ExactNet, x: Item) -> Any:
    """Add one of the commonest operators, which others are made of and fuse with."""
    op = t.pick(("Add", "Sub", "Mul", "Max", "Min", "Abs", "Neg", "Relu", "Not", "And", "Xor"))
    alone = op in ("Abs", "Neg", "Relu", "Not")
    return t.one(op, x) if alone else t.one(op, *t.r.sample((x, partner(t, x)), 2))


def narrow(t: ExactNet, x: Item) -> Any:
    """Write a sum, a comparison or a conversion as a smaller type. Most kernels whose elements have fewer
    bytes than their sums end like this."""
    if t.flag(0.3):
        return t.one(t.pick(("Equal", "Less", "Greater")), x, t.const(t.number(0, 3), x.dtype))
    to = t.pick(("uint8", "int8", "int16", "bfloat16"))
    bounds = [t.const(n, x.dtype) for n in (0 if to == "uint8" else -100, 100)] if x.dtype[0] != "u" else []
    held = t.one("Clip", x, *bounds) if x.dtype != "bool" else x
    return held and t.one("Cast", held, to=code(to))


def product(t: ExactNet, x: Item) -> Any:
    """Add a matrix product whose columns end anywhere in a vector, often with a narrower result."""
    y = t.one("MatMul", x, t.weight(x.dtype, x.shape[-1], t.pick(COLUMNS))) if x.rank > 1 else None
    return narrow(t, y) if y and t.flag() else y


def convolution(t: ExactNet, x: Item) -> Any:
    """Add a convolution, often with a narrower result."""
    if x.rank not in (3, 4) or not all(x.shape) or not (x.is_float or x.dtype in SMALL):
        return None
    y = _convolved(t, x, lambda shape: t.weight(t.pick(SMALL) if x.dtype in SMALL else x.dtype, *shape))
    return narrow(t, y) if y and t.flag() else y


# --- quantized layers ------------------------------------------------------------------------------


def power(t: ExactNet, low: int, high: int, count: int = 0) -> Array:
    """Draw a scale that is a power of two, or one for each of `count` channels."""
    exponents = [t.number(low, high) for _ in range(count or 1)]
    made = np.exp2(np.array(exponents, np.float32))
    return made if count else made[0]


def zero(t: ExactNet, kind: str) -> Item:
    return t.const(t.pick((0, t.number(0, 100), 7 if kind == "uint8" else -7)), kind)


def quantized(t: ExactNet, x: Item) -> tuple[Item, Item, Item] | None:
    """Return a value of bytes, its scale and its zero point."""
    if x.dtype in SMALL:
        return x, t.const(power(t, -4, 1)), zero(t, x.dtype)
    if x.dtype != "float32":
        return None
    scale, point = t.const(power(t, -2, 1)), zero(t, t.pick(SMALL))
    q = t.one("QuantizeLinear", x, scale, point)
    return q and (q, scale, point)


def dequantized(t: ExactNet, x: Item) -> Item | None:
    made = quantized(t, x)
    return made and t.one("DequantizeLinear", *made)


def weights(t: ExactNet, shape: tuple[int, ...], axis: int) -> Item | None:
    """Return weights in bytes, with one scale, or one for each channel along an axis."""
    rng, per_channel = np.random.default_rng(t.number(0, 1 << 30)), t.flag()
    w = t.const(rng.integers(-127, 128, shape, np.int8) // (1 if t.flag(0.3) else 16))
    scale = t.const(power(t, -7, -4, shape[axis] if per_channel else 0))
    point = t.const(np.zeros(shape[axis] if per_channel else (), np.int8))
    return t.one("DequantizeLinear", w, scale, point, **({"axis": axis} if per_channel else {}))


def layer(t: ExactNet, x: Item) -> Any:
    """Add a product, sum or move between quantizations, with the operators that usually follow it."""
    f = dequantized(t, x) if 2 <= x.rank <= 4 and all(x.shape) else None
    if f is None:
        return None
    y = t.pick((_product, _product, _convolution, _convolution, _sum, *MOVES))(t, f)
    y = t.one("Relu", y) if isinstance(y, Item) and t.flag(0.4) else y
    if not isinstance(y, Item) or y.dtype != "float32" or t.flag(0.1):
        return y
    q = t.one("QuantizeLinear", y, t.const(power(t, -3, 6)), zero(t, t.pick(SMALL)))
    if q is None or t.flag(0.7):
        return q
    return t.one("DequantizeLinear", q, t.const(power(t, -3, 2)), zero(t, q.dtype))


def _product(t: ExactNet, f: Item) -> Item | None:
    k, n = f.shape[-1], t.pick(COLUMNS)
    w = weights(t, (k, n), 1)
    y = w and t.one("MatMul", f, w)
    return y and (t.one("Add", y, t.const(t.random("float32", (n,)))) if t.flag() else y)


def _convolution(t: ExactNet, f: Item) -> Item | None:
    return _convolved(t, f, lambda shape: weights(t, shape, 0)) if f.rank > 2 else None


def _convolved(t: ExactNet, x: Item, made: Callable[[tuple[int, ...]], Item | None]) -> Item | None:
    """Add a convolution. `made` makes weights of a given shape."""
    c, spatial = x.shape[1], x.rank - 2
    groups = t.pick([g for g in (1, 1, 2, c) if c % g == 0])
    m = groups * t.pick(COLUMNS if groups == 1 else (1, 2, 4, 8, 9, 17) if groups < c else (1, 1, 2))
    kernel = [min(t.pick((1, 3)), size) for size in x.shape[2:]]
    window = {"pads": [t.number(0, k // 2) for k in kernel] * 2, "strides": [t.number(1, 2)] * spatial}
    w = made((m, c // groups, *kernel))
    if x.dtype in SMALL:
        return w and t.one("ConvInteger", x, w, group=groups, kernel_shape=kernel, **window)
    bias = t.const(t.random(x.dtype, (m,))) if t.flag() else None
    return w and t.one("Conv", x, w, bias, group=groups, kernel_shape=kernel, **window)


def _sum(t: ExactNet, f: Item) -> Item | None:
    fits = [y for y in t.pool if y.dtype == f.dtype and y.shape == f.shape]
    return t.one(t.pick(("Add", "Mul", "Sub")), f, t.pick(fits)) if fits else None


# --- branches and loops ----------------------------------------------------------------------------


def _body(t: ExactNet, x: Item, most: int) -> tuple[list[Step], Item]:
    """Return steps from a value to another of the same type and shape. They don't become steps of the
    model."""
    steps, pool = t.steps, t.pool
    t.steps, t.pool, y = [], [p for p in pool if p.dtype == x.dtype and p.shape == x.shape], x
    for _ in range(3 * most):
        made = t.pick((unary, binary, clip))(t, y)
        if isinstance(made, Item) and (made.dtype, made.shape) == (x.dtype, x.shape):
            y = made
        if len(t.steps) >= most:
            break
    found, t.steps, t.pool = t.steps, steps, pool
    return found, y


def _graph(
    steps: Sequence[Step], name: str, inputs: Sequence[Any], results: Sequence[str], *, wide: bool
) -> Any:
    nodes = [s.wide if wide else s.node for s in steps]
    return helper.make_graph(nodes, name, inputs, [helper.make_empty_tensor_value_info(n) for n in results])


def _outer(steps: Sequence[Step]) -> list[str]:
    """Return the values that steps read and none of them makes."""
    own = {n for s in steps for n in s.node.output}
    return [n for s in steps for n in s.reads if n not in own]


def branch(t: ExactNet, x: Item) -> Any:
    """Add an If, with a condition that depends on data."""
    flags = [p for p in t.pool if p.dtype == "bool" and p.shape == ()]
    flag = t.pick(flags) if flags and t.flag() else _condition(t, x)
    if flag is None:
        return None
    sides, names = [_body(t, x, t.number(1, 3)) for _ in range(2)], [f"b{t.count}{side}" for side in "te"]
    for (steps, y), name in zip(sides, names, strict=True):
        last = helper.make_node("Identity", [y.name], [name])
        steps.append(Step(last, last, (x.dtype,), 0))

    def node(wide: bool) -> onnx.NodeProto:
        graphs = [_graph(s, n, [], [n], wide=wide) for (s, _), n in zip(sides, names, strict=True)]
        given = {"then_branch": graphs[0], "else_branch": graphs[1]}
        return helper.make_node("If", [flag.name], [f"v{t.count}a"], name=f"if{t.count}", **given)

    return _take(t, node, (x.dtype,), [n for steps, _ in sides for n in _outer(steps)])


def _condition(t: ExactNet, x: Item) -> Item | None:
    """Return a boolean that is computed from the data."""
    if x.dtype == "bool" or not all(x.shape):
        return None
    most = t.one("ReduceMax", x, keepdims=0) if x.rank else x
    return most and t.one("Greater", most, t.const(t.number(0, 4), x.dtype))


def loop(t: ExactNet, x: Item) -> Any:
    """Add a Loop. It carries a value that each turn bounds, and may collect it."""
    turn = _turn(t, x, f"c{t.count}") if _carried(x) else None
    if turn is None:
        return None
    trips, go = t.const(t.number(0, EACH), "int64"), t.const(t.flag(0.9), "bool")
    ends = ["on", "out", *(["each"] if t.flag() else [])]
    names, results = [f"v{t.count}{s}" for s in "ab"[: len(ends) - 1]], [f"c{t.count}{n}" for n in ends]

    def node(wide: bool) -> onnx.NodeProto:
        kind = TensorProto.DOUBLE if wide and x.is_float else code(x.dtype)
        begins = (("i", TensorProto.INT64, []), ("go", TensorProto.BOOL, []), ("in", kind, None))
        inputs = [helper.make_tensor_value_info(f"c{t.count}{n}", k, s) for n, k, s in begins]
        body = _graph(turn, f"c{t.count}", inputs, results, wide=wide)
        given = [trips.name, go.name, x.name]
        return helper.make_node("Loop", given, names, name=f"loop{t.count}", body=body)

    own = {f"c{t.count}{n}" for n in ("go", "in")}
    return _take(t, node, (x.dtype,) * len(names), [n for n in _outer(turn) if n not in own])


def _carried(x: Item) -> bool:
    signed = x.dtype not in ("bool", "uint16", "uint32", "uint64")
    return signed and float(np.abs(x.exact.astype(float)).max(initial=0)) <= CARRIED


def _turn(t: ExactNet, x: Item, name: str) -> list[Step] | None:
    """Return the steps of one turn."""
    bounds = [t.const(n, x.dtype) for n in ((0 if x.dtype[0] == "u" else -CARRIED), CARRIED)]
    if x.rank == 2 and x.dtype in ("float32", "int32") and t.flag(0.4):
        rng = np.random.default_rng(t.number(0, 1 << 30))
        op, w = "MatMul", t.const(rng.integers(-1, 2, (x.shape[-1],) * 2), x.dtype)
    else:
        alike = [p for p in t.pool if (p.dtype, p.shape) == (x.dtype, x.shape) and _carried(p)]
        op, w = t.pick(("Add", "Sub", "Max")), t.pick([*alike, t.const(t.random(x.dtype, x.shape[-1:]))])
    if not _carried(w) or not t.allows(op, x, w) or not t.allows("Clip", x, *bounds):
        return None
    nodes = [
        helper.make_node(op, [f"{name}in", w.name], [f"{name}made"]),
        helper.make_node("Clip", [f"{name}made", *(b.name for b in bounds)], [f"{name}out"]),
        *(
            helper.make_node("Identity", [f"{name}{a}"], [f"{name}{b}"])
            for a, b in (("go", "on"), ("out", "each"))
        ),
    ]
    return [Step(n, n, (x.dtype,), 0) for n in nodes]


def _take(
    t: ExactNet, node: Callable[[bool], onnx.NodeProto], dtypes: tuple[str, ...], outer: Sequence[str]
) -> Item | None:
    """Add a step whose node has sub-graphs."""
    step = Step(node(False), node(True), dtypes, 0, tuple(dict.fromkeys(outer)))
    known = t.known(step.reads)
    exact = t.evaluated(step.wide, {n: x.exact for n, x in known.items()})
    made = None if exact is None else t.take(step, known, exact)
    return made[0] if made else None


MADE: tuple[Op, ...] = (
    *(arithmetic,) * 8, *(cast, narrow, product, convolution) * 4, *(layer,) * 8, branch, loop,
)  # fmt: skip
