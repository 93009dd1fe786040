"""Account for a model's time: compare each kernel with the least time that it could take on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from jangin.bench.report import machine, milliseconds, threads_text
from jangin.bench.roofs import Roofs
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.ir.sources import Source, Sources, operators, own
from jangin.runtime.executable import Executable
from jangin.runtime.profile import WARM_UP, Launches

SECONDS = 2.0
"""Seconds for which one model is measured, about half of them kernel by kernel. Medians of shorter
measurements differ from run to run."""
TURN = 4
"""Runs of the whole model in one turn. The kernels, timed one by one, then run as often."""
FEWEST = 10
"""The fewest timed runs of the whole model, so that their median ignores a few disturbed ones."""
LISTED = 40
"""The most kernels that the table lists. The rest takes little time."""


@dataclass(frozen=True)
class Layer:
    """A kernel of a run.

    `seconds` is the median. `bound` is the least time that the kernel could take, and `limit` tells if its
    flops or its bytes decide the bound. `position` is its place in the run's order. `library` names the other
    maker's library that it calls, if any."""

    position: int
    kernel: str
    template: str
    library: str
    sources: Sources
    seconds: float
    flops: int
    bytes: int
    bound: float
    limit: str

    @property
    def gap(self) -> float:
        return self.seconds - self.bound

    @property
    def share(self) -> float:
        """The share of the bound that is reached; 1 is the best."""
        return self.bound / self.seconds if self.seconds else 1.0


@dataclass(frozen=True)
class Account:
    """How the time of a model's run is spent. `run` is the seconds of a whole run without timing inside.
    `steps` is the seconds of the run's kernels, called one after another.

    Both are medians. The sum of the kernels' own medians is smaller, because other processes take time from
    every run, but not from each kernel.
    """

    model: str
    shapes: Mapping[str, Any]
    roofs: Roofs
    run: float
    steps: float
    layers: tuple[Layer, ...]

    @property
    def kernels(self) -> float:
        """The seconds of all kernels together."""
        return sum(x.seconds for x in self.layers)

    @property
    def between(self) -> float:
        """The seconds between the kernels of a run."""
        return self.run - self.steps

    @property
    def disturbed(self) -> float:
        """The seconds by which a run of the kernels exceeds the sum of the kernels' medians."""
        return self.steps - self.kernels

    @property
    def bound(self) -> float:
        return sum(x.bound for x in self.layers)

    @property
    def flops(self) -> int:
        return sum(x.flops for x in self.layers)


def account(
    model: str, shapes: Mapping[str, Any], exe: Executable, feeds: Mapping[str, Array], roofs: Roofs
) -> Account:
    """Time a compiled model on `feeds`, alternately as a whole and kernel by kernel, for about `SECONDS`
    seconds. Return the account."""
    launches = exe.launches(feeds)
    runs: list[float] = []
    passes: list[list[float]] = [[] for _ in launches.calls]
    end = time.perf_counter() + SECONDS
    while len(runs) < FEWEST or time.perf_counter() < end:  # in turns, so that a slow moment affects both
        runs += _runs(exe, feeds)
        for seconds, more in zip(passes, launches.passes(TURN), strict=True):
            seconds += more
    times = launches.medians(passes)
    layers = []
    for n, (t, limits) in enumerate(zip(times, bounds(exe, launches, roofs), strict=True)):
        x = t.launch
        origin = (x.kernel, x.template, x.library, x.sources)
        layers.append(Layer(n, *origin, t.seconds, t.flops, t.bytes, *limits))
    totals = [sum(one) for one in zip(*passes, strict=True)]
    steps = statistics.median(totals) - len(passes) * launches.call_seconds() if totals else 0.0
    return Account(model, dict(shapes), roofs, statistics.median(runs), steps, tuple(layers))


def bounds(exe: Executable, launches: Launches, roofs: Roofs) -> list[tuple[float, str]]:
    """Return for each launch the least seconds that it could take, and "flops" or "bytes", whichever decides
    them.

    Weights are read at the speed of the smallest cache or memory that holds everything that a run touches.
    Other data are read at the speed of the smallest one that holds them, because they were written just
    before."""
    plan, sizes = exe.plan, launches.layout
    buffers = {b.name: b for b in plan.buffers}
    touched = sizes.placement.arena + sum(a.nbytes for a in plan.constants.values())
    limits = []
    for launch in plan.launches:
        used = [buffers[n] for n in dict.fromkeys(launch.args)]
        fixed = [b for b in used if buffers[b.base or b.name].kind == "constant"]
        moved = sizes.value(launch.bytes)
        weights = min(moved, sum(math.prod(sizes.shapes[b.name]) * b.dtype.bytes for b in fixed))
        others = moved - weights
        traffic = weights / roofs.bandwidth(touched) + others / roofs.bandwidth(others)
        work = sizes.value(launch.flops) / roofs.flops
        limits.append((work, "flops") if work >= traffic else (traffic, "bytes"))
    return limits


