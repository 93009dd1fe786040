"""The entry: one native function that runs a whole plan, as straight-line LLVM IR.

Each launch gathers its arguments, computes its sizes and runs its kernel, on the pool or (grain 0) on the
caller. The pool counts the run among its callers. `runtime.functions` has the called functions.
"""

from __future__ import annotations

from collections.abc import Sequence

from jangin.backends.functions import Value, i32, i64, signature
from jangin.backends.launches import Launches, arrays
from jangin.backends.llvm.plain import LlvmFunctions
from jangin.ir.checks import IN_RANGE
from jangin.ir.plan import Launch, Plan
from jangin.runtime.functions import ENTRY, KERNEL, POOL_ENTER, POOL_LEAVE, POOL_ROUNDS, POOL_RUN
from jangin.targets.target import Target


def entry_module(plan: Plan, target: Target) -> str:
    """Return the LLVM IR module of `jangin_entry` for a plan. Raises ValueError for a size that has no scalar
    code (a load, or arithmetic of floats)."""
    w = LlvmFunctions("jangin_entry", target)
    run, in_rounds = signature(POOL_RUN), signature(POOL_ROUNDS)
    enter, leave = signature(POOL_ENTER), signature(POOL_LEAVE)
    for function in (*(signature(KERNEL, x.function) for x in plan.launches), run, in_rounds, enter, leave):
        w.declare(function)
    index = {b.name: i for i, b in enumerate(plan.buffers)}
    with w.define(signature(ENTRY)) as params:
        for i, (var, _) in enumerate(plan.symbols):
            w.names[var] = w.element(params["symbols"], i, "i64")
        args, sizes = arrays(w, plan.launches)
        pool, scratch, stride = params["pool"], params["scratch"], params["stride"]

        def pointer(name: str) -> Value:
            return w.element(params["bufs"], index[name])

        def share(kernel: Value, tasks: Value, grain: Value) -> None:
            w.call(run, pool, kernel, args, sizes, tasks, grain, scratch, stride)

        def rounds(kernel: Value, tasks: Value, grain: Value, count: Value, at: Value) -> None:
            w.call(in_rounds, pool, kernel, args, sizes, tasks, grain, scratch, stride, count, at)

        w.call(enter, pool)
        launches = Launches(w, pointer, args, sizes, scratch, share, rounds)

        def write(part: Sequence[Launch]) -> None:
            for launch in part:
                try:
                    launches.write(launch)
                except ValueError as error:
                    raise ValueError(f"plan {plan.name!r}: {error}") from None

        write(plan.launches[: plan.tested])
        w.call(leave, pool)
        for n, check in enumerate(plan.checks, 1):
            with w.when(w.compare("ne", w.element(pointer(check.buffer), 0, "i64"), i64(IN_RANGE))):
                w.ret(i32(n))
        write(plan.launches[plan.tested :])
        w.ret(i32(0))
    return w.text()
