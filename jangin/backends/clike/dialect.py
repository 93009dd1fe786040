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
from jangin.ir.records import dataclass
from jangin.runtime.functions import KERNEL
from jangin.targets.rows import Row
from jangin.targets.target import Target

KEPT = {F16: U16, BF16: U16, BOOL: I32, **dict.fromkeys(SMALL, U8)}
"""What a type without one of its own is kept in: its bits; a truth as 0 or 1, in vectors as 0 or -1."""
SCALARS = (F64, F32, I64, I32, I16, I8, U64, U32, U16, U8)


def width(lanes: int) -> int:
    """The lanes that a vector of so many has room for."""
    return 1 << (lanes - 1).bit_length()


def type_name(dtype: DType, lanes: int = 1) -> str:
    kept = KEPT.get(dtype, dtype)
    return kept.name if lanes == 1 else f"{kept}x{width(lanes)}"


@dataclass(frozen=True)
class Groups:
    """How a language has work-groups. `item`: a work-item's number in its group; `barrier`: what waits for
    all of them; `local`: before what a group shares."""

    item: str
    barrier: str
    local: str


def in_register(dtype: DType, lanes: int, target: Target) -> bool:
    """Whether a vector is as large as one of the processor's registers, or the lower part with a name of its
    own that some have (128 bits of 256 or 512)."""
    size = KEPT.get(dtype, dtype).bytes * lanes
    return 16 <= size <= target.machine.vector_bytes and size == width(size)


class Dialect(ABC):
    """One C-like language. `inline`: before a helper function; `shared`: before a kernel's buffers;
    `restrict`: of a pointer that no other aliases; `long`: ends a literal of 64 bits; `loop`: a line
    before each loop, if any; `most_lanes`: of a vector; `groups`: its work-groups, if it has any;
    `extremes`: it has `min` and `max` of integers."""

    inline: str
    shared: str
    restrict: str
    long: str
    loop: str = ""
    most_lanes: int = 1 << 20
    groups: Groups | None = None
    extremes: bool = False

    @abstractmethod
    def head(self) -> str:
        """What a file begins with: the scalar types of SCALARS among it."""

    def kernels(self) -> str:
        """What stands between the definitions and the kernels."""
        return ""

    def row(self, row: Row, dtype: DType, lanes: int, target: Target) -> str:
        """What an instruction row is as an expression of its operands; empty where the language has no more
        for it than for what its reference says of each lane."""
        return ""

    def lanes(self, row: Row, statements: Sequence[str]) -> str:
        """What a row does, from what it does for each lane."""
        return " ".join(statements)

    def keep(self, v: str) -> str:
        """A statement after which a vector lies in a register, where its uses would else load it each; empty
        where that isn't needed."""
        return ""

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
    def shuffle(self, kind: str, a: str, b: str, room: int, picks: Sequence[int]) -> str:
        """Lanes of `a`, which has `room` of them, followed by those of `b`; -1: any."""

    @abstractmethod
    def load(self, kind: str, at: str, space: str) -> str:
        """A vector of elements from an address in a space on, which need not be a multiple of its size."""

    @abstractmethod
    def store(self, kind: str, at: str, v: str, space: str) -> str:
        """The counterpart of `load`."""


_TYPES = {"f64": "double", "f32": "float"}
_ABI = {"ptr": "void *", "i64": "i64 ", "void": "void "}
_AS = "#define AS(T, x) ({ __typeof__(x) from = (x); T to; memcpy(&to, &from, sizeof to); to; })"
_PICK = """#define PICK(mask, x, y) \
  ((__typeof__(x))(((mask) & (__typeof__(mask))(x)) | (~(mask) & (__typeof__(mask))(y))))"""
