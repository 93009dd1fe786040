"""How to add one node of each operator to a random ONNX model, with random attributes that fit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx_moves import (
    concat,
    depth,
    expand,
    gather,
    one_hot,
    pad,
    reshape,
    resize,
    scatter,
    select,
    shapes,
    slice_,
    split,
    squeeze,
    topk,
    transpose,
    triangle,
    underflows,
)  # fmt: skip
from onnx_nets import FLOATS, INTEGERS, OPSETS, ROUNDING, SIZES, Item, Net, code

Op = Callable[[Net, Item], Any]
CONVERTIBLE = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8", "int8", "bool")

UNARY = (
    "Abs", "Neg", "Sqrt", "Exp", "Log", "Tanh", "Sigmoid", "Relu", "LeakyRelu", "Elu", "Selu", "Celu",
    "Softplus", "Softsign", "HardSigmoid", "HardSwish", "Gelu", "Mish", "ThresholdedRelu", "Erf", "Sin",
    "Cos", "Tan", "Asin", "Acos", "Atan", "Sinh", "Cosh", "Asinh", "Acosh", "Atanh", "Floor", "Ceil", "Round",
    "Sign", "Reciprocal", "IsNaN", "IsInf", "Not", "BitwiseNot", "Identity", "Dropout", "Shrink", "Swish",
)  # fmt: skip
BINARY = (
    "Add", "Sub", "Mul", "Div", "Pow", "Mod", "And", "Or", "Xor", "Equal", "Less", "Greater", "LessOrEqual",
    "GreaterOrEqual", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "PRelu", "Max", "Min", "Mean", "Sum",
)  # fmt: skip
REDUCTIONS = (
    "ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2",
    "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare",
)  # fmt: skip


STEPPING = ("Floor", "Ceil", "Round", "Sign")
"""Operators that jump at multiples of a half. No element may be near one."""


def unary(t: Net, x: Item) -> Any:
    op = t.pick(UNARY)
    attrs = {"alpha": t.r.uniform(0.1, 1.5)} if op in ("LeakyRelu", "Elu", "Celu", "ThresholdedRelu") else {}
    if op == "Reciprocal" and float(np.abs(x.exact).min(initial=1)) < 0.01:
        return None
    if (
        op in STEPPING
        and x.is_float
        and float(np.abs(x.exact * 2 - np.round(x.exact * 2)).min(initial=1)) < 0.02
    ):
        return None
    if op == "Gelu":
        attrs = {"approximate": t.pick(("none", "tanh"))}
    return t.one(op, x, **attrs)


def clip(t: Net, x: Item) -> Any:
    low, high = sorted((t.number(-3, 3) / 2, t.number(-3, 3) / 2))
    if x.dtype[0] == "u":
        low, high = abs(low), abs(high) + 4
    return t.one(
        "Clip",
        x,
        t.const(low, x.dtype) if t.flag(0.8) else None,
        t.const(high, x.dtype) if t.flag(0.8) else None,
    )


def cast(t: Net, x: Item) -> Any:
    to = t.pick(CONVERTIBLE)
    if to == "bool" and underflows(x):
        return None
    if x.is_float and to in ("uint8", "int8") and float(np.abs(x.exact).max(initial=0)) > 100:
        return None
    if x.is_float and "int" in to and float(np.abs(x.exact - np.round(x.exact)).min(initial=1)) < 0.02:
        return None
    if x.is_float and to[0] == "u" and float(x.exact.min(initial=0)) <= -1:
        return None
    return t.one("Cast", x, to=code(to))


def partner(t: Net, x: Item) -> Item:
    """Return a value of x's type that broadcasts with x: one of the pool, a constant, or x itself."""

    def fits(y: Item) -> bool:
        pairs = zip(reversed(x.shape), reversed(y.shape), strict=False)
        return y.dtype == x.dtype and all(a == b or 1 in (a, b) for a, b in pairs)

    others = [y for y in t.pool if fits(y)]
    if t.flag(0.6) and others:
        return t.pick(others)
    shape = [n if t.flag(0.7) else 1 for n in x.shape][t.number(0, x.rank) :]
    return t.const(t.random(x.dtype, shape))


