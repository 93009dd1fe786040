"""The command line. An environment variable may give the default of an option."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any

import typer

from jangin.commands.common import Settings, alarm, parse_limits, plain, terminal
from jangin.commands.help import Command, Group, among, example
from jangin.options import ABOUT, LATENCY, Common, Options
from jangin.pictures import PIXELS
from jangin.version import __version__

app = typer.Typer(
    name="jangin",
    cls=Group,
    help="A deep-learning compiler: run, time, look into and save models.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model's file or folder (or a compiled .jgn file).")
]
Models = Annotated[list[Path], typer.Argument(metavar="MODEL...", help="Models' files or folders.")]
Shapes = Annotated[
    list[str] | None,
    typer.Option(
        ABOUT["shapes"].flag,
        metavar="NAME=SIZE",
        help="batch=1, seq=1..512 (a range), image=1x3x224x224.",
    ),
]
Threads = Annotated[
    int | None,
    typer.Option(ABOUT["threads"].flag, envvar="JANGIN_THREADS", min=1, help=ABOUT["threads"].help),
]
TargetName = Annotated[
    str | None,
    typer.Option(ABOUT["asked"].flag, help=ABOUT["asked"].help, autocompletion=among("target")),
]
Objective = Annotated[
    str,
    typer.Option(ABOUT["objective"].flag, help=ABOUT["objective"].help, autocompletion=among("objective")),
]
Inputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="NAME=WHAT", help="A .npy file, a picture or `random` (the default)."),
]
Pixels = Annotated[
    str,
    typer.Option(help=f"A picture's value range: {', '.join(PIXELS)}.", autocompletion=among("pixels")),
]
Crop = Annotated[float, typer.Option(help="The share of a picture's sides that is kept.")]
Tokenizer = Annotated[Path | None, typer.Option(help="With a .txt: its tokenizer.json.")]
Limit = Annotated[int | None, typer.Option(min=1, help="The most runs of the data.")]
Calibration = Annotated[
    Path,
    typer.Option(help="What it is measured on: a folder of pictures or arrays, a .npy, .npz or .txt."),
]
Labels = Annotated[
    Path | None, typer.Option(help="The right classes, in the data's order: a .npy, or a line each.")
]
WeightBits = Annotated[
    int | None,
    typer.Option(
        min=7, max=8, help="Of weights in int8: 8, or 7, quicker and the default on x86-64 without VNNI."
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"jangin {__version__}")
        raise typer.Exit


BEFORE = [name for name in Common.__annotations__ if ABOUT[name].flag]
"""The options that stand before the command. Those of one model's compilation stand after it."""
KINDS = {"bool": bool, "str": str}
"""Maps an option's type to the type of its value on the command line. A type that is in neither `KINDS` nor
`READ` is a path."""
READ: Mapping[str, Callable[[str], Any]] = {"limits": parse_limits}
"""Maps an option's name to the function that parses the option's text."""


def options(
    context: typer.Context,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", envvar="JANGIN_NO_CACHE", help="Keep and reuse nothing.")
    ] = False,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Say what takes time.")] = False,
    tabs: Annotated[
        bool, typer.Option("--plain", help="Write tables for other programs: a row a line, with tabs.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show an error's traceback.")] = False,
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version.", is_eager=True, callback=_version),
    ] = False,
    **given: Any,
) -> None:
    plain(tabs)
    told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    told |= {name: read(told[name]) for name, read in READ.items() if name in told}
    context.obj = Settings(verbose, **{**told, **({"cache": False} if no_cache else {})})


def _parameter(name: str) -> Parameter:
    """Return the parameter of an option's flag, for typer."""
    kind = str if name in READ else KINDS.get(Options.__annotations__[name], Path)
    flag = typer.Option(ABOUT[name].flag, help=ABOUT[name].help, show_default=False)
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, flag])


