"""OpenCL C of kernels for work-groups (see `ir.groups`)."""

from __future__ import annotations

from jangin.backends.clike.dialect import Groups, type_name
from jangin.backends.opencl.dialect import OpenCL
from jangin.backends.walk.memory import in_memory
from jangin.ir.groups import grouped, shared_layout, threads
from jangin.ir.kernel import rounds, sizes
from jangin.ir.loop import Func


class GroupedOpenCL(OpenCL):
    """OpenCL C for devices with work-groups. Their compilers decide themselves how to unroll loops."""

    loop = ""
    groups = Groups("get_local_id(0)", "barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)", "__local ")

    def entry(self, func: Func, name: str, body: str) -> str:
        """Return the kernel function. A group runs its share of the tasks in round `from`, with `stride`
        bytes of `scratch`."""
        if not grouped(func):
            return super().entry(func, name, body)
        numbers = [f"s{n}" for n in range(len(sizes(func)))]
        buffers = [f"p{n}" for n in range(len(func.params))]
        params = [
            f"__global {type_name(in_memory(p.dtype))} *{b}"
            for p, b in zip(func.params, buffers, strict=True)
        ]
        in_rounds = str(rounds(func)) != "1"
        params += [f"i64 {n}" for n in (numbers[:-1] if in_rounds else numbers)]
        params += ["i64 tasks", "i64 from", "i64 rounds", "__global u8 *scratch", "i64 stride"]
        values = [*numbers[:-1], "from"] if in_rounds else numbers
        called = ", ".join([*buffers, *values, "lo", "hi", "scratch + group * stride", "shared"])
        room = max(1, shared_layout(func)[1])
        return "\n".join([
            f"__kernel __attribute__((reqd_work_group_size({threads(func)}, 1, 1)))",
            f"void {name}({', '.join(params)}) {{",
            f"  __local u8 shared[{room}] __attribute__((aligned(16)));",
            "  const i64 groups = get_num_groups(0), group = get_group_id(0);",
            "  const i64 lo = tasks * group / groups, hi = tasks * (group + 1) / groups;",
            f"  {body}({called});",
            "}",
        ])  # fmt: skip
