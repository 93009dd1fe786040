"""The commands that run and make models."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Annotated

import typer

from jangin.cli.app import command
from jangin.cli.arguments import (
    ActivationType,
    Apis,
    CacheType,
    Calibration,
    Candidates,
    CodeName,
    Constants,
    Crop,
    EmitKind,
    Inputs,
    Labels,
    Limit,
    Model,
    Objective,
    Package,
    Pixels,
    RunMemory,
    Shapes,
    Shards,
    TargetName,
    Threads,
    Tokenizer,
    WeightBits,
)
from jangin.commands.help import among
from jangin.options import LATENCY
from jangin.pictures import PIXELS


@command
def run(
    context: typer.Context,
    model: Model,
    input: Inputs = None,
    shape: Shapes = None,
    threads: Threads = None,
    target: TargetName = None,
    output: Annotated[Path | None, typer.Option(help="A folder for the outputs, as .npy files.")] = None,
    pixels: Pixels = "unit",
    seed: Annotated[int, typer.Option(help="Of the random inputs.")] = 0,
    profile: Annotated[bool, typer.Option("--profile", help="Say where a run's time goes.")] = False,
    objective: Objective = LATENCY,
) -> None:
    """Run a model once and describe its outputs."""
    from jangin.commands.run import run as work

    work(
        model, context.obj, input or [], shape or [], threads, target, output, pixels, seed, profile,
        objective,
    )  # fmt: skip


def _refuse_for_code(*of_files: object) -> None:
    """Refuse options that only a .jgn file takes."""
    if any(of_files):
        raise typer.BadParameter("--timings, --sign and --encrypt are for --emit jgn")


def _need_emit(for_web: bool, *of_code: str) -> None:
    """Refuse options that only files of emitted code take."""
    if any(of_code):
        raise typer.BadParameter("--api, --package and --ram are for --emit c, object or shared")
    if for_web:
        raise typer.BadParameter("--candidates and --shards are for --emit web")


@command
def compile_command(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The .jgn file to write; with --emit, the folder."),
    ],
    shape: Shapes = None,
    target: TargetName = None,
    emit: EmitKind = "jgn",
    name: CodeName = "",
    constants: Constants = "inside",
    weights: Annotated[str, typer.Option(hidden=True)] = "",
    api: Apis = "",
    package: Package = "",
    ram: RunMemory = "",
    candidates: Candidates = False,
    shards: Shards = "",
    force: Annotated[bool, typer.Option("--force", help="With --emit: replace files in the folder.")] = False,
    timings: Annotated[
        bool, typer.Option("--timings", help="Compile from nothing, and say where the time goes.")
    ] = False,
    sign: Annotated[
        Path | None, typer.Option(help="Sign the file by the Ed25519 key in this PEM file.")
    ] = None,
    encrypt: Annotated[
        Path | None, typer.Option(help="Encrypt it by the key in this file, of 64 hexadecimal digits.")
    ] = None,
    kv_cache: CacheType = "",
    activations: ActivationType = "",
) -> None:
    """Compile a model to a file that loads without the compiler, or to code that runs without Jangin."""
    if emit != "jgn":
        from jangin.commands.ahead import emit_files

        _refuse_for_code(timings, sign, encrypt)
        if weights:
            warnings.warn("--weights after compile is called --constants now", DeprecationWarning, 1)
        emit_files(
            model, context.obj, output, shape or [], target, emit, name, weights or constants, force,
            kv_cache, activations, api, package, ram, candidates, shards,
        )  # fmt: skip
        return
    _need_emit(candidates or bool(shards), api, package, ram)
    from jangin.commands.run import compile_file

    if output.is_dir():
        output = output / f"{model.stem}.jgn"
    compile_file(
        model, context.obj, output, shape or [], target, timings, sign, encrypt, kv_cache, activations
    )


@command
def convert(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path,
        typer.Argument(
            metavar="OUTPUT",
            help="An .onnx or .tflite file to write, or an NNEF folder (.nnef) or archive (.tgz).",
        ),
    ],
    shape: Shapes = None,
) -> None:
    """Write a model of any format as ONNX, NNEF or TFLite, if the format can express it with the same
    results."""
    from jangin.commands.convert import convert as work

    work(model, context.obj, output, shape or [])


@command
def quantize(
    context: typer.Context,
    model: Model,
    data: Calibration,
    output: Annotated[
        Path,
        typer.Option(
            "-o",
            "--output",
            help="An .onnx (QDQ), .tflite or .jgn file; a name without an end: .onnx and .jgn.",
        ),
    ],
    drop: Annotated[
        str,
        typer.Option(metavar="SHARE", help="How much worse outputs may get: 0.5%. Nothing is written else."),
    ] = "",
    int8: Annotated[
        bool, typer.Option("--int8", help="Activations and weights of 8 bits (the default).")
    ] = False,
    int4: Annotated[bool, typer.Option("--int4", help="Weights of matrix products of 4 bits.")] = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Products in half precision.")] = False,
    auto: Annotated[
        bool,
        typer.Option("--auto", help="Each part in what is quicker here, within the drop (default: 0.5%)."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(metavar="OUT.html", help="With --auto: write why each part is what it is.")
    ] = None,
    method: Annotated[
        str | None,
        typer.Option(
            help="Ranges by minmax, percentile, entropy or mse (default: try them).",
            autocompletion=among("method"),
        ),
    ] = None,
    labels: Labels = None,
    block: Annotated[int, typer.Option(min=1, help="With --int4: weights that share a scale.")] = 32,
    weight_bits: WeightBits = None,
    smooth: Annotated[
        float | None, typer.Option(help="0..1: of what matrix products read, outliers go into weights.")
    ] = None,
    equalize: Annotated[
        bool,
        typer.Option("--equalize", help="Weights of convolutions after each other are made alike in size."),
    ] = False,
    pixels: Annotated[
        str | None,
        typer.Option(
            help=f"A picture's value range: {', '.join(PIXELS)} (default: as the model says).",
            autocompletion=among("pixels"),
        ),
    ] = None,
    crop: Crop = 1.0,
    tokenizer: Tokenizer = None,
    limit: Limit = None,
    shape: Shapes = None,
    threads: Threads = None,
) -> None:
    """Quantize a model, calibrated on data, with a limit on the loss of quality."""
    from jangin.commands.quantize import run as work

    kinds = [k for k, wanted in (("int8", int8), ("int4", int4), ("float16", fp16), ("auto", auto)) if wanted]
    if len(kinds) > 1:
        raise typer.BadParameter("give one of --int8, --int4, --fp16 and --auto")
    work(
        model, context.obj, data, kinds[0] if kinds else "int8", drop, output, shape or [], threads,
        method=method, labels=labels, block=block, pixels=pixels, crop=crop, tokenizer=tokenizer,
        limit=limit, html=html, smooth=smooth, equalize=equalize, weight_bits=weight_bits,
    )  # fmt: skip


@command
def compare(
    context: typer.Context,
    a: Annotated[Path, typer.Argument(metavar="A", help="The reference.")],
    b: Annotated[Path, typer.Argument(metavar="B", help="What is compared with it; may be A.")],
    data: Annotated[Path, typer.Option(help="What both run on, as for `quantize`.")],
    engines: Annotated[
        str, typer.Option(help="What runs them: jangin, or two: jangin,onnxruntime.")
    ] = "jangin",
    tolerance: Annotated[
        float, typer.Option(help="The largest difference, as a share of a value's largest number.")
    ] = 1e-3,
    replay: Annotated[
        bool, typer.Option("--replay", help="Compare what lies between the kernels of a run, not each value.")
    ] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="OUT.svg", help="Draw all differences by depth.")
    ] = None,
    pixels: Pixels = "unit",
    crop: Crop = 1.0,
    tokenizer: Tokenizer = None,
    limit: Annotated[int | None, typer.Option(min=1, help="The most runs of the data.")] = 4,
    shape: Shapes = None,
    threads: Threads = None,
) -> None:
    """Find the first value in which two models, formats, precisions or engines differ."""
    from jangin.commands.compare import run as work

    work(
        a,
        b,
        context.obj,
        data,
        engines,
        tolerance,
        replay,
        plot,
        shape or [],
        threads,
        pixels,
        crop,
        tokenizer,
        limit,
    )
