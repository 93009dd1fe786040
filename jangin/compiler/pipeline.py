"""The whole compiler on one screen: model -> graph -> kernels -> plan and code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from jangin.backends.backend import backend_of
from jangin.compiler.account import Account
from jangin.compiler.build import Build
from jangin.compiler.cases import Progress, cases, loaded, lowered, tell, with_uneven
from jangin.compiler.kernels import Job, schedule_kernels
from jangin.compiler.plans import make_plan
from jangin.compiler.processes.forked import Workers
from jangin.compiler.shared import SharedKernels
from jangin.frontends.dialect import Imported
from jangin.frontends.format import ModelSource
from jangin.ir import limits
from jangin.ir.graph import Graph
from jangin.ir.plan import Plan
from jangin.ir.program import IN_STEPS, Program
from jangin.ir.records import dataclass
from jangin.ir.verify import checked, verify_graph
from jangin.mapped import release
from jangin.ops.core import CORE
from jangin.options import Options
from jangin.passes.memory import recompute
from jangin.passes.memory.updates import ordered
from jangin.passes.partition import has_steps, partition
from jangin.passes.table import Pass
from jangin.passes.windows.winograd_cost import with_ways
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import Compiled
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.variants_artifact import VariantsArtifact
from jangin.templates.scheduled import Scheduled
from jangin.tune.store import Store, place_of

if TYPE_CHECKING:
    from jangin.tune.joules import Meter
    from jangin.tune.outcome import Outcome
    from jangin.tune.tuner import Progress as TuneProgress


def tune_model(
    model: ModelSource,
    options: Options,
    threads: int,
    budget: float,
    store: Store | None = None,
    progress: TuneProgress | None = None,
    meter: Meter | None = None,
    every: bool = False,
) -> Outcome:
    """Measure candidates for `budget` seconds, beginning with the results in `store`, and keep the new
    results there. Return the outcome. `meter` measures joules, which the options' objective may need.
    `every`: candidates are measured too whose estimates are too far from the best.

    The options' `sizes` give sizes for the model's symbols. Candidates are measured for these sizes, and in
    the variant that fits them. `progress(seconds, budget, what)` is called as time passes. Raises ValueError
    for a model that runs in steps (see `passes.partition`)."""
    from jangin.tune.tuner import tune as tune_graph

    graph = tuning_graph(model, options)
    here = place_of(options.target, threads, options.libraries, options.objective)
    known = {} if store is None else store.get(here)
    outcome = tune_graph(graph, options, threads, options.sizes or {}, budget, progress, known, meter, every)
    if store is None or not outcome.findings:
        return outcome
    return replace(outcome, unkept=store.try_put(here, outcome.findings))


def tuning_graph(model: ModelSource, options: Options) -> Graph:
    """Return the fused graph whose kernels are tuned: that of the variant which fits the options' `sizes`.
    Raises ValueError for a model that runs in steps."""
    variants = cases(loaded(model, options), options).made
    graph = next((c.graph for c in variants if c.fits(options.sizes or {})), variants[0].graph)
    if has_steps(graph):
        raise ValueError(
            f"{IN_STEPS}, and can't be tuned: fix sizes with shapes=, or export it without branches and loops"
        )
    return optimize(graph, options)


def build_artifact(
    model: ModelSource,
    options: Options,
    progress: Progress | None = None,
    workers: Workers | None = None,
    shared: SharedKernels | None = None,
    account: Account | None = None,
) -> Compiled:
    """Compile a model in this process. Variants of a model, and the parts of a program, always share their
    kernels. For `workers`, `shared` and `account` see `compiler.build.Build`."""
    shared = SharedKernels() if shared is None else shared
    with limits.within(options.limits):
        tell(progress, 0, 1, "load")
        whole = loaded(model, options)
        variants = cases(whole, options, progress)
        parts = (_build(c.graph, whole, options, progress, workers, shared, account) for c in variants.made)
        if len(variants.made) == 1 and not variants.absent:
            return next(parts)
        return VariantsArtifact.of(parts, [c.sizes for c in variants.made], variants.absent)


def _build(
    graph: Graph,
    imported: Imported,
    options: Options,
    progress: Progress | None,
    workers: Workers | None,
    shared: SharedKernels,
    account: Account | None,
) -> Artifact | ProgramArtifact:
    """Compile a lowered graph to an artefact: one plan, or a program if the graph runs in steps. `imported`
    gives the model's metadata."""
    metadata = with_uneven(imported.metadata, graph, options)
    if not has_steps(graph):
        artifact = build_plan(graph, options, progress, workers, shared, account)
        return replace(artifact, metadata=metadata)
    program, segments = partition(graph, str(options.target))
    parts = tuple(build_plan(s, options, progress, workers, shared, account) for s in segments)
    flow = backend_of(options.target).flow(options.target)
    return ProgramArtifact(program, parts, flow, metadata, options.target.device_name)