def binary(t: Net, x: Item) -> Any:
    op, y = t.pick(BINARY), partner(t, x)
    if op in ("Max", "Min", "Mean", "Sum"):
        return t.one(op, *(x, y, partner(t, x))[: t.number(1, 3)])
    if op == "Mod" and x.is_float:
        return t.one(op, x, y, fmod=1)
    if op in ("Div", "Mod") and not x.is_float:
        y = t.const(np.where(np.asarray(t.random(x.dtype, x.shape[-1:])) < 0, 3, 2), x.dtype)
    if op in ("Div", "Mod") and float(np.abs(y.exact).min(initial=1)) < 0.01:
        return None
    if op == "Pow":
        y = t.const(t.pick((0, 1, 2, 3)), x.dtype if t.flag() else t.pick(("int64", "float32", "int32")))
    return t.one(op, x, y) if op in ("PRelu", "Pow") or t.flag() else t.one(op, y, x)


def shift(t: Net, x: Item) -> Any:
    if x.dtype[0] != "u":
        return None
    return t.one("BitShift", x, t.const(t.number(0, 3), x.dtype), direction=t.pick(("LEFT", "RIGHT")))


def where(t: Net, x: Item) -> Any:
    conditions = [y for y in t.pool if y.dtype == "bool" and y.rank <= 4]
    if not conditions or t.flag(0.3):
        conditions = [t.const(t.random("bool", x.shape[-1:]))]
    y = partner(t, x)
    return t.one("Where", t.pick(conditions), x, y) if t.flag() else t.one("Where", t.pick(conditions), y, x)


def reduce(t: Net, x: Item) -> Any:
    if not all(x.shape):  # integers without elements have no mean and no minimum
        return None
    op, keep = t.pick(REDUCTIONS), t.number(0, 1)
    axes = t.axes(x) if x.rank and t.flag(0.8) else None
    as_input = t.opset >= (13 if op == "ReduceSum" else 18)
    if as_input:
        empty = {"noop_with_empty_axes": t.number(0, 1)} if axes is None else {}
        return t.one(op, x, t.const(axes, "int64") if axes else None, keepdims=keep, **empty)
    return t.one(op, x, keepdims=keep, **({"axes": axes} if axes else {}))


