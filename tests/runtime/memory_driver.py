"""A queued device in this process's memory, and its back end. Its code is the text of a kernel's loops, and
the interpreter runs it when the queue is waited for.

The device is as strict as any device may be. It checks the order of calls that `runtime.devices.driver`
promises to drivers. It keeps memory of its own even if it shares the host's, and runs nothing before
`finish`.
"""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock
from types import MappingProxyType
from typing import Any
from weakref import ref

import numpy as np

from jangin.backends.backend import Kernel as Made
from jangin.ir.dtype import I64
from jangin.ir.expr import Const
from jangin.ir.graph import Array
from jangin.ir.groups import threads
from jangin.ir.interpret import run_func, size
from jangin.ir.kernel import rounds, scratch_bytes, tasks
from jangin.ir.loop import Func, Let, task_loops
from jangin.ir.parse import parse_func
from jangin.ir.plan import Plan
from jangin.ir.reader import ParseError
from jangin.ir.text import print_func
from jangin.passes.table import GPU_PASSES, GRAPH_PASSES, Pass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import DriverError
from jangin.runtime.devices.queued import QueuedDevice
from jangin.targets import NAMED, Target
from jangin.targets.gpu import Gpu
from jangin.targets.processor import Processor
from jangin.templates.choose import TEMPLATES, Match
from jangin.templates.gpu.table import TEMPLATES as GPU_TEMPLATES

ALIGNMENT, LARGEST, UNITS = 128, 1 << 28, 3
UNWRITTEN = 0xA5
"""The byte that fills fresh memory, and arrays before a queue writes them."""


class Failed(DriverError):
    """The error of a call that a test wants to fail: "lost", "full", "a fault" or something else."""

    @property
    def lost(self) -> bool:
        return self.fault or "lost" in str(self)

    @property
    def full(self) -> bool:
        return "full" in str(self)

    @property
    def fault(self) -> bool:
        return "fault" in str(self)


@contextmanager
def alone(lock: Lock) -> Iterator[None]:
    """Check that only one thread at a time is in this context."""
    assert lock.acquire(blocking=False), "two threads use a queue or a kernel at one time"
    try:
        yield
    finally:
        lock.release()


class MemoryBuffer:
    """`at`: the bytes on the device. `host`: the host's array, if the device shares it."""

    def __init__(
        self, driver: MemoryDriver, at: Array, host: Array | None, whole: MemoryBuffer | None, written: bool
    ) -> None:
        self.driver, self.at, self.host = driver, at, host
        self.whole, self.written = whole, written
        self._kept = host
        self.size = at.nbytes

    def part(self, offset: int, size: int) -> MemoryBuffer:
        assert offset % ALIGNMENT == 0, "parts begin at multiples of the alignment"
        assert 0 < size <= self.size - offset, "parts lie in their buffer"
        return MemoryBuffer(self.driver, self.at[offset : offset + size], None, self, self.written)


@dataclass
class MemoryCode:
    """See `driver.Packed`."""

    func: Func

    @property
    def kernel(self) -> str:
        return self.func.name


