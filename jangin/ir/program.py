"""Plan IR, second part: programs, for models that one plan can't hold.

A program runs steps in order over named values: plans (compiled segments), calls of host functions,
sizes that become known, and branches and loops with regions of steps as bodies. A model that is one
plan has no program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from jangin.ir.expr import Var
from jangin.ir.graph import Array, Value
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Sources


@dataclass(frozen=True)
class Segment:
    """A run of plan number `plan`. Its inputs and outputs are called in the region as in the plan,
    and its symbols are the program's."""

    plan: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class HostCall:
    """A function of `jangin.host` (or the user's own) on whole values; "" is an absent input."""

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: Sources = NO_SOURCE


@dataclass(frozen=True)
class Bind:
    """The elements of an integer tensor become the values of symbols, whose ranges are checked."""

    value: str
    symbols: tuple[Var, ...]
    source: Sources = NO_SOURCE


@dataclass(frozen=True)
class Branch:
    """One of two regions, by a condition of one element. `inputs` are those of `then`, then those of
    `orelse`, in order."""

    condition: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    then: Region
    orelse: Region
    source: Sources = NO_SOURCE


@dataclass(frozen=True)
class Slicing:
    """A loop takes a slice of an input along `axis` each iteration, or stacks slices to an output
    along a new one; the last first if `reverse`."""

    axis: int = 0
    reverse: bool = False


@dataclass(frozen=True)
class Loop:
    """`body` again and again: at most `trips` times ("": no limit), while `condition` holds ("":
    always). Inputs are the first `carried` values, then what is `scanned` (a slice an iteration),
    then what stays the same. The body takes the iteration's number, the condition and those; it gives
    the next condition (where `conditional`), the next carried values, and slices to be joined.
    Outputs are the last carried values and what is `collected`."""

    trips: str
    condition: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    body: Region
    carried: int
    conditional: bool
    scanned: tuple[Slicing, ...] = ()
    collected: tuple[Slicing, ...] = ()
    source: Sources = NO_SOURCE

    @property
    def stacks(self) -> tuple[str, ...]:
        """The outputs that are slices of all iterations."""
        return self.outputs[self.carried :]


Step = Segment | HostCall | Bind | Branch | Loop


@dataclass(frozen=True)
class Region:
    """`values` has the types of the inputs and of what steps other than plans give: their shapes bind
    symbols, or are checked."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """`symbols`: every size symbol's range, also of those that become known during a run.
    `constants`: arrays that steps other than plans read. The region's inputs and outputs are the
    model's, by name. `bound` and `joined`: as of `Graph`."""

    name: str
    target: str
    symbols: Mapping[Var, Range]
    region: Region
    constants: Mapping[str, Array] = field(default_factory=dict)
    bound: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, Sources] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)
