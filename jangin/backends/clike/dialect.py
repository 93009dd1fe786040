"""The differences between C-like languages: types, vectors, attributes, and a kernel's head.

A scalar type has its name in Loop IR (`f32`), a vector type also its lanes (`f32x8`). A dialect's definitions
declare these types. A vector whose number of lanes isn't a power of two is kept in the next larger one.
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
"""The types that store other types' bits. A bool is 0 or 1, and in vectors 0 or -1."""
SCALARS = (F64, F32, I64, I32, I16, I8, U64, U32, U16, U8)


def width(lanes: int) -> int:
    """Return the lanes that the type of a vector of `lanes` lanes has: the next power of two."""
    return 1 << (lanes - 1).bit_length()


def type_name(dtype: DType, lanes: int = 1) -> str:
    kept = KEPT.get(dtype, dtype)
    return kept.name if lanes == 1 else f"{kept}x{width(lanes)}"


@dataclass(frozen=True)
class Groups:
    """How a language expresses work-groups. `item`: a work-item's number in its group. `barrier`: the
    statement that waits for all work-items. `local`: the address space of a group's shared memory."""

    item: str
    barrier: str
    local: str


def in_register(dtype: DType, lanes: int, target: Target) -> bool:
    """Return whether a vector fills a register of the processor, or the named lower part that some registers
    have (128 bits of 256 or 512)."""
    size = KEPT.get(dtype, dtype).bytes * lanes
    return 16 <= size <= target.machine.vector_bytes and size == width(size)


