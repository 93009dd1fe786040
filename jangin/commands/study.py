"""`jangin study`."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from rich.progress import BarColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table as Shown

from jangin.bench.engines import OURS
from jangin.commands.common import (
    Settings,
    bar_with,
    fixed_sizes,
    flags,
    parse_counts,
    parse_shapes,
    terminal,
)
from jangin.commands.engines import parse_engines
from jangin.compiler.pipeline import import_model
from jangin.compiler.request import parse_seconds
from jangin.frontends.format import opened, paired
from jangin.ir.errors import CompileError
from jangin.options import Options
from jangin.quantization.data import present
from jangin.runtime.device import LoadError
from jangin.runtime.devices import cuda_devices, opencl_devices, webgpu_adapters
from jangin.study import report
from jangin.study.host import Host
from jangin.study.products import Product, parse_sizes, products_of, write_products
from jangin.study.rows import CPU, Row, RowFile
from jangin.study.run import Progress, run
from jangin.study.settings import RECORD, ROWS, recorded_engines
from jangin.study.settings import Settings as StudySettings
from jangin.study.tables import ALL, Table
from jangin.targets import resolve

BASELINE = "im2col"
"""The engine that others are compared with, if it is among them: the way of Caffe, which everybody has."""
MEMORY = 3600.0
"""Seconds from whose progress the time left is estimated. Some models take minutes to compile."""


def study(
    models: Sequence[Path], settings: Settings, output: Path, engines: str, threads: str, batch: str,
    precision: str, energy: bool, meters: Sequence[str], products: str, baseline: str, data: Path | None,
    shapes: Sequence[str], rounds: int, seconds: float, timeout: float, devices: str = CPU, tune: str = "",
    host: str = "", target: str | None = None, farm: str = "", again: str = "", quiet: str = "",
) -> bool:  # fmt: skip
    """Measure what a study lacks, and write its report into the folder `output`. Return False if it was
    interrupted. The rows so far are in the report then.

    `farm` is the address of a Dask scheduler. Each kind of device there has a study in a folder of its own.
    `again` lists the kinds of rows that are measured again, and `quiet` is a command around what is timed."""
    if not models and not products:
        raise ValueError("there is nothing to study: give models, or --products 64..4096")
    for model in models:
        opened(model)
    if data is not None:
        present(data)
    symbol, _, batches = batch.rpartition("=")
    if target and not host:
        raise ValueError("--target is for --host; --devices are for this machine")
    there = Host(host) if host else None
    multiplied, of_models = parse_sizes(products) if products else ((), False)
    if of_models:
        multiplied = tuple(dict.fromkeys((*multiplied, *convolutions(models, settings.options()))))
    chosen = ("aot",) if host and engines == "all" else parse_engines(engines)
    if tune:
        chosen = tuple(dict.fromkeys((*chosen, "tuned")))
    asked = StudySettings(
        tuple(m.resolve() for m in models), chosen, tuple(parse_counts(threads)),
        tuple(parse_counts(batches, "--batch")), tuple(dict.fromkeys(precision.split(","))), symbol,
        fixed_sizes(parse_shapes(shapes)), energy or bool(meters), tuple(meters), rounds, seconds, timeout,
        str(data.resolve()) if data is not None else "", tuple(flags(settings)), multiplied,
        parse_devices(devices), parse_seconds(tune) if tune else 0.0, host,
        "" if there is None else target or there.target, {} if there is None else there.about, quiet,
        tuple(filter(None, again.split(","))),
    )  # fmt: skip
    if baseline and baseline not in chosen:
        raise ValueError(f"--baseline {baseline!r} is none of the engines: {', '.join(chosen)}")
    return _studied(asked, output, settings, baseline, farm)


def convolutions(models: Sequence[Path], how: Options) -> tuple[Product, ...]:
    """Return the products that the convolutions of some models become. Models that can't be read have
    none here. A study's rows tell why."""
    products: list[Product] = []
    for model in models:
        with suppress(CompileError, ValueError, OSError, ModuleNotFoundError):
            products += products_of(import_model(paired(model, how.weights), how, until="lower"))
    return tuple(dict.fromkeys(products))


