"""`jangin train`: train weights of a model on the examples in a file or a folder."""

from __future__ import annotations

import errno
import importlib.util
import math
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import BarColumn, TimeRemainingColumn

from jangin.commands.ahead import summary
from jangin.commands.common import Settings, bar_with, check_output, progress, terminal
from jangin.compiler.cases import imported
from jangin.files import write_whole
from jangin.ir.graph import Graph
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.runtime.sizes import TensorSpec
from jangin.training.data import check_labels, examples
from jangin.training.loop import VALIDATED, Run, by_epoch, split
from jangin.training.losses import IGNORED
from jangin.training.schedules import CONSTANT
from jangin.training.texts import parsed_optimizers, parsed_scale, parsed_schedule
from jangin.training.trainer import Trainer
from jangin.training.trainer import train as compiled
from jangin.training.written import FILES

BATCH = 32
"""Examples of a step, if neither the user nor the model says how many. Keras's `fit` has the same default."""
BARS, UNKNOWN = "▁▂▃▄▅▆▇█", "?"
STOPPED = 130
"""The exit status of a program that Ctrl-C ended, as shells have it: 128 and the signal's number 2."""


@dataclass(frozen=True)
class Asked:
    """The options of the command, as on the command line."""

    trainable: Sequence[str]
    loss: str
    optimizer: Sequence[str]
    schedule: str
    epochs: int
    batch: int | None
    validation: float
    checkpoint: Path | None
    resume: bool
    curve: Path | None
    clip_norm: float | None
    clip_value: float | None
    accumulate: int
    processes: int
    average: float | None
    master_weights: bool
    loss_scale: str
    check: str
    pixels: str
    seed: int
    emit: str = ""
    target: str | None = None


def train(
    model: Path, data: Path, output: Path, settings: Settings, threads: int | None, shapes: Sequence[str],
    asked: Asked,
) -> None:  # fmt: skip
    """Train a model, write it, and print each epoch's loss. Ctrl-C writes a checkpoint and says how to go on.
    Raises ValueError for data that doesn't fit the model."""
    check_output(output, model)
    if asked.emit:
        _check_emitted(asked)
        _emit(_prepared(model, data, settings.options(None, shapes, threads), asked, settings), output, asked)
        return
    if asked.target is not None:
        raise ValueError("--target is of the code that --emit writes: training runs on this machine")
    if output.suffix not in FILES:
        raise ValueError(f"{output}: trained models are written as NAME.onnx or NAME.jgn")
    if asked.curve is not None and importlib.util.find_spec("matplotlib") is None:
        raise ValueError("--curve needs Matplotlib: pip install matplotlib")
    checkpoint = asked.checkpoint or output.with_suffix(".npz")
    if checkpoint.exists() and data.exists() and checkpoint.samefile(data):
        raise ValueError(f"{checkpoint} is the data itself: give another --checkpoint")
    for path in (output, checkpoint, *([asked.curve] if asked.curve is not None else ())):
        if not path.absolute().parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path.parent))
    run = _prepared(model, data, settings.options(None, shapes, threads), asked, settings)
    if asked.resume:
        run.load(checkpoint)
    console = terminal()
    try:
        _epochs(run, asked.epochs, checkpoint)
    except KeyboardInterrupt:
        _keep(run, checkpoint)
        raise SystemExit(STOPPED) from None
    except Exception:
        _keep(run, checkpoint)
        raise
    run.export(output)
    console.print(curve_text(by_epoch(run.losses, run.steps)))
    if asked.curve is not None:
        write_curve(asked.curve, run)
        console.print(f"{asked.curve}: the curve")
    count, updates = run.trainer.count, run.trainer.updates
    less = f", {count - updates} of them without an update" if updates < count else ""
    console.print(f"{output}: {output.stat().st_size / 1e6:.1f} MB, after {count} steps{less}")


def _keep(run: Run, checkpoint: Path) -> None:
    """Write a checkpoint, and say how to go on from it."""
    run.save(checkpoint)
    again = [a for a in sys.argv[1:] if a != "--resume"]
    console = terminal()
    console.print(f"stopped after {run.trainer.count} steps; {checkpoint} keeps them. To go on:")
    console.print(shlex.join(["jangin", *again, "--resume"]))


