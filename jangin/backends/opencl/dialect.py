"""OpenCL C as a C-like language, for devices of version 1.2 or later."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jangin.backends.clike.dialect import SCALARS, Dialect, type_name, width
from jangin.backends.walk.memory import in_memory
from jangin.ir.dtype import F16, F32, F64, DType
from jangin.ir.kernel import rounds, sizes
from jangin.ir.loop import Func
from jangin.targets.rows import Row
from jangin.targets.target import Target

_TYPES: Mapping[str, str] = MappingProxyType({
    "f64": "double", "f32": "float", "i64": "long", "i32": "int", "i16": "short", "i8": "char",
    "u64": "ulong", "u32": "uint", "u16": "ushort", "u8": "uchar",
})  # fmt: skip
_LANE = "0123456789abcdef"

_FLOATS: Mapping[str, str] = MappingProxyType({
    "fma": "x * y + z",
    "min": "x != x ? ({0})(NAN) : (x < y ? x : y)", "min_number": "x < y ? x : y",
    "max": "x != x ? ({0})(NAN) : (x > y ? x : y)", "max_number": "x > y ? x : y",
    "floor": "floor(x)", "ceil": "ceil(x)", "trunc": "trunc(x)", "round": "rint(x)", "sqrt": "sqrt(x)",
    "to_i32_held": "convert_int{1}(x)", "to_i64_held": "convert_long{1}(x)",
    "to_i32": "convert_int{1}((x >= -0x1p31f) & (x < 0x1p31f)) ? convert_int{1}(x) : (int{1})(INT_MIN)",
    "to_i64": "convert_long{1}((x >= -0x1p63f) & (x < 0x1p63f)) ? convert_long{1}(x) : (long{1})(LONG_MIN)",
})  # fmt: skip
"""Rows of floats as expressions of whole vectors. {0}: the vector type; {1}: its number of lanes.

In `min` and `max`, the inner choice is one instruction on x86. If the outer choice gave `x` for NaN,
compilers would make four instructions. The compiler contracts multiply-adds where the device fuses them fast.
Elsewhere `fma` is a function of hundreds of instructions.
"""

_HALVES: Mapping[str, str] = MappingProxyType({
    "widen": "convert_float{0}(as_half{0}(x))", "narrow": "as_ushort{0}(convert_half{0}(x))",
})  # fmt: skip
"""Conversions on devices that have `cl_khr_fp16`."""

_FOUR: Mapping[str, str] = MappingProxyType({
    "masked_load": "r.{0} = vload4({1}, memory);", "masked_store": "vstore4(x.{0}, {1}, memory);",
})  # fmt: skip
"""Masked accesses, which OpenCL C lacks: the code for the {1}th group of four lanes if all four are on."""

EXTENSIONS: Mapping[str, str] = MappingProxyType({
    "cl_khr_fp64": "#pragma OPENCL EXTENSION cl_khr_fp64: enable\ntypedef double f64;",
    "cl_khr_fp16": "#pragma OPENCL EXTENSION cl_khr_fp16: enable",
})  # fmt: skip

HEAD = "__kernel __attribute__((reqd_work_group_size(1, 1, 1), vec_type_hint(float16)))"
"""The attributes of a kernel. A group is one work-item, whose code is vectorized already. Compilers that
vectorize over work-items too take four times as long."""

PREFETCH = """#ifndef __has_builtin
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_prefetch)
#define PREFETCH(at) __builtin_prefetch(at)
#else
#define PREFETCH(at) prefetch(at, 1)
#endif"""
"""A macro that prefetches by the compiler's built-in function if there is one. Some drivers implement OpenCL
C's own `prefetch` as nothing."""

CONTRACT = "#pragma OPENCL FP_CONTRACT {}"


