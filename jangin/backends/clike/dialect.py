"""What C-like languages write differently: types, vectors, attributes, and a kernel's head.

A scalar type is called as in Loop IR (`f32`), a vector type by its lanes (`f32x8`); a dialect's definitions
say what they are. A vector with a number of lanes that is no power of two is kept in one that has.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I8, I16, I32, I64, SMALL, U8, U16, U32, U64, DType
from jangin.ir.kernel import sizes
from jangin.ir.loop import Func
from jangin.runtime.functions import KERNEL

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
    """One C-like language. `inline`: before a helper function; `shared`: before a kernel's buffers;
    `restrict`: of a pointer that no other aliases."""

    inline: str
    shared: str
    restrict: str

    @abstractmethod
    def head(self) -> str:
        """What a file begins with: the scalar types of SCALARS among it."""

    @abstractmethod
    def vector_type(self, dtype: DType, lanes: int) -> str:
        """The definition of a vector type."""

    @abstractmethod
    def array(self, dtype: DType, name: str, count: int) -> str:
        """The definition of a local array, aligned as vectors want it."""

    @abstractmethod
    def function(self, name: str, dtype: DType) -> str:
        """What a function of C's mathematical library is called for a type."""

    @abstractmethod
    def prefetch(self, at: str) -> str: ...

    @abstractmethod
    def entry(self, func: Func, name: str, body: str) -> str:
        """The exported function of a name, which gives the internal function `body` its arguments."""

    # --- vectors

    @abstractmethod
    def vector(self, kind: str, items: Sequence[str]) -> str:
        """A vector of as many items as it has room for."""

    @abstractmethod
    def lane(self, v: str, number: int) -> str:
        """A vector's element, which may be assigned to."""

    @abstractmethod
    def convert(self, kind: str, v: str) -> str:
        """A vector with its elements converted."""

    @abstractmethod
    def reinterpret(self, kind: str, x: str, *, scalar: bool) -> str:
        """The bits of a value as another type of the same size."""

    @abstractmethod
    def shuffle(self, a: str, b: str, picks: Sequence[int]) -> str:
        """Lanes of `a` followed by those of `b`; -1: any."""

    @abstractmethod
    def load(self, kind: str, at: str) -> str:
        """A vector of elements from an address on, which need not be a multiple of the vector's size."""

    @abstractmethod
    def store(self, kind: str, at: str, v: str) -> str:
        """The counterpart of `load`."""


_TYPES = {"f64": "double", "f32": "float"}
_ABI = {"ptr": "void *", "i64": "i64 ", "void": "void "}
_AS = "#define AS(T, x) ({ __typeof__(x) from = (x); T to; memcpy(&to, &from, sizeof to); to; })"


class C(Dialect):
    """C11 with GNU's vector types, as gcc (12 on) and clang compile it with FLAGS."""

    FLAGS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing")
    """Products and sums round as written, functions set no errno, integers wrap, and memory may be read as
    another type than it was written as."""

    inline, shared, restrict = "static inline", "", "restrict"

    def head(self) -> str:
        types = (f"typedef {_TYPES.get(t.name, _stdint(t))} {t};" for t in SCALARS)
        return "\n".join(["#include <math.h>", "#include <stdint.h>", "#include <string.h>", *types, _AS])

    def vector_type(self, dtype: DType, lanes: int) -> str:
        kind, size = type_name(dtype, lanes), dtype.bytes * width(lanes)
        plain = f"typedef {dtype} {kind} __attribute__((vector_size({size})));"
        loose = f"vector_size({size}), aligned({dtype.bytes})"
        return f"{plain}\ntypedef {dtype} {kind}_u __attribute__(({loose}));"

    def array(self, dtype: DType, name: str, count: int) -> str:
        return f"{type_name(dtype)} {name}[{count}] __attribute__((aligned(64)));"

    def function(self, name: str, dtype: DType) -> str:
        return name + ("f" if dtype is F32 else "")

    def prefetch(self, at: str) -> str:
        return f"__builtin_prefetch({at})"

    def entry(self, func: Func, name: str, body: str) -> str:
        types, names = KERNEL.types, KERNEL.names
        params = ", ".join(_ABI[t] + n for t, n in zip(types, names, strict=True))
        buffers = (f"((void **){names[0]})[{n}]" for n in range(len(func.params)))
        numbers = (f"((i64 *){names[1]})[{n}]" for n in range(len(sizes(func))))
        given = ", ".join([*buffers, *numbers, *names[2:]])
        return f"{_ABI[KERNEL.result]}{name}({params}) {{\n  {body}({given});\n}}"

    def vector(self, kind: str, items: Sequence[str]) -> str:
        return f"({kind}){{{', '.join(items)}}}"

    def lane(self, v: str, number: int) -> str:
        return f"{v}[{number}]"

    def convert(self, kind: str, v: str) -> str:
        return f"__builtin_convertvector({v}, {kind})"

    def reinterpret(self, kind: str, x: str, *, scalar: bool) -> str:
        return f"AS({kind}, {x})" if scalar else f"({kind}){x}"

    def shuffle(self, a: str, b: str, picks: Sequence[int]) -> str:
        return f"__builtin_shufflevector({a}, {b}, {', '.join(map(str, picks))})"

    def load(self, kind: str, at: str) -> str:
        return f"*({kind}_u *){at}"

    def store(self, kind: str, at: str, v: str) -> str:
        return f"*({kind}_u *){at} = {v}"


def _stdint(dtype: DType) -> str:
    return f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}_t"
