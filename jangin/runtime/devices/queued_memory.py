"""The memory of a queued device's runs: arguments, uploads, launches, checks, and the faulty kernel of a run
that fails."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.ir.checks import IN_RANGE, failure
from jangin.ir.graph import Array
from jangin.ir.plan import ONE, Launch, PlanBuffer
from jangin.runtime.arrays import address
from jangin.runtime.device import LoadError
from jangin.runtime.devices.driver import WAITING, Buffer, DriverError, Kernel, Queue
from jangin.runtime.devices.queued_faults import failed, named
from jangin.runtime.layout import Layout
from jangin.runtime.outputs import aligned
from jangin.runtime.profile import Call, Launches

if TYPE_CHECKING:
    from jangin.runtime.devices.queued import Code


class Memory:
    """The arena, scratch memory and queue of one run at a time, and each launch's kernel with its
    arguments."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._for: Layout | None = None
        self._queue: Queue | None = None
        self._arena: Buffer | None = None
        self._kernels: list[Kernel] = []
        self._rounds: list[range] = []
        self._scratch: Buffer | None = None
        self._common: Buffer | None = None  # what groups of one launch share
        self._most: dict[int, int] = {}  # groups of launches in which they wait for one another
        self._waiting: Buffer | None = None  # memory for that
        self._inputs: dict[str, Array] = {}  # copies of inputs with the wrong alignment
        self._values: dict[str, Buffer] = {}  # memory in the arena: kernels don't keep it alive
        self._ends: dict[str, Buffer] = {}  # inputs and outputs on a device with memory of its own
        self._start: Callable[[], None] | None = None  # enqueues a run's launches, with those

    # --- sizes

    def prepare(self, layout: Layout) -> None:
        """Make the memory for a layout, and set every kernel argument except inputs and outputs."""
        if self._for is layout:
            return
        self._for = self._start = None  # until the end: any step may fail
        try:
            self._prepare(layout)
        except DriverError as error:
            raise self._failed("make ready for a run", error) from error
        self._for = layout

    def _prepare(self, layout: Layout) -> None:
        code, plan = self._code, self._code.plan
        self._queue = self._queue or code.driver.queue()
        self._kernels = self._kernels or [self._kernel(n) for n in range(len(plan.launches))]
        if self._arena is None or self._arena.size < layout.placement.arena:
            self._arena = self._room_for_values(layout)
        placed: dict[tuple[int, int], Buffer] = {}
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
        if not code.driver.shared:
            self._prepare_ends(layout)
        needs = [layout.value(launch.scratch) for launch in plan.launches]
        most = needs.index(max(needs)) if needs else None
        self._scratch = code.room("scratch", layout.stride * code.items, most)
        self._prepare_common(layout)
        self._rounds = [
            self._numbers(n, launch, kernel, layout)
            for n, (launch, kernel) in enumerate(zip(plan.launches, self._kernels, strict=True))
        ]

    def _kernel(self, number: int) -> Kernel:
        """Return a launch's kernel. One launch does all its rounds if its groups can wait for one another."""
        code, launch = self._code, self._code.plan.launches[number]
        kernel = code.kernel(launch.function)
        rounds = launch.local if launch.rounds != ONE else ()
        if rounds and (found := code.driver.waiting(kernel, math.prod(launch.local))) is not None:
            kernel, self._most[number] = found
        return kernel

    def _prepare_waiting(self) -> Buffer:
        """Return the memory with which groups wait for one another. Launches use it one after the other, and
        each leaves the count at 0."""
        if self._waiting is None:
            assert self._queue is not None
            room = self._code.room("the count of groups that wait", WAITING, min(self._most))
            self._queue.write(room, np.zeros(WAITING, np.uint8))
            self._queue.finish()
            self._waiting = room
        return self._waiting

    def _prepare_common(self, layout: Layout) -> None:
        """Make the memory that all groups of a launch share. Launches use it one after the other, and each
        leaves the counts at its beginning at 0."""
        needs = [layout.value(launch.common) for launch in self._code.plan.launches]
        size = max(needs, default=0)
        if size and (self._common is None or self._common.size < size):
            assert self._queue is not None
            self._common = self._code.room("the sums that groups share", size, needs.index(size))
            self._queue.write(self._common, np.zeros(size, np.uint8))
            self._queue.finish()

    def _prepare_ends(self, layout: Layout) -> None:
        """Make the device's memory for inputs and outputs, which all runs of a layout use."""
        code = self._code
        sizes = {n: math.prod(shape) * np.dtype(dtype).itemsize for n, shape, dtype in layout.outputs}
        inputs = [b for b in code.plan.buffers if b.kind == "input" and code.users[b.name]]
        for name, size in ({b.name: self._bytes(layout, b) for b in inputs} | sizes).items():
            if name not in self._ends or self._ends[name].size < size:
                self._ends.pop(name, None)
                self._ends[name] = self._end(name, size)
            self._give(name, self._ends[name])

    def _end(self, name: str, size: int) -> Buffer:
        """Make the device's memory for an input or output."""
        return self._code.room(name, size)

    def _room_for_values(self, layout: Layout) -> Buffer:
        code = self._code
        sizes = {b.name: self._bytes(layout, b) for b in code.plan.buffers if b.kind == "arena"}
        users = code.users[max(sizes, key=lambda n: sizes[n])] if sizes else ()
        maker = users[0][0] if users else None
        return code.room("what lies between kernels", layout.placement.arena, maker)

    def _bytes(self, layout: Layout, buffer: PlanBuffer) -> int:
        return math.prod(layout.shapes[buffer.name]) * buffer.dtype.bytes

    def _part(self, offset: int, size: int) -> Buffer:
        assert self._arena is not None
        return self._arena.part(offset, size)

    def _give(self, name: str, memory: Buffer) -> None:
        for n, i in self._code.users[name]:
            self._kernels[n].set_arg(i, memory)

    def _numbers(self, number: int, launch: Launch, kernel: Kernel, layout: Layout) -> range:
        """Set a kernel's numeric arguments and its size. Return the rounds for which it is enqueued one by
        one."""
        tasks, rounds = layout.value(launch.tasks), layout.value(launch.rounds)
        grain = layout.value(launch.grain)
        most = 1 if not grain else max(1, tasks // grain)
        items = min(tasks, most, self._code.items)
        local = math.prod(launch.local)
        if launch.local:  # as many groups as there is scratch memory for
            items = min(tasks, self._code.items) if layout.value(launch.scratch) else tasks
        at, alone = len(launch.args), items == 1 and not launch.local
        if number in self._most:
            items, alone = min(items, self._most[number]), True
        numbers = [*map(layout.value, launch.symbols), tasks, 0, rounds if alone else 1]
        for n, value in enumerate(numbers, at):
            kernel.set_arg(n, value)
        memory = self._common if layout.value(launch.common) else self._scratch
        assert memory is not None
        kernel.set_arg(at + len(numbers), memory)
        kernel.set_arg(at + len(numbers) + 1, layout.stride)
        if number in self._most:
            kernel.set_arg(at + len(numbers) + 2, self._prepare_waiting())
        kernel.set_size(items * local, local)
        return range(0) if not tasks else range(1 if alone else rounds)

    # --- runs

    def again(self, given: Sequence[Any]) -> None:
        return None

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        queue = self._queue
        assert queue is not None, "prepare comes first"
        try:
            outputs, held = self._bind(layout, inputs)
            self._launch(queue)
            self._take(queue, layout, inputs, outputs, held)
        except BaseException:
            with suppress(DriverError):
                queue.finish()  # kernels that were enqueued may still use the arrays
            raise
        return outputs

    def _launch(self, queue: Queue) -> None:
        """Enqueue all launches. On a device with its own memory they are recorded once, because their
        arguments are the same in all runs of a layout."""

        def enqueue() -> None:
            self._enqueue(queue, range(len(self._kernels)))

        if self._code.driver.shared:
            enqueue()
            return
        try:
            self._start = self._start or queue.recorded(enqueue)
            self._start()
        except DriverError as error:
            raise self._failed(f"start a run of {self._code.plan.name}", error) from error

    def _bind(self, layout: Layout, inputs: Sequence[Array]) -> tuple[dict[str, Array], dict[str, Buffer]]:
        """Upload the inputs, and make new arrays for the outputs. If the device shares the host's memory, set
        both as kernel arguments instead. Return the outputs, and the buffers by name."""
        code, held, outputs = self._code, self._bind_inputs(inputs), {}
        for name, shape, dtype in layout.outputs:
            try:
                outputs[name] = array = aligned(shape, np.dtype(dtype), code.alignment)
            # NumPy raises ValueError for more bytes than an address can hold
            except (MemoryError, ValueError) as error:
                sizes = ", ".join(map(str, shape))
                raise MemoryError(f"there is no memory for the output '{name}' {dtype}[{sizes}]") from error
            if code.driver.shared:
                held[name] = code.buffer(name, array, write=True)
                self._give(name, held[name])
            else:
                held[name] = self._ends[name]
        return outputs, held

    def _bind_inputs(self, inputs: Sequence[Array]) -> dict[str, Buffer]:
        code, held = self._code, dict[str, Buffer]()
        for name, array in zip(code.plan.inputs, inputs, strict=True):
            if code.users[name] and code.driver.shared:
                held[name] = code.buffer(name, self._aligned(name, array), write=False)
                self._give(name, held[name])
            elif code.users[name] and array.nbytes:
                self._upload(name, array)
        return held

    def _upload(self, name: str, array: Array) -> None:
        assert self._queue is not None
        try:
            self._queue.write(self._ends[name], array)
        except DriverError as error:
            raise self._failed(f"take the input '{name}'", error) from error
        self._code.copied += array.nbytes

    def _aligned(self, name: str, array: Array) -> Array:
        """Return an input at an address that the device can use in place, copied if needed.

        Otherwise drivers would copy it to new memory, which takes as long as a small model's kernels."""
        code = self._code
        if not code.driver.shared or address(array) % code.alignment == 0:
            return array
        kept = self._inputs.get(name)
        if kept is None or kept.shape != array.shape:
            kept = self._inputs[name] = aligned(array.shape, array.dtype, code.alignment)
        np.copyto(kept, array)
        code.copied += array.nbytes
        return kept

    def _enqueue(self, queue: Queue, numbers: range) -> None:
        """Enqueue launches by their numbers."""
        number = 0
        try:
            for number in numbers:
                kernel, rounds = self._kernels[number], self._rounds[number]
                for n in rounds:
                    if len(rounds) > 1:
                        self._round(number, n)
                    kernel.enqueue(queue)
        except DriverError as error:
            raise self._kernel_failed(number, error) from error

    def _round(self, number: int, n: int) -> None:
        """Set the round's number for a launch's kernel."""
        launch = self._code.plan.launches[number]
        self._kernels[number].set_arg(len(launch.args) + len(launch.symbols) + 1, n)

    def _kernel_failed(self, number: int, error: DriverError) -> Exception:
        return self._failed(f"run {named(self._code.plan.launches[number])}", error)

    def _failed(self, what: str, error: DriverError) -> Exception:
        """Return the exception for a failed action of the device. If the device is lost, it is dropped, so
        that the next load opens it anew."""
        if error.lost:
            self._code.driver.forget()
        return failed(self._code.driver, what, error)

    def _blamed(self, queue: Queue, layout: Layout, inputs: Sequence[Array], error: DriverError) -> Exception:
        """Return the exception for a failure during a run. It names the first kernel that also fails when it
        runs alone, if there is one."""
        name = self._code.plan.name
        if error.fault and (told := self._found_again(layout, inputs)) is not None:
            return told
        if error.lost:
            return self._failed(f"finish a run of {name}", error)
        for number in range(len(self._kernels)):
            try:
                self._enqueue(queue, range(number, number + 1))
                queue.finish()
            except DriverError:
                return self._kernel_failed(number, error)
            except (RuntimeError, MemoryError) as told:
                return told
        return self._failed(f"finish a run of {name}, each of whose kernels runs alone", error)

    def _found_again(self, layout: Layout, inputs: Sequence[Array]) -> Exception | None:
        """Load everything anew, and run launch by launch. Return the exception of the first kernel that
        fails, or None if none does."""
        self._code.driver.forget()
        with suppress(LoadError, DriverError, RuntimeError, MemoryError):
            memory = self._code.loaded().memory()
            memory.prepare(layout)
            memory._bind(layout, inputs)
            queue = memory._queue
            assert queue is not None
            queue.finish()
            for number in range(len(memory._kernels)):
                try:
                    memory._enqueue(queue, range(number, number + 1))
                    queue.finish()
                except DriverError as error:
                    return memory._kernel_failed(number, error)
        return None

    def _take(
        self,
        queue: Queue,
        layout: Layout,
        inputs: Sequence[Array],
        made: Mapping[str, Array],
        held: Mapping[str, Buffer],
    ) -> None:
        """Wait for the run, copy outputs from the device's own memory, and raise the exception of the first
        failed check."""
        checks = self._code.plan.checks
        words = np.empty(len(checks), np.int64)
        wanted = [(name, array) for name, array in made.items() if array.nbytes]
        try:
            for name, array in wanted:
                if self._code.driver.shared:
                    queue.show(held[name])
                else:
                    self._code.copied += array.nbytes
                    queue.read(array, held[name])
            for n, check in enumerate(checks):
                queue.read(words[n : n + 1], self._values[check.buffer])
            queue.finish()
        except DriverError as error:
            raise self._blamed(queue, layout, inputs, error) from error
        for check, word in zip(checks, words.tolist(), strict=True):
            if word != IN_RANGE:
                raise failure(check, word, layout.value)

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        out = np.empty(self._bytes(layout, buffer), np.uint8)
        queue = self._queue
        assert queue is not None, "a run comes first"
        if out.nbytes:
            try:
                queue.read(out, self._part(layout.placement.offsets[buffer.name], out.nbytes))
                queue.finish()
            except DriverError as error:
                raise self._failed(f"give {buffer.name} back", error) from error
            self._code.copied += out.nbytes
        return out

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        self.prepare(layout)
        _, held = self._bind(layout, inputs)
        assert self._queue is not None
        self._queue.finish()  # the launches are another queue's
        return Timed(self, layout, self._code.driver.queue(timed=True), (inputs, held, self))

    def seconds(self, queue: Queue, number: int) -> float:
        """Run a launch in all its rounds, and return its seconds by the device's clock."""
        total, rounds = 0.0, self._rounds[number]
        for n in rounds:
            if len(rounds) > 1:
                self._round(number, n)
            total += self._kernels[number].seconds(queue)
        return total


class Timed(Launches):
    """Launches that the device's own clock times. A call contains only the launch's number."""

    def __init__(self, memory: Memory, layout: Layout, queue: Queue, held: Any) -> None:
        plan = memory._code.plan
        calls: list[Call] = [(n,) for n in range(len(plan.launches))]
        super().__init__(plan, layout, lambda n: None, calls, (), held)
        self._memory, self._queue = memory, queue

    def seconds(self, call: Call) -> float:
        return self._memory.seconds(self._queue, *call)
