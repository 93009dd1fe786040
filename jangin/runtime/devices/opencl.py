"""OpenCL devices: a plan's kernels in one program, enqueued in order, with one wait for each run.

The work is shared as on a processor: a launch's tasks are divided among as many work-items as there are
threads, or some times more, each a group of its own. Where a device's memory is the host's, arrays are used
where they lie.
"""

from __future__ import annotations

import math
import shutil
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from itertools import accumulate
from typing import Any

import numpy as np

from jangin.ir.checks import IN_RANGE, failure
from jangin.ir.graph import Array
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ir.records import dataclass
from jangin.runtime.arrays import address
from jangin.runtime.device import LoadError, NativeCall, Transfer
from jangin.runtime.devices.clblast import Failed, Product, unpacked
from jangin.runtime.devices.opencl_devices import PREFIX, Found, library, of_target, select
from jangin.runtime.layout import Layout
from jangin.runtime.profile import Call, Launches
from jangin.runtime.threads import default_threads, handover

SPREAD = 4
"""Work-items for each thread: those that end early take another's share."""
PAGE = 4096
"""Bytes at a multiple of which drivers use the host's memory as it is."""
PROBE = 16 << 20
"""Bytes by whose copy a device's link is measured."""
TURNS = 5
LOG = 2000
"""Characters of a compiler's messages that an error repeats."""


class OpenCL:
    """See `runtime.device.Device`. `which`: the device that code is run on, whichever it was made for; "" is
    that one."""

    name = PREFIX

    def __init__(self, which: str = "") -> None:
        self._which = which

    def device(self, target: str) -> Found:
        """What runs code for a target. Raises LoadError."""
        return select(self._which) if self._which else of_target(target)

    def why_not(self, target: str) -> str:
        try:
            device = self.device(target)
        except LoadError as error:
            return str(error)
        wanted = target.rpartition("/")[2]
        missing = [f[1:] for f in wanted.split(",") if f and f[1:] not in device.features]
        return f"{device} lacks {', '.join(missing)}" if missing else ""

    def is_processor(self, target: str) -> bool:
        return self.device(target).kind == "CPU"

    def transfer(self, target: str) -> Transfer:
        return transfer(self.device(target))

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Code | None) -> Code:
        device = self.device(plan.target)
        built = [Built.of(code) for code in codes]
        opened(device)
        load = partial(load_kernel, device, same=plan.target == device.target)
        with ThreadPoolExecutor(default_threads()) as pool:
            kernels = dict(zip([b.kernel for b in built], pool.map(load, built), strict=True))
        return Code(plan, device, kernels, threads)

    def flow(self, code: bytes) -> Callable[[int], int] | None:
        return None


DEVICE = OpenCL()


def of(which: str) -> OpenCL:
    """The device that a name's second part chooses."""
    return OpenCL(which)


_HEAD = struct.Struct("<III")


@dataclass(frozen=True)
class Built:
    """A program of one kernel: its source, and what a driver made of that, empty where none has. `product`:
    what a library computes before (`clblast.packed`), empty for nothing; then there may be no source."""

    kernel: str
    source: bytes
    binary: bytes = b""
    product: bytes = b""

    @property
    def packed(self) -> bytes:
        parts = self.kernel.encode(), self.source, self.product
        return _HEAD.pack(*map(len, parts)) + b"".join(parts) + self.binary

    @classmethod
    def of(cls, code: bytes) -> Built:
        """What was packed. Raises LoadError."""
        try:
            start, name, source, product = accumulate(_HEAD.unpack_from(code), initial=_HEAD.size)
            parts = code[start:name], code[name:source], code[source:product]
            return cls(parts[0].decode(), parts[1], code[product:], parts[2])
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}") from None


@dataclass
class Opened:
    """A device with the context that its programs and memory belong to."""

    device: Found
    context: Any


_OPENED: dict[int, Opened] = {}


def opened(device: Found) -> Opened:
    """The one of a device in this process. Raises LoadError where it can't be opened."""
    cl = library()
    if device.number not in _OPENED:
        try:
            _OPENED[device.number] = Opened(device, cl.Context([device.handle]))
        except cl.Error as error:
            raise LoadError(f"{device} can't be opened: {error}") from error
    return _OPENED[device.number]


def transfer(device: Found) -> Transfer:
    """See `runtime.device.Device.transfer`. Where the device's memory is the host's, no byte moves."""
    cl, here = library(), opened(device)
    queue = cl.CommandQueue(here.context, device.handle)
    raw = np.zeros(PROBE, np.uint8)
    buffer = cl.Buffer(here.context, cl.mem_flags.READ_WRITE, PROBE)
    best = [math.inf, math.inf]
    for _ in range(TURNS):
        for n, size in enumerate((1, PROBE)):
            start = time.perf_counter()
            cl.enqueue_copy(queue, buffer, raw[:size], is_blocking=False)
            queue.finish()
            best[n] = min(best[n], time.perf_counter() - start)
    rate = 0.0 if device.unified else max(0.0, best[1] - best[0]) / PROBE
    return Transfer(handover() + best[0], rate)


