"""The words of the expression language: its functions, its signs, and how names are written."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from jangin.ir.dtype import BF16, BOOL, DTYPES, F16, F32, I8, I16, I32, I64, U8, DType

COMPARE = frozenset({"lt", "le", "eq", "ne", "gt", "ge"})
PREDICATES = frozenset({"isnan", "isinf"})
BITCASTS = {f"bitcast_{name}": dtype for name, dtype in DTYPES.items() if dtype is not BOOL}
"""The same bits as another type of as many."""
RESULT = {
    "isnan": BOOL, "isinf": BOOL, "dot1": I32, "dot2b": I32, "dot8": I32, "dot8u": I32, "dot2bf": F32,
    "dot4bf": F32, "dot1h": F32, **BITCASTS,
}  # fmt: skip
BINARY = COMPARE | {
    "add", "sub", "mul", "div", "floordiv", "mod", "rem", "min", "max", "pow",
    "and", "or", "xor", "shl", "shr",
}  # fmt: skip
"""div: true division of floats, truncating of ints. mod has the divisor's sign (Python),
rem the dividend's (C fmod). min and max of floats propagate NaN. and/or/xor: bool or bits."""
INTRINSICS = PREDICATES | BITCASTS.keys() | {
    "neg", "abs", "not", "sqrt", "rsqrt", "exp", "exp2", "log", "log2", "log1p", "expm1", "sin",
    "cos", "tan", "asin", "acos", "atan", "atan2", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "erf", "sigmoid", "floor", "ceil", "round", "trunc", "sign", "fma", "rounded", "dot1", "dot2",
    "dot4", "dot4u", "dot4s", "dot2b", "dot8", "dot8u", "dot2bf", "dot4bf", "dot1h", "add2", "sub2",
}  # fmt: skip
"""round is half to even; fma(a, b, c) = a*b + c, which may be fused;
rounded(a) = a, which isn't fused with a sum around it (see `ir.rounding`); not: bool or bits. dot1(a, b) of
i16: the product in i32; dot2(a, b) of i32, each a pair of int16, the first in the low bits: the sum of the
products of the firsts and of the seconds; dot4: likewise of four int8; dot4u: of four uint8 of a and four
int8 of b; dot4s: as dot4u, but what the first two, and what the last two products add up to, is clamped to
int16 first; dot2b: of i16, each two int8, of b none -128, likewise; dot8, dot8u: as dot4 and dot4u, of i64,
eight numbers each; dot2bf: as dot2, of pairs of bfloat16, in f32, with subnormal numbers for 0 where the
machine takes them so; dot4bf: of i64, four bfloat16, likewise; dot1h of f16: the product in f32; add2 and
sub2: the pair of the sums, or differences, of the firsts and of the seconds."""
PAIRS = frozenset({"add2", "sub2"})
DOTS = {
    "dot1": (I16, I16), "dot2": (I16, I16), "dot4": (I8, I8), "dot4u": (U8, I8), "dot4s": (U8, I8),
    "dot2b": (I8, I8), "dot8": (I8, I8), "dot8u": (U8, I8), "dot2bf": (BF16, BF16), "dot4bf": (BF16, BF16),
    "dot1h": (F16, F16),
}  # fmt: skip
"""The types of the numbers in both operands' words."""
CLAMPED = frozenset({"dot4s"})
"""Those of DOTS that clamp the sums of two products to int16: exact where none is larger."""
SYMMETRIC = frozenset({"dot2b"})
"""Those of which no number of the right operand is its type's least."""
_SHORT: Mapping[str, DType] = {"dot1": I16, "dot2b": I16, "dot1h": F16}
"""Those of words of 16 bits."""
MATRICES = frozenset({"dot8", "dot8u", "dot4bf"})
"""Those of words of 64 bits, which instructions multiply as small matrices: two rows by two columns."""
ARITY = {"fma": 3, "select": 3, "atan2": 2, **dict.fromkeys((*DOTS, *PAIRS, *BINARY), 2)}
"""Of functions that take more than one argument."""


def word_of(dot: str) -> DType:
    """The type of the words that one of DOTS multiplies."""
    return _SHORT.get(dot) or (I64 if dot in MATRICES else I32)


def matrix_of(dot: str) -> str:
    """The row that makes one of MATRICES for two rows by two columns at once."""
    return f"{dot}_matrix"


def tile_of(dot: str) -> str:
    """The row that adds one of DOTS for all rows and columns of two matrices to a third."""
    return f"{dot}_tile"


def products_of(dot: str) -> int:
    """How many products a function adds up; 1 of none of DOTS."""
    return word_of(dot).bytes // DOTS[dot][0].bytes if dot in DOTS else 1


def sum_of(dot: str) -> DType:
    """The type in which one of DOTS adds up."""
    return RESULT.get(dot, I32)


def row_type(dot: str) -> DType:
    """The type of which a target has a row for one of DOTS: of floats that of the sum, else of the words."""
    return sum_of(dot) if sum_of(dot).is_float else word_of(dot)


INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "mod": "%", "lt": "<",
    "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">=", "and": "&", "or": "|", "xor": "^",
    "shl": "<<", "shr": ">>",
}  # fmt: skip


IDENTIFIER = re.compile(r"[^\W\d]\w*(?:\.\w+)*", re.ASCII)
RESERVED = frozenset({
    "true", "false", "inf", "nan", "serial", "parallel", "vector", "unroll", "block", "thread", "alloc",
    "let", "if", "else", "const", "outer", "reduce", "require",
})  # fmt: skip


def quote(name: str) -> str:
    """A name as the text forms have it: in quotes unless it is an identifier and no keyword."""
    if IDENTIFIER.fullmatch(name) and name not in RESERVED:
        return name
    return json.dumps(name, ensure_ascii=False)