def _runs(exe: Executable, feeds: Mapping[str, Array]) -> list[float]:
    """Return the seconds of `TURN` runs of the whole model, timed after a warm-up."""
    times = []
    for _ in range(WARM_UP + TURN):
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return times[WARM_UP:]


def table(found: Account) -> Table:
    """Return a table of the kernels, largest gap first."""
    sizes = "".join(f", {name} {size}" for name, size in found.shapes.items())
    title = f"{found.model}{sizes}, {threads_text(found.roofs.threads)}"
    out = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=0)
    for heading in ("gap ms", "ms", "GFLOP", "GFLOP/s", "MB", "GB/s", "bound", "of it"):
        out.add_column(heading, justify="right", no_wrap=True)
    out.add_column("made by", no_wrap=True)
    out.add_column("computes")
    largest = sorted(found.layers, key=lambda x: -x.gap)
    for x in largest[:LISTED]:
        out.add_row(*_figures(x), made_by(x.template), computes(x.sources))
    rest = largest[LISTED:]
    if rest:
        gap, seconds = sum(x.gap for x in rest), sum(x.seconds for x in rest)
        out.add_row(milliseconds(gap), milliseconds(seconds), *[""] * 7, f"{len(rest)} kernels more")
    return out


def _figures(x: Layer) -> list[str]:
    figures = [milliseconds(x.gap), milliseconds(x.seconds)]
    for text, amount in ((f"{x.flops / 1e9:.3f}", x.flops), (f"{x.bytes / 1e6:.1f}", x.bytes)):
        figures.append(text if amount else "")
        figures.append(f"{amount / x.seconds / 1e9:.1f}" if amount and x.seconds else "")
    return [*figures, x.limit, f"{x.share:.0%}"]


def made_by(template: str) -> str:
    """Return a candidate's text without the names of its parameters: "window tile=6" becomes "window 6"."""
    return " ".join(word.rpartition("=")[2] for word in template.split())


def computes(sources: Sources) -> str:
    """Return the operators that a kernel computes, and the name of its first node."""
    first = next(iter(own(sources)), Source(""))
    name = first.name.removesuffix(f"/{first.operator}")
    return f"{operators(sources)} {name}".strip()


def summary(found: Account) -> str:
    """Return the last lines below an account's table: the sums, and the machine's measured speeds."""
    roofs, speed = found.roofs, found.flops / max(found.kernels, 1e-9) / 1e9
    speeds = [f"{size >> 10} KiB {speed / 1e9:.0f}" for size, speed in roofs.bandwidths[::2]]
    return "\n".join(
        [
            f"a run {milliseconds(found.run)} ms = kernels {milliseconds(found.kernels)} ms + between them "
            f"{milliseconds(found.between)} ms + disturbed by others {milliseconds(found.disturbed)} ms; "
            f"{found.flops / 1e9:.3f} GFLOP",
            f"kernels {milliseconds(found.kernels)} ms = bounds {milliseconds(found.bound)} ms + gaps "
            f"{milliseconds(found.kernels - found.bound)} ms; {speed:.1f} GFLOP/s",
            f"bounds: {roofs.flops / 1e9:.0f} GFLOP/s in registers; GB/s read from sets of "
            + ", ".join(speeds),
        ]
    )


def as_json(accounts: Sequence[Account]) -> dict[str, Any]:
    """Return all measurements and the machine as plain data: seconds, operations, bytes."""
    entries = []
    for a in accounts:
        layers = [
            {**asdict(x), "sources": [s._asdict() for s in x.sources], "gap": x.gap, "share": x.share}
            for x in a.layers
        ]
        sums = {
            "between": a.between,
            "disturbed": a.disturbed,
            "kernels": a.kernels,
            "bound": a.bound,
            "flops": a.flops,
        }
        entries.append({**asdict(a), **sums, "layers": layers})
    return {"machine": machine(), "accounts": entries}
