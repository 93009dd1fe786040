"""Steps of a program as operations that native code runs (`backends.llvm.flow`), for given sizes.

An operation is `WORDS` 64-bit words: its number, then its operands. The operations are these.

- `call`: entry, table of pointers, symbols, pool, scratch, bytes of scratch a worker (`llvm.entry`), and a
  number. If check n fails, the failure's number is this number plus n.
- `copy`: destination, its step an iteration, source, its step, and the address of the iteration's number.
  Then come the number of rows, the distance of rows at the destination and at the source, and the bytes of a
  row.
- `jump`: the address of an operation.
- `unless`: the address of a bool, and the operation to jump to if it is false.
- `set`: an address, and a 64-bit value to store there.
- `count`: the address of a number that grows by one.
- `past`: the addresses of a number and its limit, and the operation to jump to if the number has reached the
  limit.
- `fail`: the failure's number, from 1 on.
- `end`: no operands.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.expr import Var
from jangin.ir.graph import Array, Shape
from jangin.ir.plan import ZERO
from jangin.ir.program import Branch, HostCall, Loop, Region, Segment, Slicing, Step
from jangin.runtime.arrays import address
from jangin.runtime.executable import Executable
from jangin.runtime.outputs import BYTE, aligned, fresh
from jangin.runtime.sizes import Evaluator, Sizes
from jangin.visible import visible

ROOM = 16
"""A loop that counts its slices has memory for this many at first. The memory doubles when it is full, so the
number decides about the first few loops only."""
WORDS = 10
"""The 64-bit words of an operation, as many as the longest one, `copy`, has."""
OPERATIONS = {
    name: number
    for number, name in enumerate(("end", "call", "copy", "jump", "unless", "set", "count", "past", "fail"))
}
_I64, _BOOL = np.dtype(np.int64), np.dtype(np.bool_)
Cell = tuple[Any, int, int]
"""An entry that gets an address plus an offset: (array of words, index in it, offset). The array is a table
of pointers or the operations' words."""


@dataclass(eq=False)
class Place:
    """A value's memory. `at` is its address, or None if each run provides it. Each run then fills `cells`
    with it."""

    shape: Sizes
    dtype: np.dtype[Any]
    at: int | None = None
    cells: list[Cell] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize

    def rows(self, axis: int) -> tuple[int, int]:
        """Return the number of rows in memory that each have the whole `axis`, and the bytes of one element
        of `axis`."""
        inner = math.prod(self.shape[axis + 1 :]) * self.dtype.itemsize
        return math.prod(self.shape[:axis]), inner

    def tell(self, holder: Any, index: int, offset: int = 0) -> None:
        if self.at is None:
            self.cells.append((holder, index, offset))
        else:
            holder[index] = self.at + offset


Env = dict[str, Place]


class StepError(ValueError):
    """A step can't run on this run's values. The message has the model's node and the reason."""

    def __str__(self) -> str:
        return visible(super().__str__())


class Unreachable(Exception):
    """The steps after a failing step can't be reached."""


class Label:
    """A jump's target: the operation's number once it is known, and the words that need its address."""

    def __init__(self) -> None:
        self.number = -1
        self.users: list[int] = []


@dataclass(eq=False)
class Count:
    """The state of a loop that counts its slices. `made` is the number of slices, and `room` how many fit.

    If there is no more room, the script fails with `failure`. After memory was added, it goes on at the
    operation `top`."""

    made: Place
    room: Place
    failure: int
    top: Label