def load_program(device: Found, built: Built, *, same: bool) -> Any:
    """A program of what the `same` driver made, or else of its source. Raises LoadError."""
    cl, here = library(), opened(device)
    if built.binary and same:
        try:
            return cl.Program(here.context, [device.handle], [built.binary]).build(cache_dir=False)
        except cl.Error:
            pass  # a driver may refuse what it made: the source is there
    return build_program(device, built.source)


def load_kernel(device: Found, built: Built, *, same: bool) -> Any:
    """The kernel of a program: making it is half of what loading the program takes in some drivers."""
    if built.product:
        rest = load_kernel(device, replace(built, product=b""), same=same) if built.source else None
        return Product(unpacked(built.product), rest)
    program = load_program(device, built, same=same)
    try:
        return library().Kernel(program, built.kernel)
    except library().Error as error:
        raise LoadError(f"{device} has no kernel {built.kernel} in its program: {error}") from error


def copy_of(kernel: Any) -> Any:
    """Another of the same kernel, with arguments of its own."""
    if isinstance(kernel, Product):
        return Product(kernel.sgemm, kernel.rest and copy_of(kernel.rest))
    try:
        return kernel.clone()
    except library().Error:  # before version 2.1
        return library().Kernel(kernel.program, kernel.function_name)


def build_program(device: Found, source: bytes) -> Any:
    """A program of OpenCL C. Raises LoadError with what the driver's compiler says."""
    if device.linker and shutil.which(device.linker) is None:
        raise LoadError(
            f"{device} needs the program {device.linker!r}, without which its driver ends this process: "
            "install your system's binutils"
        )
    cl, here = library(), opened(device)
    options = ["-cl-std=CL1.2", "-w"]  # nobody wrote this code who could heed warnings
    if device.rounded:
        options.append("-cl-fp32-correctly-rounded-divide-sqrt")
    try:
        return cl.Program(here.context, source.decode()).build(options, cache_dir=False)
    except cl.Error as error:
        raise LoadError(f"the compiler of {device} failed: {str(error)[:LOG]}") from error


def binary_of(program: Any) -> bytes:
    """What `load_program` makes the program of without building it; empty where the driver gives none."""
    cl = library()
    (made,) = program.get_info(cl.program_info.BINARIES)
    return bytes(made or b"")


class Code:
    """Kernels on a device, by name, and the constants, uploaded once, or used where they lie."""

    def __init__(self, plan: Plan, device: Found, kernels: Mapping[str, Any], threads: int) -> None:
        self.plan, self.device, self.kernels = plan, device, kernels
        self.threads = min(threads, device.units)
        self.items = self.threads * (SPREAD if threads >= device.units else 1)
        self.opened = opened(device)
        self.alignment = device.alignment
        self.users: dict[str, list[tuple[int, int]]] = {b.name: [] for b in plan.buffers}
        base = {b.name: b.base if b.kind == "alias" else b.name for b in plan.buffers}
        for n, launch in enumerate(plan.launches):
            for i, name in enumerate(launch.args):
                self.users[base[name]].append((n, i))
        self.copied = 0
        self.constants = {n: self.buffer(n, a, write=False) for n, a in plan.constants.items() if n in base}
        self.copied = 0

    def memory(self) -> Memory:
        return Memory(self)

    def native_call(self, layout: Layout) -> NativeCall:
        raise NotImplementedError("branches and loops on OpenCL devices are Python's")

    def buffer(self, name: str, array: Array, *, write: bool) -> Any:
        """Memory with an array's contents: the array's own, where the device's memory is the host's."""
        flags = library().mem_flags
        access = flags.READ_WRITE if write else flags.READ_ONLY
        raw = array.reshape(-1).view(np.uint8)
        if not raw.nbytes:
            return self.room(name, 1)
        if not self.device.unified:
            self.copied += raw.nbytes
        how = flags.USE_HOST_PTR if self.device.unified else flags.COPY_HOST_PTR
        return self._made(name, access | how, hostbuf=raw)

    def room(self, name: str, size: int) -> Any:
        """Memory of so many bytes: where the device shares it the host's, which has large pages."""
        if self.device.unified:
            raw = np.empty(max(1, size) + PAGE, np.uint8)
            start = -address(raw) % PAGE
            return self.buffer(name, raw[start : start + max(1, size)], write=True)
        return self._made(name, library().mem_flags.READ_WRITE, size=max(1, size))

    def _made(self, name: str, flags: int, **given: Any) -> Any:
        cl = library()
        size = given["size"] if "size" in given else given["hostbuf"].nbytes
        if size > self.device.largest:
            raise MemoryError(
                f"{name} takes {size} bytes, but a buffer of {self.device} may have {self.device.largest}"
            )
        try:
            return cl.Buffer(self.opened.context, flags, **given)
        except cl.Error as error:
            raise MemoryError(
                f"{self.device} has no memory for the {size} bytes of {name}: {error}"
            ) from error


