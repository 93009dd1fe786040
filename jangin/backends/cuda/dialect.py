"""CUDA C for the C-like writer. Kernels run in work-groups. An operation on a vector is a separate operation
for each lane."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from jangin.backends.clike.dialect import SCALARS, Dialect, Groups, type_name, width
from jangin.backends.cuda.prelude import ARRIVAL, INTRINSICS, VECTORS, WAITING
from jangin.backends.walk.memory import in_memory
from jangin.ir.dtype import BF16, F16, F32, I32, DType
from jangin.ir.groups import SHARED_ALIGN, grouped, launch_buffer, shared_layout, threads
from jangin.ir.kernel import rounds, sizes
from jangin.ir.loop import For, Func, statements
from jangin.runtime.devices.cuda_code import ROUNDS
from jangin.targets.rows import Row
from jangin.targets.target import Target

_TYPES: Mapping[str, str] = MappingProxyType({
    "f64": "double", "f32": "float", "i64": "long long", "i32": "int", "i16": "short", "i8": "signed char",
    "u64": "unsigned long long", "u32": "unsigned", "u16": "unsigned short", "u8": "unsigned char",
})  # fmt: skip

_ROWS: Mapping[tuple[str, DType], str] = MappingProxyType({
    ("min", F32): "min_nan(x{0}, y{0})", ("min_number", F32): "min_nan(x{0}, y{0})",
    ("max", F32): "max_nan(x{0}, y{0})", ("max_number", F32): "max_nan(x{0}, y{0})",
    ("dot4", I32): "dp4a_s8(x{0}, y{0}, z{0})", ("dot4u", I32): "dp4a_u8(x{0}, y{0}, z{0})",
    ("widen", F16): "of_half(x{0})", ("narrow", F16): "to_half(x{0})", ("narrow", BF16): "to_bfloat(x{0})",
    ("tf32_even", F32): "to_tf32(x{0})",
})  # fmt: skip
"""CUDA C text for instruction rows that some architectures have an instruction for. {0} becomes the selection
of an operand's lane."""


STATIC = 48 << 10
"""Bytes of shared memory that a kernel may have without asking the driver (CUDA C++ Programming Guide)."""


def asked_shared(func: Func) -> int:
    """Return the bytes of shared memory that each launch of a kernel must ask for, or 0 if the kernel has its
    memory by itself."""
    size = shared_layout(func)[1]
    return size if size > STATIC else 0


