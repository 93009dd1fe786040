"""Arguments and options that several commands have."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from jangin.commands.help import among
from jangin.options import ABOUT
from jangin.pictures import PIXELS

Model = Annotated[
    Path, typer.Argument(metavar="MODEL", help="A model's file or folder (or a compiled .jgn file).")
]
Models = Annotated[list[Path], typer.Argument(metavar="MODEL", help="Models' files or folders.")]
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
Engines = Annotated[
    str,
    typer.Option(
        help="all that are installed, or a list; module:function is one of your own.",
        autocompletion=among("engines"),
    ),
]
Meters = Annotated[
    list[str] | None,
    typer.Option(metavar="COMMAND", help="A meter that prints lines `timestamp watts`, or a plug-in."),
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
Rounds = Annotated[int, typer.Option(min=1, help="Turns that each engine takes.")]
Seconds = Annotated[float, typer.Option(min=0.001, help="Length of a turn.")]

# -- of compiling --------------------------------------------------------------------------------

EmitKind = Annotated[
    str,
    typer.Option(
        help="jgn (a file for jangin.load), or without Jangin: object, shared, c or web.",
        autocompletion=among("emit"),
    ),
]
CodeName = Annotated[str, typer.Option(help="With --emit: what names in C begin with.")]
Constants = Annotated[
    str, typer.Option(help="With --emit: weights lie inside the code, or in a file beside it.")
]
Apis = Annotated[
    str, typer.Option(help="With --emit: declarations for cpp, rust or csharp, with commas between.")
]
Package = Annotated[
    str, typer.Option(help="With --emit c: make the folder a cmake package or a zephyr module.")
]
RunMemory = Annotated[
    str,
    typer.Option(metavar="SIZE", help="With --emit: memory for a run, for which layers may run in patches."),
]
Candidates = Annotated[
    bool,
    typer.Option("--candidates", help="With --emit web: more kernels, which load({tune: true}) measures."),
]
Shards = Annotated[
    str, typer.Option(metavar="SIZE", help="With --emit web: weights in files of at most this size.")
]
CacheType = Annotated[
    str, typer.Option(metavar="TYPE", help="Of GGUF: keys and values in float32, float16 or int8.")
]
ActivationType = Annotated[
    str,
    typer.Option(
        metavar="TYPE",
        help="Of GGUF and ONNX: what weights in blocks are multiplied with, float32 or rounded to int8.",
    ),
]

# -- of training ----------------------------------------------------------------------------------

Optimizers = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME:SETTINGS",
        help="adamw:lr=1e-3, the default, or by weights: '*.bias=sgd:lr=0.1', the first that fits.",
    ),
]
ScheduleOption = Annotated[
    str,
    typer.Option(
        metavar="NAME:SETTINGS",
        help="Of learning rates: cosine:warmup=1,end=0.01 (in epochs), linear, steps:every=30,by=0.1.",
    ),
]
ClipNorm = Annotated[float | None, typer.Option(help="The largest norm of all gradients.")]
ClipValue = Annotated[float | None, typer.Option(help="The largest number in a gradient.")]
Accumulate = Annotated[int, typer.Option(min=1, help="Parts of a batch, one after the other: less memory.")]
ProcessCount = Annotated[
    int, typer.Option("--processes", min=1, help="Processes that share a batch; --threads are of each.")
]
Average = Annotated[
    float | None,
    typer.Option(help="0.999: keep running means of weights, which are measured and written."),
]
MasterWeights = Annotated[
    bool, typer.Option("--master-weights", help="Update float32 copies of 16-bit weights.")
]
LossScale = Annotated[str, typer.Option(help="dynamic, or a number: keep small gradients of float16.")]

# -- of studies -----------------------------------------------------------------------------------

Batches = Annotated[
    str, typer.Option(help="Batch sizes: 1,8; n=1,8 names the model's size that is the batch.")
]
Precisions = Annotated[
    str,
    typer.Option(help="float32, float16, int8, or a list.", autocompletion=among("precision")),
]
Products = Annotated[
    str,
    typer.Option(metavar="SIZES", help="Matrix products too: 64..4096, 64x147x12544, convolutions."),
]
Devices = Annotated[
    str, typer.Option(help="Devices for Jangin: cpu,opencl:0, or all; others run on the processor.")
]
Host = Annotated[
    str,
    typer.Option(metavar="ssh://BOARD", help="Measure emitted models there, with Python alone."),
]
HostTarget = Annotated[
    str | None,
    typer.Option(help="With --host: its target (default: by its processor).", autocompletion=among("target")),
]
StudyData = Annotated[
    Path | None, typer.Option(help="What models are quantized with, as for `quantize` (default: random).")
]
