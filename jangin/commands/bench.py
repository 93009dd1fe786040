"""`jangin bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from rich.progress import BarColumn, Progress, TextColumn

from jangin import bench as benchmark
from jangin.bench.engines import PEERS
from jangin.commands.common import Settings, fixed_sizes, parse_shapes, terminal
from jangin.ir.graph import Array
from jangin.options import Options
from jangin.passes.work import flops
from jangin.pipeline import import_model
from jangin.targets import resolve


def bench(
    models: Sequence[Path],
    settings: Settings,
    against: str,
    threads: str,
    rounds: int,
    seconds: float,
    shapes: Sequence[str],
    inputs: Sequence[str],
    symbolic: bool,
    target: str,
    output: Path | None,
) -> list[benchmark.Comparison]:
    """Compare Jangin with its peers on each model at each thread count; print and keep the figures."""
    peers = tuple(p for p in against.split(",") if p)
    unknown = [p for p in peers if p not in PEERS]
    if unknown:
        raise ValueError(f"unknown peer {unknown[0]!r}; known: {', '.join(PEERS)}")
    options = benchmark.Options(
        peers,
        rounds,
        seconds,
        fixed_sizes(parse_shapes(shapes)),
        symbolic,
        target,
        settings.winograd,
        _arrays(inputs),
    )
    found = []
    console = terminal()
    for model in models:
        work = flops(import_model(model, Options(resolve(target), dict(options.shapes)), until="fuse")) or 0
        for count in _counts(threads):
            found.append(_compare(model, count, options, work))
            for table in benchmark.tables(found[-1:]):
                console.print(table)
    if output is not None:
        output.write_text(json.dumps(benchmark.as_json(found), indent=1) + "\n")
        console.print(f"written to {output}")
    return found


def _compare(model: Path, threads: int, options: benchmark.Options, work: int) -> benchmark.Comparison:
    console = terminal(error=True)
    columns = (TextColumn("{task.description}"), BarColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(model.stem, total=options.rounds)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        return benchmark.compare(model, threads, options, work, tell)


def _counts(text: str) -> list[int]:
    try:
        counts = [int(n) for n in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        raise ValueError(f"--threads {text!r} is no list of counts: write 1,2")
    return counts


def _arrays(texts: Sequence[str]) -> dict[str, Array]:
    found = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not path.endswith(".npy"):
            raise ValueError(f"--input {text!r}: write name=file.npy")
        found[name] = np.load(path, allow_pickle=False)
    return found
