"""Report comparisons as tables and as JSON."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from jangin.bench.engines import TITLES
from jangin.bench.measure import CROWDED, Comparison, Result


def tables(comparisons: Sequence[Comparison]) -> Iterator[Table]:
    """Yield a table for each comparison."""
    for c in comparisons:
        sizes = "".join(f", {name} {size}" for name, size in c.shapes.items())
        table = Table(title=f"{c.model}{sizes}, {threads_text(c.threads)}", title_justify="left")
        for heading, justify in (
            ("engine", "left"),
            ("ms a run", "right"),
            ("quartiles", "right"),
            ("Jangin is", "right"),
            ("error", "right"),
            ("GFLOP/s", "right"),
            ("of SGEMM", "right"),
            ("compile", "right"),
            ("peak memory", "right"),
        ):
            table.add_column(heading, justify=justify)  # type: ignore[arg-type]
        if c.tokens:
            table.add_column("tokens/s", justify="right")
        for r in c.results:
            table.add_row(*row(c, r))
        table.caption = caption(c)
        yield table


def row(c: Comparison, r: Result) -> list[str]:
    """Return the cells of one engine's row in a comparison's table."""
    title = f"{TITLES.get(r.engine, r.engine)} {r.version}".strip() + (f" ({r.how})" if r.how else "")
    if r.problem:
        return [title, f"{'absent' if r.absent else 'failed'}: {r.problem}"]
    ratio = c.ratio(r.engine) if r.engine != "jangin" else None
    speed = c.flops / r.median * 1e3
    return [
        title,
        f"{r.median:.3f}",
        f"{r.low:.3f} – {r.high:.3f}",
        "" if ratio is None else f"{ratio:.2f}×",
        "" if r.error is None else f"{r.error:.0e}",
        f"{speed / 1e9:.1f}" if c.flops else "",
        f"{speed / c.sgemm:.0%}" if c.flops and c.sgemm else "",
        f"{r.compile_seconds:.2f} s",
        f"{r.peak_bytes / 1e6:.0f} MB",
        *([f"{c.tokens / r.median * 1e3:.0f}"] if c.tokens else []),
    ]


def caption(c: Comparison) -> str:
    """Return a table's caption. It tells how many rounds of the measurement counted, the speeds measured
    beside them, other processes' load if high, and Jangin's memory by kind."""
    kept = min((r.kept for r in c.results if not r.problem), default=0)
    turns = max((r.turns for r in c.results), default=0)
    parts = [f"{kept} of {turns} turns counted"]
    if c.sgemm:
        parts.append(f"SGEMM beside it {c.sgemm / 1e9:.0f} GFLOP/s")
    if c.core > 1:
        parts.append(f"FMA on one core {c.core / 1e9:.0f} GFLOP/s")
    crowd = max((r.crowd for r in c.results), default=0.0)
    if crowd > CROWDED:
        parts.append(f"other processes took {crowd:.1f} cores even then")
    ours = c.result("jangin").memory
    parts += [f"{kind} {size / 1e6:.1f} MB" for kind, size in ours.items()]
    return "; ".join(parts)


def threads_text(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"


def milliseconds(seconds: float) -> str:
    """Return a time in milliseconds as text, without the unit. Times below 10 us have more digits."""
    return f"{seconds * 1e3:.{5 if 0 < abs(seconds) < 1e-5 else 3}f}"


def machine() -> dict[str, Any]:
    """Return the processor and the software that runs on it."""
    from jangin.runtime.system.processor import processor_name
    from jangin.targets import resolve

    return {
        "processor": processor_name(),
        "target": resolve("cpu").name,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
    }


def as_json(comparisons: Sequence[Comparison]) -> dict[str, Any]:
    """Return all measurements and the machine as plain data."""
    rows = []
    for c in comparisons:
        ratios = {r.engine: c.ratio(r.engine) for r in c.results if r.engine != "jangin"}
        rows.append({**asdict(c), "ratios": ratios})
    return {"machine": machine(), "comparisons": rows}
