"""Where a model's time goes: each kernel beside the least that it could take on this machine."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.table import Table

from jangin.bench.report import machine, threads_text
from jangin.bench.roofs import Roofs
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.ir.sources import Source, Sources
from jangin.runtime.executable import Executable
from jangin.runtime.profile import WARM_UP, Launches

SECONDS = 2.0
"""About what the measurement of a model takes, half of it launch by launch."""
TURN = 4
"""Runs in a row of either kind."""
FEWEST = 10
"""Runs that count at least."""
LISTED = 40
"""Kernels that the table lists."""


@dataclass(frozen=True)
class Layer:
    """A kernel of a run. `seconds`: the median; `bound`: the least that it could take, which `limit`
    sets, its flops or its bytes; `position`: its place in the run's order; `library`: another maker's
    that it calls, if any."""

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
        """Of the bound that is reached: 1 is the best there is."""
        return self.bound / self.seconds if self.seconds else 1.0


@dataclass(frozen=True)
class Account:
    """`run`: seconds of the whole model run at once, without any timing inside; `steps`: of its kernels one
    after another. Both are medians; that the kernels' own medians are less together says how much of a
    run other processes took."""

    model: str
    shapes: Mapping[str, Any]
    roofs: Roofs
    run: float
    steps: float
    layers: tuple[Layer, ...]

    @property
    def kernels(self) -> float:
        """Seconds of all kernels together."""
        return sum(x.seconds for x in self.layers)

    @property
    def between(self) -> float:
        """Seconds between the kernels of a run."""
        return self.run - self.steps

    @property
    def disturbed(self) -> float:
        """Seconds that a run of the kernels took longer than the kernels."""
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
    """Time a compiled model on `feeds`, as a whole and kernel by kernel."""
    launches = exe.launches(feeds)
    runs: list[float] = []
    passes: list[list[float]] = [[] for _ in launches.calls]
    end = time.perf_counter() + SECONDS
    while len(runs) < FEWEST or time.perf_counter() < end:  # in turns: a slow moment falls on both
        runs += _runs(exe, feeds)
        for seconds, more in zip(passes, launches.passes(TURN), strict=True):
            seconds += more
    times = launches.medians(passes)
    layers = []
    for n, (t, limits) in enumerate(zip(times, bounds(exe, launches, roofs), strict=True)):
        x = t.launch
        made = (x.kernel, x.template, x.library, x.sources)
        layers.append(Layer(n, *made, t.seconds, t.flops, t.bytes, *limits))
    totals = [sum(one) for one in zip(*passes, strict=True)]
    steps = statistics.median(totals) - len(passes) * launches.call_seconds() if totals else 0.0
    return Account(model, dict(shapes), roofs, statistics.median(runs), steps, tuple(layers))


def bounds(exe: Executable, launches: Launches, roofs: Roofs) -> list[tuple[float, str]]:
    """For each launch the seconds that it takes at least, and whether "flops" or "bytes" set them.

    Its weights come from where all that a run touches fits, what else it reads and writes from where
    that fits: it was written just before."""
    plan, sizes = exe.plan, launches.layout
    buffers = {b.name: b for b in plan.buffers}
    touched = sizes.placement.arena + sum(a.nbytes for a in plan.constants.values())
    found = []
    for launch in plan.launches:
        used = [buffers[n] for n in dict.fromkeys(launch.args)]
        fixed = [b for b in used if buffers[b.base or b.name].kind == "constant"]
        moved = sizes.value(launch.bytes)
        weights = min(moved, sum(math.prod(sizes.shapes[b.name]) * b.dtype.bytes for b in fixed))
        others = moved - weights
        traffic = weights / roofs.bandwidth(touched) + others / roofs.bandwidth(others)
        work = sizes.value(launch.flops) / roofs.flops
        found.append((work, "flops") if work >= traffic else (traffic, "bytes"))
    return found


def _runs(exe: Executable, feeds: Mapping[str, Array]) -> list[float]:
    """Seconds of whole runs, after a warm-up."""
    times = []
    for _ in range(WARM_UP + TURN):
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return times[WARM_UP:]


def table(found: Account) -> Table:
    """The kernels, that with the largest gap first."""
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
        out.add_row(_ms(gap), _ms(seconds), *[""] * 7, f"{len(rest)} kernels more")
    return out


def _figures(x: Layer) -> list[str]:
    figures = [_ms(x.gap), _ms(x.seconds)]
    for text, amount in ((f"{x.flops / 1e9:.3f}", x.flops), (f"{x.bytes / 1e6:.1f}", x.bytes)):
        figures.append(text if amount else "")
        figures.append(f"{amount / x.seconds / 1e9:.1f}" if amount and x.seconds else "")
    return [*figures, x.limit, f"{x.share:.0%}"]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.3f}"


def made_by(template: str) -> str:
    """A candidate: "window tile=6" as "window 6"."""
    return " ".join(word.rpartition("=")[2] for word in template.split())


def computes(sources: Sources) -> str:
    """The operators of a kernel's sources, and the first one's name: of those in the model, if any are."""
    found = [s for s in sources if s.is_own] or [*sources]
    short = (s.operator.removeprefix("aten.").removesuffix(".default") for s in found)
    operators, first = "+".join(dict.fromkeys(short)), found[0] if found else Source("")
    name = first.name.removesuffix(f"/{first.operator}")
    return f"{operators} {name}".strip()


def summary(found: Account) -> str:
    """The account's last lines: the sums, and what was measured of the machine."""
    roofs, speed = found.roofs, found.flops / max(found.kernels, 1e-9) / 1e9
    speeds = [f"{size >> 10} KiB {speed / 1e9:.0f}" for size, speed in roofs.bandwidths[::2]]
    return "\n".join(
        [
            f"a run {_ms(found.run)} ms = kernels {_ms(found.kernels)} ms + between them "
            f"{_ms(found.between)} ms + disturbed by others {_ms(found.disturbed)} ms; "
            f"{found.flops / 1e9:.3f} GFLOP",
            f"kernels {_ms(found.kernels)} ms = bounds {_ms(found.bound)} ms + gaps "
            f"{_ms(found.kernels - found.bound)} ms; {speed:.1f} GFLOP/s",
            f"bounds: {roofs.flops / 1e9:.0f} GFLOP/s in registers; GB/s read from sets of "
            + ", ".join(speeds),
        ]
    )


def as_json(accounts: Sequence[Account]) -> dict[str, Any]:
    """Everything measured, with the machine, as plain data: seconds, operations, bytes."""
    found = []
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
        found.append({**asdict(a), **sums, "layers": layers})
    return {"machine": machine(), "accounts": found}
