"""The first part of the compiler: a model is read, and lowered to core operators for each case of its
sizes.

The first executable (`compiler.interpreted`) needs no more. Nothing of templates, schedules or back ends is
imported here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from jangin.compiler.hints import settled
from jangin.frontends.assemble import with_sizes
from jangin.frontends.dialect import Imported
from jangin.frontends.format import ModelSource, paired
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir import limits
from jangin.ir.dtype import I64
from jangin.ir.expr import Var, const, eq
from jangin.ir.graph import CompileError, Graph
from jangin.ir.own_names import marked, own_name
from jangin.ir.records import dataclass
from jangin.ir.traversal import free_vars
from jangin.ir.verify import checked, verify_graph
from jangin.ops.core import CORE
from jangin.ops.register_tiles import ANY_MACHINE, OF_BYTES, RegisterTile, WordTile
from jangin.options import Options
from jangin.passes.constraints import may_be_1, squeezed, taken_for_others
from jangin.passes.even_time import both_branches, uneven
from jangin.passes.partition import has_steps, prune
from jangin.runtime.compiled import UNEVEN
from jangin.runtime.sizes import Evaluator
from jangin.runtime.variants_artifact import Absent

if TYPE_CHECKING:
    from jangin.targets.machine import Machine

Progress = Callable[[int, int, str], None]
VARIANTS = 8
"""The most variants of a model that are compiled. Each takes about as long as the model itself."""


def imported(model: ModelSource, options: Options) -> Imported:
    """Import a model for the requested sizes, in the operators of its format."""
    with limits.within(options.limits):
        return load(paired(model, options.weights), options.shapes, options.formats)


def loaded(model: ModelSource, options: Options) -> Imported:
    """Import a model as `imported` does. Sizes of inputs that have one name become one symbol only if nodes
    need them to be equal."""
    return settled(imported(model, options), lambda apart: lowered(apart, options))


def lowered(
    imported: Imported, options: Options, progress: Progress | None = None, layers: bool = False
) -> Graph:
    """Return the graph of an imported model in core operators. With `layers`, recurrent layers are calls of
    the functions of `ops.layers`."""
    tell(progress, 0, 1, "lower")
    tile = ANY_MACHINE if layers else register_tile(options.target.machine)
    graph = lower(imported, options.lowerings, tile, options.unchecked, layers=layers)
    if options.deterministic_time:
        graph = both_branches(graph)
    if options.verify and not has_steps(graph):
        checked("lower", verify_graph, graph, CORE)
    return graph


def register_tile(machine: Machine) -> RegisterTile:
    """Return the register tile of a machine's recurrent layers. Batches take three quarters of its vectors;
    the others hold operands."""
    figures, accumulators = machine.recurrence, 3 * machine.registers // 4
    width = min(figures.vector_bytes, machine.vector_bytes)
    batches = None if machine.groups else RegisterTile(accumulators, machine.vector_bytes)
    return RegisterTile(figures.accumulators, width, figures.rows, _word_tile(machine), batches)


def _word_tile(machine: Machine) -> WordTile:
    """Return the register tile of recurrent layers whose weights are packed into words. Without vectors its
    product is None: bytes are then multiplied one by one, because unpacking words costs more than loading
    bytes."""
    dot = next((p for p in machine.products if p in OF_BYTES), OF_BYTES[0])
    accumulators = min(machine.recurrence.words, machine.registers - 4)
    return WordTile(dot if machine.vector_bytes > I64.bytes else None, accumulators, machine.vector_bytes)


def with_uneven(metadata: Mapping[str, Any], graph: Graph, options: Options) -> Mapping[str, Any]:
    """Return a model's metadata, with the nodes whose time depends on data if the options ask for it."""
    return {**metadata, UNEVEN: [*uneven(graph)]} if options.deterministic_time else metadata


class Case(NamedTuple):
    """A lowered graph, and the sizes of the symbols that it was specialized for."""

    graph: Graph
    sizes: Mapping[str, int]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Return whether the graph can run with these sizes. Symbols without a given size aren't checked."""
        numbers = {marked(name): size for name, size in sizes.items()}
        rules = [eq(marked(name), size) for name, size in self.sizes.items()]
        for v, (low, high) in self.graph.symbols.items():
            rules += [] if low is None else [v >= low]
            rules += [] if high is None else [v <= high]
        value = Evaluator(numbers)
        return all(value(r) for r in (*rules, *self.graph.constraints) if free_vars(r) <= numbers.keys())


@dataclass(frozen=True)
class Cases:
    """A model's lowered graphs. The first is for all sizes, and the others are for some symbols of 1.
    `absent` tells for which sizes there is no graph, and why."""

    made: tuple[Case, ...]
    absent: tuple[Absent, ...] = ()


def cases(
    imported: Imported, options: Options, progress: Progress | None = None, layers: bool = False
) -> Cases:
    """Lower an imported model to core operators, once for each case of its size symbols.

    The first case is for sizes in general. A second has size 1 for the symbols that the model's own runtime
    would broadcast, if the target is a GPU or has 64-bit indices. Another case follows for each symbol that a
    graph assumes to differ from 1.

    If there are more than `VARIANTS` cases, sizes that met in a broadcast stay equal. If there are still too
    many, only the first cases are made, and `absent` says so. For `layers` see `lowered`."""
    known: dict[frozenset[Var], Graph | CompileError] = {}

    def made(ones: frozenset[Var]) -> Graph | CompileError:
        if ones not in known:
            bound = replace(imported, graph=with_sizes(imported.graph, dict.fromkeys(ones, const(1))))
            try:
                known[ones] = lowered(bound, options, progress, layers)
            except CompileError as error:
                if not ones:
                    raise
                known[ones] = error
        return known[ones]

    symbols, first = imported.graph.symbols, [frozenset[Var]()]
    if _roomy(options) and (ones := imported.ones & {*may_be_1(symbols)}):
        first.append(ones)
    absent: list[Absent] = []
    for taken in (taken_for_others, squeezed, lambda *_: ()):
        waiting = [*first]
        for ones in waiting:  # the list grows meanwhile
            if len(waiting) <= VARIANTS and isinstance(graph := made(ones), Graph):
                met = taken(prune(graph), symbols) if symbols else ()
                more = (ones | {v} for v in met if v not in ones)
                waiting += [m for m in more if m not in waiting]
        if len(waiting) <= VARIANTS:
            break
        remedy = "compile it with shapes= for what it is to run"
        absent = [Absent({}, f"there would be more than {VARIANTS}; {remedy}")]
    variants = [Case(g, _sizes(ones)) for ones in waiting if isinstance(g := made(ones), Graph)]
    absent += [Absent(_sizes(ones), str(e)) for ones in waiting if isinstance(e := made(ones), CompileError)]
    return Cases(tuple(variants), tuple(absent))


def _roomy(options: Options) -> bool:
    """Return whether the target is a GPU or has 64-bit indices, as all hosts have."""
    return options.for_host or options.target.groups or options.target.machine.index_bits >= I64.bits


def _sizes(ones: Iterable[Var]) -> Mapping[str, int]:
    return {own_name(v): 1 for v in sorted(ones, key=str)}


def tell(progress: Progress | None, done: int, total: int, what: str) -> None:
    """Say which step of a compilation begins."""
    limits.step(what)
    if progress is not None:
        progress(done, total, what)
