"""The budget of a compilation: one limit of time, memory and nodes for all code that works on the model.

Code tells the budget its node (`at`), and checks the budget. It calls `spend` for nodes, `room` before it
takes much memory, and `tick` if the work may take long. Making an expression checks the budget too
(`ir.interned`), so code that makes many expressions needn't.

If a limit is exceeded, `OverLimit` passes all handlers of errors up to `within`, which raises a CompileError
with the node. `within` does the same with Python's own errors of memory and recursion."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from mmap import mmap
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from jangin.ir.errors import CompileError
from jangin.ir.records import dataclass

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

SECONDS, SECONDS_PER_GIB = 600.0, 60.0
"""The default limit of compile time: seconds for any model, and additional seconds for each GiB of the model.
It is several times what the largest models take on a slow processor."""
MEMORY, MEMORY_PER_BYTE = 4 << 30, 16
"""The default limit of memory, in bytes: for any model, and additional bytes for each byte of the model.
Block-quantized weights that can't be compiled in their blocks become f32, eight times their size. They are
then packed, which takes as much again."""
NODES = 1_000_000
"""The default limit of nodes, about ten times that of the largest models."""
EACH = 0.05
"""The clock and the memory are read at most once in this many seconds. Reading the memory opens a file of the
system, which would slow the compiler if it were done at each check."""
GRACE = 10.0
"""Seconds after the limit until a process that doesn't check the budget is killed."""
ALLOWS = "limits=Limits({}=...) allows more"
LONGEST_NAME = 1000
"""The most bytes of a node's name that another process can read. The name is for an error's text, in which a
longer one would hide the rest."""


@dataclass(frozen=True)
class Limits:
    """The limits of compiling a model. If one is exceeded, compiling ends with a CompileError that names the
    current node.

    `seconds` is clock time without the time of tuning. The default is 600, and 60 more for each GiB of the
    model. `memory` is the bytes that each of the compiler's processes may take for itself. The default is 4
    GiB, and 16 times the model's size more. `nodes` counts the model's nodes, its functions' nodes, and the
    nodes of its branches' and loops' bodies. Functions and bodies count as often as they are compiled.
    ValueError is raised for a limit that isn't more than 0.
    """

    seconds: float | None = None
    memory: int | None = None
    nodes: int = NODES

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value!r} is no limit: it must be more than 0")


class OverLimit(BaseException):
    """A limit of the budget is exceeded. It isn't an `Exception`, because no handler of a model's errors may
    continue after it."""


class Place:
    """Memory that this process shares with the processes that it forks. A forked process writes its current
    node and its deadline there."""

    def __init__(self) -> None:
        self._memory = mmap(-1, 8 + LONGEST_NAME)

    def tell(self, node: str, end: float) -> None:
        name = node.encode()[:LONGEST_NAME].ljust(LONGEST_NAME, b"\0")
        self._memory[:] = struct.pack("d", end) + name

    @property
    def left(self) -> float:
        """Seconds until `GRACE` after the deadline; infinite if there is no deadline yet."""
        (end,) = struct.unpack("d", self._memory[:8])
        return float(end) + GRACE - time.monotonic() if end else math.inf

    @property
    def node(self) -> str:
        return self._memory[8:].rstrip(b"\0").decode(errors="replace")


class Budget:
    """A compilation's limits, and what it has used.

    `size` is the bytes of the model, and `extra` seconds are added to the limit. `node` and `step` are the
    current node and step. `alone` tells that the process is the compiler's own, so that the system may limit
    its memory."""

    def __init__(self, limits: Limits, extra: float = 0.0, size: int = 0, began: float | None = None) -> None:
        from jangin.runtime.system.usage import own_memory  # loading a model needs none of it

        self.limits, self.extra, self.size = limits, extra, size
        self.began = time.monotonic() if began is None else began  # this clock is the same in all processes
        self._own_memory = own_memory
        self.held, self.next, self.nodes = own_memory(), 0.0, 0
        self.node: object = ""
        self.step = ""
        self.alone = False
        self.place: Place | None = None

    def __reduce__(self) -> tuple[type[Budget], tuple[Any, ...]]:
        return Budget, (self.limits, self.extra, self.size, self.began)

    @property
    def seconds(self) -> float:
        limit = self.limits.seconds
        return SECONDS + SECONDS_PER_GIB * self.size / (1 << 30) if limit is None else limit

    @property
    def memory(self) -> int:
        limit = self.limits.memory
        return MEMORY + MEMORY_PER_BYTE * self.size if limit is None else limit

    @property
    def end(self) -> float:
        return self.began + self.seconds + self.extra

    def where(self) -> str:
        """Return the current node and step, for messages."""
        return f"{self.node or 'the model'}{self.step and f', in the step {self.step}'}"

    def at(self, node: object) -> None:
        if node is not self.node:
            self.node = node
            self.tell()

    def tell(self) -> None:
        if self.place is not None:
            self.place.tell(self.where(), self.end)

    def check(self) -> None:
        now = time.monotonic()
        if now < self.next:
            return
        self.next = now + EACH
        if now > self.end:
            self.late()
        if self._own_memory() - self.held > self.memory:
            self.over("memory", f"more than {mib(self.memory)} of memory")

    def late(self) -> NoReturn:
        self.over("seconds", f"more than {self.seconds:g} s")

    def over(self, name: str, taken: str) -> NoReturn:
        raise OverLimit(f"{self.where()}: compiling takes {taken}; {ALLOWS.format(name)}")


