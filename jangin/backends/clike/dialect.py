"""What C-like languages write differently: types, vectors, attributes, and a kernel's head.

A scalar type is called as in Loop IR (`f32`), a vector type by its lanes (`f32x8`); a dialect's definitions
say what they are. A vector with a number of lanes that is no power of two is kept in one that has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, SMALL, U8, U16, U32, U64, DType
from jangin.runtime.functions import Function

KEPT = {F16: U16, BF16: U16, BOOL: I32, **dict.fromkeys(SMALL, U8)}
"""What a type without one of its own is kept in: its bits; a truth as 0 or 1, in vectors as 0 or -1."""
SCALARS = (F64, F32, I64, I32, I16, I8, U64, U32, U16, U8)


def width(lanes: int) -> int:
    """The lanes that a vector of so many has room for."""
    return 1 << (lanes - 1).bit_length()


def type_name(dtype: DType, lanes: int = 1) -> str:
    kept = KEPT.get(dtype, dtype)
    return kept.name if lanes == 1 else f"{kept}x{width(lanes)}"


class Dialect(ABC):
    """One C-like language. `name`: as rows know it; `shared`: before each kernel's buffers."""

    name: str
    inline: str
    restrict: str
    shared: str

    @abstractmethod
    def head(self) -> str:
        """What a file begins with: the scalar types of SCALARS among it."""

    @abstractmethod
    def vector_type(self, dtype: DType, lanes: int) -> str:
        """The definition of a vector type, and of `TYPE_u`, which is the same at any address."""

    @abstractmethod
    def array(self, dtype: DType, name: str, count: int) -> str:
        """The definition of a local array, aligned as vectors want it."""

    @abstractmethod
    def vector(self, dtype: DType, lanes: int, items: Sequence[str]) -> str:
        """A vector of as many items as it has room for."""

    @abstractmethod
    def convert(self, kind: str, x: str) -> str:
        """A vector with its elements converted."""

    @abstractmethod
    def reinterpret(self, kind: str, x: str) -> str:
        """The bits of a vector as another."""

    @abstractmethod
    def shuffle(self, a: str, b: str, picks: Sequence[int]) -> str:
        """Lanes of `a` followed by those of `b`; -1: any."""

    @abstractmethod
    def entry(self, function: Function, name: str) -> str:
        """The head of the exported function of a name."""


_TYPES = {"f64": "double", "f32": "float"}
_ABI = {"ptr": "void *", "i64": "i64 ", "void": "void"}


class C(Dialect):
    """C11 with GNU's vector types, as gcc (12 on) and clang compile it with FLAGS."""

    name, inline, restrict, shared = "c", "static inline", "restrict", ""

    FLAGS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing")
    """Products and sums round as written, functions set no errno, integers wrap, and memory may be read as
    another type than it was written as."""

    def head(self) -> str:
        types = (f"typedef {_TYPES.get(t.name, _stdint(t))} {t};" for t in SCALARS)
        return "\n".join(["#include <math.h>", "#include <stdint.h>", "#include <string.h>", *types])

    def vector_type(self, dtype: DType, lanes: int) -> str:
        kind, size = type_name(dtype, lanes), dtype.bytes * width(lanes)
        plain = f"typedef {dtype} {kind} __attribute__((vector_size({size})));"
        loose = f"vector_size({size}), aligned({dtype.bytes})"
        return f"{plain}\ntypedef {dtype} {kind}_u __attribute__(({loose}));"

    def array(self, dtype: DType, name: str, count: int) -> str:
        return f"{type_name(dtype)} {name}[{count}] __attribute__((aligned(64)));"

    def vector(self, dtype: DType, lanes: int, items: Sequence[str]) -> str:
        return f"({type_name(dtype, lanes)}){{{', '.join(items)}}}"

    def convert(self, kind: str, x: str) -> str:
        return f"__builtin_convertvector({x}, {kind})"

    def reinterpret(self, kind: str, x: str) -> str:
        return f"({kind}){x}"

    def shuffle(self, a: str, b: str, picks: Sequence[int]) -> str:
        return f"__builtin_shufflevector({a}, {b}, {', '.join(map(str, picks))})"

    def entry(self, function: Function, name: str) -> str:
        params = ", ".join(_ABI[t] + n for t, n in zip(function.types, function.names, strict=True))
        return f"{_ABI[function.result]} {name}({params})"


def _stdint(dtype: DType) -> str:
    return f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}_t"