def _with_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the flags of `BEFORE` in place of its `**given`, for typer."""
    *own, _ = signature(command, eval_str=True).parameters.values()
    shown = Signature([*own, *map(_parameter, BEFORE)])
    command.__signature__ = shown  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in shown.parameters.values()}
    return command


app.callback(epilog=example("run"))(_with_flags(options))


def _command(work: Callable[..., None]) -> Callable[..., None]:
    """Make a function the command of its name. Its help has an example."""
    name = work.__name__.removesuffix("_command")
    return app.command(name, cls=Command, epilog=example(name))(work)


@_command
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


@_command
def compile_command(
    context: typer.Context,
    model: Model,
    output: Annotated[
        Path,
        typer.Option("-o", "--output", help="The .jgn file to write; with --emit, the folder."),
    ],
    shape: Shapes = None,
    target: TargetName = None,
    emit: Annotated[
        str,
        typer.Option(
            help="jgn (a file for jangin.load), or without Jangin: object, shared, c or web.",
            autocompletion=among("emit"),
        ),
    ] = "jgn",
    name: Annotated[str, typer.Option(help="With --emit: what names in C begin with.")] = "",
    constants: Annotated[
        str, typer.Option(help="With --emit: weights lie inside the code, or in a file beside it.")
    ] = "inside",
    weights: Annotated[str, typer.Option(hidden=True)] = "",
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
    kv_cache: Annotated[
        str, typer.Option(metavar="TYPE", help="Of GGUF: keys and values in float32, float16 or int8.")
    ] = "",
    activations: Annotated[
        str,
        typer.Option(
            metavar="TYPE",
            help="Of GGUF and ONNX: what weights in blocks are multiplied with, float32 or rounded to int8.",
        ),
    ] = "",
) -> None:
    """Compile a model to a file that loads without the compiler, or to code that runs without Jangin."""
    if emit != "jgn":
        from jangin.commands.ahead import emit_files

        if timings or sign is not None or encrypt is not None:
            raise typer.BadParameter("--timings, --sign and --encrypt are for --emit jgn")
        if weights:
            warnings.warn("--weights after compile is called --constants now", DeprecationWarning, 1)
        emit_files(
            model, context.obj, output, shape or [], target, emit, name, weights or constants, force,
            kv_cache, activations,
        )  # fmt: skip
        return
    from jangin.commands.run import compile_file

    if output.is_dir():
        output = output / f"{model.stem}.jgn"
    compile_file(
        model, context.obj, output, shape or [], target, timings, sign, encrypt, kv_cache, activations
    )


@_command
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


@_command
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


@_command
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


@_command
def bench(
    context: typer.Context,
    models: Models,
    against: Annotated[
        str,
        typer.Option(help="Peers, the first of them the reference.", autocompletion=among("against")),
    ] = "onnxruntime",
    threads: Annotated[
        str | None, typer.Option(help="Thread counts (default: 1,2; with --layers all there are).")
    ] = None,
    layers: Annotated[
        bool, typer.Option("--layers", help="Jangin alone, each kernel beside the least it could take.")
    ] = False,
    trace: Annotated[
        Path | None, typer.Option(help="With --layers: write a run for chrome://tracing or Perfetto.")
    ] = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each engine takes.")] = 15,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of a turn.")] = 0.2,
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

    if layers:
        account(models, context.obj, threads, shape or [], input or [], target, json, trace)
        return
    if trace is not None:
        raise typer.BadParameter("--trace needs --layers")
    work(
        models,
        context.obj,
        against,
        threads or "1,2",
        rounds,
        seconds,
        shape or [],
        input or [],
        symbolic,
        target,
        tune,
        json,
    )


@_command
def study(
    context: typer.Context,
    output: Annotated[
        Path, typer.Option("-o", "--output", help="The report's folder, new or to go on with.")
    ],
    models: Annotated[
        list[Path] | None, typer.Argument(metavar="MODEL...", help="Models' files or folders.")
    ] = None,
    engines: Annotated[
        str,
        typer.Option(
            help="all that are installed, or a list; module:function is one of your own.",
            autocompletion=among("engines"),
        ),
    ] = "all",
    threads: Annotated[str, typer.Option(help="Thread counts: 1,2.")] = "1",
    batch: Annotated[
        str, typer.Option(help="Batch sizes: 1,8; n=1,8 names the model's size that is the batch.")
    ] = "1",
    precision: Annotated[
        str,
        typer.Option(help="float32, float16, int8, or a list.", autocompletion=among("precision")),
    ] = "float32",
    energy: Annotated[
        bool, typer.Option("--energy", help="Measure joules by this machine's sensors.")
    ] = False,
    meter: Annotated[
        list[str] | None,
        typer.Option(metavar="COMMAND", help="A meter that prints lines `timestamp watts`, or a plug-in."),
    ] = None,
    products: Annotated[
        str,
        typer.Option(metavar="SIZES", help="Matrix products too: 64..4096 (doubled), or 64,96; in GFLOP/s."),
    ] = "",
    baseline: Annotated[
        str, typer.Option(help="The engine that others are compared with (default: the first peer).")
    ] = "",
    data: Annotated[
        Path | None, typer.Option(help="What models are quantized with, as for `quantize` (default: random).")
    ] = None,
    shape: Shapes = None,
    rounds: Annotated[int, typer.Option(min=1, help="Turns that each engine takes.")] = 15,
    seconds: Annotated[float, typer.Option(min=0.001, help="Length of a turn.")] = 0.2,
    timeout: Annotated[
        float, typer.Option(min=1.0, help="Seconds that an engine may take to compile or run once.")
    ] = 600.0,
    devices: Annotated[
        str, typer.Option(help="Devices for Jangin: cpu,opencl:0, or all; others run on the processor.")
    ] = "cpu",
    tune: Annotated[
        str, typer.Option(metavar="TIME", help="Add the engine `tuned`: Jangin after so long a tuning (60s).")
    ] = "",
    host: Annotated[
        str,
        typer.Option(metavar="ssh://BOARD", help="Measure emitted models there, with Python alone."),
    ] = "",
    target: Annotated[
        str | None,
        typer.Option(
            help="With --host: its target (default: by its processor).", autocompletion=among("target")
        ),
    ] = None,
    farm: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Measure on a Dask cluster's workers: tcp://host:8786.")
    ] = "",
) -> None:
    """Study which engine is best for models on this machine: time, memory, errors and energy in one report.
    The same command goes on with a study that was interrupted."""
    from jangin.commands.study import study as work

    whole = work(
        models or [], context.obj, output, engines, threads, batch, precision, energy, meter or [], products,
        baseline, data, shape or [], rounds, seconds, timeout, devices, tune,
        host, target, farm,
    )  # fmt: skip
    if not whole:
        raise typer.Exit(130)  # as a shell reports a program that Ctrl-C ended


@_command
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
        if not goal.alone:
            raise typer.BadParameter("--farm tunes for the latency of one device and precision each")
        tune_on_farm(model, context.obj, budget, shape or [], symbolic, threads, target, json, farm, trust)
        return
    if trust is not None:
        raise typer.BadParameter("--trust needs --farm")
    work(model, context.obj, budget, shape or [], symbolic, threads, target, json, goal)


@_command
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
    optimizer: Annotated[str, typer.Option(help="Its name and settings: adamw:lr=1e-3.")] = "adamw",
    epochs: Annotated[int, typer.Option(min=1, help="How often all examples are used.")] = 10,
    batch: Annotated[int | None, typer.Option(min=1, help="Examples of a step; 32, or the model's.")] = None,
    validation: Annotated[float, typer.Option(help="The share of examples that only measure.")] = 0.1,
    checkpoint: Annotated[
        Path | None, typer.Option(help="The file to go on from; by default the output's name and .npz.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the checkpoint.")] = False,
    curve: Annotated[Path | None, typer.Option(help="The losses' curve, as an .svg file.")] = None,
    clip_norm: Annotated[float | None, typer.Option(help="The largest norm of all gradients.")] = None,
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
            trainable or [], loss, optimizer, epochs, batch, validation, checkpoint, resume, curve, clip_norm,
            check, pixels, seed, emit, target,
        ),
    )  # fmt: skip


@_command
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


@_command
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


@_command
def templates() -> None:
    """Print which template makes the kernels of each operator, by classes of shapes and element types."""
    from jangin.commands.templates import templates

    templates()


@_command
def blas(
    context: typer.Context,
    output: Annotated[Path, typer.Option("-o", "--output", help="The folder for the files.")],
    routines: Annotated[
        list[str] | None,
        typer.Argument(metavar="ROUTINE...", help="Names: dgemm, or gemm for every type (default: all)."),
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


@_command
def devices() -> None:
    """Describe this machine, and list the targets, libraries and peers on it."""
    from jangin.commands.devices import devices as work

    work()


def main() -> None:
    """Run the command `jangin`. Its exit status is 0, or 1 after an error, which is told in one message, or 2
    after wrong usage."""
    try:
        app()
    except Exception as error:  # a user reads one message and no traceback, whatever fails
        if "--debug" in sys.argv:
            raise
        from jangin.commands.errors import explain

        terminal(error=True).print(alarm("error:", explain(error)), soft_wrap=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
