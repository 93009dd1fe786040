"""Describe a compiled program for `jangin inspect`: its steps, and where each runs."""

from __future__ import annotations

from collections.abc import Iterator

from rich.table import Table

from jangin.ir.program import Bind, Branch, HostCall, Loop, Region, Segment
from jangin.ir.program_text import print_program
from jangin.ir.sources import Sources
from jangin.ir.text import print_plan
from jangin.runtime.artifact import Artifact
from jangin.runtime.program_artifact import ProgramArtifact

Row = tuple[str, str, str]


def program_text(artifact: ProgramArtifact) -> str:
    """Return the text of the program, followed by each segment's plan."""
    plans = (f"# segment {i}\n{print_plan(part.plan)}" for i, part in enumerate(artifact.parts))
    return "\n".join([print_program(artifact.program), *plans])


def steps_table(artifact: Artifact | ProgramArtifact) -> Table:
    """Return a table of every step in order. A step is compiled code, control flow, or a function in
    Python."""
    if isinstance(artifact, ProgramArtifact):
        rows = list(_rows(artifact.program.region, artifact.parts, ""))
    else:
        rows = [_segment(artifact, "")]
    hosted = sum(kind.strip() == "host" for kind, _, _ in rows)
    table = Table("runs as", "what", "computes", title=f"steps, {hosted} of them in Python")
    for kind, what, computes in rows:
        table.add_row(kind, what, computes)
    return table


def _rows(region: Region, parts: tuple[Artifact, ...], margin: str) -> Iterator[Row]:
    for step in region.steps:
        if isinstance(step, Segment):
            yield _segment(parts[step.plan], margin)
        elif isinstance(step, HostCall):
            yield f"{margin}host", f"{step.function} (Python)", str(step.source)
        elif isinstance(step, Bind):
            yield f"{margin}bind", f"{step.value} to {', '.join(map(str, step.symbols))}", str(step.source)
        elif isinstance(step, Branch):
            yield f"{margin}if", step.condition, str(step.source)
            yield from _rows(step.then, parts, f"{margin}  ")
            yield f"{margin}else", "", ""
            yield from _rows(step.orelse, parts, f"{margin}  ")
        elif isinstance(step, Loop):
            yield f"{margin}loop", " and ".join(filter(None, (step.trips, step.condition))), str(step.source)
            yield from _rows(step.body, parts, f"{margin}  ")


def _segment(part: Artifact, margin: str) -> Row:
    launches = part.plan.launches
    nodes = Sources.joined(launch.sources for launch in launches)
    shown = str(Sources(nodes[:3])) + ("; …" if len(nodes) > 3 else "")
    return f"{margin}compiled", f"{len(launches)} launches for {len(nodes)} nodes", shown
