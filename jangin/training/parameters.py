"""A model whose parameters are inputs of its graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase

from jangin.frontends.dialect import Imported
from jangin.frontends.format import ModelSource
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import Array, CompileError, Graph
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.passes.partition import has_steps


@dataclass(frozen=True)
class Trainable:
    """A lowered graph, and how its inputs are the model's. `inputs`: those that a batch gives, in order.
    `parameters`: what is trained, by the input that it is. `buffers`: what each run changes (running
    statistics), likewise; `changed`: the output that each of these becomes. `names`: the model's own names of
    parameters and buffers, with the input of each; several may have one input. `random`: the input that
    random numbers follow from, "" for none."""

    graph: Graph
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    parameters: Mapping[str, Array]
    buffers: Mapping[str, Array]
    changed: Mapping[str, str]
    names: Mapping[str, str]
    random: str = ""


Chosen = Sequence[str] | None
"""Names of the parameters to train, or patterns of names as files have them; None for all."""


def of_file(model: ModelSource, chosen: Chosen, options: Options) -> Trainable:
    """A model of any format as `jangin.compile` takes it. The constants to be trained must be named."""
    imported = load(model, options.shapes, options.formats)
    floats = [n for n, a in imported.graph.constants.items() if a.dtype.kind == "f" and a.size > 1]
    if chosen is None:
        raise CompileError(
            f"say which of the model's constants are to be trained: trainable=[...] of {', '.join(floats)}"
        )
    names = matching(floats, chosen)
    return lowered(imported, {n: imported.graph.constants[n] for n in names}, {}, {}, options)


def matching(names: Sequence[str], chosen: Chosen) -> list[str]:
    """The names that are chosen. CompileError for a pattern that fits none."""
    if chosen is None:
        return list(names)
    for pattern in chosen:
        if not any(fnmatchcase(n, pattern) for n in names):
            raise CompileError(f"trainable={pattern!r} is none of the parameters {', '.join(names)}")
    return [n for n in names if any(fnmatchcase(n, pattern) for pattern in chosen)]


def lowered(
    imported: Imported, parameters: Mapping[str, Array], buffers: Mapping[str, Array],
    changed: Mapping[str, str], options: Options,
) -> Trainable:  # fmt: skip
    """The model in core operators, with constants of these names as inputs behind its own. CompileError for
    one that runs in steps."""
    graph = imported.graph
    constants = {n: a for n, a in graph.constants.items() if n not in {**parameters, **buffers}}
    behind = [n for n in (*parameters, *buffers) if n not in graph.inputs]
    whole = replace(graph, inputs=(*graph.inputs, *behind), constants=constants)
    made = lower(replace(imported, graph=whole), options.lowerings, trained=True)
    if has_steps(made):
        raise CompileError(
            "the model runs in steps that depend on its data (branches, loops, or sizes that a run "
            "computes), and only one plan can be trained: leave them out, or fix sizes with shapes="
        )
    own = tuple(n for n in graph.inputs if n not in buffers)
    names = {n: n for n in (*parameters, *buffers)}
    random = next((n for n in made.inputs if n not in whole.inputs), "")
    return Trainable(made, own, made.outputs, parameters, buffers, changed, names, random)
