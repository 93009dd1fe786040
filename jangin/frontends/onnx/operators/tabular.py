"""Lower operators on the columns of a table (ai.onnx.ml), which scale, impute, encode, select and join
features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jangin.frontends.onnx.operators.families import unary
from jangin.frontends.onnx.operators.scores import DOMAIN
from jangin.frontends.onnx.operators.strings import labels, plain
from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.dtype import F32, I64, from_numpy
from jangin.ir.expr import (
    Buffer,
    Expr,
    Load,
    Var,
    binary,
    call,
    cast,
    const,
    eq,
    land,
    lor,
    maximum,
    minimum,
    select,
)
from jangin.ir.graph import Array, CompileError
from jangin.ir.loop import Alloc, For, If, Store, block
from jangin.ops.axes import product
from jangin.ops.builder import Builder
from jangin.ops.index import gather, in_range, index_vars, nest
from jangin.ops.nontensor import Item, NonTensor
from jangin.ops.values import Tensor

BINARIZER = unary({"Binarizer": lambda x, threshold=0.0: cast(x.dtype, x > threshold)}, domain=DOMAIN)


@op("Scaler", domain=DOMAIN)
def scaler(
    b: Builder, x: Tensor, *, scale: Sequence[float] = (1.0,), offset: Sequence[float] = (0.0,)
) -> Tensor:
    """Return (x - offset) * scale. Each of offset and scale is one number, or one for each column."""
    parts = [b.const(np.asarray(v, np.float32)) for v in (offset, scale)]
    return b.map(lambda v, o, s: (cast(F32, v) - o) * s, x, *parts)


@op("Normalizer", domain=DOMAIN)
def normalizer(b: Builder, x: Tensor, *, norm: str = "MAX") -> Tensor:
    """Return each row divided by its norm: the largest absolute value (MAX), the L1 norm or the L2 norm."""
    one_of("norm", norm, ("MAX", "L1", "L2"))
    x = b.cast(x, F32)
    sizes = b.map(lambda v: v * v if norm == "L2" else call("abs", v), x)
    total = b.reduce("max" if norm == "MAX" else "sum", sizes, [x.rank - 1], keepdims=True)
    return b.map(lambda v, t: v / maximum(call("sqrt", t) if norm == "L2" else t, 1e-30), x, total)


@op("Imputer", domain=DOMAIN)
def imputer(
    b: Builder, x: Tensor, *, imputed_value_floats: Sequence[float] = (),
    imputed_value_int64s: Sequence[int] = (), replaced_value_float: float = 0.0,
    replaced_value_int64: int = 0,
) -> Tensor:  # fmt: skip
    """Return x with one value, which may be NaN, replaced by a new value. There is one new value, or one for
    each column."""
    new = b.const(np.asarray(imputed_value_floats or imputed_value_int64s, x.dtype.numpy))
    old = replaced_value_float if x.dtype.is_float else replaced_value_int64
    if not new.shape[0] == const(1) and x.rank and new.shape[0] != x.shape[-1]:
        raise CompileError(f"{new.shape[0]} values can't replace those in the columns of {x}")

    def body(v: Expr, w: Expr) -> Expr:
        missing = call("isnan", v) if old != old else eq(v, const(old, v.dtype))
        return select(missing, w, v)

    return b.map(body, x, new)


@op("ArrayFeatureExtractor", domain=DOMAIN)
def array_feature_extractor(b: Builder, x: Tensor, indices: Tensor) -> Tensor:
    """Return the elements at indices along the last axis. A vector is treated as a matrix of one row."""
    count = product(indices.shape)
    picked = gather(b, x, b.reshape(indices, (count,)), axis=-1)
    return picked if x.rank > 1 else b.reshape(picked, (1, count))


@op("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(b: Builder, *xs: Tensor, inputdimensions: Sequence[int]) -> Tensor:
    """Return the columns of all inputs side by side. An input is cropped, or padded with zeros at the end, to
    its width in `inputdimensions`."""
    if len(xs) != len(inputdimensions):
        raise CompileError(f"{len(xs)} inputs, but {len(inputdimensions)} inputdimensions")
    parts = []
    for x, width in zip(xs, inputdimensions, strict=True):
        x = b.cast(x if x.rank == 2 else b.reshape(x, (*x.shape, 1)), F32)
        parts.append(b.pad(x, [0, 0, 0, const(width) - x.shape[1]]))
    return b.concat(parts, 1)


@op("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(
    b: Builder,
    x: Any,
    *,
    cats_int64s: Sequence[int] = (),
    cats_strings: Sequence[str] = (),
    zeros: int = 1,
) -> Tensor:
    """Return x with an additional last axis that is 1 at the category equal to the element, and 0 elsewhere.
    An unknown element has only zeros. Without `zeros`, a run fails if there is one."""
    if bool(cats_strings) != isinstance(x, NonTensor):
        raise CompileError(f"the categories are {'strings' if cats_strings else 'numbers'}, the input is {x}")
    if cats_strings:
        cats_int64s = range(len(cats_strings))
        x = labels(b, x, cats_strings, cats_int64s, -1)
    known = np.asarray(cats_int64s, np.int64)
    count = known.size
    if not zeros:
        keys, places = np.unique(known, return_index=True)
        x = in_range(b, _looked_up(b, b.cast(x, I64), keys, places, count), const(count), from_end=False)
        known = np.arange(count)

    def at(bufs: Sequence[Buffer], *index: Expr) -> Expr:
        return cast(F32, eq(cast(I64, bufs[0][index[:-1]]), bufs[1][index[-1]]))

    return b.compute(F32, (*x.shape, const(count)), [x, b.const(known)], at)


@op("LabelEncoder", domain=DOMAIN, since=2)
def label_encoder(
    b: Builder, x: Any, *, keys_int64s: Sequence[int] = (), keys_floats: Sequence[float] = (),
    keys_strings: Sequence[str] = (), keys_tensor: Array | None = None, values_int64s: Sequence[int] = (),
    values_floats: Sequence[float] = (), values_strings: Sequence[str] = (),
    values_tensor: Array | None = None, default_int64: int = -1, default_float: float = -0.0,
    default_string: str = "_Unused", default_tensor: Array | None = None,
) -> Item:  # fmt: skip
    """Return the value for each element's key, or the default if there is no such key. NaN may be a key."""
    texts = [t for t in (keys_tensor, values_tensor) if t is not None and t.dtype == object]
    if keys_strings or values_strings or texts:
        known = plain(keys_tensor) if keys_tensor is not None else keys_strings or keys_int64s or keys_floats
        if values_tensor is not None:
            (other,) = plain(default_tensor) if default_tensor is not None else ("_Unused",)
            own = None if values_tensor.dtype == object else from_numpy(values_tensor.dtype)
            return labels(b, x, known, plain(values_tensor), other, own)
        if values_strings:
            return labels(b, x, known, values_strings, default_string)
        if values_int64s:
            return labels(b, x, known, values_int64s, default_int64)
        return labels(b, x, known, values_floats, default_float)
    keys = np.asarray(keys_int64s or keys_floats) if keys_tensor is None else keys_tensor.reshape(-1)
    if values_tensor is not None:
        values, default = values_tensor.reshape(-1), default_tensor
    elif values_int64s:
        values, default = np.asarray(values_int64s, np.int64), np.asarray(default_int64)
    else:
        values, default = np.asarray(values_floats, np.float32), np.asarray(default_float)
    if default is None or keys.size != values.size or not keys.size:
        raise CompileError(f"{keys.size} keys with {values.size} values, default {default}: they don't fit")
    keys, first = np.unique(keys.astype(x.dtype.numpy), return_index=True)
    return _looked_up(b, x, keys, values[first], default.reshape(-1)[0].item())


