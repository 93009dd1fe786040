"""Plans with kernels written by hand in LLVM IR, for tests without a code generator."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from jangin.backends.llvm.backend import BACKEND
from jangin.backends.llvm.objects import compile_modules
from jangin.ir.dtype import F32, DType
from jangin.ir.expr import ExprLike, Var, const, wrap
from jangin.ir.plan import Launch, Plan, PlanBuffer, aligned
from jangin.runtime.artifact import Artifact
from jangin.targets.x86 import V2

N = Var("n")


def kernel(name: str, body: str, *, declare: str = "") -> tuple[str, str]:
    """Return a kernel whose loop over tasks `%i` runs `body`. `%x` and `%y` are the first two arguments."""
    return (
        name,
        f"""
{declare}
define void @"{name}"(ptr %args, ptr %symbols, i64 %lo, i64 %hi, ptr %scratch) {{
entry:
  %x = load ptr, ptr %args
  %y.at = getelementptr ptr, ptr %args, i64 1
  %y = load ptr, ptr %y.at
  br label %loop
loop:
  %i = phi i64 [ %lo, %entry ], [ %next, %body ]
  %more = icmp slt i64 %i, %hi
  br i1 %more, label %body, label %out
body:
  %x.i = getelementptr float, ptr %x, i64 %i
  %y.i = getelementptr float, ptr %y, i64 %i
{body}
  %next = add i64 %i, 1
  br label %loop
out:
  ret void
}}
""",
    )


def affine(name: str, scale: float, shift: float) -> tuple[str, str]:
    """Return the kernel y[i] = x[i] * scale + shift."""
    return kernel(
        name,
        f"""
  %v = load float, ptr %x.i, align 4
  %a = fmul float %v, {scale:e}
  %b = fadd float %a, {shift:e}
  store float %b, ptr %y.i, align 4""",
    )


def through_scratch(name: str, rounds: int) -> tuple[str, str]:
    """Return the kernel y[i] = x[i] + rounds. It counts in the worker's scratch memory, so it is wrong if two
    workers share it."""
    steps = [
        f"""
  %s{r} = load volatile float, ptr %scratch, align 4
  %t{r} = fadd float %s{r}, 1.0
  store volatile float %t{r}, ptr %scratch, align 4"""
        for r in range(rounds)
    ]
    load = "  %v = load float, ptr %x.i, align 4\n  store volatile float %v, ptr %scratch, align 4"
    store = "  %w = load volatile float, ptr %scratch, align 4\n  store float %w, ptr %y.i, align 4"
    return kernel(name, load + "".join(steps) + "\n" + store)


def first_symbol(name: str) -> tuple[str, str]:
    """Return a kernel that writes its first symbol to each y[i]."""
    return kernel(
        name,
        """
  %v = load i64, ptr %symbols
  %f = sitofp i64 %v to float
  store float %f, ptr %y.i, align 4""",
    )


def buffer(
    name: str,
    kind: str,
    *shape: ExprLike,
    dtype: DType = F32,
    base: str = "",
    live: tuple[int, int] = (0, 0),
    offset: int | None = None,
) -> PlanBuffer:
    return PlanBuffer(name, dtype, tuple(wrap(d) for d in shape), kind, live, offset, base)


def launch(
    name: str,
    args: Sequence[str],
    tasks: ExprLike,
    *,
    grain: int = 0,
    symbols: Sequence[ExprLike] = (),
    scratch: ExprLike = 0,
) -> Launch:
    return Launch(name, tuple(args), tuple(wrap(s) for s in symbols), wrap(tasks), wrap(grain), wrap(scratch))


def plan(
    buffers: Sequence[PlanBuffer],
    launches: Sequence[Launch],
    *,
    outputs: Sequence[str] = (),
    constants: dict[str, np.ndarray] | None = None,
    symbols: Sequence[tuple[Var, tuple[int, int]]] = (),
    constraints: Sequence[ExprLike] = (),
) -> Plan:
    return Plan(
        "test",
        str(V2),
        tuple(b.name for b in buffers if b.kind == "input"),
        tuple(outputs) or tuple(b.name for b in buffers if b.kind == "output"),
        tuple((v, (const(lo), const(hi))) for v, (lo, hi) in symbols),
        dict.fromkeys((wrap(c) for c in constraints), ""),
        tuple(buffers),
        tuple(launches),
        constants or {},
    )


def compiled(made: Plan, kernels: Sequence[tuple[str, str]]) -> Artifact:
    """Compile the plan with kernels whose LLVM IR is given."""
    return Artifact(made, (*BACKEND.runner(made, V2), *(compile_modules([named], V2) for named in kernels)))


def chain(tasks: int = 1000, *, threads_grain: int = 16) -> Artifact:
    """Compile y = (x * 2 + 1) * 3 + w0, for `tasks` elements, by way of the arena. w is a constant."""
    kernels = [
        affine("double", 2.0, 1.0),
        affine("triple", 3.0, 0.0),
        kernel(
            "plus",
            """
  %w.at = getelementptr ptr, ptr %args, i64 2
  %w = load ptr, ptr %w.at
  %c = load float, ptr %w, align 4
  %v = load float, ptr %x.i, align 4
  %b = fadd float %v, %c
  store float %b, ptr %y.i, align 4""",
        ),
    ]
    made = plan(
        [
            buffer("x", "input", tasks),
            buffer("w", "constant", 4),
            buffer("t", "arena", tasks, live=(0, 1), offset=0),
            buffer("u", "arena", tasks, live=(1, 2), offset=aligned(4 * tasks)),
            buffer("y", "output", tasks),
        ],
        [
            launch("double", ["x", "t"], tasks, grain=threads_grain),
            launch("triple", ["t", "u"], tasks, grain=threads_grain),
            launch("plus", ["u", "y", "w"], tasks),
        ],
        constants={"w": np.array([5, 6, 7, 8], np.float32)},
    )
    return compiled(made, kernels)
