"""The whole compiler on one screen: model -> graph -> kernels -> plan and code."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from jangin.backends.backend import backend_of
from jangin.compiler.account import Account
from jangin.compiler.build import Build
from jangin.compiler.forked import Workers
from jangin.compiler.hints import settled
from jangin.compiler.kernels import Job, make_plan, schedule_kernels
from jangin.compiler.shared import SharedKernels
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
from jangin.ir.plan import Plan
from jangin.ir.program import Program
from jangin.ir.records import dataclass
from jangin.ir.traversal import free_vars
from jangin.ir.verify import checked, verify_graph
from jangin.mapped import release
from jangin.ops.builder import OF_BYTES, RegisterTile, WordTile
from jangin.ops.core import CORE
from jangin.options import Options
from jangin.passes.constraints import may_be_1, squeezed, taken_for_others
from jangin.passes.partition import has_steps, partition, prune
from jangin.passes.table import Pass
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import Compiled
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.sizes import Evaluator
from jangin.runtime.variants_artifact import Absent, VariantsArtifact
from jangin.templates.scheduled import Scheduled
from jangin.tune.store import Store, place_of

if TYPE_CHECKING:
    from jangin.targets.machine import Machine
    from jangin.tune.tuner import Outcome
    from jangin.tune.tuner import Progress as TuneProgress

Progress = Callable[[int, int, str], None]
VARIANTS = 8
"""Variants of a model at most; each costs a compilation."""


def tune_model(
    model: ModelSource,
    options: Options,
    threads: int,
    budget: float,
    store: Store | None = None,
    progress: TuneProgress | None = None,
) -> Outcome:
    """Measures candidates for `budget` seconds, beginning with the contents of `store`, and keeps the results
    there.

    The options' `sizes` are those of symbols that stay open: the sizes to measure for, which also choose the
    variant. `progress(seconds, budget, what)`. Raises ValueError for a model that needs steps (see
    `passes.partition`).
    """
    from jangin.tune.tuner import tune as tune_graph

    sizes = options.sizes or {}
    made = cases(loaded(model, options), options).made
    graph = next((c.graph for c in made if c.fits(sizes)), made[0].graph)
    if has_steps(graph):
        raise ValueError("the model runs in steps that depend on its data, and only one plan can be tuned")
    here = place_of(options.target, threads, options.libraries)
    known = {} if store is None else store.get(here)
    outcome = tune_graph(optimize(graph, options), options, threads, sizes, budget, progress, known)
    if store is None or not outcome.findings:
        return outcome
    return replace(outcome, unkept=store.try_put(here, outcome.findings))


def build_artifact(
    model: ModelSource,
    options: Options,
    progress: Progress | None = None,
    workers: Workers | None = None,
    shared: SharedKernels | None = None,
    account: Account | None = None,
) -> Compiled:
    """The compiler itself. `workers`, `shared`, `account`: see `compiler.build.Build`. A model's variants and
    the parts of a program always share their kernels."""
    shared = SharedKernels() if shared is None else shared
    with limits.within(options.limits):
        _tell(progress, 0, 1, "load")
        whole = loaded(model, options)
        found = cases(whole, options, progress)
        parts = (_build(c.graph, whole, options, progress, workers, shared, account) for c in found.made)
        if len(found.made) == 1 and not found.absent:
            return next(parts)
        return VariantsArtifact.of(parts, [c.sizes for c in found.made], found.absent)


def _build(
    graph: Graph,
    imported: Imported,
    options: Options,
    progress: Progress | None,
    workers: Workers | None,
    shared: SharedKernels,
    account: Account | None,
) -> Artifact | ProgramArtifact:
    """The artefact of a lowered graph of an imported model."""
    if not has_steps(graph):
        made = build_plan(graph, options, progress, workers, shared, account)
        return replace(made, metadata=imported.metadata)
    program, segments = partition(graph, str(options.target))
    parts = tuple(build_plan(s, options, progress, workers, shared, account) for s in segments)
    flow = backend_of(options.target).flow(options.target)
    return ProgramArtifact(program, parts, flow, imported.metadata, options.target.device_name)


def build_plan(
    graph: Graph,
    options: Options,
    progress: Progress | None = None,
    workers: Workers | None = None,
    shared: SharedKernels | None = None,
    account: Account | None = None,
) -> Artifact:
    """The artefact of a lowered graph of core operators alone: one plan and its code."""
    with Build(options.target, workers, shared, account) as builder:
        made = partial(builder.make, progress=_told_seconds(progress, "kernels"))
        plan = lowered_plan(graph, options, progress, made, builder.begin)
        _tell(progress, 0, 1, "compile")
        return builder.artifact(plan, _told_seconds(progress, "compile"))


def lowered_plan(
    graph: Graph,
    options: Options,
    progress: Progress | None = None,
    make: Callable[[Sequence[Job]], Sequence[Scheduled]] | None = None,
    begin: Callable[[Plan], object] | None = None,
) -> Plan:
    """A lowered graph's plan. `make` carries out the jobs that make its kernels. `begin`: see `make_plan`."""
    graph = optimize(graph, options, progress)
    _tell(progress, 0, 1, "kernels")
    scheduled = schedule_kernels(graph, options, make)
    _tell(progress, 0, 1, "plan")
    constants = dict(graph.constants)
    graph = replace(graph, constants={})  # each constant can then be released once it is packed
    return make_plan(graph, scheduled, options, constants, begin)


