"""How to add one node of each operator to a random ONNX model, with random attributes that fit."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import TensorProto, helper
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
"""Operators that jump where an element is a multiple of a half: it must not be near one."""


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


def _underflows(x: Item) -> bool:
    """Whether an element is so small that the model's own precision may have it as zero."""
    small = np.abs(x.exact.astype(np.float64))
    return bool(((small > 0) & (small < 1e-4)).any())


def cast(t: Net, x: Item) -> Any:
    to = t.pick(CONVERTIBLE)
    if to == "bool" and _underflows(x):
        return None
    if x.is_float and to in ("uint8", "int8") and float(np.abs(x.exact).max(initial=0)) > 100:
        return None
    if x.is_float and "int" in to and float(np.abs(x.exact - np.round(x.exact)).min(initial=1)) < 0.02:
        return None
    if x.is_float and to[0] == "u" and float(x.exact.min(initial=0)) <= -1:
        return None
    return t.one("Cast", x, to=code(to))


def partner(t: Net, x: Item) -> Item:
    """A value that broadcasts with x, of its type: of the pool, a constant, or x itself."""

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
    if not all(x.shape):  # of nothing, integers have no mean and no least
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
    if op == "LpNormalization":  # ReferenceEvaluator loses the sign where p is 1
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
    if op.startswith("Global"):  # ReferenceEvaluator's of another rank lose a dimension
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


def transpose(t: Net, x: Item) -> Any:
    return t.one("Transpose", x, perm=t.r.sample(range(x.rank), x.rank)) if x.rank > 1 else None