class OpenCL(Dialect):
    """OpenCL C 1.2, with those extensions in EXTENSIONS that a device has.

    PoCL's compiler makes `x + 1 > x` true for any signed scalar, and no option forbids it. Its own `min` and
    `max` are shorter. Intel's compiler of 2026 also computes a choice between the compared
    values wrongly under a condition.
    """

    extremes, wraps = True, False
    inline, shared, restrict, long = "static inline", "__global ", "restrict", "l"
    loop = "#pragma clang loop vectorize(disable) unroll(disable)"
    most_lanes = 16

    def head(self) -> str:
        types = (f"typedef {_TYPES[t.name]} {t};" for t in SCALARS if t is not F64)
        extended = (f"#ifdef {name}\n{text}\n#endif" for name, text in EXTENSIONS.items())
        return "\n".join([CONTRACT.format("ON"), *extended, PREFETCH, *types])

    def kernels(self) -> str:
        return CONTRACT.format("OFF")

    def vector_type(self, dtype: DType, lanes: int) -> str:
        """Return type definitions of a vector and of a vector at any element's address.

        Drivers write `vload16` as four loads of 4 lanes. A loop would cut and join arrays of vectors in each
        iteration.
        """
        kind, built_in = type_name(dtype, lanes), f"{_TYPES[dtype.name]}{width(lanes)}"
        loose = f"typedef {built_in} {kind}_u __attribute__((aligned({dtype.bytes})));"
        return f"typedef {built_in} {kind};\n{loose}"

    def array(self, dtype: DType, name: str, count: int) -> str:
        return f"{type_name(dtype)} {name}[{count}] __attribute__((aligned(64)));"

    def function(self, name: str, dtype: DType) -> str:
        return name

    def prefetch(self, at: str) -> str:
        return f"PREFETCH({at})"

    def row(self, row: Row, dtype: DType, lanes: int, target: Target) -> str:
        count = "" if lanes == 1 else width(lanes)
        if dtype is F16 and row.expansion is None and row.name in _HALVES:
            return _HALVES[row.name].format(count)
        text = _FLOATS.get(row.name, "") if dtype in (F32, F64) else ""
        return text.format(type_name(dtype, lanes), count)

    def lanes(self, row: Row, statements: Sequence[str]) -> str:
        """Return the body of a row's function, with a branch for each four lanes of a masked access.

        Masks are mostly all on, or on in groups of four. A branch for each lane takes many times a load's
        time.
        """
        if row.name not in _FOUR or len(statements) % 4:
            return super().lanes(row, statements)
        parts = []
        for n in range(0, len(statements), 4):
            four = f"s{_LANE[n : n + 4]}"
            whole, apart = _FOUR[row.name].format(four, n // 4), " ".join(statements[n : n + 4])
            parts.append(f"if (all(mask.{four})) {{ {whole} }} else {{ {apart} }}")
        return " ".join(parts)

    def entry(self, func: Func, name: str, body: str) -> str:
        """Return the kernel function. Each work-item runs its share of the tasks.

        If one item has all tasks, it repeats them `rounds` times. `from` is the number of the first round.
        `scratch` has `stride` bytes for each item.
        """
        loops = str(rounds(func)) != "1"
        numbers = [f"s{n}" for n in range(len(sizes(func)))]
        buffers = [f"p{n}" for n in range(len(func.params))]
        params = [
            f"__global {type_name(in_memory(p.dtype))} *{b}"
            for p, b in zip(func.params, buffers, strict=True)
        ]
        params += [f"i64 {n}" for n in (numbers[:-1] if loops else numbers)]
        params += ["i64 tasks", "i64 from", "i64 rounds", "__global u8 *scratch", "i64 stride"]
        called = f"{body}({', '.join([*buffers, *numbers, 'lo', 'hi', 'scratch + item * stride'])});"
        if loops:
            called = (
                f"for (i64 {numbers[-1]} = from; {numbers[-1]} < from + rounds; ++{numbers[-1]}) {called}"
            )
        return "\n".join([
            f"{HEAD} void {name}({', '.join(params)}) {{",
            "  const i64 items = get_global_size(0), item = get_global_id(0);",
            "  const i64 lo = tasks * item / items, hi = tasks * (item + 1) / items;",
            f"  {called}",
            "}",
        ])  # fmt: skip

    def vector(self, kind: str, items: Sequence[str]) -> str:
        one = items[0] if len(set(items)) == 1 else ", ".join(items)
        return f"({kind})({one})"

    def lane(self, v: str, number: int) -> str:
        return f"{v}.s{_LANE[number]}"

    def convert(self, kind: str, v: str) -> str:
        return f"convert_{_built_in(kind)}({v})"

    def reinterpret(self, kind: str, x: str, *, scalar: bool) -> str:
        return f"as_{_built_in(kind)}({x})"

    def shuffle(self, kind: str, a: str, b: str, room: int, picks: Sequence[int]) -> str:
        lanes = [_LANE[max(p, 0) % room] for p in picks]
        sources = [b if p >= room else a for p in picks]
        if len(set(sources)) == 1:
            return f"{sources[0]}.s{''.join(lanes)}"
        return f"({kind})({', '.join(f'{v}.s{n}' for v, n in zip(sources, lanes, strict=True))})"

    def load(self, kind: str, at: str, space: str, *, aligned: bool) -> str:
        return f"*({space}{kind}_u *){at}"

    def store(self, kind: str, at: str, v: str, space: str, *, aligned: bool) -> str:
        return f"*({space}{kind}_u *){at} = {v}"


def _built_in(kind: str) -> str:
    """Return OpenCL C's name of a type."""
    scalar, _, lanes = kind.partition("x")
    return _TYPES[scalar] + lanes