@dataclass(frozen=True)
class Planned:
    """A compiled model without code: one plan, or a program and its segments' plans."""

    program: Program | None
    plans: tuple[Plan, ...]


def plan_model(model: ModelSource, options: Options, progress: Progress | None = None) -> Planned:
    """Runs the compiler up to code generation."""
    with limits.within(options.limits):
        return plan_graph(lowered(loaded(model, options), options, progress), options, progress)


def plan_graph(graph: Graph, options: Options, progress: Progress | None = None) -> Planned:
    """The plan, or the program and its plans, of a lowered graph."""
    if not has_steps(graph):
        return Planned(None, (lowered_plan(graph, options, progress),))
    program, segments = partition(graph, str(options.target))
    return Planned(program, tuple(lowered_plan(s, options, progress) for s in segments))


def import_model(
    model: ModelSource,
    options: Options,
    progress: Progress | None = None,
    until: str = "",
) -> Graph:
    """The model after the graph passes, or after the pass `until`. A model that needs steps (see
    `passes.partition`) is lowered only, because its segments are optimized one by one."""
    with limits.within(options.limits):
        whole = loaded(model, options)
        if until == "import":
            return whole.graph
        graph = lowered(whole, options, progress)
        return graph if until == "lower" or has_steps(graph) else optimize(graph, options, progress, until)


def imported(model: ModelSource, options: Options) -> Imported:
    """A model as its format describes it, for the requested sizes."""
    with limits.within(options.limits):
        return load(paired(model, options.weights), options.shapes, options.formats)


def loaded(model: ModelSource, options: Options) -> Imported:
    """An `imported` model whose inputs' sizes of one name are one symbol only if they must be equal."""
    return settled(imported(model, options), lambda apart: lowered(apart, options))


def lowered(imported: Imported, options: Options, progress: Progress | None = None) -> Graph:
    """An imported model in core operators."""
    _tell(progress, 0, len(graph_passes(options)) + 1, "lower")
    machine = options.target.machine
    figures = machine.recurrence
    width = min(figures.vector_bytes, machine.vector_bytes)
    tile = RegisterTile(figures.accumulators, width, figures.rows, _word_tile(machine))
    graph = lower(imported, options.lowerings, tile, options.unchecked)
    if options.verify and not has_steps(graph):
        checked("lower", verify_graph, graph, CORE)
    return graph


def _word_tile(machine: Machine) -> WordTile:
    """The word tile of a machine. A machine without vectors multiplies byte by byte, because taking words
    apart costs more than single loads."""
    dot = next((p for p in machine.products if p in OF_BYTES), OF_BYTES[0])
    accumulators = min(machine.recurrence.words, machine.registers - 4)
    return WordTile(dot if machine.vector_bytes > I64.bytes else None, accumulators, machine.vector_bytes)


class Case(NamedTuple):
    """A lowered graph, and the symbols' sizes that it is for."""

    graph: Graph
    sizes: Mapping[str, int]

    def fits(self, sizes: Mapping[str, int]) -> bool:
        """Whether it is for these sizes, as far as they are given."""
        given = {marked(name): size for name, size in sizes.items()}
        rules = [eq(marked(name), size) for name, size in self.sizes.items()]
        for v, (low, high) in self.graph.symbols.items():
            rules += [] if low is None else [v >= low]
            rules += [] if high is None else [v <= high]
        value = Evaluator(given)
        return all(value(r) for r in (*rules, *self.graph.constraints) if free_vars(r) <= given.keys())


