"""Models whose parameters are inputs of their graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from fnmatch import fnmatchcase

from jangin.compiler.cases import register_tile
from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.records import dataclass
from jangin.ops.register_tiles import ANY_MACHINE, RegisterTile
from jangin.ops.values import OwnGradient
from jangin.options import Options
from jangin.passes.algebra.needed import needed
from jangin.passes.partition import has_steps


@dataclass(frozen=True)
class Lora:
    """The settings of low-rank adapters (see `training.lora`)."""

    rank: int
    alpha: float
    targets: tuple[str, ...]
    seed: int

    @property
    def scale(self) -> float:
        return self.alpha / self.rank


@dataclass(frozen=True)
class Adapter:
    """An adapter of a weight: the inputs of its two matrices A and B, and the frozen weight. With `turned`,
    the weight has its outputs along the first axis."""

    first: str
    second: str
    weight: Array
    turned: bool
    scale: float

    def merged(self, kept: Mapping[str, Array]) -> Array:
        """Return the weight that does what the frozen weight and the adapter do together."""
        more = kept[self.second] @ kept[self.first] * self.scale
        whole: Array = self.weight + (more if self.turned else more.T)
        return whole.astype(self.weight.dtype)


@dataclass(frozen=True)
class Trainable:
    """A lowered graph, with the meaning of its inputs.

    - `inputs` are the inputs that a batch gives, in order.
    - `parameters` has the arrays that are trained, by input.
    - `buffers` has arrays that each run may change (running statistics), by input.
    - `changed` has the output with a buffer's new value, by the buffer's input.
    - `names` has the input of each of the model's own names of parameters and buffers. Several names may have
      the same input.
    - `random` is the input that decides all random numbers, or "" if there are none.
    - `adapters` are by the model's own names of their weights.
    - `tile` is the register tile of recurrent layers.
    - `Builder` describes `own_gradients`."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Array]
    buffers: Mapping[str, Array]
    changed: Mapping[str, str]
    names: Mapping[str, str]
    random: str = ""
    own_gradients: tuple[OwnGradient, ...] = ()
    adapters: Mapping[str, Adapter] = field(default_factory=dict)
    tile: RegisterTile = ANY_MACHINE


Chosen = Sequence[str] | Lora | None
"""Names of the parameters to train, or patterns as for file names. None stands for all parameters. Adapters
are trained instead if settings of them are given."""


def matching(names: Sequence[str], chosen: Sequence[str] | None) -> list[str]:
    """Return the chosen names. Raises CompileError for a pattern that matches none."""
    for pattern in chosen or ():
        if not any(fnmatchcase(n, pattern) for n in names):
            raise CompileError(f"trainable={pattern!r} is none of the parameters {', '.join(names)}")
    return [n for n in names if is_chosen(n, chosen)]


def is_chosen(name: str, chosen: Chosen) -> bool:
    """Return whether the parameter of this name is trained itself, and not by an adapter."""
    if isinstance(chosen, Lora):
        return False
    return chosen is None or any(fnmatchcase(name, pattern) for pattern in chosen)


def lowered(
    imported: Imported, parameters: Mapping[str, Array], buffers: Mapping[str, Array],
    changed: Mapping[str, str], options: Options,
) -> Trainable:  # fmt: skip
    """Return a model in core operators. The constants named in `parameters` and `buffers` become inputs after
    the model's own. Raises CompileError for a model that runs in steps."""
    graph = imported.graph
    constants = {n: a for n, a in graph.constants.items() if n not in {**parameters, **buffers}}
    behind = [n for n in (*parameters, *buffers) if n not in graph.inputs]
    whole = replace(graph, inputs=(*graph.inputs, *behind), constants=constants)
    own_gradients: list[OwnGradient] = []
    tile = register_tile(options.target.machine)
    gradient_graph = lower(
        replace(imported, graph=whole), options.lowerings, tile, unchecked=options.unchecked, trained=True,
        own_gradients=own_gradients,
    )  # fmt: skip
    if has_steps(gradient_graph):
        raise CompileError(
            "the model runs in steps that depend on its data (branches, loops, or sizes that a run "
            "computes), and only one plan can be trained: leave them out, or fix sizes with shapes="
        )
    named = [x.name for use in own_gradients for x in use.needed]
    gradient_graph = needed(gradient_graph, named)  # before its gradients are made, which then are small too
    own = tuple(n for n in graph.inputs if n not in buffers)
    names = {n: n for n in (*parameters, *buffers)}
    random = next((n for n in gradient_graph.inputs if n not in whole.inputs), "")
    return Trainable(
        gradient_graph,
        own,
        gradient_graph.outputs,
        parameters,
        buffers,
        changed,
        names,
        random,
        tuple(own_gradients),
        tile=tile,
    )
