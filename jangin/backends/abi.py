"""How kernels are called, whatever wrote their code.

A kernel has C's calling convention and no result. It gets the addresses of its buffers in `Func.params`
order, the integers of `sizes`, the range [lo, hi) of its tasks that it is to run, and scratch memory of its
own, aligned to `ir.kernel.SCRATCH_ALIGN`. Tasks are the iterations of the outermost parallel loop, of one
round where that lies in a loop over rounds; a kernel without one runs whole when lo is 0.
"""

from __future__ import annotations

from jangin.ir.expr import Var
from jangin.ir.loop import Func, loop_range, task_loops
from jangin.ir.simplify import Range

KERNEL = (("arguments", "ptr"), ("symbols", "ptr"), ("lo", "i64"), ("hi", "i64"), ("scratch", "ptr"))
"""Name and type of each parameter of a kernel."""
KERNEL_TYPES = ", ".join(kind for _, kind in KERNEL)
"""The parameters of a kernel as LLVM declares them."""
KERNEL_PARAMETERS = ", ".join(f"{kind} %{name}" for name, kind in KERNEL)
"""The parameters of a kernel as LLVM defines them."""


def sizes(func: Func) -> tuple[tuple[Var, Range], ...]:
    """The integers that a kernel is given, with their ranges: the symbols, and the round's number."""
    rounds, _ = task_loops(func.body)
    return func.symbols if rounds is None else (*func.symbols, (rounds.var, loop_range(rounds)))
