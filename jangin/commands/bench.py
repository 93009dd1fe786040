"""`jangin bench`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn

from jangin import bench as benchmark
from jangin.bench.deadline import Latencies, latencies, loaded, parse_deadline
from jangin.bench.deadline import table as deadline_table
from jangin.bench.layers import Account, account, summary
from jangin.bench.layers import as_json as layers_json
from jangin.bench.layers import table as layers_table
from jangin.bench.roofs import measure
from jangin.bench.trace import Event, several_events, trace_events
from jangin.commands.common import (
    Settings,
    bar_with,
    check_output,
    executable,
    fixed_sizes,
    flags,
    parse_counts,
    parse_shapes,
    read_inputs,
    single_plan,
    terminal,
)
from jangin.commands.engines import parse_peers
from jangin.compiler.local import confirm
from jangin.compiler.pipeline import import_model
from jangin.compiler.request import parse_seconds
from jangin.files import write_text
from jangin.frontends.format import opened
from jangin.ir.graph import Array
from jangin.passes.work import flops
from jangin.runtime.several import SeveralExecutable
from jangin.runtime.threads import default_threads

DEFAULT = "onnxruntime"
"""The peer if none is named. Its row tells if it isn't installed."""


def bench(
    models: Sequence[Path],
    settings: Settings,
    against: str | None,
    threads: str,
    rounds: int,
    seconds: float,
    shapes: Sequence[str],
    inputs: Sequence[str],
    symbolic: bool,
    target: str | None,
    tune: str,
    output: Path | None,
) -> list[benchmark.Comparison]:
    """Compare Jangin with its peers on each model at each thread count. Print the figures, and return them.

    `against` lists the peers, or is None for the default. `tune` is a time such as "60s". With it, Jangin is
    tuned first, and the untuned model is measured too. The figures are also written to `output` as JSON."""
    _ready(models, output)
    peers = (DEFAULT,) if against is None else parse_peers(against)
    if tune:
        parse_seconds(tune)
    counts = parse_counts(threads)
    compiling = settings.options(target, tune=tune or None)
    confirm(compiling)
    sizes = fixed_sizes(parse_shapes(shapes))
    names = (*(["untuned"] if tune else []), *peers)
    options = benchmark.Options(
        names, rounds, seconds, sizes, symbolic, _arrays(inputs), before=tuple(flags(settings)),
        compiling=compiling,
    )  # fmt: skip
    comparisons = []
    console = terminal()
    for model in models:
        work = flops(import_model(model, compiling.but(shapes=sizes), until="fuse")) or 0
        for count in counts:
            comparisons.append(_compare(model, count, options, work))
            for table in benchmark.tables(comparisons[-1:]):
                console.print(table)
    if output is not None:
        _write(output, benchmark.as_json(comparisons))
    return comparisons


def layers(
    models: Sequence[Path],
    settings: Settings,
    threads: str | None,
    shapes: Sequence[str],
    inputs: Sequence[str],
    target: str | None,
    output: Path | None,
    trace: Path | None,
) -> list[Account]:
    """Account for each model's time kernel by kernel, at each thread count. Print the figures, and return
    them. They are also written to `output` as JSON, and a run's events to `trace`."""
    options, counts = settings.options(target, shapes), parse_counts(threads or str(default_threads()))
    _ready(models, output, trace)
    bound, console = options.shapes, terminal()
    accounts: list[Account] = []
    events: list[Event] = []
    for count in counts:
        roofs = measure(count)
        for model in models:
            loaded = executable(model, settings, options.but(threads=count))
            feeds = read_inputs(loaded, inputs, fixed_sizes(bound))
            if isinstance(loaded, SeveralExecutable) and trace is not None:
                events += several_events(loaded, feeds, process=len(events))
                continue
            exe = single_plan(loaded, model, feeds)
            accounts.append(account(model.stem, bound, exe, feeds, roofs))
            console.print(layers_table(accounts[-1]))
            console.print(summary(accounts[-1]), soft_wrap=True)
            if trace is not None:
                events += trace_events(accounts[-1], exe, feeds, process=len(accounts))
    if output is not None:
        _write(output, layers_json(accounts))
    if trace is not None:
        _write(trace, {"traceEvents": events, "displayTimeUnit": "ms"})
    return accounts


def deadlines(
    models: Sequence[Path],
    settings: Settings,
    threads: str | None,
    deadline: str,
    seconds: float,
    shapes: Sequence[str],
    inputs: Sequence[str],
    target: str | None,
    output: Path | None,
) -> list[Latencies]:
    """Measure each model's runs against a deadline, alone and with a busy process for each core. Print the
    figures, and return them. They are also written to `output` as JSON."""
    within, options = parse_deadline(deadline), settings.options(target, shapes)
    _ready(models, output)
    measured: list[Latencies] = []
    for model in models:
        for count in parse_counts(threads or "1"):
            exe = executable(model, settings, options.but(threads=count))
            feeds = read_inputs(exe, inputs, fixed_sizes(options.shapes))
            for load in (0, default_threads()):
                with loaded(load):
                    times = latencies(partial(exe.run, feeds), within, seconds)
                measured.append(Latencies(model.stem, count, load, within, tuple(times)))
    terminal().print(deadline_table(measured))
    if output is not None:
        _write(output, [x.as_json() for x in measured])
    return measured


def _ready(models: Sequence[Path], *outputs: Path | None) -> None:
    """Raise the errors of missing models and of outputs that can't be written, before any measurement."""
    for model in models:
        opened(model)
        for output in filter(None, outputs):
            check_output(output, model)


def _write(path: Path, content: Any) -> None:
    write_text(path, json.dumps(content, indent=1) + "\n")
    terminal().print(f"written to {path}")


def _compare(model: Path, threads: int, options: benchmark.Options, work: int) -> benchmark.Comparison:
    with bar_with("{task.description}", BarColumn()) as bar:
        task = bar.add_task(model.stem, total=options.rounds)

        def tell(done: int, total: int, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        return benchmark.compare(model, threads, options, work, tell)


def _arrays(texts: Sequence[str]) -> dict[str, Array]:
    arrays = {}
    for text in texts:
        name, _, path = text.partition("=")
        if not path.endswith(".npy"):
            raise ValueError(f"--input {text!r}: write name=file.npy")
        arrays[name] = np.load(path, allow_pickle=False)
    return arrays