_budget: ContextVar[Budget | None] = ContextVar("budget", default=None)


@contextmanager
def within(limits: Limits | None = None, extra: float = 0.0, place: Place | None = None) -> Iterator[None]:
    """Inside this context, compile under a budget. If there is a budget already, it goes on to count.

    Raises CompileError if the budget, or Python's memory or recursion depth, is exceeded. `extra` seconds are
    added to the limit. `place` is the memory to which the compiler's own process writes its current node."""
    if _budget.get() is not None:
        yield
        return
    budget = Budget(limits or Limits(), extra)
    budget.place = place
    with going_on(budget, alone=place is not None):
        yield


@contextmanager
def going_on(budget: Budget | None, alone: bool = False) -> Iterator[None]:
    """Inside this context, work for a compilation under its budget, in any process or thread; see `within`.
    `alone` tells that the process is the compiler's own, so that the system limits its memory."""
    token = _budget.set(budget)
    try:
        if budget is not None:
            budget.alone = alone
            sized(budget.size)
        yield
    except OverLimit as over:
        raise CompileError(str(over)) from None
    except (MemoryError, RecursionError) as error:
        if budget is None:
            raise
        why = f"compiling takes more memory than there is: {error}"
        if isinstance(error, RecursionError):
            why = "it is nested too deep to be compiled"
        elif budget.alone:
            why = f"compiling takes more than {mib(budget.memory)} of memory; {ALLOWS.format('memory')}"
        raise CompileError(f"{budget.where()}: {why}") from error
    finally:
        _budget.reset(token)


def current() -> Budget | None:
    """Return the budget of the current compilation, to be handed to another process or thread. Return None
    outside a compilation."""
    return _budget.get()


def sized(size: int) -> None:
    """Tell the budget the model's size in bytes. If the process is the compiler's own, also limit its memory
    to the budget's."""
    budget = _budget.get()
    if budget is not None:
        budget.size = max(budget.size, size)
        budget.tell()
        if budget.alone:
            from jangin.runtime.system.usage import limit_own_memory

            limit_own_memory(budget.memory)


def at(node: object) -> None:
    """Set the current node, and check that time and memory are left. The node's text is made only if a
    message needs it."""
    budget = _budget.get()
    if budget is not None:
        if node:
            budget.at(node)
        budget.check()


def step(name: str) -> None:
    """Set the current step of the compilation, and check that time and memory are left."""
    budget = _budget.get()
    if budget is not None:
        budget.step = name
        budget.at("")
        budget.check()


def tick() -> None:
    """Check that time and memory are left. Raises OverLimit if not."""
    budget = _budget.get()
    if budget is not None:
        budget.check()


def spend(count: int = 1) -> None:
    """Count `count` more nodes, and check all limits."""
    budget = _budget.get()
    if budget is not None:
        budget.nodes += count
        if budget.nodes > budget.limits.nodes:
            budget.over("nodes", f"more than {budget.limits.nodes} nodes")
        budget.check()


def expand(count: int) -> None:
    """Check a lower bound of the model's nodes, with its functions expanded, against the limit of nodes."""
    budget = _budget.get()
    if budget is not None:
        if count > budget.limits.nodes:
            budget.over("nodes", f"more than {budget.limits.nodes} nodes, its functions expanded")
        budget.check()


def room(shape: Sequence[int], size: int = 8) -> Sequence[int]:
    """Return `shape` if an array of this shape, with elements of `size` bytes, is within the limit of memory.
    Otherwise raise OverLimit."""
    budget = _budget.get()
    taken = math.prod(shape) * size
    if budget is not None and taken > budget.memory:
        budget.over("memory", f"more than {mib(budget.memory)} of memory, an array of {mib(taken)}")
    return shape


def left() -> float | None:
    """Return the seconds until the deadline, or None outside a compilation."""
    budget = _budget.get()
    return None if budget is None else max(budget.end - time.monotonic(), 0.0)


def late(node: object) -> NoReturn:
    """Raise OverLimit because the time is over. `node` is the node that another process or thread works
    on."""
    budget = _budget.get()
    assert budget is not None
    budget.node = node or budget.node
    budget.late()


def where() -> str:
    """Return the current node and step, for messages."""
    budget = _budget.get()
    return "the model" if budget is None else budget.where()


def wait(made: Future[T]) -> T:
    """Return the result of a thread's work. Raises OverLimit if it isn't there at the deadline."""
    budget = _budget.get()
    if budget is None:
        return made.result()
    with suppress(TimeoutError):
        return made.result(left())
    return made.result() if made.done() else budget.late()


def in_thread(work: Callable[..., T]) -> Callable[..., T]:
    """Return a function that calls `work` in another thread under the current compilation's budget."""
    budget = _budget.get()

    def run(*args: Any) -> T:
        with going_on(budget):
            return work(*args)

    return run


def mib(size: int) -> str:
    return f"{size / (1 << 20):,.0f} MiB"
