"""The commands that train, look into models and kernels, and describe the machine."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jangin.cli.app import command
from jangin.cli.arguments import (
    Accumulate,
    Average,
    ClipNorm,
    ClipValue,
    LossScale,
    MasterWeights,
    Model,
    Optimizers,
    Pixels,
    ProcessCount,
    ScheduleOption,
    Shapes,
    TargetName,
    Threads,
)
from jangin.commands.help import among


@command
def train(
    context: typer.Context,
    model: Model,
    data: Annotated[
        Path,
        typer.Argument(
            metavar="DATA", help="A .npz file with `inputs` and `labels`, or a folder of pictures by class."
        ),
    ],
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The trained model, an .onnx or .jgn file; --emit: a folder."),
    ],
    trainable: Annotated[
        list[str] | None,
        typer.Option(metavar="PATTERN", help="The weights to train, by name: 'head.*', or '*' for all."),
    ] = None,
    loss: Annotated[
        str, typer.Option(help="Of the output and the label.", autocompletion=among("loss"))
    ] = "cross_entropy",
    optimizer: Optimizers = None,
    schedule: ScheduleOption = "constant",
    epochs: Annotated[int, typer.Option(min=1, help="How often all examples are used.")] = 10,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples of a step; 32, or the model's.")] = None,
    validation: Annotated[float, typer.Option(help="The share of examples that only measure.")] = 0.1,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The file to go on from; by default the output's name and .npz.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    curve: Annotated[Path | None, typer.Option(help="The losses' curve, as an .svg file.")] = None,
    clip_norm: ClipNorm = None,
    clip_value: ClipValue = None,
    accumulate: Accumulate = 1,
    processes: ProcessCount = 1,
    average: Average = None,
    master_weights: MasterWeights = False,
    loss_scale: LossScale = "",
    check: Annotated[str, typer.Option(help="nan: say at which node numbers stop being finite.")] = "",
    pixels: Pixels = "unit",
    shape: Shapes = None,
    threads: Threads = None,
    seed: Annotated[int, typer.Option(help="Of the order of examples and of dropout.")] = 0,
    emit: Annotated[
        str, typer.Option(help="c, object or shared: write the step as code that needs no Jangin, untrained.")
    ] = "",
    target: TargetName = None,
) -> None:
    """Train weights of a model on examples. A run that was stopped goes on with --resume."""
    from jangin.commands.train import Asked
    from jangin.commands.train import train as work

    work(
        model, data, output, context.obj, threads, shape or [],
        Asked(
            trainable or [], loss, optimizer or ["adamw"], schedule, epochs, batch, validation, checkpoint,
            resume, curve, clip_norm, clip_value, accumulate, processes, average, master_weights, loss_scale,
            check, pixels, seed, emit, target,
        ),
    )  # fmt: skip


@command
def inspect(
    context: typer.Context,
    model: Model,
    after: Annotated[
        str,
        typer.Option(
            metavar="PASS", help="Print the IR after a pass (or `plan`).", autocompletion=among("after")
        ),
    ] = "",
    kernel: Annotated[str, typer.Option(metavar="NAME", help="A kernel, or a node of the model.")] = "",
    show: Annotated[
        str,
        typer.Option(help="Of the kernel: naive, steps, loop, llvm or asm.", autocompletion=among("show")),
    ] = "loop",
    shape: Shapes = None,
    target: TargetName = None,
    placement: Annotated[
        bool, typer.Option("--placement", help="Where each node runs: a kernel, a step, or Python.")
    ] = False,
    memory: Annotated[bool, typer.Option("--memory", help="Where each buffer lies.")] = False,
    sizes: Annotated[
        bool,
        typer.Option("--shapes", help="Which sizes are symbolic, specialised or depend on data; memory."),
    ] = False,
    json: Annotated[Path | None, typer.Option(help="With --placement: write it to this file.")] = None,
    html: Annotated[
        Path | None,
        typer.Option(metavar="OUT.html", help="Write a picture of the graph (with --after: that one)."),
    ] = None,
    times: Annotated[
        bool, typer.Option("--times", help="With --html: measure each kernel on this machine.")
    ] = False,
    minimize: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.onnx",
            help="Write the smallest part of an ONNX model that can't be compiled or is wrong.",
        ),
    ] = None,
    ram: Annotated[
        str, typer.Option(metavar="SIZE", help="Of a microcontroller: fail if the model takes more RAM.")
    ] = "",
    flash: Annotated[str, typer.Option(metavar="SIZE", help="The same for flash, for example 256K.")] = "",
    picture: Annotated[
        Path | None, typer.Option(metavar="OUT.svg", help="A picture of a microcontroller's memory plan.")
    ] = None,
) -> None:
    """Show a model, the result of each pass, and any kernel's code."""
    from jangin.commands.inspect import inspect as work

    work(
        model,
        context.obj,
        after,
        kernel,
        show,
        shape or [],
        target,
        placement,
        memory,
        json,
        minimize,
        sizes,
        html,
        times,
        ram,
        flash,
        picture,
    )


@command
def opt(
    file: Annotated[str, typer.Argument(help="A loop nest or graph as text; - for standard input.")],
    passes: Annotated[
        list[str] | None,
        typer.Option("--pass", metavar="PASS", help="In order: simplify, vectorize, split:i,16 and so on."),
    ] = None,
    emit: Annotated[str, typer.Option(help="ir, llvm or asm.")] = "ir",
    target: TargetName = None,
) -> None:
    """Apply passes to text IR and print the result."""
    from jangin.commands.opt import opt as work

    work(file, passes or [], emit, target)


@command
def templates() -> None:
    """Print which template makes the kernels of each operator, by classes of shapes and element types."""
    from jangin.commands.templates import templates

    templates()


@command
def blas(
    context: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    routines: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROUTINE", help="Names: dgemm, or gemm for every type (default: all)."),
    ] = None,
    emit: Annotated[
        str,
        typer.Option("--emit", help="c (sources) or shared (a library).", autocompletion=among("blas")),
    ] = "shared",
    target: TargetName = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write BLAS routines as C or as a shared library, with the symbols of CBLAS and of Fortran."""
    from jangin.commands.blas import blas as work

    work(routines or [], context.obj, output, emit, target, force)


@command
def devices() -> None:
    """Describe this machine, and list the targets, libraries and peers on it."""
    from jangin.commands.devices import devices as work

    work()
