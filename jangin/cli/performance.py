"""The commands that measure models, here and on other machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jangin.cli.app import command
from jangin.cli.arguments import (
    Batches,
    Devices,
    Engines,
    Host,
    HostTarget,
    Inputs,
    Meters,
    Model,
    Models,
    Objective,
    Precisions,
    Products,
    Rounds,
    Seconds,
    Shapes,
    StudyData,
    TargetName,
    Threads,
)
from jangin.commands.help import among
from jangin.options import LATENCY


@command
def bench(
    context: typer.Context,
    models: Models,
    against: Annotated[
        str | None,
        typer.Option(
            help="Other engines: a list, or all that are installed (default: onnxruntime).",
            autocompletion=among("against"),
        ),
    ] = None,
    threads: Annotated[
        str | None, typer.Option(help="Thread counts (default: 1,2; with --layers all there are).")
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Jangin alone, each kernel beside the least it could take.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="With --layers: write a run for chrome://tracing or Perfetto.")
    ] = None,
    deadline: Annotated[
        str, typer.Option(metavar="TIME", help="Jangin alone: percentiles and misses, under load too (5ms).")
    ] = "",
    rounds: Rounds = 15,
    seconds: Seconds = 0.2,
    shape: Shapes = None,
    input: Inputs = None,
    symbolic: Annotated[
        bool, typer.Option("--symbolic", help="Give the sizes at run time only, not when compiling.")
    ] = False,
    target: TargetName = None,
    tune: Annotated[
        str, typer.Option(metavar="TIME", help="Tune Jangin first (60s, 2m), and time it untuned too.")
    ] = "",
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
) -> None:
    """Time models against other engines: fresh processes, short turns, medians."""
    from jangin.commands.bench import bench as work
    from jangin.commands.bench import layers as account

    if deadline and (layers or symbolic or tune):
        raise typer.BadParameter("--deadline takes none of --layers, --symbolic and --tune")
    if layers:
        account(models, context.obj, threads, shape or [], input or [], target, json, trace)
        return
    if trace is not None:
        raise typer.BadParameter("--trace needs --layers")
    if deadline:
        from jangin.commands.bench import deadlines

        deadlines(
            models, context.obj, threads, deadline, rounds * seconds, shape or [], input or [], target, json
        )
        return
    work(
        models, context.obj, against, threads or "1,2", rounds, seconds, shape or [], input or [], symbolic,
        target, tune, json,
    )  # fmt: skip


@command
def study(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The report's folder, new or to go on with.")
    ],
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="MODEL", help="Models' files or folders.")
    ] = None,
    engines: Engines = "all",
    threads: Annotated[str, typer.Option(help="Thread counts: 1,2 or 1,all.")] = "1",
    batch: Batches = "1",
    precision: Precisions = "float32",
    energy: Annotated[
        bool, typer.Option("--energy", help="Measure joules by this machine's sensors.")
    ] = False,
    meter: Meters = None,
    products: Products = "",
    baseline: Annotated[
        str, typer.Option(help="The engine to compare with (default: im2col, or the first peer).")
    ] = "",
    data: StudyData = None,
    shape: Shapes = None,
    rounds: Rounds = 15,
    seconds: Seconds = 0.2,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that an engine may take to compile or run once.")
    ] = 600.0,
    devices: Devices = "cpu",
    tune: Annotated[
        str, typer.Option(metavar="TIME", help="Add the engine `tuned`: Jangin after so long a tuning (60s).")
    ] = "",
    host: Host = "",
    target: HostTarget = None,
    farm: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Measure on a Dask cluster's workers: tcp://host:8786.")
    ] = "",
    again: Annotated[
        str, typer.Option(metavar="KINDS", help="Measure rows again that are failed, crowded or both.")
    ] = "",
    quiet: Annotated[
        str, typer.Option(metavar="COMMAND", help="A command that keeps others away while engines are timed.")
    ] = "",
) -> None:
    """Study which engine is best for models on this machine: time, memory, errors and energy in one report.
    The same command goes on with a study that was interrupted."""
    from jangin.commands.study import study as work

    whole = work(
        models or [], context.obj, output, engines, threads, batch, precision, energy, meter or [], products,
        baseline, data, shape or [], rounds, seconds, timeout, devices, tune,
        host, target, farm, again, quiet,
    )  # fmt: skip
    if not whole:
        raise typer.Exit(130)  # as a shell reports a program that Ctrl-C ended


@command
def tune(
    context: typer.Context,
    model: Model,
    budget: Annotated[str, typer.Option(help="How long to measure: 60s, 2m.")] = "60s",
    shape: Shapes = None,
    symbolic: Annotated[
        bool, typer.Option("--symbolic", help="Sizes stay open when compiling; measure for those of --shape.")
    ] = False,
    threads: Threads = None,
    target: TargetName = None,
    objective: Objective = LATENCY,
    devices: Annotated[str, typer.Option(metavar="NAMES", help="Devices to choose from: cpu,opencl:0.")] = "",
    precision: Annotated[
        str,
        typer.Option(help="Precisions to choose from: float32,int8.", autocompletion=among("precision")),
    ] = "float32",
    data: Annotated[
        Path | None, typer.Option(help="With --precision: what it is quantized on, as for `quantize`.")
    ] = None,
    drop: Annotated[
        str, typer.Option(metavar="SHARE", help="With --precision: how much worse outputs may get.")
    ] = "0.5%",
    output: Annotated[
        Path | None, typer.Option("-o", "--output", help="With --precision: the folder of quantized models.")
    ] = None,
    pareto: Annotated[
        bool, typer.Option("--pareto", help="Show what devices and thread counts cost, to choose from.")
    ] = False,
    meter: Annotated[
        str,
        typer.Option(
            envvar="JANGIN_METER",
            metavar="COMMAND",
            help="A meter that prints lines `timestamp watts`, or a plug-in.",
        ),
    ] = "",
    pruned: Annotated[
        bool, typer.Option("--pruned", help="Measure what estimates leave out too, and say what this loses.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write every figure to this file.")] = None,
    farm: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Measure on a Dask cluster's workers: tcp://host:8786.")
    ] = "",
    trust: Annotated[
        Path | None,
        typer.Option(help="With --farm: a public key (PEM), or a folder of them, that must sign."),
    ] = None,
) -> None:
    """Measure other kernels for a model, and keep the best for this machine, or a farm's: by time, or by
    joules."""
    from jangin.commands.choices import Goal
    from jangin.commands.quantize import parse_share
    from jangin.commands.tune import tune as work
    from jangin.commands.tune import tune_on_farm

    goal = Goal(
        objective, tuple(filter(None, devices.split(","))), pareto, meter,
        tuple(dict.fromkeys(precision.split(","))), data, parse_share(drop), output,
    )  # fmt: skip
    if farm:
        if not goal.alone or pruned:
            raise typer.BadParameter("--farm tunes for the latency of one device and precision each")
        tune_on_farm(model, context.obj, budget, shape or [], symbolic, threads, target, json, farm, trust)
        return
    if trust is not None:
        raise typer.BadParameter("--trust needs --farm")
    work(model, context.obj, budget, shape or [], symbolic, threads, target, json, goal, pruned)