def _prepared(model: Path, data: Path, options: Options, asked: Asked, settings: Settings) -> Run:
    optimizer, schedule = parsed_optimizers(asked.optimizer), parsed_schedule(asked.schedule)
    graph = imported(model, options).graph
    dataset = examples(data, _specs(graph), asked.pixels)
    size = asked.batch or _own_batch(graph) or BATCH
    part = split(len(dataset), asked.validation, size, asked.seed)
    example = dataset.batch(part.training[:size])
    names = [n for n in graph.inputs if n not in graph.constants]
    shapes = {n: a.shape for n, a in zip(names, example[:-1], strict=True)}
    with progress(settings) as tell:
        tell(0, 1, "load")
        trainer: Trainer = compiled(
            model, asked.loss, optimizer, example,
            trainable=list(asked.trainable) or None, clip_norm=asked.clip_norm, clip_value=asked.clip_value,
            accumulate=asked.accumulate, processes=asked.processes, average=asked.average,
            master_weights=asked.master_weights, loss_scale=parsed_scale(asked.loss_scale), seed=asked.seed,
            shapes={**(options.shapes or {}), **shapes}, threads=options.threads, check=asked.check,
            **settings.given,
        )  # fmt: skip
    labels = asked.loss in ("cross_entropy", "nll")
    if labels:
        check_labels(dataset, trainer.classes, IGNORED)
    return Run(trainer, dataset, part, size, asked.seed, labels, schedule, asked.average is not None)


def _check_emitted(asked: Asked) -> None:
    """Raise ValueError for options that the step's code can't have."""
    if asked.accumulate > 1 or asked.processes > 1:
        raise ValueError("--emit writes a step of one plan: leave out --accumulate and --processes")
    if parsed_schedule(asked.schedule) != CONSTANT:
        raise ValueError("--emit writes a step whose caller sets the rates: leave out --schedule")


def _emit(run: Run, folder: Path, asked: Asked) -> None:
    """Write the step as code to a folder, and print its memory use."""
    package = run.trainer.emit(asked.emit, folder, asked.target, name=folder.absolute().name)
    assert package.model.training is not None
    console = terminal()
    console.print(summary(package))
    console.print(f"{folder}: {', '.join(package.files)}", soft_wrap=True)


def _specs(graph: Graph) -> list[TensorSpec]:
    """Return the model's inputs as it has them; sizes that aren't known have names."""
    specs = []
    for name in graph.inputs:
        if name not in graph.constants:
            shape = tuple(int(str(d)) if str(d).isdigit() else str(d) for d in graph.shape(name))
            specs.append(TensorSpec(name, np.dtype(graph.dtype(name).numpy), shape))
    return specs


def _own_batch(graph: Graph) -> int | None:
    """Return the first size of the inputs, if the model fixes it."""
    sizes = [s.shape[0] for s in _specs(graph) if s.shape]
    return next((d for d in sizes if isinstance(d, int)), None)


def _epochs(run: Run, count: int, checkpoint: Path) -> None:
    """Make the steps that are left, and write a checkpoint after each epoch."""
    console, columns = terminal(), ("epoch {task.fields[epoch]}", BarColumn(), "loss {task.fields[loss]:.4f}")
    told: set[Path] = set()
    with bar_with(*columns, TimeRemainingColumn()) as bar:
        task = bar.add_task("train", total=count * run.steps, epoch="", loss=0.0)
        for what, epoch, loss in run.epochs(count):
            for path, reason in run.unreadable.items():
                if path not in told:
                    console.print(f"{path} can't be read and is left out: {reason}", soft_wrap=True)
                    told.add(path)
            if what == VALIDATED:
                right = f", accuracy {run.accuracy[-1]:.1%}" if run.accuracy else ""
                console.print(f"epoch {epoch + 1}/{count}: validation loss {loss:.4f}{right}")
                continue
            bar.update(task, completed=run.trainer.count, epoch=f"{epoch + 1}/{count}", loss=loss)
            if run.trainer.count % run.steps == 0:
                mean = float(np.mean(run.losses[-run.steps :]))
                console.print(f"epoch {epoch + 1}/{count}: loss {mean:.4f}")
                run.save(checkpoint)


def curve_text(losses: Sequence[float]) -> str:
    """Return the losses as bars in one line, from the first to the last. Losses that aren't finite have a
    mark of their own."""
    finite = [x for x in losses if math.isfinite(x)] or [0.0]
    low, high = min(finite), max(finite)
    marks = (
        BARS[round((x - low) / (high - low or 1) * (len(BARS) - 1))] if math.isfinite(x) else UNKNOWN
        for x in losses
    )
    return f"loss {losses[0]:.4f} {''.join(marks)} {losses[-1]:.4f}"


def write_curve(path: Path, run: Run) -> None:
    """Draw the losses of all steps, and the validation losses, as SVG."""
    figure_of: Any = importlib.import_module("matplotlib.figure").Figure
    figure = figure_of(figsize=(7, 4))
    axes = figure.subplots()
    axes.plot(np.arange(1, len(run.losses) + 1), run.losses, linewidth=0.8, label="training")
    if run.validation:
        ends = run.steps * np.arange(1, len(run.validation) + 1)
        axes.plot(ends, run.validation, marker="o", label="validation")
    axes.set(xlabel="step", ylabel="loss")
    axes.legend()
    write_whole(path, lambda file: figure.savefig(file, format="svg"))
