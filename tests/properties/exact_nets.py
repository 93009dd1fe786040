"""Random ONNX models whose results are exact in any order of additions and roundings, because all numbers are
whole or halves.

A compiled model gives the same numbers as ONNX's ReferenceEvaluator in double precision.

A step is added if each result is a number of its type, and if every part of a sum is one. Rows are as long as
vectors, and a little longer and shorter.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random

import numpy as np
import onnx
from exact_steps import MADE
from onnx_moves import (
    concat,
    depth,
    expand,
    gather,
    one_hot,
    pad,
    reshape,
    scatter,
    select,
    shapes,
    slice_,
    split,
    squeeze,
    topk,
    transpose,
    triangle,
)  # fmt: skip
from onnx_nets import OPSETS, ROUNDING, Array, Item, Net, Step, allowed, evaluate, given, numpy_type
from onnx_operators import (
    Op,
    arg,
    binary,
    clip,
    conv,
    conv_transpose,
    cumulate,
    einsum,
    gemm,
    matmul,
    pool,
    reduce,
    reverse,
    shift,
    unary,
    where,
)  # fmt: skip

SIZES = (*range(1, 12), 13, 15, 16, 17, 23, 31, 32, 33, 47, 49, 63, 64, 65, 70)
TYPES = (
    *("float32",) * 5, "bfloat16", "bfloat16", "float16", "float64", *("int8", "uint8") * 3,
    "int16", "uint16", "int32", "int32", "int64", "uint32", "uint64", "bool",
)  # fmt: skip
BITS = {"float64": 53, "float32": 24, "float16": 11, "bfloat16": 8}
"""Binary digits of a number, by type."""
ELEMENTS = 20_000
"""The most elements of a value."""
GIVEN = 4096
"""The most elements of an input, so that a compiled test runs in no time."""
PRODUCTS = {"MatMul", "Gemm", "Conv", "ConvTranspose", "Einsum"}
"""Operators whose sums are f32 if their operands are smaller."""
SUMS = PRODUCTS | {
    "ReduceSum", "ReduceMean", "ReduceL1", "ReduceSumSquare", "ReduceProd", "CumSum", "AveragePool",
    "GlobalAveragePool", "Add", "Sub", "Mul", "Sum", "Mean",
}  # fmt: skip
ALONE = {
    "Abs", "Neg", "Relu", "LeakyRelu", "Floor", "Ceil", "Round", "Sign", "IsNaN", "IsInf", "Identity",
    "Dropout", "ThresholdedRelu", "Shrink", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual",
    "PRelu", "Max", "Min", "ReduceMax", "ReduceMin", "ArgMax", "ArgMin", "Clip", "Where", "Cast", "MaxPool",
    "GlobalMaxPool", "Mod", "QuantizeLinear", "DequantizeLinear", "TopK", "OneHot", "Unique", "NonZero",
    "If", "Loop", "Transpose", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Tile", "Expand", "Concat",
    "Split", "Slice", "Gather", "GatherElements", "GatherND", "ScatterElements", "ScatterND", "Pad",
    "SpaceToDepth", "DepthToSpace", "Trilu", "Size", "Shape", "ConstantOfShape", "EyeLike", "Compress",
    "ReverseSequence",
}  # fmt: skip
"""Operators on floats whose results are exact: no rounding lies between."""
UNDONE = {"Mean", "ReduceMean", "AveragePool", "GlobalAveragePool"}
"""Operators that divide. They are taken if the divisor is a power of two."""

BY_FLOATS = UNDONE | {"Gemm", "Pow", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "Shrink"}
"""Operators that ReferenceEvaluator computes with floats even for integers. Small integers are right."""
SMALL = 9


def fraction(array: Array) -> int:
    """Return the number of binary digits behind the point that an array's numbers have."""
    digits, exponents = np.frexp(array[array != 0].astype(np.float64))
    whole = np.ldexp(digits, 53).astype(np.int64)
    places = 53 - np.log2((whole & -whole).astype(np.float64)).astype(int) - exponents
    return max(0, int(places.max(initial=0)))