class MemoryKernel:
    """See `driver.Kernel`. It keeps buffers by weak references, because real drivers keep only their
    numbers."""

    def __init__(self, driver: MemoryDriver, func: Func) -> None:
        self.driver, self.func = driver, func
        self.args: dict[int, Any] = {}
        self.size: tuple[int, int] | None = None
        self.lock = Lock()

    def copy(self) -> MemoryKernel:
        return MemoryKernel(self.driver, self.func)

    @property
    def count(self) -> int:
        """The number of arguments: buffers, symbols, tasks, first round, rounds, scratch memory and its
        stride."""
        return len(self.func.params) + len(self.func.symbols) + 5

    def set_arg(self, number: int, value: int | MemoryBuffer) -> None:
        with alone(self.lock):
            assert 0 <= number < self.count
            is_memory = number < len(self.func.params) or number == self.count - 2
            assert is_memory == isinstance(value, MemoryBuffer), f"argument {number} of {self.func.name}"
            if isinstance(value, MemoryBuffer):
                assert value.driver is self.driver, "memory of another device"
            else:
                I64.numpy.type(value)  # raises OverflowError for more than 64 bits
            self.args[number] = ref(value) if isinstance(value, MemoryBuffer) else value

    def set_size(self, items: int, local: int) -> None:
        with alone(self.lock):
            assert items >= 0 and local >= 1 and items % local == 0
            self.size = items, local

    def enqueue(self, queue: MemoryQueue) -> None:
        with alone(self.lock):
            queue.driver.may("enqueue", self.func.name)
            assert self.size is not None, "the size comes before a launch"
            assert sorted(self.args) == list(range(self.count)), "all arguments come before a launch"
            args, given = [self.args[n] for n in range(self.count)], self.size
            queue.add(lambda: self.run(args, *given))

    def seconds(self, queue: MemoryQueue) -> float:
        assert queue.timed, "only a timed queue knows times"
        self.enqueue(queue)
        start = time.perf_counter()
        queue.finish()
        return time.perf_counter() - start

    def run(self, args: Sequence[Any], items: int, local: int) -> None:
        """Run a launch with the arguments from the time when it was enqueued."""
        func, driver = self.func, self.driver
        driver.may("run", func.name)
        params, symbols = len(func.params), len(func.symbols)
        sizes = {v.name: n for (v, _), n in zip(func.symbols, args[params : params + symbols], strict=True)}
        count, first, turns, scratch, stride = args[params + symbols :]
        assert count == size(tasks(func), sizes)
        assert 0 <= first <= first + turns <= size(rounds(func), sizes)
        assert local in (1, threads(func)), "a group is a work-item, or as large as the loops say"
        groups = items // local
        assert 1 <= groups <= count, "no group is without a task"
        need = size(scratch_bytes(func, groups=local > 1), sizes)
        assert stride >= need and (not need or _there(scratch).size >= stride * groups)
        arrays, memory = {}, [_there(given) for given in args[:params]]
        for p, m in zip(func.params, memory, strict=True):
            shape = tuple(size(d, sizes) for d in p.shape)
            length = math.prod(shape) * p.dtype.bytes
            arrays[p.name] = m.at[:length].view(p.dtype.numpy).reshape(shape)
        before = [m.written or zlib.crc32(m.at) for m in memory]
        for turn in range(first, first + turns):
            run_func(_round(func, turn), arrays, sizes)
        for m, state in zip(memory, before, strict=True):
            assert m.written or zlib.crc32(m.at) == state, f"{func.name} writes to what it may only read"


def _there(given: Any) -> MemoryBuffer:
    memory = given()
    assert isinstance(memory, MemoryBuffer), "memory lives until its queue is finished"
    return memory


def _round(func: Func, number: int) -> Func:
    """Return the kernel of one round."""
    loop, _ = task_loops(func.body)
    return func if loop is None else func.with_body(Let(loop.var, Const(number, I64), loop.body))


class MemoryQueue:
    """See `driver.Queue`. Nothing is done before `finish`."""

    def __init__(self, driver: MemoryDriver, timed: bool) -> None:
        self.driver, self.timed = driver, timed
        self.waiting: list[Callable[[], None]] = []
        self.lock = Lock()

    def add(self, work: Callable[[], None]) -> None:
        with alone(self.lock):
            self.waiting.append(work)

    def write(self, to: MemoryBuffer, array: Array) -> None:
        assert array.flags.c_contiguous and array.nbytes <= to.size
        self.driver.may("write", str(array.nbytes))
        raw = array.reshape(-1).view(np.uint8)
        state = zlib.crc32(raw)

        def copy() -> None:
            assert zlib.crc32(raw) == state, "what a queue reads stays until it is finished"
            to.at[: raw.nbytes] = raw

        self.add(copy)

    def read(self, array: Array, of: MemoryBuffer) -> None:
        assert array.flags.c_contiguous and array.nbytes <= of.size
        self.driver.may("read", str(array.nbytes))
        raw = array.reshape(-1).view(np.uint8)
        raw[:] = UNWRITTEN

        def copy() -> None:
            raw[:] = of.at[: raw.nbytes]

        self.add(copy)

    def show(self, buffer: MemoryBuffer) -> None:
        host = buffer.host
        assert self.driver.shared and host is not None, "only shared memory is shown"
        self.driver.may("show", str(buffer.size))

        def copy() -> None:
            host[:] = buffer.at

        self.add(copy)

    def recorded(self, enqueue: Callable[[], None]) -> Callable[[], None]:
        """Return a function that enqueues the launches as one piece, with their arguments at the time of the
        call."""
        with alone(self.lock):
            before, self.waiting = self.waiting, []
        enqueue()
        with alone(self.lock):
            kept, self.waiting = self.waiting, before

        def start() -> None:
            self.driver.may("start", "")
            for work in kept:
                self.add(work)

        return start

    def finish(self) -> None:
        with alone(self.lock):
            work, self.waiting = self.waiting, []
            self.driver.may("finish", "")
            for step in work:
                step()


