"""The offsets and sizes of a run's buffers, for given sizes of symbols. Every device uses them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from jangin.ir.expr import Expr
from jangin.ir.graph import static_shape
from jangin.ir.plan import ALIGN, Plan
from jangin.runtime.arena import layout, roomy
from jangin.runtime.sizes import Evaluator, Shapes, Sizes

LAYOUTS = 8
"""The most layouts that are kept for a model with symbolic sizes. The least recently used is dropped first.
Servers alternate among a few sizes, and a layout may take megabytes."""
TRIES = 2
"""The most times that buffers of symbolic sizes are placed again for a smaller arena. The number is small
because a run waits."""
COARSE = 1
"""The number of sizes in each power of two to which a symbol's size may be rounded up. With one, equal
layouts serve the most sizes, and a size at most doubles."""
FINE = 8
"""The same number for arenas that would have more than SMALL bytes with COARSE. With eight, a size grows by
an eighth at most."""
SMALL = 1 << 20
"""An arena of at most this many bytes is computed with coarse rounding. Coarse rounding at most doubles a
size, and this much memory matters little."""


@dataclass(frozen=True, eq=False)
class Placement:
    """The arena buffers' offsets, and their total bytes."""

    offsets: dict[str, int]
    arena: int


class Frame:
    """Everything about a plan's buffers that doesn't depend on sizes. `align` is the alignment of offsets, in
    bytes."""

    def __init__(self, plan: Plan, align: int = ALIGN) -> None:
        self.align = align
        self.dims = {b.name: b.shape for b in plan.buffers}
        self.symbols = [v for v, _ in plan.symbols]
        self.scratch = {launch.scratch for launch in plan.launches}
        named = (plan.buffer(n) for n in dict.fromkeys(plan.outputs))
        self.outputs = [b for b in named if b.kind == "output"]
        self.arena = [b for b in plan.buffers if b.kind == "arena"]
        kinds: dict[tuple[tuple[Expr, ...], int], int] = {}
        self.kind = [kinds.setdefault((b.shape, b.dtype.bytes), len(kinds)) for b in self.arena]
        # (dimensions, bytes of an element); arena buffers of one kind surely have one size
        self.kinds = tuple(kinds)
        self.bytes = [_known(dims, width) for dims, width in kinds]
        self.known = {b.name: b.offset for b in self.arena if b.offset is not None}
        if any(at % align for at in self.known.values()):
            self.known = {}
        self.placed = lru_cache(2 * LAYOUTS)(self._placed)

    def _placed(self, bytes: tuple[int, ...]) -> Placement:
        """Return the placement of the arena buffers, given the bytes of a buffer of each kind."""
        sizes = [bytes[k] for k in self.kind]
        if len(self.known) == len(self.arena):
            ends = (at + size for at, size in zip(self.known.values(), sizes, strict=True))
            return Placement(self.known, max(ends, default=0))
        items = [(b.name, size, *b.live) for b, size in zip(self.arena, sizes, strict=True)]
        return Placement(*layout(items, TRIES, self.align))


class Layout:
    """Everything about a run that depends on sizes alone.

    `sizes` are the values of the plan's symbols, in its order. `stride` is the bytes of scratch memory of
    each worker. `outputs` has name, shape and dtype of each buffer that a run makes anew for the caller."""

    def __init__(self, frame: Frame, sizes: Sizes, value: Evaluator) -> None:
        self.frame, self.sizes, self.value = frame, sizes, value
        self.shapes = Shapes(frame.dims, value)
        stride = max(map(value, frame.scratch), default=0)
        self.stride = -(-stride // ALIGN) * ALIGN
        self.placement: Placement = frame.placed(tuple(self._bytes(COARSE)))
        if sizes and self.placement.arena > SMALL:
            self.placement = frame.placed(tuple(self._bytes(FINE)))
        self.outputs = [(b.name, self.shapes[b.name], b.dtype.numpy) for b in frame.outputs]

    def _bytes(self, values: int) -> Iterator[int]:
        """Yield the bytes of an arena buffer of each kind, for symbols rounded up to one of `values` sizes in
        each power of two. Sizes that grow a little with each run then share a placement."""
        largest = {v: roomy(n, values) for v, n in zip(self.frame.symbols, self.sizes, strict=True)}
        room = Evaluator(largest) if self.sizes else self.value
        for (dims, width), known in zip(self.frame.kinds, self.frame.bytes, strict=True):
            if known is None:
                known = max(math.prod(self.value.shape(dims)), math.prod(room.shape(dims))) * width
            yield known


def _known(dims: tuple[Expr, ...], width: int) -> int | None:
    """Return the bytes of a buffer whose size is known before a run, else None."""
    shape = static_shape(dims)
    return None if shape is None else math.prod(shape) * width