class ExactNet(Net):
    """A random model of exact steps only."""

    def random(self, dtype: str, shape: Sequence[int], low: float = -1.0, high: float = 1.0) -> Array:
        """Draw small whole numbers, and for integer types sometimes any number. Some floats have a binary
        digit behind the point."""
        rng = np.random.default_rng(self.number(0, 1 << 30))
        if dtype == "bool":
            return rng.random(shape) < 0.5
        if dtype in ROUNDING:
            most = 1 + int(rng.integers(4))
            numbers = rng.integers(-most, most + 1, shape) / (2 if rng.random() < 0.2 else 1)
            return numbers.astype(numpy_type(dtype))
        info = np.iinfo(dtype)
        least, most = (info.min, info.max) if rng.random() < 0.3 else (max(info.min, -9), 9)
        return rng.integers(least, most, shape, dtype, endpoint=True)

    def weight(self, dtype: str, *shape: int) -> Item:
        return self.const(self.random(dtype, shape))

    def known(self, names: Sequence[str]) -> dict[str, Item]:
        """Return values and constants by name."""
        items = {x.name: x for x in self.pool}
        return {n: items[n] if n in items else given(n, self.constants[n]) for n in names}

    def allows(self, op: str, *inputs: Item) -> bool:
        """Return whether the standard has the operator for these types."""
        return allowed(onnx.defs.get_schema(op, self.opset, ""), inputs)

    def evaluated(self, wide: onnx.NodeProto, known: Mapping[str, Array]) -> list[Array] | None:
        if wide.op_type != "Loop":
            return super().evaluated(wide, known)
        try:
            return turns(wide, known, self.opset)
        except Exception:  # as for other steps, the reference refuses it
            return None

    def compared(self, step: Step, known: Mapping[str, Item], exact: Sequence[Array]) -> list[Item] | None:
        """Return the results if they are exact, else None."""
        named = zip(step.node.output, step.dtypes, exact, strict=True)
        items = [Item(n, d, e, e) for n, d, e in named]
        floats = [x for x in known.values() if x.is_float]
        fits = all(x.exact.size <= ELEMENTS and x.rank <= 6 and representable(x) for x in items)
        if not fits or not self.in_range(step, known):
            return None
        op = step.node.op_type
        if not floats and not any(x.is_float for x in items):
            small = all(float(np.abs(x.exact.astype(float)).max(initial=0)) <= SMALL for x in known.values())
            return items if small or op not in BY_FLOATS else None
        if op not in SUMS | ALONE or (op in UNDONE and not by_power_of_two(floats, items, step)):
            return None
        return items if op not in SUMS or self.adds_exactly(step, known, floats) else None

    def adds_exactly(self, step: Step, known: Mapping[str, Item], floats: Sequence[Item]) -> bool:
        """Return whether every partial sum of the terms is a number of the type that the sum is computed
        in."""
        sizes = {n: np.abs(x.exact) if x.is_float else x.exact for n, x in known.items()}
        total = self.evaluated(step.wide, sizes)
        if total is None:
            return False
        op, digits = step.node.op_type, [fraction(x.exact) for x in floats]
        products = op in PRODUCTS or op in ("Mul", "ReduceSumSquare", "ReduceProd")
        places = sum(digits) * (2 if op == "ReduceSumSquare" else 1) if products else max(digits, default=0)
        places = max(places, *(fraction(t) for t in total))
        bits = min(BITS[x.dtype] for x in floats)
        bits = max(bits, BITS["float32"]) if op in PRODUCTS else bits
        terms = max(x.exact.size for x in floats) if op in UNDONE else 1
        return all(float(np.abs(t).max(initial=0)) * 2.0**places * terms <= 2.0**bits for t in total)

    def in_range(self, step: Step, known: Mapping[str, Item]) -> bool:
        """Return whether a cast to integers has only numbers in range. The standard doesn't define others."""
        (to,), x = step.dtypes[:1], next(iter(known.values()))
        if step.node.op_type != "Cast" or "int" not in to or not x.is_float:
            return True
        info, whole = np.iinfo(to), np.trunc(x.exact)
        return bool((whole >= info.min).all() and (whole <= info.max).all())


