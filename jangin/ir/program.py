"""Plan IR, second part: programs, for models that don't fit in one plan.

A program runs steps in order over named values. Steps are plans (compiled segments), calls of host functions,
sizes that become known, and branches and loops whose bodies are regions of steps. A model that fits in one
plan has no program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from jangin.ir.expr import Var
from jangin.ir.graph import Array, Value
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Sources

IN_STEPS = "the model runs in steps (branches, loops, or sizes that a run computes)"
"""The reason in errors for what is only possible for models that are one plan. Users don't know plans."""


@dataclass(frozen=True)
class Segment:
    """Runs the plan number `plan`. Its inputs and outputs have the same names in the region as in the plan,
    and its symbols are the program's."""

    plan: int
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class HostCall:
    """A call of a function of `jangin.host`, or of the user's own, on whole values. An absent input is ""."""

    function: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any] = field(default_factory=dict)
    source: Sources = NO_SOURCE


@dataclass(frozen=True)
class Bind:
    """Binds symbols to the elements of an integer tensor. The symbols' ranges are checked."""

    value: str
    symbols: tuple[Var, ...]
    source: Sources = NO_SOURCE


@dataclass(frozen=True)
class Branch:
    """Runs one of two regions, by a condition of one element. `inputs` are those of `then`, then those of
    `orelse`, in order."""

    condition: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    then: Region
    orelse: Region
    source: Sources = NO_SOURCE


@dataclass(frozen=True)
class Slicing:
    """The way in which a loop slices an input along `axis`, one slice an iteration, or stacks slices to an
    output along a new axis. With `reverse` the last slice comes first."""

    axis: int = 0
    reverse: bool = False


@dataclass(frozen=True)
class Loop:
    """Runs `body` repeatedly: at most `trips` times ("" for no limit), while `condition` holds ("" for
    always).

    The inputs are the first `carried` values, then the `scanned` ones (one slice an iteration), then values
    that stay the same. The body takes the iteration's number, the condition and the inputs.

    It gives the next condition (if `conditional`), the next carried values, and slices to be stacked. The
    outputs are the last carried values and the `collected` stacks."""

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
        """The outputs that stack the slices of all iterations."""
        return self.outputs[self.carried :]


Step = Segment | HostCall | Bind | Branch | Loop


@dataclass(frozen=True)
class Region:
    """Steps with inputs and outputs. `values` has the types of the inputs, and of the results of steps other
    than plans. Their shapes bind symbols, or are checked."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    steps: tuple[Step, ...]


@dataclass(frozen=True)
class Program:
    """A program. `symbols` has every size symbol's range, even if its size becomes known only during a run.
    `constants` are arrays that steps other than plans read. The region's inputs and outputs have the names of
    the model's. For `bound` and `joined` see `Graph`."""

    name: str
    target: str
    symbols: Mapping[Var, Range]
    region: Region
    constants: Mapping[str, Array] = field(default_factory=dict)
    bound: Mapping[str, int] = field(default_factory=dict)
    joined: Mapping[str, Sources] = field(default_factory=dict)

    def __hash__(self) -> int:
        return id(self)