def reshape(t: Net, x: Item) -> Any:
    """Neighbours joined, one dimension split, a size inferred, or one kept with 0."""
    choice, shape = t.number(0, 4), list(x.shape)
    if choice == 0 and x.rank > 1:
        i = t.number(0, x.rank - 2)
        shape[i : i + 2] = [shape[i] * shape[i + 1]]
    elif choice == 1 and x.rank and shape[i := t.number(0, x.rank - 1)]:
        part = t.pick([d for d in range(1, shape[i] + 1) if shape[i] % d == 0])
        shape[i : i + 1] = [part, shape[i] // part]
    elif choice == 2:
        return t.one("Flatten", x, axis=t.axis(x) if x.rank else 0)
    elif x.rank < 5:
        shape.insert(t.number(0, x.rank), 1)
    if shape and all(shape) and t.flag():
        shape[t.number(0, len(shape) - 1)] = -1
    if shape and x.rank and shape[0] == x.shape[0] and t.flag():
        shape[0] = 0
    return t.one("Reshape", x, t.const(shape, "int64"))


def squeeze(t: Net, x: Item) -> Any:
    ones = [i for i, n in enumerate(x.shape) if n == 1]
    if ones and t.flag():
        chosen = t.r.sample(ones, t.number(1, len(ones)))
        return t.one("Squeeze", x, t.const(chosen, "int64") if t.flag(0.8) else None)
    if x.rank < 4:
        return t.one("Unsqueeze", x, t.const([t.number(-x.rank - 1, x.rank)], "int64"))
    return None


def expand(t: Net, x: Item) -> Any:
    if t.flag():
        return t.one("Tile", x, t.const([t.number(0 if t.flag(0.1) else 1, 3) for _ in x.shape], "int64"))
    shape = [t.number(1, 4) if n == 1 else t.pick((1, n)) for n in x.shape]
    return t.one("Expand", x, t.const([*([2] if t.flag(0.3) and x.rank < 4 else []), *shape], "int64"))


def concat(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    axis = t.number(0, x.rank - 1)

    def fits(y: Item) -> bool:
        same = y.dtype == x.dtype and y.rank == x.rank
        return same and all(
            a == b for i, (a, b) in enumerate(zip(x.shape, y.shape, strict=True)) if i != axis
        )

    others = [y for y in t.pool if fits(y)]
    return t.one(
        "Concat", x, *(t.pick(others) for _ in range(t.number(1, 2))), axis=axis - x.rank * t.number(0, 1)
    )


def split(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    axis = t.axis(x)
    n = x.shape[axis]
    first = t.number(0, n)
    if t.flag() and t.opset >= 18 and n > 1:
        return t.add("Split", [x], 2, axis=axis, num_outputs=2)
    return t.add("Split", [x, t.const([first, n - first], "int64")], 2, axis=axis)


def slice_(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    axes = t.axes(x)
    starts, ends, steps = [], [], []
    for a in axes:
        n = x.shape[a]
        steps.append(t.pick((1, 1, 1, 2, 3, -1, -2)))
        starts.append(t.pick((0, t.number(-n - 1, n + 1), -1)))
        ends.append(t.pick((n, t.number(-n - 1, n + 1), 2**31 if steps[-1] > 0 else -(2**31))))
    given = [
        t.const(v, t.pick(("int64", "int32")) if max(map(abs, v)) < 2**31 else "int64")
        for v in (starts, ends)
    ]
    if given[0].dtype != given[1].dtype:
        given = [t.const(v, "int64") for v in (starts, ends)]
    kind = given[0].dtype
    if t.flag(0.2) and starts == [0] * len(starts) and axes == list(range(len(axes))):
        return t.one("Slice", x, *given)
    if max(map(abs, ends)) >= 2**31:
        return t.one("Slice", x, *given, t.const(axes, "int64"), t.const(steps, "int64"))
    return t.one("Slice", x, *given, t.const(axes, kind), t.const(steps, kind))


def _indices(t: Net, n: int, shape: tuple[int, ...]) -> Item | None:
    if n == 0:
        return None
    rng = np.random.default_rng(t.number(0, 1 << 30))
    return t.const(rng.integers(-n, n, shape), t.pick(("int64", "int64", "int32")))


def gather(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    axis, kind = t.number(0, x.rank - 1), t.number(0, 3)
    n = x.shape[axis]
    held = [y for y in t.pool if y.dtype in ("int64", "int32") and y.rank <= 2 and y.exact.size]
    if kind == 0 and held and t.flag():  # indices that are computed
        y = t.pick(held)
        reduced = t.one("Mod", y, t.const(max(n, 1), y.dtype))
        return reduced and t.one("Gather", x, reduced, axis=axis)
    if kind <= 1:
        i = _indices(t, n, t.pick(((), (1,), (3,), (2, 2), (0,))))
        return i and t.one("Gather", x, i, axis=axis - x.rank * t.number(0, 1))
    if kind == 2:
        i = _indices(t, n, tuple(t.number(1, 3) if a == axis else max(1, s) for a, s in enumerate(x.shape)))
        return i and t.one("GatherElements", x, i, axis=axis)
    depth = t.number(1, x.rank)
    least = min(x.shape[:depth])
    i = _indices(t, least, (t.number(1, 4), depth))
    if i is not None and i.dtype != "int64":
        return None
    return i and t.one("GatherND", x, i)


def scatter(t: Net, x: Item) -> Any:
    if not x.rank or not all(x.shape):
        return None
    how = {"reduction": t.pick(("none", "add", "mul", "max", "min"))} if t.opset >= 18 else {}
    rng = np.random.default_rng(t.number(0, 1 << 30))
    axis = t.number(0, x.rank - 1)
    if t.flag():  # indices are different, where order would matter
        n = t.number(1, x.shape[axis])
        shape = tuple(n if a == axis else t.number(1, s) for a, s in enumerate(x.shape))
        order = rng.permutation(x.shape[axis])[:n].reshape([-1 if a == axis else 1 for a in range(x.rank)])
        i = t.const(np.broadcast_to(order, shape).copy(), "int64")
        return t.one("ScatterElements", x, i, t.const(t.random(x.dtype, shape)), axis=axis, **how)
    rows = t.number(1, x.shape[0])
    i = t.const(rng.permutation(x.shape[0])[:rows, None], "int64")
    return t.one("ScatterND", x, i, t.const(t.random(x.dtype, (rows, *x.shape[1:]))), **how)


def pad(t: Net, x: Item) -> Any:
    mode = t.pick(("constant", "constant", "edge", "reflect") + (("wrap",) if t.opset >= 19 else ()))
    if not x.rank or (mode != "constant" and not all(x.shape)):
        return None
    least = [n - 1 if mode in ("reflect", "wrap") else 3 for n in x.shape * 2]
    low = -1 if mode == "constant" and all(n > 3 for n in x.shape) else 0
    amounts = t.const([t.number(low, min(2, m)) for m in least], "int64")
    value = t.const(t.pick((0, 1, 3)), x.dtype) if mode == "constant" and t.flag() else None
    return t.one("Pad", x, amounts, value, mode=mode)


def resize(t: Net, x: Item) -> Any:
    if x.rank not in (3, 4) or not all(x.shape) or x.dtype not in ("float32", "float16"):
        return None
    mode = t.pick(("nearest", "linear", "cubic"))
    attrs: dict[str, Any] = {"mode": mode, "coordinate_transformation_mode": t.pick(
        ("half_pixel", "asymmetric", "align_corners"))}  # fmt: skip
    if mode == "nearest":
        attrs["nearest_mode"] = t.pick(("floor", "ceil", "round_prefer_floor", "round_prefer_ceil"))
    if t.flag():
        factors = [1.0, 1.0, *(t.pick((0.5, 1.0, 2.0, 1.5, 3.0)) for _ in x.shape[2:])]
        return t.one("Resize", x, None, t.const(factors, "float32"), **attrs)
    sizes = [*x.shape[:2], *(t.number(1, 9) for _ in x.shape[2:])]
    return t.one("Resize", x, None, None, t.const(sizes, "int64"), **attrs)


def depth(t: Net, x: Item) -> Any:
    if x.rank != 4:
        return None
    if t.flag():
        return t.one("SpaceToDepth", x, blocksize=2)
    return t.one("DepthToSpace", x, blocksize=2, mode=t.pick(("DCR", "CRD")))


def topk(t: Net, x: Item) -> Any:
    if not x.rank:
        return None
    axis = t.axis(x)
    k = t.const([t.number(0, x.shape[axis])], "int64")
    return t.add("TopK", [x, k], 2, axis=axis, largest=t.number(0, 1))


def triangle(t: Net, x: Item) -> Any:
    if x.rank < 2:
        return None
    return t.one("Trilu", x, t.const(t.number(-2, 2), "int64") if t.flag() else None, upper=t.number(0, 1))


def one_hot(t: Net, x: Item) -> Any:
    if x.dtype not in ("int64", "int32") or x.rank > 3:
        return None
    values = t.const([-1, 2], t.pick(("float32", "int64", "bool")))
    return t.one("OneHot", x, t.const(t.number(1, 6), "int64"), values, axis=t.number(-1, x.rank))


def shapes(t: Net, x: Item) -> Any:
    kind = t.number(0, 4)
    if kind == 0:
        return t.one("Size", x)
    if kind == 1:
        found = t.one("Shape", x, **({"start": t.number(-1, 1)} if t.opset >= 15 else {}))
        return (
            found
            and t.flag()
            and t.one("ConstantOfShape", found, value=helper.make_tensor("v", TensorProto.FLOAT, [1], [2.0]))
        )
    if kind == 2 and x.rank == 2:
        return t.one("EyeLike", x, k=t.number(-1, 1))
    if kind == 3 and x.rank > 1:  # as exporters flatten all but the first dimension
        found = t.one("Shape", x)
        first = found and t.one("Gather", found, t.const(0, "int64"), axis=0)
        first = first and t.one("Unsqueeze", first, t.const([0], "int64"))
        both = first and t.one("Concat", first, t.const([-1], "int64"), axis=0)
        return both and t.one("Reshape", x, both)
    found = t.one("Shape", x)
    return found and t.one("Expand", t.const(t.random("float32", ())), found)


def select(t: Net, x: Item) -> Any:
    """Sizes that depend on data."""
    kind = t.number(0, 3)
    if kind == 0:
        return None if _underflows(x) else t.one("NonZero", x)
    if kind == 1 and x.rank:
        axis = t.number(0, x.rank - 1)
        keep = t.const(t.random("bool", (x.shape[axis],)))
        return t.one("Compress", x, keep, axis=axis)
    if kind == 2 and x.dtype in ("int64", "int32", "float32"):
        return t.one("Unique", x, sorted=1)
    counts = [y for y in t.pool if y.dtype == "int64" and y.rank == 0 and 0 <= int(y.exact) < 40]
    return t.one("Range", t.const(0, "int64"), t.pick(counts), t.const(1, "int64")) if counts else None


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
    """What fusion looks for: a convolution or product, a bias, an activation, the sum with what came in."""
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
    """A model of about `length` nodes over one to three inputs, some sizes of which may be the symbol `n`."""
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