_KEEP = """#if defined __GNUC__ && !defined __clang__ && defined __x86_64__
#define KEEP(v) __asm__("" : "+v"(v))
#else
#define KEEP(v) (void)(v)
#endif"""
_GCC = """#if defined __GNUC__ && !defined __clang__
#pragma GCC optimize("no-gcse", "no-tree-loop-im", "no-move-loop-invariants", "no-schedule-insns2")
#pragma GCC optimize("ira-region=one")
#endif"""
"""Loops come with what is invariant outside of them and loads early enough: gcc would keep more values in
registers than there are, and spill what is accumulated. Registers are given to a function as a whole: loop by
loop a tile that needs all of them was spilled too."""
_CONTRACT = """#if defined __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined __GNUC__
#pragma GCC optimize("fp-contract=off")
#endif"""
"""A product and a sum are one multiply-add only where they are written as one, by whatever flags this is
compiled: gcc fuses those of several statements unless it is told not to."""
_QUIET = '#pragma GCC diagnostic ignored "-Wpsabi"'
"""Vectors wider than a register are given to functions, all of which are inlined."""
_INTRINSICS = """#if defined __x86_64__
#include <immintrin.h>
#elif defined __aarch64__
#include <arm_neon.h>
#elif defined __ARM_FEATURE_DSP
#include <arm_acle.h>
#endif"""


class C(Dialect):
    """C11 with GNU's vector types, as gcc (12 on) and clang compile it with FLAGS."""

    FLAGS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing")
    """Products and sums round as written, functions set no errno, integers wrap, and memory may be read as
    another type than it was written as."""

    inline, shared, restrict, long = "static inline __attribute__((always_inline))", "", "restrict", "ll"
    narrow = True

    def __init__(self, linkage: str = "") -> None:
        """`linkage`: what stands before a kernel's exported function."""
        self.linkage = linkage

    def head(self) -> str:
        types = (f"typedef {_TYPES.get(t.name, _stdint(t))} {t};" for t in SCALARS)
        headers = ["#include <math.h>", "#include <stdint.h>", "#include <string.h>", _INTRINSICS]
        return "\n".join([_GCC, _CONTRACT, _QUIET, *headers, *types, _AS, _PICK, _KEEP])

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
        ignored = "" if sizes(func) else f"  (void){names[1]};\n"
        return f"{self.linkage}{_ABI[KERNEL.result]}{name}({params}) {{\n{ignored}  {body}({given});\n}}"

    def keep(self, v: str) -> str:
        return f"KEEP({v})"

    def row(self, row: Row, dtype: DType, lanes: int, target: Target) -> str:
        size = 8 * dtype.bytes * lanes
        if (lanes == 1 and row.lanes != 1) or ("_mm" in row.c and not in_register(dtype, lanes, target)):
            return ""
        words = {
            "T": type_name(dtype, lanes),
            "i32": type_name(I32, lanes),
            "i16": type_name(I16, lanes),
            "i64": type_name(I64, lanes),
            "s": "d" if dtype is F64 else "s",
        }
        return row.c.format(bits="" if size == 128 else size, reg=size, **words)

    def vector(self, kind: str, items: Sequence[str]) -> str:
        return f"({kind}){{{', '.join(items)}}}"

    def lane(self, v: str, number: int) -> str:
        return f"{v}[{number}]"

    def convert(self, kind: str, v: str) -> str:
        return f"__builtin_convertvector({v}, {kind})"

    def reinterpret(self, kind: str, x: str, *, scalar: bool) -> str:
        return f"AS({kind}, {x})" if scalar else f"({kind}){x}"

    def shuffle(self, kind: str, a: str, b: str, room: int, picks: Sequence[int]) -> str:
        return f"__builtin_shufflevector({a}, {b}, {', '.join(map(str, picks))})"

    def load(self, kind: str, at: str, space: str) -> str:
        return f"*({kind}_u *){at}"

    def store(self, kind: str, at: str, v: str, space: str) -> str:
        return f"*({kind}_u *){at} = {v}"


def _stdint(dtype: DType) -> str:
    return f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}_t"
