"""How to add nodes that move, count and choose elements (see `onnx_operators`)."""

from __future__ import annotations

from typing import Any

import numpy as np
from onnx import TensorProto, helper
from onnx_nets import Item, Net


def transpose(t: Net, x: Item) -> Any:
    return t.one("Transpose", x, perm=t.r.sample(range(x.rank), x.rank)) if x.rank > 1 else None


def reshape(t: Net, x: Item) -> Any:
    """Join neighbouring dimensions, split one, infer a size, or keep one with 0."""
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
    if kind == 0 and held and t.flag():  # the indices are computed by the model
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
    if t.flag():  # indices must differ if their order would matter
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
    if kind == 3 and x.rank > 1:  # exporters flatten all dimensions but the first like this
        found = t.one("Shape", x)
        first = found and t.one("Gather", found, t.const(0, "int64"), axis=0)
        first = first and t.one("Unsqueeze", first, t.const([0], "int64"))
        both = first and t.one("Concat", first, t.const([-1], "int64"), axis=0)
        return both and t.one("Reshape", x, both)
    found = t.one("Shape", x)
    return found and t.one("Expand", t.const(t.random("float32", ())), found)


def select(t: Net, x: Item) -> Any:
    """Add an operator whose result's size depends on data."""
    kind = t.number(0, 3)
    if kind == 0:
        return None if underflows(x) else t.one("NonZero", x)
    if kind == 1 and x.rank:
        axis = t.number(0, x.rank - 1)
        keep = t.const(t.random("bool", (x.shape[axis],)))
        return t.one("Compress", x, keep, axis=axis)
    if kind == 2 and x.dtype in ("int64", "int32", "float32"):
        return t.one("Unique", x, sorted=1)
    counts = [y for y in t.pool if y.dtype == "int64" and y.rank == 0 and 0 <= int(y.exact) < 40]
    return t.one("Range", t.const(0, "int64"), t.pick(counts), t.const(1, "int64")) if counts else None


def underflows(x: Item) -> bool:
    """Return whether an element is so small that the model's own precision may round it to zero."""
    small = np.abs(x.exact.astype(np.float64))
    return bool(((small > 0) & (small < 1e-4)).any())