class Dialect(ABC):
    """One C-like language.

    - `inline`: written before a helper function.
    - `shared`: written before a kernel's buffers.
    - `restrict`: marks a pointer without aliases.
    - `arrival`: the function `is_last` of languages in which groups of a launch can wait for each other's
      stores.
    - `long`: ends a 64-bit literal.
    - `loop`: a line before each loop, if any.
    - `most_lanes`: of a vector.
    - `groups`: its work-groups, if it has any.
    - `extremes`: it has `min` and `max` of integers.
    - `waits`: the statement that waits for a work-item's own copies to shared memory, if copies go on beside
      other work.
    - `wraps`: signed integers wrap, by whatever flags its compiler is given.
    """

    inline: str
    shared: str
    restrict: str
    long: str
    loop: str = ""
    most_lanes: int = 1 << 20
    groups: Groups | None = None
    extremes: bool = False
    waits: str = ""
    arrival: str = ""
    wraps: bool = True

    @abstractmethod
    def head(self) -> str:
        """Return the head of a file, which includes the scalar types of SCALARS."""

    def kernels(self) -> str:
        """Return the text between the definitions and the kernels."""
        return ""

    def row(self, row: Row, dtype: DType, lanes: int, target: Target) -> str:
        """Return an instruction row as an expression of its operands. It is empty if the row's reference for
        each lane serves as well."""
        return ""

    def lanes(self, row: Row, statements: Sequence[str]) -> str:
        """Return the body of a row's function, from the statements for each lane."""
        return " ".join(statements)

    def keep(self, v: str) -> str:
        """Return a statement that keeps a vector in a register, if its uses would otherwise load it each
        time. It is empty if the language needs none."""
        return ""

    @abstractmethod
    def vector_type(self, dtype: DType, lanes: int) -> str:
        """Return the definition of a vector type."""

    @abstractmethod
    def array(self, dtype: DType, name: str, count: int) -> str:
        """Return the definition of a local array, aligned for vectors."""

    @abstractmethod
    def function(self, name: str, dtype: DType) -> str:
        """Return the name of a function of C's mathematical library for a type."""

    @abstractmethod
    def prefetch(self, at: str) -> str: ...

    @abstractmethod
    def entry(self, func: Func, name: str, body: str) -> str:
        """Return the exported function `name`, which passes its arguments to the internal function `body`."""

    # --- vectors

    @abstractmethod
    def vector(self, kind: str, items: Sequence[str]) -> str:
        """Return a vector made of these items, one for each lane of its type."""

    @abstractmethod
    def lane(self, v: str, number: int) -> str:
        """Return an element of a vector, which can be assigned to."""

    def held(self, kind: str) -> str:
        """Return the type of a variable that both branches of a condition set to a value of type `kind`."""
        return kind

    @abstractmethod
    def convert(self, kind: str, v: str) -> str:
        """Return a vector with its elements converted."""

    @abstractmethod
    def reinterpret(self, kind: str, x: str, *, scalar: bool) -> str:
        """Return the bits of a value as another type of the same size."""

    @abstractmethod
    def shuffle(self, kind: str, a: str, b: str, room: int, picks: Sequence[int]) -> str:
        """Return a shuffle: lanes of `a`, which has `room` lanes, followed by those of `b`; -1 is any
        lane."""

    @abstractmethod
    def load(self, kind: str, at: str, space: str, *, aligned: bool) -> str:
        """Return a vector loaded from an address in an address space. Only if `aligned`, the address is a
        multiple of the vector's size, or of 16 bytes if that is less."""

    @abstractmethod
    def store(self, kind: str, at: str, v: str, space: str, *, aligned: bool) -> str:
        """Return the statement that stores a vector: the counterpart of `load`."""


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
#if defined __ARM_ARCH_PROFILE && __ARM_ARCH_PROFILE == 'M'
#pragma GCC optimize("no-schedule-insns", "no-inline-functions-called-once")
#pragma GCC optimize("no-tree-ter", "no-tree-reassoc")
#else
#pragma GCC optimize("no-gcse", "no-tree-loop-im", "no-move-loop-invariants", "no-schedule-insns2")
#pragma GCC optimize("ira-region=one")
#ifdef __arm__
#pragma GCC optimize("no-schedule-insns", "no-inline-functions-called-once")
#endif
#endif
#endif"""
"""The options with which GCC compiles kernels.

GCC would hoist invariants and loads out of loops itself, and spill accumulators, because it would keep more
values than there are registers. The generated loops have hoisted them already. Registers are allocated for a
whole function: allocation by loop spilled tiles that need all registers.

Arm's microcontrollers have 14 registers. There allocation by loop is better, because outer loops need
registers too. On 32-bit Arm processors, GCC's first scheduling loads a tile's operands too early, and spills
accumulators. An inlined kernel gives registers to its caller. With these options int8 kernels take 0.8 of
the instructions on microcontrollers. GCC also puts statements together to long expressions, and sorts their
terms, so that all operands of a tile are loaded before the first product. Without it depthwise kernels take
0.6 of the instructions. Helium's vectors are loaded by functions, which GCC would call before all arithmetic.
"""
_CONTRACT = """#if defined __clang__
#pragma STDC FP_CONTRACT OFF
#elif defined __GNUC__
#pragma GCC optimize("fp-contract=off")
#endif"""
"""A product and a sum are fused only if they are written as one multiply-add, whatever flags compile this.
Otherwise GCC fuses them even across statements."""
_QUIET = '#pragma GCC diagnostic ignored "-Wpsabi"'
"""Turns off GCC's warning that functions take vectors wider than a register. All of these functions are
inlined."""
_INTRINSICS = """#if defined __x86_64__
#include <immintrin.h>
#elif defined __ARM_NEON
#include <arm_neon.h>
#elif defined __ARM_FEATURE_DSP
#include <arm_acle.h>
#if __ARM_FEATURE_MVE
#include <arm_mve.h>
#endif
#endif"""


class C(Dialect):
    """C11 with GNU's vector types, as gcc (12 on) and clang compile it with FLAGS."""

    FLAGS = ("-std=gnu11", "-ffp-contract=off", "-fno-math-errno", "-fwrapv", "-fno-strict-aliasing")
    """Products and sums round as written, functions set no errno, integers wrap, and memory may be read as
    another type than it was written as."""

    inline, shared, restrict, long = "static inline __attribute__((always_inline))", "", "restrict", "ll"
    narrow = True

    def __init__(self, linkage: str = "") -> None:
        """`linkage`: the text before a kernel's exported function."""
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
        arguments = ", ".join([*buffers, *numbers, *names[2:]])
        ignored = "" if sizes(func) else f"  (void){names[1]};\n"
        return f"{self.linkage}{_ABI[KERNEL.result]}{name}({params}) {{\n{ignored}  {body}({arguments});\n}}"

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

    def load(self, kind: str, at: str, space: str, *, aligned: bool) -> str:
        return f"*({kind}_u *){at}"

    def store(self, kind: str, at: str, v: str, space: str, *, aligned: bool) -> str:
        return f"*({kind}_u *){at} = {v}"


def _stdint(dtype: DType) -> str:
    return f"{'u' if dtype.kind == 'u' else ''}int{dtype.bits}_t"
