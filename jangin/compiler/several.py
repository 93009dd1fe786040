"""Builds a model for several devices at once.

The result has the whole model for each device, and the symbol of the batch, which can be divided among
devices. It also has placements of the model's nodes, if measurements show that they are quicker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.compiler.account import Account
from jangin.compiler.cases import Cases, Progress, cases, loaded
from jangin.compiler.pipeline import build_artifact, build_plan
from jangin.compiler.place import Placing, Times, Unit, branches, runs, stages, unit_seconds, units
from jangin.compiler.processes.forked import Workers
from jangin.compiler.shared import SharedKernels
from jangin.frontends.format import ModelSource
from jangin.ir.graph import Graph
from jangin.ir.own_names import marked, own_name
from jangin.options import Options
from jangin.passes.partition import prune, segmented
from jangin.passes.rows import Mixed, row_symbol
from jangin.runtime.artifact import Artifact
from jangin.runtime.device import device_of, threads_of
from jangin.runtime.executable import Executable
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.sizes import Evaluator
from jangin.runtime.variants_artifact import VariantsArtifact, Whole
from jangin.targets.several import SEPARATOR
from jangin.tune.measure import random_feeds

TURNS = 7
"""Measured runs of each device. The quickest time of each kernel counts."""
BRANCHES_WORTH, STAGES_WORTH = 0.9, 0.8
"""A placement is kept if its estimated time is at most this share of the time without it. Branches are
compared with the quickest device alone, stages with all devices working on alternate inputs of a stream."""


def build_several(
    model: ModelSource,
    options: Options,
    threads: int,
    progress: Progress | None = None,
    workers: Workers | None = None,
    shared: SharedKernels | None = None,
    account: Account | None = None,
) -> SeveralArtifact:
    """Build the model for each device of the target, as `pipeline.build_artifact` does, and return them as
    one artefact. `threads` is the number of processor threads for all devices together. Placements are
    measured for the options' `sizes`."""
    shared = SharedKernels() if shared is None else shared
    each = options.parts
    parts = [build_artifact(model, o, progress, workers, shared, account) for o in each]
    wholes = [p for p in parts if not isinstance(p, SeveralArtifact)]
    variants = cases(loaded(model, each[0]), each[0], progress)
    rows, reason = _rows(variants)
    placed = {}
    if len(variants.made) == 1:
        sizes = {rows: 1, **(options.sizes or {})}
        placed = _placements(prune(variants.made[0].graph), each, wholes, threads, sizes)
    artifacts = {
        name: _program(placement, each, workers, shared, account) for name, placement in placed.items()
    }
    names = options.target.name.split(SEPARATOR)
    return SeveralArtifact.of(wholes, names, rows, reason, artifacts)


def _rows(found: Cases) -> tuple[str, str]:
    """Return the name of the batch's symbol and "", or "" and the reason why the batch can't be divided."""
    try:
        rows = row_symbol(found.made[0].graph)
    except Mixed as error:
        return "", str(error)
    if any(rows in case.sizes for case in found.made):
        return "", f"the model means something else where {rows} is 1"
    return rows, ""


def _placements(
    graph: Graph,
    each: Sequence[Options],
    parts: Sequence[Whole | VariantsArtifact],
    threads: int,
    sizes: Mapping[str, int],
) -> dict[str, tuple[Graph, Sequence[Unit], Placing]]:
    """Return the placements that are worth keeping by measured times, by name. There are none if a size isn't
    known or the model runs in steps."""
    plans = [p for p in parts if isinstance(p, Artifact)]
    if len(plans) < len(parts) or any(own_name(v) not in sizes for v in graph.symbols):
        return {}
    parts_of = units(graph, Evaluator({marked(name): size for name, size in sizes.items()}))
    times = _measured(parts_of, plans, each, threads, sizes)
    alone = [sum(t) for t in times.units]
    side, stream = branches(parts_of, times), stages(parts_of, times)
    placements: dict[str, tuple[Graph, Sequence[Unit], Placing]] = {}
    if len(set(side.device)) > 1 and side.seconds <= BRANCHES_WORTH * min(alone):
        placements["branches"] = graph, parts_of, side
    if len(set(stream.device)) > 1 and stream.seconds <= STAGES_WORTH / sum(1 / t for t in alone):
        placements["stages"] = graph, parts_of, stream
    return placements


def _measured(
    parts_of: Sequence[Unit],
    plans: Sequence[Artifact],
    each: Sequence[Options],
    threads: int,
    sizes: Mapping[str, int],
) -> Times:
    named = [(o.target.device_name, str(o.target)) for o in each]
    exes = [Executable(p, n) for p, n in zip(plans, threads_of(named, threads), strict=True)]
    launches = [exe.launches(random_feeds(exe, sizes)) for exe in exes]
    taken: list[list[list[float]]] = [[] for _ in exes]
    for _ in range(TURNS):  # turns, so that a slow moment affects all devices
        for one, passes in zip(launches, taken, strict=True):
            passes.append([t for (t,) in one.passes(1)])
    seconds = [
        unit_seconds(parts_of, exe.plan.launches, [min(t) for t in zip(*passes, strict=True)])
        for exe, passes in zip(exes, taken, strict=True)
    ]
    moves = [device_of(name).transfer(target) for name, target in named]
    return Times(seconds, max(m.startup for m in moves), max(m.byte for m in moves))


def _program(
    placed: tuple[Graph, Sequence[Unit], Placing],
    each: Sequence[Options],
    workers: Workers | None,
    shared: SharedKernels,
    account: Account | None,
) -> ProgramArtifact:
    graph, parts_of, placing = placed
    pieces = runs(parts_of, placing)
    names = SEPARATOR.join(str(o.target) for o in each)
    program, segments = segmented(graph, [nodes for _, nodes in pieces], names)
    artifacts = [
        build_plan(segment, each[device], None, workers, shared, account)
        for segment, (device, _) in zip(segments, pieces, strict=True)
    ]
    return ProgramArtifact(program, tuple(artifacts), b"", device="several")