def build_plan(
    graph: Graph,
    options: Options,
    progress: Progress | None = None,
    workers: Workers | None = None,
    shared: SharedKernels | None = None,
    account: Account | None = None,
    arena: int | None = None,
) -> Artifact:
    """Compile a lowered graph, which has core operators alone, to an artefact of one plan and its code. For
    `arena` see `lowered_plan`."""
    with Build(options.target, workers, shared, account) as builder:
        maker = partial(builder.make, progress=_told_seconds(progress, "kernels"))
        plan = lowered_plan(graph, options, progress, maker, builder.begin, arena)
        tell(progress, 0, 1, "compile")
        return builder.artifact(plan, _told_seconds(progress, "compile"))


def kept_kernels(options: Options) -> SharedKernels:
    """Return the kernels that models share, from the cache's folder if the options allow one."""
    return SharedKernels.of(options.cache)


def lowered_plan(
    graph: Graph,
    options: Options,
    progress: Progress | None = None,
    make: Callable[[Sequence[Job]], Sequence[Scheduled]] | None = None,
    begin: Callable[[Plan], object] | None = None,
    arena: int | None = None,
    since: str = "",
) -> Plan:
    """Compile a lowered graph to a plan. `make` carries out the jobs that make its kernels. For `begin` see
    `make_plan`. If the arena would take more than `arena` bytes, kernels run again (`memory.recompute`). The
    graph passes begin with `since`, if this is given."""
    order = partial(ordered, target=options.target)
    graph = optimize(graph, options, progress, since=since)
    if arena is None:
        graph = recompute.with_copies_again(order(graph), order)
    else:
        graph = recompute.within(graph, arena, order)
    tell(progress, 0, 1, "kernels")
    scheduled = schedule_kernels(graph, options, make)
    tell(progress, 0, 1, "plan")
    constants = dict(graph.constants)
    graph = replace(graph, constants={})  # each constant can then be released once it is packed
    return make_plan(graph, scheduled, options, constants, begin)


@dataclass(frozen=True)
class Planned:
    """A compiled model without machine code. It has one plan, or a program with a plan for each segment."""

    program: Program | None
    plans: tuple[Plan, ...]


def plan_model(model: ModelSource, options: Options, progress: Progress | None = None) -> Planned:
    """Run the compiler up to the plans, without code generation."""
    with limits.within(options.limits):
        return plan_graph(lowered(loaded(model, options), options, progress), options, progress)


def plan_graph(graph: Graph, options: Options, progress: Progress | None = None) -> Planned:
    """Return the plan of a lowered graph, or its program and the segments' plans if it runs in steps."""
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
    """Return the model's graph after all graph passes, or after the pass `until`. A model that runs in steps
    (see `passes.partition`) is only lowered, because its segments are optimized one by one."""
    with limits.within(options.limits):
        whole = loaded(model, options)
        if until == "import":
            return whole.graph
        graph = lowered(whole, options, progress)
        return graph if until == "lower" or has_steps(graph) else optimize(graph, options, progress, until)


def build_kernels(graph: Graph, options: Options) -> Artifact:
    """Compile a graph that all passes before `in_place` have run on. It may have additional outputs, which
    the same kernels compute."""
    graph = optimize(graph, options, since="in_place")
    with Build(options.target) as builder:
        scheduled = schedule_kernels(graph, options, builder.make)
        return builder.artifact(make_plan(graph, scheduled, options))


def optimize(
    graph: Graph, options: Options, progress: Progress | None = None, until: str = "", since: str = ""
) -> Graph:
    """Run the graph passes on a lowered graph, and return the result. The passes end with `until`, or begin
    with `since`, if these are given."""
    library = "cudnn" in options.libraries.split(",")
    passes, target = graph_passes(options), with_ways(options.target, options.winograd, library)
    passes = passes[next((n for n, p in enumerate(passes) if p.name == since), 0) :]
    verified = None
    for n, step in enumerate(passes, 1):
        tell(progress, n, len(passes) + 1, step.name)
        graph = step.run(graph, target)
        release(graph.constants.values())
        if options.verify and graph is not verified:
            checked(step.name, verify_graph, graph, CORE)
            verified = graph
        if step.name == until:
            break
    return graph


def graph_passes(options: Options) -> list[Pass]:
    """Return the passes of a compilation after `lower`, in order. They are those of the back end, without the
    optional passes that the options turn off."""
    passes = backend_of(options.target).passes(options.target)
    return [p for p in passes if not p.optional or getattr(options, p.name)]


def _told_seconds(progress: Progress | None, what: str) -> Callable[[float, float], None]:
    """Return a function that reports the step `what`, given the seconds done and in total. The reports count
    in milliseconds."""

    def tell(done: float, total: float) -> None:
        if progress is not None:
            progress(round(done * 1000), round(total * 1000), what)

    return tell