@dataclass(frozen=True)
class Cases:
    """A model's lowered graphs; the first is for sizes in general. `absent`: sizes without a graph."""

    made: tuple[Case, ...]
    absent: tuple[Absent, ...] = ()


def cases(imported: Imported, options: Options, progress: Progress | None = None) -> Cases:
    """Lowers an imported model to core operators, once for each case of its size symbols.

    One more case takes the sizes of 1 that the model's own runtime takes, if code may be larger. A further
    case follows for each symbol that a case was lowered for as other than 1. If there are more than
    `VARIANTS` cases, sizes that met in a broadcast stay equal. If there are still too many, no more cases are
    made.
    """
    known: dict[frozenset[Var], Graph | CompileError] = {}

    def made(ones: frozenset[Var]) -> Graph | CompileError:
        if ones not in known:
            bound = replace(imported, graph=with_sizes(imported.graph, dict.fromkeys(ones, const(1))))
            try:
                known[ones] = lowered(bound, options, progress)
            except CompileError as error:
                if not ones:
                    raise
                known[ones] = error
        return known[ones]

    symbols, first = imported.graph.symbols, [frozenset[Var]()]
    roomy = options.target.groups or options.target.machine.index_bits >= I64.bits
    if roomy and (ones := imported.ones & {*may_be_1(symbols)}):
        first.append(ones)
    absent: list[Absent] = []
    for taken in (taken_for_others, squeezed, lambda *_: ()):
        waiting = [*first]
        for ones in waiting:  # the list grows meanwhile
            if len(waiting) <= VARIANTS and isinstance(graph := made(ones), Graph):
                more = (ones | {v} for v in taken(prune(graph), symbols) if v not in ones)
                waiting += [m for m in more if m not in waiting]
        if len(waiting) <= VARIANTS:
            break
        remedy = "compile it with shapes= for what it is to run"
        absent = [Absent({}, f"there would be more than {VARIANTS}; {remedy}")]
    found = [Case(g, _sizes(ones)) for ones in waiting if isinstance(g := made(ones), Graph)]
    absent += [Absent(_sizes(ones), str(e)) for ones in waiting if isinstance(e := made(ones), CompileError)]
    return Cases(tuple(found), tuple(absent))


def _sizes(ones: Iterable[Var]) -> Mapping[str, int]:
    return {own_name(v): 1 for v in sorted(ones, key=str)}


def build_kernels(graph: Graph, options: Options) -> Artifact:
    """Compiles a graph after all passes before `in_place`, which may have additional outputs. The same
    kernels give them."""
    graph = optimize(graph, options, since="in_place")
    with Build(options.target) as builder:
        scheduled = schedule_kernels(graph, options, builder.make)
        return builder.artifact(make_plan(graph, scheduled, options))


def optimize(
    graph: Graph, options: Options, progress: Progress | None = None, until: str = "", since: str = ""
) -> Graph:
    """A lowered graph after the passes up to `until`, or from `since` on."""
    passes, target = graph_passes(options), options.target
    if not options.winograd:  # then other passes don't wait for it either
        target = target.with_figures(winograd=replace(target.machine.winograd, gain=0.0))
    passes = passes[next((n for n, p in enumerate(passes) if p.name == since), 0) :]
    verified = None
    for n, step in enumerate(passes, 1):
        _tell(progress, n, len(passes) + 1, step.name)
        graph = step.run(graph, target)
        release(graph.constants.values())
        if options.verify and graph is not verified:
            checked(step.name, verify_graph, graph, CORE)
            verified = graph
        if step.name == until:
            break
    return graph


def graph_passes(options: Options) -> list[Pass]:
    """The passes of a compilation after `lower`, in order: those of the back end that the options allow."""
    passes = backend_of(options.target).passes(options.target)
    return [p for p in passes if not p.optional or getattr(options, p.name)]


def _tell(progress: Progress | None, done: int, total: int, what: str) -> None:
    limits.step(what)
    if progress is not None:
        progress(done, total, what)


def _told_seconds(progress: Progress | None, what: str) -> Callable[[float, float], None]:
    """Reports a step by the estimated milliseconds of its parts, because the parts differ in length."""

    def tell(done: float, total: float) -> None:
        if progress is not None:
            progress(round(done * 1000), round(total * 1000), what)

    return tell