def arg(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    return t.one(
        t.pick(("ArgMax", "ArgMin")),
        x,
        axis=t.axis(x),
        keepdims=t.number(0, 1),
        select_last_index=t.number(0, 1),
    )


def softmax(t: Net, x: Item) -> Any:
    return (
        t.one(t.pick(("Softmax", "LogSoftmax", "Softmax", "Hardmax")), x, axis=t.axis(x)) if x.rank else None
    )


def cumulate(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    return t.one("CumSum", x, t.const(t.axis(x), "int64"), exclusive=t.number(0, 1), reverse=t.number(0, 1))


def normalize(t: Net, x: Item) -> Any:
    if x.rank < 2 or not x.is_float:
        return None
    c = x.shape[1]

    def per(n: int) -> Item:
        return t.const(t.random(x.dtype, (n,), 0.5, 1.5))

    op = t.pick(("LayerNormalization", "InstanceNormalization", "BatchNormalization", "GroupNormalization",
                 "LpNormalization", "MeanVarianceNormalization", "RMSNormalization"))  # fmt: skip
    if op in ("LayerNormalization", "RMSNormalization"):
        axis = t.number(1, x.rank - 1)
        scale = t.const(t.random(x.dtype, x.shape[axis:], 0.5, 1.5))
        bias = t.const(t.random(x.dtype, x.shape[axis:])) if op[0] == "L" and t.flag() else None
        return t.one(op, x, scale, bias, axis=axis, epsilon=0.01)
    if op == "InstanceNormalization":
        return t.one(op, x, per(c), per(c), epsilon=0.01)
    if op == "BatchNormalization":
        return t.one(op, x, per(c), per(c), per(c), per(c), epsilon=0.01)
    if op == "GroupNormalization":
        groups = t.pick([g for g in range(1, c + 1) if c % g == 0] or [1])
        n = c if t.opset >= 21 else groups
        return t.one(op, x, per(n), per(n), num_groups=groups, epsilon=0.01)
    if op == "LpNormalization":  # ReferenceEvaluator loses the sign if p is 1
        return t.one(op, x, axis=t.axis(x), p=2)
    return t.one(op, x, axes=sorted(t.r.sample(range(x.rank), t.number(1, x.rank - 1))))


def matmul(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    if t.flag(0.3) and x.rank > 1:
        turned = t.one("Transpose", x, perm=[*range(x.rank - 2), x.rank - 1, x.rank - 2])
        return turned and t.one("MatMul", *((x, turned) if t.flag() else (turned, x)))
    w = t.weight(x.dtype, *((x.shape[-1],) if t.flag(0.15) else (x.shape[-1], t.number(1, 20))))
    if x.dtype in ("uint8", "int8") and t.flag(0.7):
        other = t.const(t.random(t.pick(("uint8", "int8")), w.shape))
        return t.one("MatMulInteger", x, other, t.const(2, x.dtype) if t.flag() else None)
    return t.one("MatMul", x, w)


def gemm(t: Net, x: Item) -> Any:
    if x.rank != 2:
        return None
    left, right, n = t.flag(0.3), t.flag(), t.number(1, 12)
    k, m = x.shape if left else x.shape[::-1]
    w = t.weight(x.dtype, *((n, k) if right else (k, n)))
    c = t.const(t.random(x.dtype, t.pick(((n,), (1, n), (m, 1), (1,), ())))) if t.flag(0.7) else None
    return t.one(
        "Gemm",
        x,
        w,
        c,
        transA=int(left),
        transB=int(right),
        beta=t.pick((1.0, 2.0)),
        alpha=t.pick((1.0, 0.5)) if x.is_float else 1.0,
    )


def einsum(t: Net, x: Item) -> Any:
    letters = "abcdef"[: x.rank]
    if not 1 <= x.rank <= 4 or not x.is_float:
        return None
    if t.flag():
        return t.one("Einsum", x, equation=f"{letters}->{''.join(t.r.sample(letters, t.number(0, x.rank)))}")
    inner = t.pick(letters)
    kept = [c for c in letters if c != inner]
    w = t.weight(x.dtype, t.number(1, 6), x.shape[letters.index(inner)])
    return t.one("Einsum", x, w, equation=f"{letters},z{inner}->{''.join(t.r.sample([*kept, 'z'], x.rank))}")


def _window(t: Net, x: Item, dilated: bool = True) -> dict[str, Any]:
    spatial = x.rank - 2
    kernel = [t.number(1, 3) for _ in range(spatial)]
    attrs: dict[str, Any] = {"kernel_shape": kernel, "strides": [t.number(1, 2) for _ in range(spatial)]}
    if dilated and t.flag(0.3):
        attrs["dilations"] = [t.number(1, 2) for _ in range(spatial)]
    if t.flag(0.7):
        attrs["pads"] = [t.number(0, k - 1) for k in kernel * 2]
    elif t.flag() and "dilations" not in attrs:
        attrs["auto_pad"] = t.pick(("SAME_UPPER", "SAME_LOWER", "VALID"))
    return attrs


def conv(t: Net, x: Item) -> Any:
    if x.rank not in (3, 4, 5) or not x.is_float or not x.shape[1]:
        return None
    c, attrs = x.shape[1], _window(t, x)
    groups = t.pick([g for g in (1, 1, 2, c) if c % g == 0])
    m = groups * t.number(1, max(1, 12 // groups))
    bias = t.const(t.random(x.dtype, (m,))) if t.flag() else None
    return t.one(
        "Conv", x, t.weight(x.dtype, m, c // groups, *attrs["kernel_shape"]), bias, group=groups, **attrs
    )


def conv_transpose(t: Net, x: Item) -> Any:
    if x.rank not in (3, 4) or not x.is_float or not x.shape[1]:
        return None
    c, attrs = x.shape[1], _window(t, x)
    attrs.pop("auto_pad", None)
    groups = t.pick([g for g in (1, 1, c) if c % g == 0])
    w = t.weight(x.dtype, c, t.number(1, 3), *attrs["kernel_shape"])
    return t.one("ConvTranspose", x, w, group=groups, **attrs)


def pool(t: Net, x: Item) -> Any:
    if x.rank not in (3, 4, 5):
        return None
    op = t.pick(("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool"))
    if op.startswith("Global"):  # ReferenceEvaluator's global pools lose a dimension for other ranks
        return t.one(op, x) if x.rank == 4 else None
    attrs = _window(t, x, op != "LpPool")
    if op == "AveragePool" and t.opset < 19:
        attrs.pop("dilations", None)
    if op == "AveragePool":
        attrs["ceil_mode"] = 0 if "auto_pad" in attrs else t.number(0, 1)
        attrs["count_include_pad"] = t.number(0, 1)
    if op == "MaxPool":  # ReferenceEvaluator takes all pads to be the same, and sizes dilated windows wrongly
        attrs.pop("dilations", None)
        attrs["pads"] = [t.number(0, min(attrs["kernel_shape"]) - 1)] * 2 * (x.rank - 2)
        attrs.pop("auto_pad", None)
    return t.one(op, x, **attrs) if all(x.shape) else None


def quantize(t: Net, x: Item) -> Any:
    if x.dtype in ("uint8", "int8", "int32"):
        zero = t.const(0 if x.dtype == "int32" else t.number(0, 5), x.dtype)
        return t.one("DequantizeLinear", x, t.const(0.125, "float32"), zero)
    if x.dtype != "float32":
        return None
    kind = t.pick(("uint8", "int8"))
    return t.one("QuantizeLinear", x, t.const(0.07, "float32"), t.const(t.number(0, 9), kind))


def reverse(t: Net, x: Item) -> Any:
    if x.rank < 2 or not all(x.shape):
        return None
    lengths = t.const([t.number(1, x.shape[0]) for _ in range(x.shape[1])], "int64")
    return t.one("ReverseSequence", x, lengths, time_axis=0, batch_axis=1)


def recurrent(t: Net, x: Item) -> Any:
    if x.rank != 3 or not x.is_float or not all(x.shape):
        return None
    op, hidden = t.pick((("LSTM", 4), ("GRU", 3), ("RNN", 1))), t.number(1, 5)
    name, gates = op
    way = t.pick(("forward", "reverse", "bidirectional"))
    ways = 2 if way == "bidirectional" else 1
    w = t.const(t.random(x.dtype, (ways, gates * hidden, x.shape[2]), -0.5, 0.5))
    r = t.const(t.random(x.dtype, (ways, gates * hidden, hidden), -0.5, 0.5))
    b = t.const(t.random(x.dtype, (ways, 2 * gates * hidden), -0.5, 0.5)) if t.flag() else None
    extra = {"linear_before_reset": t.number(0, 1)} if name == "GRU" else {}
    return t.add(name, [x, w, r, b], 2, hidden_size=hidden, direction=way, **extra)


def chain(t: Net, x: Item) -> Any:
    """Add what fusion looks for: a convolution or product, a bias, an activation, and the sum with the
    input."""
    y = conv(t, x) if x.rank >= 3 else matmul(t, x)
    y = y and t.one("Add", y, partner(t, y))
    y = y and t.one(t.pick(("Relu", "Sigmoid", "HardSwish", "Tanh")), y)
    return y and (t.one("Add", x, y) if y.shape == x.shape and y.dtype == x.dtype else y)


OPS: tuple[Op, ...] = (
    unary, unary, unary, binary, binary, binary, clip, cast, shift, where, reduce, reduce, arg, softmax,
    cumulate, normalize, normalize, matmul, matmul, gemm, einsum, conv, conv, conv_transpose, pool, pool,
    transpose, reshape, reshape, squeeze, expand, concat, split, slice_, slice_, gather, scatter, pad, resize,
    depth, topk, triangle, one_hot, shapes, select, quantize, reverse, recurrent, chain,
)  # fmt: skip


def random_net(seed: int, length: int) -> Net:
    """Draw a model of about `length` nodes over one to three inputs. Some of their sizes may be the symbol
    `n`."""
    r = Random(seed)
    t = Net(r, r.choice(OPSETS), r.choice((2, 3, 4, 7)))
    symbolic, empty = t.flag(0.4), t.flag(0.06)
    for i in range(t.number(1, 3)):
        rank = t.pick((0, 1, 2, 3, 4) if i else (1, 2, 3, 3, 4, 4, 4))
        shape: list[int | str] = [t.pick(SIZES) for _ in range(rank)]
        while np.prod([t.size if d == "n" else d for d in shape], dtype=float) > 1500:
            shape[shape.index(max(shape, key=lambda d: d if isinstance(d, int) else 0))] = 2
        if symbolic and rank:
            shape[t.number(0, rank - 1)] = "n"
        if empty and rank and i:
            shape[t.number(0, rank - 1)] = 0
        t.input(t.pick(FLOATS if t.flag(0.75) or not i else (*INTEGERS, "bool")), shape)
    for _ in range(3 * length):
        if len(t.steps) >= length:
            break
        x = t.pick((*t.pool, *t.pool[-3:] * 3))
        t.pick(OPS)(t, x)
    return t


assert set(ROUNDING) >= set(FLOATS)