class Memory:
    """Arena, scratch and queue of one run at a time, and each launch's kernel with its arguments."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._for: Layout | None = None
        self._queue: Any = None
        self._arena: Any = None
        self._kernels: list[Any] = []
        self._calls: list[tuple[Any, tuple[int], tuple[int], range]] = []
        self._scratch: Any = None
        self._values: dict[str, Any] = {}  # memory in the arena: kernels that are given it don't keep it

    # --- sizes

    def prepare(self, layout: Layout) -> None:
        """Memory for a layout, and what each launch is given but inputs and outputs."""
        if self._for is layout:
            return
        code, plan = self._code, self._code.plan
        if self._queue is None:
            self._queue = self._new_queue()
            self._kernels = [copy_of(code.kernels[launch.function]) for launch in plan.launches]
        if self._arena is None or self._arena.size < layout.placement.arena:
            self._arena = code.room("the intermediate values", layout.placement.arena)
        placed: dict[tuple[int, int], Any] = {}
        for buffer in plan.buffers:
            if buffer.kind == "arena":
                size = self._bytes(layout, buffer)
                place = layout.placement.offsets[buffer.name], max(1, size)
                if place not in placed:
                    placed[place] = self._part(*place) if size else code.room(buffer.name, 1)
                self._values[buffer.name] = placed[place]
                self._give(buffer.name, placed[place])
            elif buffer.kind == "constant":
                self._give(buffer.name, code.constants[buffer.name])
        self._scratch = code.room("scratch", layout.stride * code.items)
        self._calls = [
            self._numbers(launch, kernel, layout)
            for launch, kernel in zip(plan.launches, self._kernels, strict=True)
        ]
        self._for = layout

    def _new_queue(self, *, timed: bool = False) -> Any:
        cl = library()
        how = cl.command_queue_properties.PROFILING_ENABLE if timed else 0
        return cl.CommandQueue(self._code.opened.context, self._code.device.handle, how)

    def _bytes(self, layout: Layout, buffer: PlanBuffer) -> int:
        return math.prod(layout.shapes[buffer.name]) * buffer.dtype.bytes

    def _part(self, offset: int, size: int) -> Any:
        return self._arena.get_sub_region(offset, size)

    def _give(self, name: str, memory: Any) -> None:
        for n, i in self._code.users[name]:
            self._kernels[n].set_arg(i, memory)

    def _numbers(
        self, launch: Launch, kernel: Any, layout: Layout
    ) -> tuple[Any, tuple[int], tuple[int], range]:
        """Give a kernel its sizes. What it is enqueued with: itself, the items, those of a group, and the
        rounds that each launch of it begins with."""
        tasks, rounds = layout.value(launch.tasks), layout.value(launch.rounds)
        most = 1 if not launch.grain else max(1, tasks // launch.grain)
        items = min(tasks, most, self._code.items)
        local = math.prod(launch.local)
        if launch.local:  # as many groups as there is scratch memory for
            items = min(tasks, self._code.items) if layout.value(launch.scratch) else tasks
        at, alone = len(launch.args), items == 1 and not launch.local
        numbers = [*map(layout.value, launch.symbols), tasks, 0, rounds if alone else 1]
        for n, number in enumerate(numbers, at):
            kernel.set_arg(n, np.int64(number))
        kernel.set_arg(at + len(numbers), self._scratch)
        kernel.set_arg(at + len(numbers) + 1, np.int64(layout.stride))
        turns = range(0) if not tasks else range(1 if alone else rounds)
        return kernel, (items * local,), (local,), turns

    # --- runs

    def again(self, given: Sequence[Any]) -> None:
        return None

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        made, held = self._bind(layout, inputs)
        self._enqueue(self._queue)
        self._take(layout, made, held)
        return made

    def _bind(self, layout: Layout, inputs: Sequence[Array]) -> tuple[dict[str, Array], dict[str, Any]]:
        """Give kernels inputs and fresh outputs, which come back by name, with their memory."""
        code, held = self._code, dict[str, Any]()
        for name, array in zip(code.plan.inputs, inputs, strict=True):
            if code.users[name]:
                held[name] = code.buffer(name, array, write=False)
                self._give(name, held[name])
        made = {}
        for name, shape, dtype in layout.outputs:
            try:
                made[name] = array = np.empty(shape, dtype)
            except (MemoryError, ValueError) as error:  # NumPy's for more bytes than an address can say
                sizes = ", ".join(map(str, shape))
                raise MemoryError(f"there is no memory for the output '{name}' {dtype}[{sizes}]") from error
            unified = code.device.unified
            held[name] = code.buffer(name, array, write=True) if unified else code.room(name, array.nbytes)
            self._give(name, held[name])
        return made, held

    def _enqueue(self, queue: Any) -> None:
        cl = library()
        enqueue = cl.enqueue_nd_range_kernel
        number = 0
        try:
            for number, (kernel, items, local, rounds) in enumerate(self._calls):
                for n in rounds:
                    if len(rounds) > 1:
                        self._round(number, n)
                    if isinstance(kernel, Product):
                        kernel.enqueue(queue)
                        kernel = kernel.rest
                    if kernel is not None:
                        enqueue(queue, kernel, items, local)
        except (cl.Error, Failed) as error:
            raise self._failed(number, error) from error

    def _round(self, number: int, n: int) -> None:
        """Tell a launch's kernel the number of the next round."""
        launch = self._code.plan.launches[number]
        self._kernels[number].set_arg(len(launch.args) + len(launch.symbols) + 1, np.int64(n))

    def _failed(self, number: int, error: Exception) -> RuntimeError:
        launch = self._code.plan.launches[number]
        sources = "; ".join(launch.sources) or "nothing of the model's"
        return RuntimeError(
            f"{self._code.device} could not run the kernel {launch.kernel}, which computes {sources}: "
            f"{error}; the device may be lost or out of memory: load the model again"
        )

    def _take(self, layout: Layout, made: dict[str, Array], held: dict[str, Any]) -> None:
        """Wait for all, copy outputs from memory that isn't the host's, and raise what a check has found."""
        cl, queue, checks = library(), self._queue, self._code.plan.checks
        words = np.empty(len(checks), np.int64)
        wanted = [(name, array) for name, array in made.items() if array.nbytes]
        try:
            for name, array in wanted:
                raw = array.reshape(-1).view(np.uint8)
                if self._code.device.unified:
                    view, _ = cl.enqueue_map_buffer(
                        queue, held[name], cl.map_flags.READ, 0, raw.shape, np.uint8, is_blocking=False
                    )
                    view.base.release(queue)
                else:
                    self._code.copied += raw.nbytes
                    cl.enqueue_copy(queue, raw, held[name], is_blocking=False)
            for n, check in enumerate(checks):
                cl.enqueue_copy(queue, words[n : n + 1], self._values[check.buffer], is_blocking=False)
            queue.finish()
        except cl.Error as error:
            raise self._failed(len(self._calls) - 1, error) from error
        for check, word in zip(checks, words.tolist(), strict=True):
            if word != IN_RANGE:
                raise failure(check, word, layout.value)

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        out = np.empty(self._bytes(layout, buffer), np.uint8)
        if out.nbytes:
            part = self._part(layout.placement.offsets[buffer.name], out.nbytes)
            library().enqueue_copy(self._queue, out, part)
            self._code.copied += out.nbytes
        return out

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        self.prepare(layout)
        _, held = self._bind(layout, inputs)
        return Timed(self, layout, self._new_queue(timed=True), (inputs, held, self))

    def seconds(self, queue: Any, number: int) -> float:
        """What a launch takes by the device's clock."""
        cl, total = library(), 0
        kernel, items, local, rounds = self._calls[number]
        if isinstance(kernel, Product):
            return self._product_seconds(queue, kernel, items, local)
        for n in rounds:
            if len(rounds) > 1:
                self._round(number, n)
            event = cl.enqueue_nd_range_kernel(queue, kernel, items, local)
            event.wait()
            total += event.profile.end - event.profile.start
        return total / 1e9

    def _product_seconds(self, queue: Any, product: Product, items: Any, local: Any) -> float:
        """What lies between two markers around all that a library enqueues, and the kernel behind it."""
        cl = library()
        before = cl.enqueue_marker(queue)
        product.enqueue(queue)
        if product.rest is not None:
            cl.enqueue_nd_range_kernel(queue, product.rest, items, local)
        after = cl.enqueue_marker(queue)
        after.wait()
        taken: int = after.profile.end - before.profile.end
        return taken / 1e9


class Timed(Launches):
    """Launches that the device's own clock times. A call is a launch's number."""

    def __init__(self, memory: Memory, layout: Layout, queue: Any, held: Any) -> None:
        plan = memory._code.plan
        calls: list[Call] = [(n,) for n in range(len(plan.launches))]
        super().__init__(plan, layout, lambda n: None, calls, (), held)
        self._memory, self._queue = memory, queue

    def seconds(self, call: Call) -> float:
        return self._memory.seconds(self._queue, *call)