def turns(loop: onnx.NodeProto, known: Mapping[str, Array], opset: int) -> list[Array]:
    """Return the results of a Loop over one value. A body that can't run is refused, even if it makes no
    turn, because a model's sizes follow from its body too.

    ReferenceEvaluator is wrong for it: it joins the turns' results along an existing axis, and makes no turn
    if no condition is given."""
    (body,), (trips, go, value) = (a.g for a in loop.attribute), (known[n] for n in loop.input)
    each, turn = [], 0

    def once() -> list[Array]:
        env = {**known, **dict(zip((i.name for i in body.input), (np.int64(turn), go, value), strict=True))}
        for node in body.node:
            given = {n: np.asarray(env[n]) for n in node.input}
            env |= zip(node.output, evaluate(node, given, opset), strict=True)
        return [env[o.name] for o in body.output]

    once()
    while turn < int(trips) and bool(go):
        go, value, *slices = once()
        each += slices[:1]
        turn += 1
    collected = np.stack(each) if each else np.zeros((0, *value.shape), value.dtype)
    return [value, collected][: len(loop.output)]


def representable(x: Item) -> bool:
    if not x.is_float:
        return True
    if not np.isfinite(x.exact).all():
        return False
    with np.errstate(over="ignore"):
        small = x.exact.astype(numpy_type(x.dtype))
    return bool((small.astype(np.float64) == x.exact).all())


def by_power_of_two(floats: Sequence[Item], items: Sequence[Item], step: Step) -> bool:
    """Return whether a mean divides by a power of two at every place."""
    if step.node.op_type == "Mean":
        count: float = len(step.node.input)
    elif step.node.op_type == "AveragePool":
        attrs = {a.name: a for a in step.node.attribute}
        plain = not {"pads", "auto_pad"} & set(attrs) and not ("ceil_mode" in attrs and attrs["ceil_mode"].i)
        count = math.prod(attrs["kernel_shape"].ints) if plain else 3
    else:
        count = floats[0].exact.size / max(1, items[0].exact.size)
    return count > 0 and math.log2(count).is_integer()


OPS: tuple[Op, ...] = (
    unary, unary, binary, binary, binary, clip, shift, where, reduce, reduce, arg, cumulate, matmul, matmul,
    matmul, gemm, einsum, conv, conv, conv, conv_transpose, pool, pool, transpose, transpose, reshape,
    squeeze, expand, concat, concat, split, slice_, slice_, gather, scatter, pad, depth, topk, triangle,
    one_hot, shapes, select, reverse, *MADE,
)  # fmt: skip


def exact_net(seed: int, length: int) -> ExactNet:
    """Draw a model of about `length` nodes over one to three inputs. Some of their sizes may be the symbol
    `n`."""
    r = Random(f"exact {seed}")
    t = ExactNet(r, r.choice(OPSETS), r.choice((2, 3, 9, 17, 33)))
    symbolic = t.flag(0.3)
    for i in range(t.number(1, 3)):
        rank = t.pick((0, 1, 2, 3, 4) if i else (1, 2, 2, 3, 3, 4, 4))
        shape: list[int | str] = [t.pick(SIZES) for _ in range(rank)]
        if symbolic and rank:
            shape[t.number(0, rank - 1)] = "n"
        while math.prod([t.size if d == "n" else int(d) for d in shape]) > GIVEN:
            sizes = [d if isinstance(d, int) else 0 for d in shape]
            shape[sizes.index(max(sizes))] = t.pick((1, 2, 3))
        t.input(t.pick(TYPES), shape)
    for _ in range(4 * length):
        if len(t.steps) >= length:
            break
        x = t.pick((*t.pool, *t.pool[-3:] * 3))
        t.pick(OPS)(t, x)
    return t
