"""`jangin compile --timings`: account for a compilation without the cache."""

from __future__ import annotations

from rich.table import Table

from jangin.compiler.account import Account, KernelSeconds
from jangin.compiler.build import start_workers
from jangin.compiler.request import Request, carry_out
from jangin.frontends.format import ModelSource
from jangin.options import Options
from jangin.runtime.compiled import Compiled

SLOWEST = 20
"""The most kernels that the account lists one by one. The rest takes little time."""


def build_timed(model: ModelSource, options: Options, account: Account) -> Compiled:
    """Compile a model without the cache, in this process and its forked workers, and return it. The seconds
    go to `account`."""
    request = Request(model, options.but(cache=False))
    with start_workers(options.target) as workers:
        return carry_out(request, account.tell, workers=workers, account=account)[0]


def steps_table(account: Account) -> Table:
    """Return a table of each step's seconds, and of the processor seconds of this process. In the remaining
    seconds it waited."""
    table = Table("step", title="steps")
    for name in ("seconds", "computed here"):
        table.add_column(name, justify="right")
    steps = account.steps.items()
    for what, seconds in steps:
        table.add_row(what, f"{seconds.wall:.3f}", f"{seconds.own:.3f}")
    table.add_section()
    total = (sum(s.wall for _, s in steps), sum(s.own for _, s in steps))
    table.add_row("in all", *(f"{seconds:.3f}" for seconds in total))
    return table


def kernels_table(account: Account) -> Table:
    """Return a table of the processor seconds spent on the slowest kernels, and on all kernels."""
    kernels = sorted(account.kernels, key=lambda kernel: -kernel.total)
    table = Table("kernel", title=f"{len(kernels)} kernels, seconds of the processor in all processes")
    for name in ("schedule", "text", "LLVM", "in all"):
        table.add_column(name, justify="right")
    sums = (sum(k.schedule for k in kernels), sum(k.text for k in kernels), sum(k.object for k in kernels))
    for n, kernel in enumerate([*kernels[:SLOWEST], KernelSeconds("all", *sums)]):
        if n == min(len(kernels), SLOWEST):
            table.add_section()
        times = (kernel.schedule, kernel.text, kernel.object, kernel.total)
        table.add_row(kernel.name, *(f"{seconds:.3f}" for seconds in times))
    return table