class MemoryDriver:
    """A driver in memory (see `driver.Driver`).

    `log` has the calls so far. `failures` maps a call's name to the function that may raise an error from now
    on. `copies` counts the arrays so far whose position in memory would force a device that shares memory to
    copy."""

    units, alignment, largest = UNITS, ALIGNMENT, LARGEST

    def __init__(self, device: MemoryDevice, shared: bool) -> None:
        self.device, self.shared = device, shared
        self.log: list[tuple[str, str]] = []
        self.copies = 0
        self.failures: dict[str, Callable[[str], object]] = {}

    def __str__(self) -> str:
        return "memory:0 (a test's own)"

    def may(self, call: str, what: str) -> None:
        self.log.append((call, what))
        if call in self.failures:
            self.failures[call](what)

    def unpack(self, code: bytes) -> MemoryCode:
        try:
            return MemoryCode(parse_func(code.decode()))
        except (ParseError, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}") from None

    def load(self, packed: MemoryCode, target: str) -> MemoryKernel:
        self.may("load", packed.kernel)
        return MemoryKernel(self, packed.func)

    def waiting(self, kernel: Any, local: int) -> None:
        return None

    def buffer(self, size: int, array: Array | None = None, *, written: bool = True) -> MemoryBuffer:
        assert 0 < size <= self.largest and (array is None or size == array.nbytes)
        self.may("buffer", str(size) if array is None else f"of {size}")
        if array is not None and array.ctypes.data % ALIGNMENT:
            self.copies += 1
        at = np.full(size, UNWRITTEN, np.uint8) if array is None else array.copy()
        return MemoryBuffer(self, at, array if self.shared else None, None, written)

    def queue(self, *, timed: bool = False) -> MemoryQueue:
        self.may("queue", "timed" if timed else "")
        return MemoryQueue(self, timed)

    def forget(self) -> None:
        self.device.forget(self)


class MemoryDevice(QueuedDevice):
    """See `runtime.device.Device`."""

    name = "memory"

    def __init__(self, shared: bool) -> None:
        self.shared = shared
        self.opened = MemoryDriver(self, shared)

    def why_not(self, target: str) -> str:
        return "" if target.startswith("memory-") else "it isn't for memory"

    def is_processor(self, target: str) -> bool:
        return False

    def driver(self, target: str) -> MemoryDriver:
        return self.opened

    def forget(self, lost: MemoryDriver) -> None:
        if lost is self.opened:
            self.opened = MemoryDriver(self, self.shared)


class MemoryBackend:
    """See `backends.backend.Backend`."""

    libraries, forks = (), True
    forms: Mapping[str, Callable[[Func, Target], str]] = MappingProxyType({})

    def templates(self, target: Target) -> Mapping[str, Match]:
        return GPU_TEMPLATES if target.groups else TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        return GPU_PASSES if target.groups else GRAPH_PASSES

    def code(self, kernel: Made, target: Target, written: Callable[[], object]) -> bytes:
        return print_func(replace(kernel.func, name=kernel.function or kernel.func.name)).encode()

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        return ()

    def made_by(self) -> str:
        return "Memory 1"

    def flow(self, target: Target) -> bytes:
        return b""


def target_of(device: MemoryDevice, groups: bool) -> Target:
    """Return a target whose kernels are as for a processor, or, with `groups`, as for a GPU."""
    gpu = Gpu(group=32, width=8, units=UNITS, shared=8 << 10)
    return replace(
        NAMED["x86-64-v2"], name="memory", triple="memory-none-none", cpu="", features="",
        machine=gpu if groups else Processor(16, 16), backend=MemoryBackend(), device=device,
    )  # fmt: skip
