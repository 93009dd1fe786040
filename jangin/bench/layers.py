"""Where a model's time goes: each kernel beside the least that it could take on this machine."""

from __future__ import annotations

import math
import re
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from rich import box
from rich.markup import escape
from rich.table import Table

from jangin.bench.report import machine, threads_text
from jangin.bench.roofs import Roofs
from jangin.ir.graph import Array
from jangin.runtime.executable import Executable
from jangin.runtime.profile import Launches

SECONDS = 2.0
"""About what the measurement of a model takes, half of it launch by launch."""
FEWEST = 10
"""Runs that count at least."""
LISTED = 40
"""Kernels that the table lists."""
WIDTH = 100
SOURCES_ROOM = 25


@dataclass(frozen=True)
class Layer:
    """A kernel of a run. `seconds`: the median; `bound`: the least that it could take, which `limit`
    sets, its flops or its bytes; `position`: its place in the run's order."""

    position: int
    kernel: str
    template: str
    sources: tuple[str, ...]
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
    """`run`: seconds of the whole model run at once (the median), without any timing inside."""

    model: str
    shapes: Mapping[str, Any]
    roofs: Roofs
    run: float
    layers: tuple[Layer, ...]

    @property
    def kernels(self) -> float:
        """Seconds of all kernels together."""
        return sum(x.seconds for x in self.layers)

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
    runs = _runs(exe, feeds, SECONDS / 4)
    times = launches.times(max(FEWEST, round(SECONDS / 2 / statistics.median(runs))))
    runs += _runs(exe, feeds, SECONDS / 4)
    layers = [
        Layer(n, t.launch.kernel, t.launch.template, t.launch.sources, t.seconds, t.flops, t.bytes, *limits)
        for n, (t, limits) in enumerate(zip(times, bounds(exe, launches, roofs), strict=True))
    ]
    return Account(model, dict(shapes), roofs, statistics.median(runs), tuple(layers))


def bounds(exe: Executable, launches: Launches, roofs: Roofs) -> list[tuple[float, str]]:
    """For each launch the seconds that it takes at least, and whether "flops" or "bytes" set them.

    Its weights come from where all that a run touches fits, what else it reads and writes from where
    that fits: it was written just before."""
    plan, sizes = exe.plan, launches.sizes
    buffers = {b.name: b for b in plan.buffers}
    touched = sizes.arena + sum(a.nbytes for a in plan.constants.values())
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


def _runs(exe: Executable, feeds: Mapping[str, Array], seconds: float) -> list[float]:
    exe.run(feeds)
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < FEWEST // 2 or time.perf_counter() < end:
        start = time.perf_counter()
        exe.run(feeds)
        times.append(time.perf_counter() - start)
    return times


def table(found: Account) -> Table:
    """The kernels, that with the largest gap first."""
    sizes = "".join(f", {name} {size}" for name, size in found.shapes.items())
    title = f"{found.model}{sizes}, {threads_text(found.roofs.threads)}"
    out = Table(title=title, title_justify="left", width=WIDTH, box=box.SIMPLE_HEAD, padding=0)
    for heading in ("gap ms", "ms", "GFLOP", "GFLOP/s", "MB", "GB/s", "bound", "of it"):
        out.add_column(heading, justify="right", no_wrap=True)
    out.add_column("made by", no_wrap=True)
    out.add_column("computes", width=SOURCES_ROOM)
    largest = sorted(found.layers, key=lambda x: -x.gap)
    for x in largest[:LISTED]:
        out.add_row(*_figures(x), _made_by(x.template), escape(_computes(x.sources)))
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


def _made_by(template: str) -> str:
    """ "window tile=6" as "window 6"."""
    return " ".join(word.rpartition("=")[2] for word in template.split())


def _computes(sources: Sequence[str]) -> str:
    """The operators, and the first one's name, or as much of its end as there is room for."""
    found = [n.partition(" ") for s in sources for n in source_names(s) if not n.startswith("layout of ")]
    operators = "+".join(dict.fromkeys(operator for operator, _, _ in found))
    name = found[0][2].removesuffix(f"/{found[0][0]}") if found else "; ".join(sources)
    room = max(2, SOURCES_ROOM - len(operators) - 1)
    return f"{operators} {name if len(name) <= room else '…' + name[1 - room :]}".strip()


def source_names(source: str) -> list[str]:
    """A launch's source as "Conv conv1", "Relu relu1": its nodes without domain and version."""
    return [re.sub(r"^(\S+) '(.*)' \(.*\)$", r"\1 \2", part) for part in source.split(" + ")]


def summary(found: Account) -> str:
    """The account's last lines: the sums, and what was measured of the machine."""
    run, kernels, bound = (1e3 * s for s in (found.run, found.kernels, found.bound))
    between = run - kernels
    roofs = found.roofs
    speeds = [f"{size >> 10} KiB {speed / 1e9:.0f}" for size, speed in roofs.bandwidths[::2]]
    return "\n".join(
        [
            f"a run {run:.3f} ms = kernels {kernels:.3f} ms + between them {between:.3f} ms; "
            f"{found.flops / 1e9:.3f} GFLOP, {found.flops / found.run / 1e9:.1f} GFLOP/s",
            f"kernels {kernels:.3f} ms = bounds {bound:.3f} ms + gaps {kernels - bound:.3f} ms",
            f"bounds: {roofs.flops / 1e9:.0f} GFLOP/s in registers; GB/s read from sets of "
            + ", ".join(speeds),
        ]
    )


def as_json(accounts: Sequence[Account]) -> dict[str, Any]:
    """Everything measured, with the machine, as plain data: seconds, operations, bytes."""
    found = []
    for a in accounts:
        layers = [{**asdict(x), "gap": x.gap, "share": x.share} for x in a.layers]
        sums = {"kernels": a.kernels, "bound": a.bound, "flops": a.flops}
        found.append({**asdict(a), **sums, "layers": layers})
    return {"machine": machine(), "accounts": found}
