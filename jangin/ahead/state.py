"""The state of a program that is compiled ahead of time: one block of the caller's memory.

It begins with a mark. Arrays follow that a model keeps between runs. A training step has the number of steps,
the seed and the learning rates behind the mark. Its arrays are the weights, the buffers that the model
changes, and the optimizer's."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import count

import numpy as np

from jangin.ir.expr import Const
from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN, Plan, PlanBuffer
from jangin.ir.records import dataclass

MARK, COUNT, SEED, RATES = 0, 8, 16, 24
"""Offsets in bytes of 64-bit words: the mark, the number of steps, the seed's two words of 32 bits, and the
first rate."""


@dataclass(frozen=True)
class Place:
    """The memory of an input or output of a part.

    - "given", "made": the caller's array of this number among the inputs or outputs
    - "state": this offset in the state
    - "number": this number of the optimizer, which each step computes
    - "aside": this offset in the part of the arena that the plan doesn't use. Values that a run must not
      overwrite before its end are written there.
    - "loss", "count", "random": the caller's loss, the number of the step, and the words that random numbers
      follow from
    - "updated": an output that lies in its input
    """

    kind: str
    at: int = 0


@dataclass(frozen=True)
class Entry:
    """The places of a part's inputs and outputs. `kept` has three numbers for each next state that is copied
    after a step. They are its offset in "aside" memory, its offset in the state, and its bytes."""

    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    kept: tuple[tuple[int, int, int], ...] = ()


@dataclass(frozen=True)
class Field:
    """An array of the state, with the contents that it begins with."""

    name: str
    value: Array
    offset: int

    @property
    def filling(self) -> int | None:
        """The eight bytes that repeat in the contents, as a number, or None if there are none."""
        flat = np.ascontiguousarray(self.value).reshape(-1).view(np.uint8)
        if not len(flat):
            return None
        element = flat[: self.value.itemsize]
        if 8 % len(element) or not np.array_equal(flat, np.tile(element, self.value.size)):
            return None
        return int(np.tile(element, 8 // len(element)).view(np.int64)[0])


@dataclass(frozen=True)
class State:
    """The arrays of a state, and the places of each part's inputs and outputs."""

    fields: tuple[Field, ...]
    entries: tuple[Entry, ...]

    @property
    def size(self) -> int:
        """The bytes of a state."""
        last = self.fields[-1]
        return aligned(last.offset + last.value.nbytes)

    @property
    def mark(self) -> int:
        """A number that two states of the same arrays have in common."""
        listed = [(f.name, str(f.value.dtype), f.value.shape, f.offset) for f in self.fields]
        digest = hashlib.sha256(repr((listed, *self._marked())).encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

    def _marked(self) -> tuple[int, ...]:
        """Return what distinguishes states besides their arrays."""
        return ()


@dataclass(frozen=True)
class Training(State):
    """The state of a training step. A model's parts are the step, the optimizer's numbers, and the loss in
    evaluation mode. With `infers`, the outputs in evaluation mode follow.

    `rates` are the learning rates of the groups of parameters, `count` the steps that were made already."""

    rates: tuple[float, ...]
    seed: int
    count: int
    loss_type: str

    @property
    def infers(self) -> bool:
        return len(self.entries) > 3

    def _marked(self) -> tuple[int, ...]:
        return (len(self.rates),)

    @property
    def head(self) -> Array:
        """The first bytes of a state, up to the arrays."""
        words = np.array([self.seed & 0xFFFFFFFF, self.seed >> 32 & 0xFFFFFFFF], np.uint32)
        first = np.array([self.mark, self.count], np.int64)
        rates = np.array(self.rates, np.float64)
        return np.concatenate([a.view(np.uint8) for a in (first, words, rates)])

    def arrays(self, state: bytes) -> dict[str, Array]:
        """Return the arrays of a state by name. Raises ValueError for the bytes of another state."""
        if len(state) != self.size or int.from_bytes(state[:8], "little", signed=True) != self.mark:
            raise ValueError(
                f"these {len(state)} bytes are no state of this training step, whose state has "
                f"{self.size}: give what the same emitted step saved"
            )
        arrays = {}
        for f in self.fields:
            flat = np.frombuffer(state, f.value.dtype, f.value.size, f.offset)
            arrays[f.name] = flat.reshape(f.value.shape).copy()
        return arrays


def rate_at(group: int) -> int:
    return RATES + 8 * group


def fields_of(kept: Mapping[str, Array], begin: int, to: int = ALIGN) -> tuple[Field, ...]:
    """Return the fields for arrays by name, behind the first `begin` bytes. Each begins at a multiple of
    `to`."""
    fields, end = [], aligned(begin, to)
    for name, value in kept.items():
        fields.append(Field(name, value, end))
        end = aligned(end + value.nbytes, to)
    return tuple(fields)


def aside(sizes: Sequence[int], to: int = ALIGN) -> tuple[list[int], int]:
    """Return the offsets of blocks of these sizes one after another, each at a multiple of `to`, and the
    bytes of all."""
    ends = [0, *np.cumsum([aligned(s, to) for s in sizes], dtype=np.int64).tolist()]
    return ends[:-1], ends[-1]


def kept_between(pairs: Mapping[str, str], plans: Sequence[Plan], to: int) -> tuple[State, list[int]]:
    """Return the state of a model's plans, which is zeros at first, and the bytes of "aside" memory of each
    plan.

    `pairs` gives each kept input the output that is its next value. Arrays lie at multiples of `to`.
    """
    zeros = {name: _zeros(plans[0].buffer(name)) for name in pairs}
    fields = fields_of(zeros, COUNT, to)
    states = [_kept_by(plan, pairs, {f.name: f for f in fields}, to) for plan in plans]
    return State(fields, tuple(entry for entry, _ in states)), [size for _, size in states]


def _zeros(buffer: PlanBuffer) -> Array:
    shape = [value.value for value in buffer.shape if isinstance(value, Const)]
    assert len(shape) == len(buffer.shape), "a kept array has a fixed size"
    return np.zeros([int(n) for n in shape], buffer.dtype.numpy)


def _kept_by(plan: Plan, pairs: Mapping[str, str], fields: Mapping[str, Field], to: int) -> tuple[Entry, int]:
    """Return the places of a plan's inputs and outputs, and the bytes of "aside" memory. A next value that
    can't be written over its input is written to "aside" memory, and copied to the state after the run."""
    states = {after: fields[name] for name, after in pairs.items()}
    copied = [n for n in plan.outputs if n in states and n not in plan.updates]
    sizes = [states[n].value.nbytes for n in copied]
    starts, size = aside(sizes, to)
    kept = tuple((at, states[n].offset, s) for at, n, s in zip(starts, copied, sizes, strict=True))
    places = {n: Place("aside", at) for n, at in zip(copied, starts, strict=True)}
    places |= dict.fromkeys(plan.updates, Place("updated"))
    inputs = _numbered(plan.inputs, {n: Place("state", f.offset) for n, f in fields.items()}, "given")
    return Entry(inputs, _numbered(plan.outputs, places, "made"), kept), size


def _numbered(names: Sequence[str], known: Mapping[str, Place], kind: str) -> tuple[Place, ...]:
    """Return the known places of names. The others are places of a kind, and numbered in order."""
    others = count()
    return tuple(known[n] if n in known else Place(kind, next(others)) for n in names)


def aligned(n: int, to: int = ALIGN) -> int:
    return -(-n // to) * to
