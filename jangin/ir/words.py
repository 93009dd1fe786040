"""The vocabulary of the expression language: its functions, its signs, and how names are written."""

from __future__ import annotations

import json
import re

from jangin.ir.dtype import BOOL, DTYPES, I32, DType
from jangin.ir.products import PRODUCTS

COMPARE = frozenset({"lt", "le", "eq", "ne", "gt", "ge"})
PREDICATES = frozenset({"isnan", "isinf"})
BITCASTS = {f"bitcast_{name}": dtype for name, dtype in DTYPES.items() if dtype is not BOOL}
"""Functions that reinterpret the same bits as another type of the same width."""
RESULT: dict[str, DType] = {
    "isnan": BOOL, "isinf": BOOL, "pair_of_bytes": I32,
    **{name: p.total for name, p in PRODUCTS.items()}, **BITCASTS,
}  # fmt: skip
"""The result types of functions whose result hasn't the type of the first argument."""
ROUNDINGS = ("tf32", "tf32_even")
"""Functions that round an f32 to tf32."""
BINARY = COMPARE | {
    "add", "sub", "mul", "div", "floordiv", "mod", "rem", "min", "max", "pow",
    "and", "or", "xor", "shl", "shr",
}  # fmt: skip
"""Binary operations. div is true division of floats and truncating division of integers. mod has the
divisor's sign (as in Python), rem the dividend's (as fmod in C). min and max of floats propagate NaN. and, or
and xor work on bool or bits."""
DIVISIONS = ("div", "floordiv", "mod", "rem")
"""Binary operations that have no integer result if the right operand is 0."""
INTRINSICS = PREDICATES | BITCASTS.keys() | {
    "neg", "abs", "not", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log1p", "expm1", "sin",
    "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "sigmoid", "floor", "ceil", "round", "trunc", "sign", "fma", "rounded", "add2", "sub2",
    "even_bytes", "odd_bytes", "pair_of_bytes", *ROUNDINGS, *PRODUCTS,
}  # fmt: skip
"""The names of functions in the expression language. round rounds half to even. fma(a, b, c) = a*b + c may be
fused. rounded(a) = a isn't fused with a sum around it (see `ir.rounding`). not takes bool or bits.

A function of PRODUCTS multiplies the numbers in two words, pair by pair, and adds up the products. The first
number is in the low bits. Its Product tells whether pairs of products are clamped, or sums rounded.

add2 and sub2 take words of i32, each a pair of int16. Their result is the pair of the sums, or differences,
of the firsts and of the seconds.

tf32 rounds an f32 to 10 bits of its fraction, the nearest, and halves away from 0. tf32_even rounds halves to
the even number. NaN stays NaN.

even_bytes and odd_bytes take a word of four int8, an i32. Their result is the pair of the first and the third
as int16, or of the second and the fourth.

pair_of_bytes takes a word of two int8, an i16. Its result is the pair of both as int16, an i32."""
HALVES = ("even_bytes", "odd_bytes")
PAIR_OF_BYTES = "pair_of_bytes"
PAIRS = frozenset({"add2", "sub2"})
ARITY = {"fma": 3, "select": 3, "atan2": 2, **dict.fromkeys((*PRODUCTS, *PAIRS, *BINARY), 2)}
"""The number of arguments, for functions that take more than one."""


INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<",
    "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>",
}  # fmt: skip


IDENTIFIER = re.compile(r"[^\W\d]\w*(?:\.\w+)*", re.ASCII)
RESERVED = frozenset({
    "true", "false", "inf", "nan", "serial", "parallel", "vector", "unroll", "block", "thread", "warp",
    "alloc", "let", "if", "else", "const", "outer", "reduce", "require",
})  # fmt: skip


def quote(name: str) -> str:
    """Return a name as the text forms write it: in quotes unless it is an identifier and no keyword."""
    if IDENTIFIER.fullmatch(name) and name not in RESERVED:
        return name
    return json.dumps(name, ensure_ascii=False)