class Script:
    """Steps as operations, with their own working memory. `given` are arrays of the same shapes and types as
    those of each run. `counted` is the last step if it is a loop that counts its slices."""

    def __init__(
        self,
        steps: Sequence[Step],
        region: Region,
        inputs: Sequence[str],
        outputs: Sequence[str],
        given: Sequence[Array],
        segments: Sequence[Executable],
        constants: Mapping[str, Any],
        symbols: Mapping[Var, int],
        counted: Loop | None = None,
    ) -> None:
        self.segments, self.constants, self.symbols = segments, constants, symbols
        self.counted, self.room = counted, ROOM
        self.count: Count | None = None
        self.value = Evaluator(symbols)
        self.words: list[int] = []
        self.labels: list[Label] = []
        self.failures: list[Callable[[], Exception]] = []
        self.kept: list[Any] = []  # memory that the operations point at
        self.zero = self.memory((), _I64)
        self.emit("set", self.zero, 0)
        self.inputs = [Place(a.shape, a.dtype) for a in given]
        results: Env = {}
        with suppress(Unreachable):
            self.steps(steps, region, dict(zip(inputs, self.inputs, strict=True)), results, {*outputs})
        self.emit("end")
        self.outputs = [results.get(n) for n in outputs]
        self.stacks = [counted is not None and n in counted.stacks for n in outputs]
        self._settle([p for p in (*self.inputs, *self.outputs) if p is not None])

    def _settle(self, places: Sequence[Place]) -> None:
        """Copy the words to their final address, and fill in the addresses of labels."""
        self.code = (ctypes.c_int64 * len(self.words))(*self.words)
        self.start = ctypes.addressof(self.code)
        for label in self.labels:
            for user in label.users:
                self.code[user] = self.start + 8 * WORDS * label.number
        for place in places:
            place.cells = [(self.code if h is self.words else h, i, o) for h, i, o in place.cells]

    def run(self, driver: Callable[[int], int], given: Sequence[Array]) -> list[Array]:
        """Run the script on `given`, and return the outputs. Raises StepError for a step that can't run, and
        IndexOutOfRange for an index."""
        for place, array in zip(self.inputs, given, strict=True):
            _fill(place, array)
        outputs = [self._array(p, s) for p, s in zip(self.outputs, self.stacks, strict=True) if p is not None]
        failure = self._driven(driver, self.start)
        while self.count is not None and failure == self.count.failure:
            try:
                outputs = self._enlarged(outputs)
            except MemoryError:
                self.room = ROOM  # the next run may make fewer slices
                raise
            failure = self._driven(driver, self.start + 8 * WORDS * self.count.top.number)
        if failure:
            raise self.failures[failure - 1]()
        return [self._whole(a, s) for a, s in zip(outputs, self.stacks, strict=True)]

    def _driven(self, driver: Callable[[int], int], start: int) -> int:
        if self.count is not None:
            _number(self.count.room).value = self.room
        return driver(start)

    def _array(self, place: Place, stack: bool) -> Array:
        """Make an array for an output, and fill in its address. An output of counted slices gets the current
        room."""
        array = fresh((self.room, *place.shape[1:]) if stack else place.shape, place.dtype)
        _fill(place, array)
        return array

    def _enlarged(self, made: Sequence[Array]) -> list[Array]:
        """Return the outputs, with twice the room for counted slices. The slices made so far are copied."""
        self.room *= 2
        larger = list(made)
        for n, (place, stack) in enumerate(zip(self.outputs, self.stacks, strict=True)):
            if place is not None and stack:
                larger[n] = self._array(place, stack)
                larger[n][: len(made[n])] = made[n]
        return larger

    def _whole(self, array: Array, stack: bool) -> Array:
        """Return an output. Counted slices are cut to their number, and the next run begins with as much room
        as this one used."""
        if not stack or self.count is None:
            return array
        filled = array[: _number(self.count.made).value]
        self.room = max(ROOM, len(filled))
        return array if len(filled) == len(array) else filled.copy()

    def memory(self, shape: Sizes, dtype: np.dtype[Any]) -> Place:
        """Make memory that only the operations use."""
        array = aligned((max(8, math.prod(shape) * dtype.itemsize),), BYTE)
        self.kept.append(array)
        return Place(shape, dtype, address(array))

    def emit(self, name: str, *operands: Place | Label | int) -> None:
        """Add an operation. A place stands for its address, a label for the address of its operation."""
        start = len(self.words)
        self.words += [OPERATIONS[name], *([0] * (WORDS - 1))]
        for i, operand in enumerate(operands, start + 1):
            if isinstance(operand, Place):
                operand.tell(self.words, i)
            elif isinstance(operand, Label):
                operand.users.append(i)
            else:
                self.words[i] = operand

    def label(self) -> Label:
        self.labels.append(Label())
        return self.labels[-1]

    def here(self, label: Label) -> None:
        label.number = len(self.words) // WORDS

    def fail(self, message: str) -> None:
        self.failures.append(lambda: StepError(message))
        self.emit("fail", len(self.failures))
        raise Unreachable

    def copy(self, source: Place, to: Place) -> None:
        if source.bytes != to.bytes:
            self.fail(f"a value of shape {source.shape} where one of {to.shape} is declared")
        self.emit("copy", to, 0, source, 0, self.zero, 1, 0, 0, to.bytes)

    def steps(self, steps: Sequence[Step], region: Region, env: Env, into: Env, fresh: set[str]) -> None:
        """Add the operations of steps, one after another. `into` has the memory of results whose memory is
        given. Results in `fresh` get memory that each run provides."""
        for step in steps:
            if isinstance(step, HostCall):
                self.fail(f"{step.source}: {step.attrs['message']}")
            shapes = self._shapes(step, region)
            for name, (shape, dtype) in shapes.items():
                if name in fresh:
                    into[name] = Place(shape, dtype)
                place = into.get(name) or self.memory(shape, dtype)
                if (place.shape, place.dtype) != (shape, dtype):
                    source = getattr(step, "source", "")
                    self.fail(f"{source}: {name} has shape {shape}, where {place.shape} is declared")
                env[name] = place
            operands = [self._of(n, env) for n in step.inputs]  # type: ignore[union-attr]
            outputs = [env[n] for n in step.outputs]  # type: ignore[union-attr]
            if isinstance(step, Segment):
                self._segment(step, operands, outputs)
            elif isinstance(step, Branch):
                self._branch(step, self._of(step.condition, env), operands, outputs)
            elif isinstance(step, Loop):
                heads = [self._of(n, env) if n else None for n in (step.trips, step.condition)]
                self._loop(step, heads[0], heads[1], operands, outputs)

    def _shapes(self, step: Step, region: Region) -> dict[str, tuple[Sizes, np.dtype[Any]]]:
        """Return the shape and dtype of each result of a step, by name."""
        if isinstance(step, Segment):
            plan = self.segments[step.plan].plan
            buffers = [plan.buffer(n) for n in step.outputs]
            return {b.name: (self._sizes(b.shape), b.dtype.numpy) for b in buffers}
        values = [region.values[n] for n in step.outputs]  # type: ignore[union-attr]
        dims = {v.name: v.shape or () for v in values}
        if isinstance(step, Loop) and step is self.counted:
            dims |= {n: (ZERO, *dims[n][1:]) for n in step.stacks}
        return {v.name: (self._sizes(dims[v.name]), v.dtype.numpy) for v in values}  # type: ignore[union-attr]

    def _sizes(self, dims: Shape) -> Sizes:
        """Return a shape's sizes. Negative sizes, which only steps that are never reached have, become 0."""
        return tuple(max(0, n) for n in self.value.shape(dims))

    def _of(self, name: str, env: Env) -> Place:
        if name not in env:
            array = np.ascontiguousarray(self.constants[name])
            self.kept.append(array)
            env[name] = Place(np.shape(self.constants[name]), array.dtype, address(array))
        return env[name]

    def _segment(self, step: Segment, given: Sequence[Place], made: Sequence[Place]) -> None:
        exe = self.segments[step.plan]
        try:
            call = exe.native_call([self.symbols[v] for v, _ in exe.plan.symbols])
        except ValueError as error:
            self.fail(str(error))
        self.kept.append(call)
        for place, users, name in zip(given, call.inputs, step.inputs, strict=True):
            buffer = exe.plan.buffer(name)
            if (place.shape, place.dtype) != (self._sizes(buffer.shape), buffer.dtype.numpy):
                self.fail(f"{name} is {place.dtype}{place.shape}, where {buffer.dtype} is declared")
            for i in users:
                place.tell(call.table, i)
        own: dict[str, Place] = {}
        for name, place in zip(step.outputs, made, strict=True):
            if name in call.outputs:
                own[name] = place
                for i in call.outputs[name]:
                    place.tell(call.table, i)
        self.emit("call", *call.words, len(self.failures))
        self.failures += [partial(call.failure, n) for n in range(1, len(exe.plan.checks) + 1)]
        for name, place in zip(step.outputs, made, strict=True):
            if name not in own:  # an input, a constant, or a view of one or of working memory
                base, at = call.sources[name]
                origin = given[step.inputs.index(base)] if base in step.inputs else own.get(base)
                self.copy(origin or Place(place.shape, place.dtype, at), place)

    def _region(self, region: Region, given: Sequence[Place], into: Sequence[Place]) -> None:
        """Add the operations of a region's steps. Its results are stored in the memory of `into`, in
        order."""
        env = dict(zip(region.inputs, given, strict=True))
        defined = {o for s in region.steps for o in s.outputs}  # type: ignore[union-attr]
        places: Env = {}
        copies = []
        for name, place in zip(region.outputs, into, strict=True):
            if name in defined and name not in places:
                places[name] = place
            else:
                copies.append((name, place))
        self.steps(region.steps, region, env, places, set())
        for name, place in copies:
            self.copy(self._of(name, env), place)

    def _branch(self, step: Branch, condition: Place, given: Sequence[Place], made: Sequence[Place]) -> None:
        count = len(step.then.inputs)
        otherwise, end = self.label(), self.label()
        self.emit("unless", condition, otherwise)
        with suppress(Unreachable):
            self._region(step.then, given[:count], made)
        self.emit("jump", end)
        self.here(otherwise)
        with suppress(Unreachable):
            self._region(step.orelse, given[count:], made)
        self.here(end)

    def _loop(
        self,
        step: Loop,
        trips: Place | None,
        condition: Place | None,
        given: Sequence[Place],
        made: Sequence[Place],
    ) -> None:
        """Add the operations of a loop. Carried values are in the memory of the loop's results. The body
        writes their next values to other memory first."""
        first, scans = step.carried, len(step.scanned)
        scanned, rest = given[first : first + scans], given[first + scans :]
        carried, collected = made[:first], made[first:]
        number, going = self.memory((), _I64), self.memory((), _BOOL)
        after = self.memory((), _BOOL)
        slices = [self._slice(p, s) for p, s in zip(scanned, step.scanned, strict=True)]
        parts = [self._slice(p, s) for p, s in zip(collected, step.collected, strict=True)]
        aside = [self.memory(p.shape, p.dtype) for p in carried]
        top, end = self.label(), self.label()
        self.emit("set", number, 0)
        self.emit("set", going, 1)
        if condition is not None:
            self.copy(condition, going)
        for p, q in zip(given[:first], carried, strict=True):
            self.copy(p, q)
        self.here(top)
        if trips is not None:
            self.emit("past", number, trips, end)
        self.emit("unless", going, end)
        count, full = self._room(number, top) if step is self.counted else None, self.label()
        if count is not None:
            self.emit("past", number, count.room, full)
        for p, s, q in zip(scanned, step.scanned, slices, strict=True):
            self._move(p, s, q, number, out=False)
        into = [*([after] if step.conditional else ()), *aside, *parts]
        with suppress(Unreachable):
            self._region(step.body, [number, going, *carried, *slices, *rest], into)
        if step.conditional:
            self.copy(after, going)
        for p, q in zip(aside, carried, strict=True):
            self.copy(p, q)
        for p, s, q in zip(collected, step.collected, parts, strict=True):
            self._move(p, s, q, number, out=True)
        self.emit("count", number)
        self.emit("jump", top)
        self.here(full)
        if count is not None:
            self.emit("fail", count.failure)
        self.here(end)

    def _room(self, number: Place, top: Label) -> Count:
        """Prepare a loop that counts its slices to continue at `top` after it ran out of room. Return its
        state."""
        self.failures.append(partial(AssertionError, "there is always more room"))
        self.count = Count(number, self.memory((), _I64), len(self.failures), top)
        return self.count

    def _slice(self, whole: Place, s: Slicing) -> Place:
        axis = s.axis % len(whole.shape)
        return self.memory((*whole.shape[:axis], *whole.shape[axis + 1 :]), whole.dtype)

    def _move(self, whole: Place, s: Slicing, part: Place, number: Place, *, out: bool) -> None:
        """Add a copy of this iteration's slice: into the whole value if `out`, else from it."""
        axis = s.axis % len(whole.shape)
        rows, size = whole.rows(axis)
        count = whole.shape[axis]
        step, offset = (-size, (count - 1) * size) if s.reverse else (size, 0)
        at = len(self.words) + (1 if out else 3)
        if out:
            self.emit("copy", 0, step, part, 0, number, rows, count * size, size, size)
        else:
            self.emit("copy", part, 0, 0, step, number, rows, size, count * size, size)
        whole.tell(self.words, at, offset)


def _number(place: Place) -> ctypes.c_int64:
    """Return the integer in memory that only the operations use. It can be read and set."""
    assert place.at is not None
    return ctypes.c_int64.from_address(place.at)


def _fill(place: Place, array: Array) -> None:
    at = address(array)
    for holder, index, offset in place.cells:
        holder[index] = at + offset
