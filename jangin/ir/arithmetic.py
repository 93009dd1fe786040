"""The meaning of every operation of `ir.expr`, in NumPy, for scalars and arrays alike.

The operands of `apply` are NumPy scalars or arrays of the operation's dtype. Its result has the result's
dtype. Integers wrap. Transcendental functions are computed in f64 and rounded once, as fits a reference."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.dtype import I16, I32, I64, U32, U64, DType, from_numpy
from jangin.ir.products import PRODUCTS, Product
from jangin.ir.words import BITCASTS

_erf = np.frompyfunc(math.erf, 1, 1)


def _truncating_div(a: Any, b: Any) -> Any:
    quotient = a // b
    inexact = quotient * b != a
    return quotient + (inexact & (b != 0) & ((a < 0) != (b < 0))).astype(quotient.dtype)


def _div(a: Any, b: Any) -> Any:
    return _truncating_div(a, b) if np.issubdtype(np.asarray(a).dtype, np.integer) else a / b


def _pow(a: Any, b: Any) -> Any:
    """Return a power. Integer powers wrap, and a negative exponent gives 0. Float powers are computed in
    f64."""
    if np.issubdtype(np.asarray(a).dtype, np.integer):
        return np.where(b < 0, 0, np.power(a, np.maximum(b, 0))).astype(np.asarray(a).dtype)
    return np.power(np.float64(a), np.float64(b))


def _sigmoid(x: Any) -> Any:
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _numbers(words: Any, dtype: DType) -> Any:
    """Return the small numbers that each word contains, along a new last axis, in a type that can hold their
    products."""
    apart = np.ascontiguousarray(words).reshape(*words.shape, 1).view(dtype.numpy)
    return apart.astype(np.int64 if dtype.is_int else np.float32)


def _multiplied(product: Product, a: Any, b: Any) -> Any:
    """Return the result of a product's function for two words, or for arrays of words."""
    x: Any
    y: Any
    words = np.broadcast_arrays(*(np.asarray(v, product.word.numpy) for v in (a, b)))
    x, y = map(_numbers, words, (product.left, product.right))
    if product.rounds:
        rounded = ROUNDINGS[product.rounds]
        x, y = x if product.ready else rounded(x), rounded(y)
    if not product.clamps:
        return (x * y).sum(-1)
    return np.clip((x * y).reshape(*x.shape[:-1], -1, 2).sum(-1), *I16.limits).sum(-1)


def _of_pairs(op: Callable[[Any, Any], Any], a: Any, b: Any) -> Any:
    x, y = np.broadcast_arrays(np.asarray(a, np.int32), np.asarray(b, np.int32))
    pairs = op(*(np.ascontiguousarray(v).reshape(-1).view(np.int16) for v in (x, y)))
    return pairs.view(np.int32).reshape(x.shape)


def _half(first: int, a: Any) -> Any:
    """Return two of the four int8 in each 32-bit word, as a word of two int16. They are the first and the
    third (`first` 0), or the second and the fourth (`first` 1)."""
    words = np.asarray(a, np.int32)
    pairs = np.ascontiguousarray(words).reshape(-1).view(np.int8).reshape(-1, 4)[:, first::2].astype(np.int16)
    return np.ascontiguousarray(pairs).view(np.int32).reshape(words.shape)


def _pair_of_bytes(a: Any) -> Any:
    """Return the two int8 in each 16-bit word as a 32-bit word of two int16."""
    words = np.asarray(a, np.int16)
    numbers = np.ascontiguousarray(words).reshape(-1).view(np.int8).astype(np.int16)
    return numbers.view(np.int32).reshape(words.shape)


def tf32(a: Any) -> Any:
    """Return f32 numbers rounded to tf32: to 10 bits of the fraction, halves away from 0."""
    numbers = np.asarray(a, np.float32)
    near = ((numbers.view(np.uint32) + np.uint32(1 << 12)) & np.uint32(0xFFFFE000)).view(np.float32)
    return np.where(np.isnan(numbers), numbers, near)


def tf32_even(a: Any) -> Any:
    """Return f32 numbers rounded to tf32: to 10 bits of the fraction, halves to the even number."""
    numbers = np.asarray(a, np.float32)
    bits = numbers.view(np.uint32)
    half = np.uint32((1 << 12) - 1) + (bits >> 13 & 1)
    return np.where(np.isnan(numbers), numbers, ((bits + half) & np.uint32(0xFFFFE000)).view(np.float32))


ROUNDINGS: Mapping[str, Callable[[Any], Any]] = {"tf32": tf32, "tf32_even": tf32_even}
"""The functions of `ir.words.ROUNDINGS`."""


def _bits_as(dtype: DType, a: Any) -> Any:
    return np.asarray(a).view(dtype.numpy)


