"""The state of a training step that is compiled ahead of time: one block of the caller's memory.

It begins with the mark, the number of steps, the seed and the learning rates. The weights, the buffers that
the model changes, and the optimizer's arrays follow."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.plan import ALIGN
from jangin.ir.records import dataclass

MARK, COUNT, SEED, RATES = 0, 8, 16, 24
"""Offsets in bytes: the mark, the number of steps, the seed's two words, and the first rate."""


@dataclass(frozen=True)
class Place:
    """The memory of an input or output of a part.

    - "given", "made": the caller's array of this number among the inputs or outputs
    - "state": this offset in the state
    - "number": this number of the optimizer, which each step computes
    - "aside": this offset in memory that lasts as long as a step
    - "loss", "count", "random": the caller's loss, the number of the step, and the words that random numbers
      follow from
    - "updated": an output that lies in its input"""

    kind: str
    at: int = 0


@dataclass(frozen=True)
class Entry:
    """The places of a part's inputs and outputs. `kept` has an offset in memory aside, an offset in the
    state and the bytes, of each next state that is copied after a step."""

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
class Training:
    """The meaning of a model's parts. They are a training step, the optimizer's numbers, and the loss in
    evaluation mode. With `infers`, the outputs in evaluation mode follow.

    `rates` are the learning rates of the groups of parameters, `count` the steps that were made already."""

    fields: tuple[Field, ...]
    rates: tuple[float, ...]
    seed: int
    count: int
    entries: tuple[Entry, ...]
    loss_type: str

    @property
    def infers(self) -> bool:
        return len(self.entries) > 3

    @property
    def size(self) -> int:
        """The bytes of a state."""
        last = self.fields[-1]
        return aligned(last.offset + last.value.nbytes)

    @property
    def mark(self) -> int:
        """A number that two states of the same arrays have in common."""
        listed = [(f.name, str(f.value.dtype), f.value.shape, f.offset) for f in self.fields]
        digest = hashlib.sha256(repr((listed, len(self.rates))).encode()).digest()
        return int.from_bytes(digest[:8], "little", signed=True)

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
            raise ValueError(f"these {len(state)} bytes are no state of this step, which has {self.size}")
        found = {}
        for f in self.fields:
            flat = np.frombuffer(state, f.value.dtype, f.value.size, f.offset)
            found[f.name] = flat.reshape(f.value.shape).copy()
        return found


def rate_at(group: int) -> int:
    return RATES + 8 * group


def fields_of(kept: Mapping[str, Array], rates: int) -> tuple[Field, ...]:
    """Return the fields for arrays by name, behind this number of rates. Each begins at a multiple of
    ALIGN."""
    found, end = [], aligned(rate_at(rates))
    for name, value in kept.items():
        found.append(Field(name, value, end))
        end = aligned(end + value.nbytes)
    return tuple(found)


def aside(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offsets of blocks of these sizes, one after another, and the bytes of all."""
    ends = [0, *np.cumsum([aligned(s) for s in sizes], dtype=np.int64).tolist()]
    return ends[:-1], ends[-1]


def aligned(n: int) -> int:
    return -(-n // ALIGN) * ALIGN