class Cuda(Dialect):
    """C++17 as NVRTC compiles it with `nvrtc.OPTIONS`. All functions are device functions. A product and a
    sum are fused only if they are written as one multiply-add. The compiler assumes that signed integers
    never overflow, and no option changes this."""

    inline, shared, restrict, long = "static __forceinline__", "", "__restrict__", "ll"
    extremes, wraps = True, False
    groups, waits = Groups("threadIdx.x", "__syncthreads()", ""), "wait_copies()"
    arrival = ARRIVAL

    def head(self) -> str:
        return "\n".join([*(f"typedef {_TYPES[t.name]} {t};" for t in SCALARS), INTRINSICS, VECTORS])

    def vector_type(self, dtype: DType, lanes: int) -> str:
        return f"typedef Vec<{dtype}, {width(lanes)}> {type_name(dtype, lanes)};"

    def array(self, dtype: DType, name: str, count: int) -> str:
        return f"{type_name(dtype)} {name}[{count}] __attribute__((aligned({SHARED_ALIGN})));"

    def function(self, name: str, dtype: DType) -> str:
        return name + ("f" if dtype is F32 else "")

    def prefetch(self, at: str) -> str:
        return f"(void)({at})"

    def row(self, row: Row, dtype: DType, lanes: int, target: Target) -> str:
        text = _ROWS.get((row.name, dtype), "") if row.needs else ""
        if lanes == 1 or not text:
            return text.format("")
        kind = type_name(F32 if row.name == "widen" else dtype, lanes)
        return self.vector(kind, [text.format(f".v[{n}]") for n in range(width(lanes))])

    def entry(self, func: Func, name: str, body: str) -> str:
        """Return the text of a kernel's entry, which calls `body` for a group's share of the tasks. A group
        has `stride` bytes of `scratch`.

        If the kernel has rounds, the entry runs `rounds` of them, beginning with round `from`. A launch has
        several rounds only if one work-item has all tasks. A second entry does all rounds in groups that wait
        for one another."""
        own, loops = grouped(func), str(rounds(func)) != "1"
        buffers = [f"p{n}" for n in range(len(func.params))]
        numbers = [f"s{n}" for n in range(len(sizes(func)))]
        types = (type_name(in_memory(p.dtype)) for p in func.params)
        params = [f"{t} *{b}" for t, b in zip(types, buffers, strict=True)]
        params += [f"i64 {n}" for n in (numbers[:-1] if loops else numbers)]
        params += ["i64 tasks", "i64 from", "i64 rounds", "u8 *scratch", "i64 stride"]
        memory = "scratch" if launch_buffer(func) is not None else "scratch + group * stride"
        called = [*buffers, *numbers, "lo", "hi", memory, *(["shared"] if own else [])]
        call = once = f"{body}({', '.join(called)});"
        if loops:
            last = numbers[-1]
            turns = f"for (i64 {last} = from; {last} < from + rounds; ++{last})"
            call = f"{turns} {once}"
        room = max(SHARED_ALIGN, shared_layout(func)[1])
        memory_of_group = f"__shared__ __align__({SHARED_ALIGN}) u8 shared[{room}]"
        if asked_shared(func):
            memory_of_group = f"ASKED_SHARED({room})"
        bounds = str(threads(func) if own else 1)
        warps = any(isinstance(s, For) and s.kind == "warp" for s in statements(func.body))
        if warps or launch_buffer(func) is not None:
            bounds += ", 1"  # the compiler would spill some registers to let more groups run side by side

        def text(suffix: str, params: Sequence[str], call: str) -> str:
            return "\n".join([
                f'extern "C" __global__ void __launch_bounds__({bounds})',
                f"{name}{suffix}({', '.join(params)}) {{",
                *([f"  {memory_of_group};"] if own else []),
                "  const i64 groups = gridDim.x, group = blockIdx.x;",
                "  const i64 lo = groups == tasks ? group : tasks * group / groups;",
                "  const i64 hi = groups == tasks ? group + 1 : tasks * (group + 1) / groups;",
                f"  {call}",
                "}",
            ])  # fmt: skip

        if not (loops and own):
            return text("", params, call)
        meeting = f"if ({last} + 1 < from + rounds) wait_for_groups(arrived, (u32)groups);"
        whole = f"{turns} {{ {once} {meeting} }}"
        return "\n".join([
            text("", params, call), WAITING, text(ROUNDS, [*params, "u32 *arrived"], whole)
        ])  # fmt: skip

    def vector(self, kind: str, items: Sequence[str]) -> str:
        scalar = kind.partition("x")[0]
        return f"{kind}{{{{{', '.join(f'({scalar})({i})' for i in items)}}}}}"

    def lane(self, v: str, number: int) -> str:
        return f"{v}.v[{number}]"

    def held(self, kind: str) -> str:
        """Words, because the compiler takes vectors of small numbers apart where branches meet."""
        return f"Word<sizeof({kind})>::T" if _in_words(kind) else kind

    def convert(self, kind: str, v: str) -> str:
        return f"convert<{kind}>({v})"

    def reinterpret(self, kind: str, x: str, *, scalar: bool) -> str:
        return f"as<{kind}>({x})"

    def shuffle(self, kind: str, a: str, b: str, room: int, picks: Sequence[int]) -> str:
        return self.vector(kind, [f"{b if p >= room else a}.v[{max(p, 0) % room}]" for p in picks])

    def load(self, kind: str, at: str, space: str, *, aligned: bool) -> str:
        lanes = kind.partition("x")[2]
        if aligned and _in_words(kind):
            return f"of_words<{kind}>({at})"
        return f"*(const {kind} *)({at})" if aligned else f"loose<{kind}, {lanes}>({at})"

    def store(self, kind: str, at: str, v: str, space: str, *, aligned: bool) -> str:
        if aligned and _in_words(kind):
            return f"set_words({at}, {v})"
        return f"*({kind} *)({at}) = {v}" if aligned else f"put({at}, {v})"


def _in_words(kind: str) -> bool:
    """Return whether a vector of small numbers is moved as words. The compiler would take it apart."""
    element, _, lanes = kind.partition("x")
    bits = int(element[1:])
    return bool(lanes) and bits < I32.bits and bits * int(lanes) in (32, 64, 128)
