"""`jangin inspect --placement`: show where each node of the model runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from jangin.compiler.pipeline import Planned
from jangin.host.table import why
from jangin.ir.graph import Graph, Node
from jangin.ir.plan import Launch
from jangin.ir.program import Bind, Branch, HostCall, Loop, Region, Segment, Step
from jangin.ir.records import dataclass
from jangin.ir.sources import Source, Sources
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import plans
from jangin.runtime.several_artifact import SeveralArtifact

KINDS = {
    "compiled": "compiled code",
    "no code": "no code of its own (known while compiling, a view, or merged with an equal node)",
    "step": "control between compiled code",
    "hosted": "a function in Python",
}


@dataclass(frozen=True)
class Placed:
    """The place where one node runs. `runs` is one of `KINDS`.

    `depth` is the number of sub-graphs and functions around the node. `kernels` compute it, and are `shared`
    if they compute other nodes too. `where` is the step or host function, with the reason."""

    node: str
    runs: str
    kernels: tuple[str, ...] = ()
    shared: bool = False
    where: str = ""
    depth: int = 0


def placement(imported: Graph, planned: Planned) -> list[Placed]:
    """Return where every node of the imported model runs, in order. The nodes of its sub-graphs and functions
    follow a node."""
    launches: dict[Source, list[Launch]] = {}
    for plan in planned.plans:
        for launch in plan.launches:
            for source in launch.sources:
                launches.setdefault(source, []).append(launch)
    steps: dict[Source, list[Step]] = {}
    if planned.program is not None:
        for step in every_step(planned.program.region):
            for source in () if isinstance(step, Segment) else step.source:
                steps.setdefault(source, []).append(step)
    return list(_placed(imported.nodes, launches, steps, 0))


def every_step(region: Region) -> Iterator[Step]:
    """Yield the steps of a region and of the regions inside it."""
    for step in region.steps:
        yield step
        for body in (step.then, step.orelse) if isinstance(step, Branch) else ():
            yield from every_step(body)
        if isinstance(step, Loop):
            yield from every_step(step.body)


def _placed(
    nodes: Sequence[Node],
    launches: Mapping[Source, Sequence[Launch]],
    steps: Mapping[Source, Sequence[Step]],
    depth: int,
) -> Iterator[Placed]:
    for node in nodes:
        own = [x for source in node.source for x in launches.get(source, ())]
        kernels = tuple(dict.fromkeys(x.kernel for x in own))
        shared = any(len(x.sources) > 1 for x in own)
        taken = [s for source in node.source for s in steps.get(source, ())]
        hosted = [s for s in taken if isinstance(s, HostCall)]
        where = "; ".join(dict.fromkeys(map(_described, hosted or taken)))
        runs = "hosted" if hosted else "compiled" if own else "step" if taken else "no code"
        inner = [g for g in node.attrs.named().values() if isinstance(g, Graph)]
        if inner and runs == "no code":
            where = "its body stands in its place"
        yield Placed(str(node.source), runs, kernels, shared, where, depth)
        for graph in inner:
            yield from _placed(graph.nodes, launches, steps, depth + 1)


def _described(step: Step) -> str:
    if isinstance(step, HostCall):
        return f"{step.function}: {why(step.function)}"
    if isinstance(step, Bind):
        return f"makes {', '.join(map(str, step.symbols))} known"
    return type(step).__name__.lower()


def counts(rows: Sequence[Placed]) -> Counter[str]:
    return Counter(row.runs for row in rows)


def table(rows: Sequence[Placed]) -> Table:
    tally = counts(rows)
    total = ", ".join(f"{tally[kind]} {kind}" for kind in KINDS)
    table = Table("node", "runs as", "where", title=f"placement of {len(rows)} nodes: {total}")
    for row in rows:
        kernels = ", ".join(row.kernels) + (" (fused)" if row.shared else "")
        where = "; ".join(filter(None, (kernels, row.where)))
        table.add_row("  " * row.depth + row.node, row.runs, where)
    table.caption = "\n".join(f"{kind}: {meaning}" for kind, meaning in KINDS.items() if tally[kind])
    return table


def as_json(rows: Sequence[Placed]) -> dict[str, Any]:
    return {"counts": {kind: counts(rows)[kind] for kind in KINDS}, "nodes": [asdict(row) for row in rows]}


def devices_table(made: SeveralArtifact) -> Table:
    """Return a table of the nodes of a model for several devices. It tells on which device each runs, for
    each way to run the model."""
    whole = f"each has rows of {made.rows}" if made.rows else "whichever is quicker"
    reason = "" if made.rows else f"; a batch isn't shared out: {made.reason}"
    table = Table("node", "device", *made.placed, title=f"{', '.join(made.names)}: {whole}{reason}")
    named = [(p.device, p.plan.target) for p in (next(plans(part)) for part in made.parts)]
    placed: dict[str, dict[Source, list[str]]] = {name: {} for name in made.placed}
    for name, program in made.placed.items():
        for n, part in enumerate(program.parts):
            at = f"{made.names[named.index((part.device, part.plan.target))]}, segment {n}"
            for source in _sources(part):
                placed[name].setdefault(source, []).append(at)
    sources = {source: None for part in made.parts for p in plans(part) for source in _sources(p)}
    for source in sources:
        where = ["; ".join(placed[name].get(source, ())) for name in made.placed]
        table.add_row(str(source), " or ".join(made.names), *where)
    return table


def _sources(part: Artifact) -> Sources:
    return Sources.joined(launch.sources for launch in part.plan.launches)
