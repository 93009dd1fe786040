"""The device that is the processor on which Python runs. Object files are linked into this process, and
arrays are used in place."""

from __future__ import annotations

import ctypes
import math
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.checks import IndexOutOfRange, failure
from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN, Launch, Plan, PlanBuffer
from jangin.runtime.arrays import DESCRIBED, address, array_wanted, wanted
from jangin.runtime.device import NativeCall, Transfer
from jangin.runtime.devices.pools import pool_for
from jangin.runtime.elf import Image, process_symbol
from jangin.runtime.functions import CALL, ENTRY, FLOW, POOL_ROUNDS, POOL_TEAM, TAKE
from jangin.runtime.layout import Layout
from jangin.runtime.libraries import PREFIX, bind
from jangin.runtime.outputs import BYTE, LARGE, MANY_LINES, Outputs, aligned, fresh
from jangin.runtime.processor import why_not
from jangin.runtime.profile import Call, Launches
from jangin.runtime.sizes import Sizes
from jangin.runtime.threads import handover


class CPU:
    """See `runtime.device.Device`."""

    name = "cpu"

    def why_not(self, target: str) -> str:
        return why_not(target)

    def is_processor(self, target: str) -> bool:
        return True

    def transfer(self, target: str) -> Transfer:
        return Transfer(handover(), 0.0)

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Code | None) -> Code:
        return Code(plan, codes, threads, beside)

    def flow(self, code: bytes) -> Callable[[int], int]:
        image = Image((code,))
        run = FLOW.at(image.address(FLOW.name))
        weakref.finalize(run, _let_go, image).atexit = False  # the image lives as long as the function
        return run


DEVICE = CPU()


class Code:
    """Machine code in memory, and its thread pool, which other models may use too. With `beside`, that
    module's pool is used.

    The entry finds a plan's buffers in a table of pointers, in the plan's order. For each buffer with its own
    memory, `users` has the indices in the table of the buffer and of its aliases. `fixed` has the indices and
    addresses of the constants."""

    alignment, copies = ALIGN, False

    def __init__(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Code | None) -> None:
        self.plan = plan
        self.image = image = Image(codes, _symbol)
        self.threads = threads
        self._beside = beside  # kept, because its threads are used
        self._codes = codes
        self._pool = pool_for(image, codes, threads) if beside is None and threads > 1 else None
        self.users: dict[str, list[int]] = {b.name: [] for b in plan.buffers}
        for i, b in enumerate(plan.buffers):
            self.users[b.base if b.kind == "alias" else b.name].append(i)
        self.fixed = [(i, address(a)) for n, a in plan.constants.items() for i in self.users.get(n, ())]
        self.inputs = [self.users[n] for n in plan.inputs]
        self.take = image.address(TAKE.name) if DESCRIBED and image.has(TAKE.name) else 0

    @property
    def pool(self) -> int:
        """The address of the thread pool; 0 if runs take one thread. A forked process makes a new pool,
        because threads aren't forked."""
        if self._beside is not None:
            return self._beside.pool
        if self._pool is None:
            return 0
        if not self._pool.alive:
            self._pool = pool_for(self.image, self._codes, self.threads)
        return self._pool.address

    def memory(self) -> Mapped:
        return Mapped(self)

    def native_call(self, layout: Layout) -> NativeCall:
        memory = self.memory()
        memory.prepare(layout)
        outputs = {name: self.users[name] for name, _, _ in layout.outputs}
        numbers = {b.name: i for i, b in enumerate(self.plan.buffers)}
        sources = {}
        for name in self.plan.outputs:
            buffer = self.plan.buffers[numbers[name]]
            base = buffer.base if buffer.kind == "alias" else name
            sources[name] = (base, memory.table[numbers[name]] or 0)
        failed = partial(memory.failure, layout)
        words = memory.words(layout)
        if not any(_is_shared(launch, layout) for launch in self.plan.launches):
            words = (*words[:3], 0, *words[4:])  # counting callers of the pool takes 0.2 us
        caller, team = (self._optional(f.name) for f in (CALL, POOL_TEAM))
        return NativeCall(
            words, memory.table, self.inputs, outputs, sources, failed, caller, team if words[3] else 0,
            self.threads, (self, memory),
        )  # fmt: skip

    def _optional(self, name: str) -> int:
        """Return a function's address, or 0 if the code is of a version without it."""
        return self.image.address(name) if self.image.has(name) else 0