def _looked_up(b: Builder, x: Tensor, keys: Array, values: Array, default: float) -> Tensor:
    """Return the values for keys, found by bisection of sorted keys. NaN is the largest key. `default` is the
    value for elements that are no keys."""
    inputs = [x, b.const(keys), b.const(values)]
    source, known, table = (Buffer(f"x{n}", t.dtype, t.shape) for n, t in enumerate(inputs))
    out, position = Buffer("out", table.dtype, x.shape), Buffer("found", I64, (const(1),), "register")
    at, step, here = index_vars(x.rank), Var("step"), (const(0),)
    turns = int(keys.size).bit_length()
    value, place = Load(source, at), Load(position, here)
    further = place + binary("shl", const(1), turns - 1 - step)
    below = Load(known, (minimum(further, keys.size - 1),)) <= value
    equal = eq(Load(known, (place,)), value)
    if x.dtype.is_float:
        nan = call("isnan", value)
        below, equal = lor(nan, below), lor(equal, land(nan, call("isnan", Load(known, (place,)))))
    look = If(land(further < keys.size, below), Store(position, here, further))
    write = Store(out, at, select(equal, Load(table, (place,)), const(default, table.dtype)))
    body = Alloc(position, block(Store(position, here, const(0)), For(step, const(turns), look), write))
    loops = nest(x.shape, at, body, "parallel")
    return b.loop_nest(inputs, loops, table.dtype, x.shape)