BINARY_OPS: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": _div, "floordiv": np.floor_divide,
    "mod": np.mod, "rem": np.fmod, "min": np.minimum, "max": np.maximum, "pow": _pow,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "shl": np.left_shift, "shr": np.right_shift,
    "lt": np.less, "le": np.less_equal, "eq": np.equal, "ne": np.not_equal,
    "gt": np.greater, "ge": np.greater_equal,
}  # fmt: skip

_EXACT: Mapping[str, Callable[..., Any]] = {
    "neg": np.negative, "abs": np.abs, "not": np.invert, "sign": np.sign,
    "floor": np.floor, "ceil": np.ceil, "round": np.rint, "trunc": np.trunc,
    "isnan": np.isnan, "isinf": np.isinf,
    "fma": lambda a, b, c: a * b + c, "rounded": lambda a: a, **ROUNDINGS,
    **{name: partial(_multiplied, product) for name, product in PRODUCTS.items()},
    "add2": partial(_of_pairs, np.add), "sub2": partial(_of_pairs, np.subtract),
    "even_bytes": partial(_half, 0), "odd_bytes": partial(_half, 1), "pair_of_bytes": _pair_of_bytes,
    **{name: partial(_bits_as, dtype) for name, dtype in BITCASTS.items()},
}  # fmt: skip
_IN_F64: Mapping[str, Callable[..., Any]] = {
    "sqrt": np.sqrt, "rsqrt": lambda x: 1.0 / np.sqrt(x), "exp": np.exp, "exp2": np.exp2,
    "log": np.log, "log2": np.log2, "log1p": np.log1p, "expm1": np.expm1,
    "sin": np.sin, "cos": np.cos, "tan": np.tan, "asin": np.arcsin, "acos": np.arccos,
    "atan": np.arctan, "atan2": np.arctan2, "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh,
    "asinh": np.arcsinh, "acosh": np.arccosh, "atanh": np.arctanh, "sigmoid": _sigmoid,
    "erf": lambda x: np.asarray(_erf(x), np.float64),
}  # fmt: skip
CALLS = frozenset({*_EXACT, *_IN_F64})
_REDUCE: Mapping[str, Any] = {
    "sum": np.add, "prod": np.multiply, "max": np.maximum, "min": np.minimum,
    "and": np.bitwise_and, "or": np.bitwise_or,
}  # fmt: skip


def convert(value: Any, dtype: DType) -> Any:
    """Return the value cast as in C. A float becomes an integer by truncation (see `_whole`), and a bool by
    `!= 0`."""
    array = np.asarray(value)
    if array.dtype == dtype.numpy:
        return array
    if dtype.is_int and from_numpy(array.dtype).is_float:
        return _whole(array.astype(np.float64), dtype)
    return array.astype(dtype.numpy)


def _whole(x: Any, dtype: DType) -> Any:
    """Return f64 numbers truncated to an integer type, as x86's instruction does it.

    The result is the lowest bits of an i32, or of an i64 for 64-bit types and u32. If the number doesn't fit,
    the instruction gives the least i32 or i64. For u64, 2^63 is subtracted from large numbers before and
    added after. (NumPy leaves these casts to the machine.)"""
    if dtype is U64:
        above = x >= 2.0**63
        low = _whole(np.where(above, x - 2.0**63, x), I64).view(np.uint64)
        return np.where(above, low ^ np.uint64(1 << 63), low)
    least = through_signed(dtype).limits[0]
    whole = np.trunc(x)
    held = (whole >= least) & (whole < -float(least))
    integers = np.where(held, np.where(held, whole, 0.0).astype(np.int64), least)
    return integers.astype(dtype.wide.numpy).astype(dtype.numpy)


def through_signed(dtype: DType) -> DType:
    """Return the signed type to which processors convert a float first, to get this integer type."""
    return I64 if dtype.bits == 64 or dtype is U32 else I32


def apply(fn: str, args: tuple[Any, ...], dtype: DType) -> Any:
    """Return the result of a binary operation or an intrinsic, in `dtype`."""
    op = BINARY_OPS.get(fn) or _EXACT.get(fn)
    if op is not None:
        return convert(op(*args), dtype)
    return convert(_IN_F64[fn](*(np.asarray(a).astype(np.float64) for a in args)), dtype)


def reduce(combiner: str, value: Any, axes: tuple[int, ...], initial: Any, dtype: DType) -> Any:
    """Combine an array's elements over `axes`, beginning with `initial`, and return the result. Sums and
    products of floats are computed in f64 and rounded once."""
    kept = np.dtype(np.float64) if dtype.is_float else dtype.numpy
    ufunc = _REDUCE[combiner]
    return convert(ufunc.reduce(np.asarray(value).astype(kept), axis=axes, initial=initial), dtype)