def _symbol(name: str) -> int:
    """Return the address of a function that machine code calls. It is another maker's library's if its name
    begins with `PREFIX`, else the system's."""
    return bind(name) if name.startswith(PREFIX) else process_symbol(name)


def _is_shared(launch: Launch, layout: Layout) -> bool:
    """Return whether a launch has tasks for more than one thread."""
    return 0 < layout.value(launch.grain) < layout.value(launch.tasks)


def _let_go(image: Image) -> None:
    """Do nothing. A finalizer that calls this keeps the image alive until then."""


def _bytes(count: int) -> Array:
    """Return uninitialized, aligned memory of `count` bytes."""
    return aligned((count,), BYTE)


_Made = tuple[str, Callable[..., Array], Sizes, np.dtype[Any], list[int]]
"""An output: its name, the function that makes its array, its shape and type, and its indices in the
table."""


class Mapped:
    """The arena, the scratch memory, and the table of pointers to every buffer."""

    def __init__(self, code: Code) -> None:
        self._code = code
        self._for: Layout | None = None
        self._arena = self._scratch = _bytes(0)
        self.table: Any = None
        self.symbols: Any = None
        self._outputs = Outputs()
        self._made: list[_Made] = []
        self._entry: Callable[[], int]  # made for each layout
        self._wanted: Any = None
        self._take: Callable[[], int]  # made with `_wanted`, once a layout is used again

    def prepare(self, layout: Layout) -> None:
        """Make the memory and the table ready for a layout. If the layout is the last one, prepare for
        `again`."""
        if self._for is layout:
            self._expect(layout)
            return
        same = self._for is not None and self._for.placement is layout.placement
        self._for = self._wanted = None  # until the end: any step may run out of memory
        self.symbols = (ctypes.c_int64 * max(1, len(layout.sizes)))(*layout.sizes)
        self.symbols_at = ctypes.addressof(self.symbols)
        needed = layout.stride * self._code.threads
        # half more, because sizes that grow with each run would reallocate it each time
        if len(self._scratch) < needed:
            self._scratch = _bytes(needed + (needed // 2 if layout.sizes else 0))
        if not same:
            self._place(layout)
        self._made = [
            (name, self._maker(name, math.prod(shape) * dtype.itemsize), shape, dtype, self._code.users[name])
            for name, shape, dtype in layout.outputs
        ]
        self._entry = ENTRY.prepared(*self.words(layout))
        self._for = layout

    def _expect(self, layout: Layout) -> None:
        """Make the table by which `again` checks arrays, unless it exists."""
        if self._wanted is None and self._code.take:
            buffers = map(self._code.plan.buffer, self._code.plan.inputs)
            shapes = [(layout.shapes[b.name], b.dtype.numpy) for b in buffers]
            expected = [(*s, places) for s, places in zip(shapes, self._code.inputs, strict=True)]
            expected += [(shape, dtype, at) for _, _, shape, dtype, at in self._made]
            check = wanted([array_wanted(*array) for array in expected])
            given = self.table_at, ctypes.addressof(check)
            self._take = TAKE.prepared(self._code.take, *given, locked=True)
            self._wanted = check

    def words(self, layout: Layout) -> tuple[int, ...]:
        """Return the entry's address and its arguments for a layout."""
        code = self._code
        at = code.image.address(ENTRY.name)
        return at, self.table_at, self.symbols_at, code.pool, address(self._scratch), layout.stride

    def _maker(self, name: str, size: int) -> Callable[..., Array]:
        """Return the function that makes the array of an output with `size` bytes, given shape and type."""
        if size >= LARGE:
            return partial(self._outputs.array, name)
        return aligned if size >= MANY_LINES else fresh

    def _place(self, layout: Layout) -> None:
        """Enlarge the arena if needed, and make a table with the addresses of constants and arena buffers."""
        if len(self._arena) < layout.placement.arena:
            self._arena = _bytes(layout.placement.arena)
        at = address(self._arena)
        self.table = (ctypes.c_void_p * max(1, len(self._code.plan.buffers)))()
        self.table_at = ctypes.addressof(self.table)
        for i, pointer in self._code.fixed:
            self.table[i] = pointer
        for name, offset in layout.placement.offsets.items():
            for i in self._code.users[name]:
                self.table[i] = at + offset

    def again(self, given: Sequence[Any]) -> dict[str, Array] | None:
        if self._wanted is None:
            return None
        outputs = self._fresh()
        arrays = (*given, *outputs.values())
        self._wanted[0] = id(arrays)
        if not self._take():
            return None
        status = self._entry()
        if status:
            assert self._for is not None
            raise self.failure(self._for, status)
        return outputs

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        outputs = self._bind(inputs)
        status = self._entry()
        if status:
            raise self.failure(layout, status)
        return outputs

    def failure(self, layout: Layout, status: int) -> IndexOutOfRange:
        """Return the exception for the check whose number the entry returned."""
        plan = self._code.plan
        check = plan.checks[status - 1]
        index = self.read(layout, plan.buffer(check.buffer)).view(np.int64)
        return failure(check, int(index[0]), layout.value)

    def _bind(self, inputs: Sequence[Array]) -> dict[str, Array]:
        """Store the addresses of the inputs and of new outputs in the table. Return the outputs by name."""
        table = self.table
        for array, places in zip(inputs, self._code.inputs, strict=True):
            pointer = address(array)
            for i in places:
                table[i] = pointer
        outputs = self._fresh()
        for array, (*_, places) in zip(outputs.values(), self._made, strict=True):
            pointer = address(array)
            for i in places:
                table[i] = pointer
        return outputs

    def _fresh(self) -> dict[str, Array]:
        """Return new arrays for the outputs, by name. Raises MemoryError, which names the output."""
        outputs = {}
        for name, make, shape, dtype, _ in self._made:
            try:
                outputs[name] = make(shape, dtype)
            # NumPy raises ValueError for more bytes than an address can hold
            except (MemoryError, ValueError) as error:
                sizes = ", ".join(map(str, shape))
                raise MemoryError(f"there is no memory for the output '{name}' {dtype}[{sizes}]") from error
        return outputs

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        start = layout.placement.offsets[buffer.name]
        count = int(np.prod(layout.shapes[buffer.name], dtype=np.int64)) * buffer.dtype.bytes
        return self._arena[start : start + count]

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        """Prepare the launches on these inputs, as calls of the thread pool.

        A call is: pool, kernel, arguments, sizes, tasks, grain, scratch, bytes of scratch a worker, rounds,
        and the address of the round's number."""
        self.prepare(layout)
        outputs, code, scratch = self._bind(inputs), self._code, address(self._scratch)
        numbers = {b.name: i for i, b in enumerate(code.plan.buffers)}
        calls: list[Call] = []
        for launch in code.plan.launches:
            args = (ctypes.c_void_p * len(launch.args))(*(self.table[numbers[n]] for n in launch.args))
            sizes = (ctypes.c_int64 * (len(launch.symbols) + 1))(*map(layout.value, launch.symbols))
            rounds, last = layout.value(launch.rounds), ctypes.addressof(sizes) + 8 * len(launch.symbols)
            kernel, tasks = code.image.address(launch.function), layout.value(launch.tasks)
            least = layout.value(launch.grain)
            own, grain = (code.pool if least else None), max(1, least)
            calls.append((own, kernel, args, sizes, tasks, grain, scratch, layout.stride, rounds, last))
        idle = [(*c[:4], 0, *c[5:8], 1, c[9]) for c in calls]
        run = POOL_ROUNDS.at(code.image.address(POOL_ROUNDS.name))
        return Launches(code.plan, layout, run, calls, idle, (inputs, self, outputs))