def _studied(asked: StudySettings, output: Path, settings: Settings, baseline: str, farm: str) -> bool:
    """Measure, here or on a farm, and write the reports. Return False if it was interrupted."""
    interrupted = False
    try:
        with tempfile.TemporaryDirectory() as aside:
            multiplied = write_products(Path(aside), asked.products)
            asked = replace(asked, models=(*asked.models, *multiplied))
            if farm:
                kinds = _on_farm(farm, asked, output, settings)
                once = replace(asked, again=())
                left = {kind: bool(once.left(RowFile(output / kind / ROWS))) for kind in kinds}
                for kind, records in kinds.items():
                    _report(output / kind, records, baseline, left[kind])
                return not any(left.values())
            rows = _measure(asked, output, settings)
    except KeyboardInterrupt:
        interrupted = True
        if not (output / RECORD).is_file():
            terminal(error=True).print("interrupted before anything was measured")
            return False
        rows = RowFile(output / ROWS).rows
    _report(output, rows, baseline, interrupted)
    return not interrupted


def _report(output: Path, rows: Sequence[Row], baseline: str, interrupted: bool) -> None:
    """Write the report of a study's folder, and print its tables. The baseline is the chosen engine. If
    none was chosen, it is `BASELINE`, or else the first peer of the study."""
    console, engines = terminal(), recorded_engines(output)
    peers = (e for e in (BASELINE, *engines) if e in engines and e not in OURS)
    base = baseline or next(peers, engines[0])
    for table in report.write(output, rows, engines, base):
        if table.title != ALL:  # too wide for a terminal
            console.print(_shown(table))
    if interrupted:
        told = f"interrupted: {sum(r.whole for r in rows)} rows are kept; the same command goes on"
        terminal(error=True).print(told)
    console.print(f"written to {output / report.PAGE}, {report.MARKDOWN} and {report.CSV}")


def parse_devices(text: str) -> tuple[str, ...]:
    """Return the devices of a list, or the processor and all OpenCL, CUDA and WebGPU devices for "all".
    Raises ValueError for an unknown one, and LoadError for one that isn't here."""
    if text != "all":
        names = tuple(dict.fromkeys(text.split(",")))
        for name in names:
            resolve(name)
        return names
    devices = [CPU]
    for kind, there in (("opencl", opencl_devices.devices), ("cuda", cuda_devices.devices)):
        with suppress(LoadError):
            devices += [f"{kind}:{n}" for n in range(len(there()))]
    with suppress(LoadError):
        devices += [f"webgpu:{n}" for n in range(len(webgpu_adapters.adapters()))]
    return tuple(devices)


def _measure(asked: StudySettings, output: Path, settings: Settings) -> list[Row]:
    with _progress() as tell:
        return run(asked, output, settings.options(), tell)


def _on_farm(address: str, asked: StudySettings, output: Path, settings: Settings) -> dict[str, list[Row]]:
    from jangin.farm.studies import study_on

    with _progress() as tell:
        return study_on(address, asked, output, settings.options(), tell)


@contextmanager
def _progress() -> Iterator[Progress]:
    """Show a bar, and yield the function that moves it."""
    columns = ("{task.description}", BarColumn(), TimeElapsedColumn(), "left", TimeRemainingColumn())
    with bar_with(*columns, memory=MEMORY) as bar:
        task = bar.add_task("reading models", total=None)

        def tell(done: float, total: float, what: str) -> None:
            bar.update(task, completed=done, total=total, description=what)

        yield tell


def _shown(table: Table) -> Shown:
    shown = Shown(title=table.title, title_justify="left", caption=table.note or None)
    for n, column in enumerate(table.columns):
        words = n == 0 or all(row[n][:1].isalpha() for row in table.rows if row[n])
        shown.add_column(column, justify="left" if words else "right")
    for row in table.rows:
        shown.add_row(*row)
    return shown
