"""Runs of a plan on a caller's memory, given by address."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from jangin.ir.graph import static_shape
from jangin.ir.plan import Plan
from jangin.runtime.device import NativeCall
from jangin.runtime.functions import ENTRY, POOL_TEAM
from jangin.runtime.idle import kept, renewed_in_children
from jangin.runtime.outputs import LARGE

Lender = tuple[int, int]
"""An OpenMP library of this process: the addresses `parallel` and `number` of `functions.POOL_TEAM`."""
_Mine = tuple[Callable[[], int], NativeCall, list[Sequence[int]]]


def is_addressable(plan: Plan) -> bool:
    """Return whether a plan can run on a caller's memory, given addresses alone.

    All sizes must be known and not 0. Each output must have its own memory, of less than `LARGE` bytes.
    Larger outputs reuse memory in later runs."""
    if not plan.is_static or len(set(plan.outputs)) < len(plan.outputs):
        return False
    outputs = [plan.buffer(n) for n in plan.outputs]
    if any(b.kind != "output" for b in outputs):
        return False
    buffers = [*(plan.buffer(n) for n in plan.inputs), *outputs]
    sizes = [math.prod(static_shape(b.shape) or ()) * b.dtype.bytes for b in buffers]
    return all(sizes) and max(sizes[len(plan.inputs) :], default=0) < LARGE


class Addressed:
    """Runs a plan of known sizes on arrays given by their addresses. `new` makes a call of the plan with its
    own working memory. Several threads may call the object at once.

    Runs take the threads of `lender`, if there is one. A forked process takes the model's own, because it has
    none of the library's threads, and the library would wait for them."""

    def __init__(self, plan: Plan, new: Callable[[], NativeCall], lender: Lender | None = None) -> None:
        self._outputs, self._new, self._lender = plan.outputs, new, lender
        self._idle: list[_Mine] = []
        self._kept = kept()
        renewed_in_children(self)

    def renew(self) -> None:
        """Drop the working memory of finished runs, and the lender (see `jangin.runtime.idle`)."""
        self._idle.clear()
        self._lender = None

    def __call__(self, addresses: Sequence[int]) -> None:
        """Run the plan on the `addresses` of the inputs, then of the outputs. Each is the address of a
        contiguous array of the plan's type and shape. Raises IndexOutOfRange as the executable does."""
        try:
            mine = self._idle.pop()
        except IndexError:
            mine = self._made()
        try:
            entry, call, places = mine
            for address, at in zip(addresses, places, strict=True):
                for i in at:
                    call.table[i] = address
            status = entry()
            if status:
                raise call.failure(status)
        finally:
            if len(self._idle) < self._kept:
                self._idle.append(mine)

    def _made(self) -> _Mine:
        call = self._new()
        places = [*call.inputs, *(call.outputs[n] for n in self._outputs)]
        if self._lender is None or not call.team:
            return ENTRY.prepared(*call.words), call, places
        entry, bufs, symbols, _, scratch, stride = call.words
        given = *self._lender, call.threads, entry, bufs, symbols, scratch, stride
        return POOL_TEAM.prepared(call.team, *given), call, places
