"""A compiled model, loaded and ready to run."""

from __future__ import annotations

import ctypes
import math
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from jangin.ir.expr import Expr
from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN, Plan, PlanBuffer
from jangin.runtime.arena import layout, roomy
from jangin.runtime.artifact import Artifact
from jangin.runtime.cpu import why_not
from jangin.runtime.elf import Image, LoadError
from jangin.runtime.functions import ENTRY, POOL_CREATE, POOL_DESTROY
from jangin.runtime.profile import Launches, LaunchTime
from jangin.runtime.sizes import Evaluator, Shapes, Signature, Sizes, TensorSpec
from jangin.runtime.threads import default_threads

LAYOUTS = 8
"""Layouts kept for models with symbolic sizes, the least recently used dropped first,"""
SHAPES = 64
"""shapes of inputs whose layout is known without checking them again,"""
TRIES = 2
"""and how often buffers of symbolic sizes are placed again for a smaller arena: a run waits for it."""
COARSE, FINE = 1, 8
"""Memory is placed for sizes rounded up to one of so many values in each power of two: coarsely"""
SMALL = 1 << 20
"""where the arena then has no more bytes than these."""


class Executable:
    """Runs a compiled model: `exe(x, y)` with arrays in input order, or `exe.run({"x": x})`.

    Arrays are NumPy's, or any that offer DLPack on the CPU. Threads may call one Executable at
    once; each call then has its own working memory. `threads`: how many threads a call uses,
    itself included (None: what the process may use); with `share` they are another Executable's."""

    def __init__(
        self, artifact: Artifact, threads: int | None = None, share: Executable | None = None
    ) -> None:
        if threads is not None and threads < 1:
            raise ValueError(f"threads must be at least 1, got {threads}")
        reason = why_not(artifact.plan.target)
        if reason:
            raise LoadError(f"the model was compiled for another machine: {reason}; compile it again here")
        self._artifact = artifact
        self._check = artifact.check
        self._code: _Code = _Code(artifact, threads or default_threads(), share._code if share else None)
        self._signature = Signature(artifact.plan)
        self._results = _results(artifact.plan)
        self._expected = [(s.dtype, s.shape) for s in self.inputs]
        self._frame = _Frame(artifact.plan)
        self._static = _Layout(self._frame, (), Evaluator({})) if artifact.plan.is_static else None
        self._layouts: OrderedDict[Sizes, _Layout] = OrderedDict()
        self._fitting: dict[tuple[Sizes, ...], _Layout] = {}
        self._lock = threading.Lock()
        self._idle: list[_Context] = []

    @property
    def plan(self) -> Plan:
        return self._artifact.plan

    @property
    def name(self) -> str:
        return self._artifact.plan.name

    @property
    def artifact(self) -> Artifact:
        return self._artifact

    @property
    def threads(self) -> int:
        return self._code.threads

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._signature.outputs

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.jgn` file that `jangin.load` reads."""
        self._artifact.save(Path(path))

    def explain_shapes(self) -> str:
        """Which sizes are fixed, which are symbols, what they must meet, and the memory as a formula."""
        from jangin.runtime.explain import explain_plan

        return explain_plan(self.plan, self.inputs)

    def arena_bytes(self, **sizes: int) -> int:
        """Bytes of intermediate memory a run takes, given every size symbol by name."""
        names = [v.name for v in self._signature.symbols]
        if set(sizes) != set(names):
            wanted = ", ".join(names) or "nothing, as every size is known"
            raise ValueError(f"the sizes to give are: {wanted}")
        return self._layout(tuple(sizes[n] for n in names)).placement.arena

    def __call__(self, *arrays: Any) -> Array | tuple[Array, ...]:
        """The output array, or a tuple of them. Raises TypeError for a dtype, ValueError for a
        count or shape that is not what the model takes."""
        results = self._run(arrays)
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """As a call, by name."""
        if len(feeds) != len(self.inputs) or not all(s.name in feeds for s in self.inputs):
            names = [s.name for s in self.inputs]
            problems = [f"missing input {n!r}" for n in names if n not in feeds]
            problems += [f"no input is named {n!r}" for n in feeds if n not in names]
            raise ValueError(f"{', '.join(problems)}; {self._signature}")
        results = self._run([feeds[s.name] for s in self.inputs])
        return {s.name: r for s, r in zip(self.outputs, results, strict=True)}

    def profile(self, feeds: Mapping[str, Any], repeats: int = 20) -> list[LaunchTime]:
        """The time of each launch, in order, over `repeats` runs (see `runtime.profile`)."""
        return self.launches(feeds).times(repeats)

    def launches(self, feeds: Mapping[str, Any]) -> Launches:
        """A run on these inputs that can be made launch by launch."""
        arrays = self._accept([feeds[s.name] for s in self.inputs])
        sizes = () if self._static is not None else self._signature.bind([a.shape for a in arrays])
        chosen = self._layout(sizes)
        self._confirm()
        context = _Context()
        context.prepare(chosen, self.threads)
        held = (self, arrays, context, context.bind(chosen, arrays))
        return Launches(self.plan, self._code.image, self._code.pool, chosen, context, held)

    def native_call(self, sizes: Sequence[int]) -> NativeCall:
        """What native code needs to run this on its own, with working memory that nothing else uses.
        Raises ValueError for sizes that the plan was not made for."""
        self._confirm()
        return NativeCall(self._code, self._frame, self._layout(tuple(sizes)), self.plan)

    def execute(self, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
        """The outputs for contiguous arrays known to be right, and the symbols' values in the plan's
        order: what a program calls."""
        return self._run_at(self._layout(sizes), arrays)

    def _run(self, given: Sequence[Any]) -> list[Array]:
        arrays = self._accept(given)
        chosen = self._static
        if chosen is None:
            shapes = tuple([a.shape for a in arrays])
            chosen = self._fitting.get(shapes) or self._fit(shapes)
        return self._run_at(chosen, arrays)

    def _confirm(self) -> None:
        """Wait until constants that were read are checked. Raises ArtifactError where one is damaged."""
        if self._check is not None:
            self._check()
            self._check = None

    def _run_at(self, chosen: _Layout, arrays: Sequence[Array]) -> list[Array]:
        if self._check is not None:
            self._confirm()
        try:
            context = self._idle.pop()
        except IndexError:
            context = _Context()
        try:
            context.prepare(chosen, self.threads)
            return context.run(self._code, chosen, arrays, self._results)
        finally:
            self._idle.append(context)

    def _accept(self, given: Sequence[Any]) -> list[Array]:
        """The inputs as contiguous arrays of the right dtype; of a static model, the right shape."""
        if len(given) != len(self._expected):
            raise ValueError(f"expected {len(self._expected)} inputs, got {len(given)}; {self._signature}")
        arrays = []
        for i, (dtype, shape) in enumerate(self._expected):
            a = given[i]
            if type(a) is not np.ndarray:
                a = self._array(a, i)
            if a.dtype != dtype:
                raise TypeError(f"input {self.inputs[i]} got dtype {a.dtype}; {self._signature}")
            if self._static is not None and a.shape != shape:
                self._signature.bind([np.shape(g) for g in given])
            arrays.append(a if a.flags.c_contiguous else np.ascontiguousarray(a))
        return arrays

    def _array(self, value: Any, index: int) -> Array:
        return as_array(value, self.inputs[index])

    def _fit(self, shapes: tuple[Sizes, ...]) -> _Layout:
        """The layout for inputs of these shapes, whose check is long beside a small model's run."""
        found = self._layout(self._signature.bind(shapes))
        with self._lock:
            if len(self._fitting) >= SHAPES:
                self._fitting.clear()
            self._fitting[shapes] = found
        return found

    def _layout(self, sizes: Sizes) -> _Layout:
        if self._static is not None:
            return self._static
        with self._lock:
            found = self._layouts.get(sizes)
            if found is None:
                value = self._signature.check(dict(zip(self._signature.symbols, sizes, strict=True)))
                found = self._layouts[sizes] = _Layout(self._frame, sizes, value)
                if len(self._layouts) > LAYOUTS:
                    self._layouts.popitem(last=False)
            self._layouts.move_to_end(sizes)
        return found


def as_array(value: Any, want: TensorSpec) -> Array:
    """What a caller gives for an input, as an array. Raises TypeError where it is none."""
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            return np.asarray(np.from_dlpack(value))
        if hasattr(value, "__array__"):
            return np.asarray(value)
        return np.asarray(value, want.dtype)  # Python numbers and lists have no dtype of their own
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        raise TypeError(
            f"input {want} is no array that can be read ({type(value).__name__}: {error})"
        ) from None


class _Code:
    """Machine code in memory and its thread pool (or that of `share`), both released with the object."""

    def __init__(self, artifact: Artifact, threads: int, share: _Code | None = None) -> None:
        self.image = image = Image(artifact.objects)
        self.entry = ENTRY.at(image.address(ENTRY.name))
        self.threads = threads
        self.share = share  # kept, as its threads are
        self.pool: int | None = None if share is None else share.pool
        if share is None and threads > 1:
            self.pool = POOL_CREATE.at(image.address(POOL_CREATE.name))(threads)
        destroy = POOL_DESTROY.at(image.address(POOL_DESTROY.name))
        own = self.pool if share is None else None
        release = weakref.finalize(self, _release, image, destroy, own, os.getpid())
        release.atexit = False  # daemon threads may still run the code


def _release(image: Image, destroy: Callable[[int], None], pool: int | None, process: int) -> None:
    if os.getpid() != process:  # a forked child has the memory, but not the threads
        return
    if pool is not None:
        destroy(pool)
    image.close()


class _Frame:
    """Everything about a run that no size changes. `users`: the entries in the table of pointers that lie
    where a buffer does."""

    def __init__(self, plan: Plan) -> None:
        self.dims = {b.name: b.shape for b in plan.buffers}
        self.symbols = [v for v, _ in plan.symbols]
        self.scratch = {launch.scratch for launch in plan.launches}
        self.users: dict[str, list[int]] = {b.name: [] for b in plan.buffers}
        for i, b in enumerate(plan.buffers):
            self.users[b.base if b.kind == "alias" else b.name].append(i)
        constants = plan.constants.items()
        self.fixed = [(i, address(a)) for n, a in constants for i in self.users.get(n, ())]
        self.inputs = [self.users[n] for n in plan.inputs]
        self.outputs = [b for b in plan.buffers if b.kind == "output"]
        self.arena = [b for b in plan.buffers if b.kind == "arena"]
        kinds: dict[tuple[tuple[Expr, ...], int], int] = {}
        self.kind = [kinds.setdefault((b.shape, b.dtype.bytes), len(kinds)) for b in self.arena]
        self.kinds = tuple(kinds)  # arena buffers of one size for certain: dimensions, bytes of an element
        self.known = {b.name: b.offset for b in self.arena if b.offset is not None}
        self.entries = len(plan.buffers)
        self.placed = lru_cache(2 * LAYOUTS)(self._placed)

    def _placed(self, bytes: tuple[int, ...]) -> _Placement:
        """Where arena buffers lie, given the bytes of each kind."""
        sizes = [bytes[k] for k in self.kind]
        if len(self.known) == len(self.arena):
            ends = (at + size for at, size in zip(self.known.values(), sizes, strict=True))
            offsets, total = self.known, max(ends, default=0)
        else:
            items = [(b.name, size, *b.live) for b, size in zip(self.arena, sizes, strict=True)]
            offsets, total = layout(items, TRIES)
        return _Placement(offsets, total, [(i, at) for n, at in offsets.items() for i in self.users[n]])


@dataclass(frozen=True, eq=False)
class _Placement:
    """Offsets in the arena, its size, and the entries of the table of pointers with theirs."""

    offsets: dict[str, int]
    arena: int
    entries: list[tuple[int, int]]


class _Layout:
    """Everything about a run that depends on sizes alone."""

    def __init__(self, frame: _Frame, sizes: Sizes, value: Evaluator) -> None:
        self.frame, self.value = frame, value
        self.shapes = Shapes(frame.dims, value)
        self.symbols = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        self.symbols_at = ctypes.addressof(self.symbols)
        stride = max(map(value, frame.scratch), default=0)
        self.stride = -(-stride // ALIGN) * ALIGN
        self.placement: _Placement = frame.placed(tuple(self._bytes(sizes, COARSE)))
        if sizes and self.placement.arena > SMALL:
            self.placement = frame.placed(tuple(self._bytes(sizes, FINE)))
        self.outputs = [
            (b.name, self.shapes[b.name], b.dtype.numpy, frame.users[b.name]) for b in frame.outputs
        ]

    def _bytes(self, sizes: Sizes, values: int) -> Iterator[int]:
        """What arena buffers of each kind get: as much as for sizes rounded up, so that sizes which grow a
        little with each run leave most placements as they are."""
        largest = {v: roomy(n, values) for v, n in zip(self.frame.symbols, sizes, strict=True)}
        room = Evaluator(largest) if sizes else self.value
        for dims, width in self.frame.kinds:
            yield max(math.prod(self.value.shape(dims)), math.prod(room.shape(dims))) * width


class _Context:
    """The working memory of one run at a time: arena, scratch and the table of pointers."""

    def __init__(self) -> None:
        self._for: _Layout | None = None
        self._arena = self._scratch = np.empty(0, np.uint8)
        self._arena_at = self.scratch_at = 0

    def prepare(self, chosen: _Layout, threads: int) -> None:
        """Make the memory large enough and the table right for a layout."""
        if self._for is chosen:
            return
        same = self._for is not None and self._for.placement is chosen.placement
        if same and len(self._scratch) >= chosen.stride * threads + ALIGN:
            self._for = chosen
            return
        if len(self._arena) < chosen.placement.arena + ALIGN:
            self._arena = np.empty(chosen.placement.arena + ALIGN, np.uint8)
            self._arena_at = -(-address(self._arena) // ALIGN) * ALIGN
        if len(self._scratch) < chosen.stride * threads + ALIGN:
            self._scratch = np.empty(chosen.stride * threads + ALIGN, np.uint8)
            self.scratch_at = -(-address(self._scratch) // ALIGN) * ALIGN
        self.table = (ctypes.c_void_p * max(1, chosen.frame.entries))()
        self.table_at = ctypes.addressof(self.table)
        for i, pointer in chosen.frame.fixed:
            self.table[i] = pointer
        for i, offset in chosen.placement.entries:
            self.table[i] = self._arena_at + offset
        self._for = chosen

    def bind(self, chosen: _Layout, arrays: Sequence[Array]) -> dict[str, Array]:
        """Point the table at the inputs and at fresh outputs, which are returned by name."""
        table = self.table
        for array, places in zip(arrays, chosen.frame.inputs, strict=True):
            pointer = address(array)
            for i in places:
                table[i] = pointer
        made = {}
        for name, shape, dtype, places in chosen.outputs:
            made[name] = array = np.empty(shape, dtype)
            pointer = address(array)
            for i in places:
                table[i] = pointer
        return made

    def run(
        self, code: _Code, chosen: _Layout, arrays: Sequence[Array], results: Sequence[_Result]
    ) -> list[Array]:
        made = self.bind(chosen, arrays)
        code.entry(self.table_at, chosen.symbols_at, code.pool, self.scratch_at, chosen.stride)
        return [made[r] if isinstance(r, str) else r(self, chosen, arrays, made) for r in results]

    def view(self, chosen: _Layout, buffer: PlanBuffer) -> Array:
        """An arena buffer's contents, as bytes."""
        start = self._arena_at - address(self._arena) + chosen.placement.offsets[buffer.name]
        count = int(np.prod(chosen.shapes[buffer.name], dtype=np.int64)) * buffer.dtype.bytes
        return self._arena[start : start + count]


class NativeCall:
    """A call of a plan's entry: the `words` it takes, the table where pointers to inputs and outputs go,
    and their places in it."""

    def __init__(self, code: _Code, frame: _Frame, chosen: _Layout, plan: Plan) -> None:
        self._plan, self._held = plan, (code, chosen)
        self._context = context = _Context()
        context.prepare(chosen, code.threads)
        self.table = context.table
        entry = code.image.address(ENTRY.name)
        self.words = (
            entry, context.table_at, chosen.symbols_at, code.pool or 0, context.scratch_at, chosen.stride,
        )  # fmt: skip
        self.inputs = frame.inputs
        self.outputs = {name: users for name, _, _, users in chosen.outputs}

    def source(self, name: str) -> tuple[str, int]:
        """Where an output comes from that the entry doesn't write: the buffer that it lies in, and its
        address if that is no input or output."""
        index = [b.name for b in self._plan.buffers].index(name)
        buffer = self._plan.buffers[index]
        return buffer.base if buffer.kind == "alias" else name, self.table[index] or 0


_Result = str | Callable[[_Context, _Layout, Sequence[Array], Mapping[str, Array]], Array]
"""An output: the name of a fresh array, or how to copy it from what it is an alias of."""


def _results(plan: Plan) -> list[_Result]:
    results: list[_Result] = []
    for name in plan.outputs:
        buffer = plan.buffer(name)
        fresh = buffer.kind == "output" and name not in results
        results.append(name if fresh else _copier(plan, buffer))
    return results


def _copier(plan: Plan, buffer: PlanBuffer) -> _Result:
    base = plan.buffer(buffer.base) if buffer.kind == "alias" else buffer
    place = plan.inputs.index(base.name) if base.kind == "input" else -1

    def copy(context: _Context, chosen: _Layout, arrays: Sequence[Array], made: Mapping[str, Array]) -> Array:
        if base.kind == "input":
            source = arrays[place]
        elif base.kind == "constant":
            source = plan.constants[base.name]
        elif base.kind == "output":
            source = made[base.name]
        else:
            source = context.view(chosen, base)
        flat = source.reshape(-1).view(buffer.dtype.numpy)
        return flat.reshape(chosen.shapes[buffer.name]).copy()

    return copy


def address(array: Array) -> int:
    try:  # four times as fast as the general way
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, empty, or of a dtype that buffers don't know
        at: int = array.__array_interface__["data"][0]
        return at
