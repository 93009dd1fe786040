"""Writes a plan's launches, one after another, for any kind of code that runs the plan."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jangin.backends.functions import NULL, FunctionWriter, Signature, Value, i64, signature
from jangin.ir.expr import Const
from jangin.ir.plan import ONE, ZERO, Launch
from jangin.ir.records import dataclass
from jangin.runtime.functions import KERNEL


@dataclass(frozen=True)
class Launches:
    """Writes launches.

    - `pointer`: returns the address of a buffer, by name.
    - `args`, `sizes`: arrays that each launch fills for its kernel.
    - `scratch`: the caller's scratch memory.
    - `share`: writes a call that runs all tasks of a kernel, given its address, its tasks and its grain.
    - `rounds`: writes a call like `share`, for rounds, given also their number, and the address of the
      current round's number.
    """

    writer: FunctionWriter
    pointer: Callable[[str], Value]
    args: Value
    sizes: Value
    scratch: Value
    share: Callable[[Value, Value, Value], None]
    rounds: Callable[[Value, Value, Value, Value, Value], None]

    def write(self, launch: Launch) -> None:
        """Write one launch; an idle launch gets no code. Raises ValueError for a size that has no scalar
        code."""
        w = self.writer
        if launch.is_idle:
            return
        kernel = operands(w, launch, self.pointer, self.args, self.sizes)
        tasks, grain = w.value(launch.tasks), w.value(launch.grain)
        if launch.rounds != ONE:
            last = w.at(self.sizes, i64(8 * len(launch.symbols)))
            self.rounds(w.address(kernel), tasks, grain, w.value(launch.rounds), last)
        elif launch.grain == ZERO and isinstance(launch.tasks, Const):
            w.call(kernel, self.args, self.sizes, i64(0), tasks, self.scratch)
        else:  # the shared call handles no tasks, and runs grain 0 on the caller
            self.share(w.address(kernel), tasks, grain)


def operands(
    w: FunctionWriter, launch: Launch, pointer: Callable[[str], Value], args: Value, sizes: Value
) -> Signature:
    """Write the stores of a launch's arguments and sizes to arrays. Return its kernel's function."""
    for n, name in enumerate(launch.args):
        w.store(args, i64(n), pointer(name))
    for n, size in enumerate(launch.symbols):
        w.store(sizes, i64(n), w.value(size))
    return signature(KERNEL, launch.function)


def arrays(w: FunctionWriter, launches: Sequence[Launch]) -> tuple[Value, Value]:
    """Return arrays large enough for the arguments and the sizes of each launch. They are null if no launch
    has tasks."""
    busy = [x for x in launches if not x.is_idle]
    if not busy:
        return NULL, NULL
    args = w.local("ptr", max(len(x.args) for x in busy) or 1)
    return args, w.local("i64", max(len(x.symbols) for x in busy) + 1)
