"""`jangin run` and `jangin compile`."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from rich.table import Table

from jangin.commands.common import (
    Settings,
    check_output,
    executable,
    fixed_sizes,
    formats_of,
    parse_inputs,
    progress,
    read_inputs,
    refuse_model,
    terminal,
)
from jangin.compiler.account import Account
from jangin.compiler.driver import build_by
from jangin.files import write_whole, writing
from jangin.ir.graph import Array
from jangin.ir.program import IN_STEPS
from jangin.options import LATENCY
from jangin.runtime.compiled import Compiled, signature, targets, weight_bytes
from jangin.runtime.encryption import save_encrypted
from jangin.runtime.layout import Frame, Layout
from jangin.runtime.load import Runnable
from jangin.runtime.program import ProgramExecutable
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.several import SeveralExecutable
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.signing import sign
from jangin.runtime.sizes import Evaluator
from jangin.runtime.stateful import StatefulExecutable
from jangin.runtime.variants_artifact import VariantsArtifact, listed

TOP = 5
"""The highest scores of a classifier that are printed, as in the usual top-5 accuracy."""
PROFILED = 30
"""The most launches that a profile lists. The rest takes little time."""
CLASSES = 10
"""An output is shown as a classifier's scores if it is one row of at least this many floats. Common small
classifiers (digits, CIFAR-10) have ten classes, and boxes have fewer numbers."""
LONGEST = 300
"""The most characters that are shown of an output that is no array. A longer one would fill the terminal."""


def run(
    model: Path,
    settings: Settings,
    inputs: Sequence[str],
    shapes: Sequence[str],
    threads: int | None,
    target: str | None,
    output: Path | None,
    pixels: str,
    seed: int,
    profile: bool,
    objective: str,
) -> None:
    """Run a model once, and describe its outputs. They are written as .npy files to the folder `output`, if
    it is given. With `profile`, the launches are timed too."""
    console = terminal()
    options = settings.options(target, shapes, threads, objective=objective)
    if objective != LATENCY and model.suffix == ".jgn":
        raise ValueError(
            f"{model} is compiled already, and --objective chooses kernels: give the model that it came from"
        )
    exe = executable(model, settings, options)
    sources = parse_inputs(inputs, exe.inputs)
    feeds = read_inputs(exe, inputs, fixed_sizes(options.shapes), pixels, seed)
    start = time.perf_counter()
    results = exe.run(feeds)
    milliseconds = (time.perf_counter() - start) * 1e3
    for name in feeds.keys() - sources.keys():
        console.print(f"input {name} is random")
    for name, array in results.items():
        describe(name, array)
        if output is not None and not isinstance(array, np.ndarray):
            raise ValueError(
                f"output {name} is a {type(array).__name__}, which no .npy file can hold: leave -o out, or "
                "call the model in Python"
            )
        if output is not None:
            path = output / f"{_file_name(name)}.npy"
            with writing(output):
                output.mkdir(parents=True, exist_ok=True)
            _save(path, array)
            console.print(f"  written to {path}")
    console.print(f"first run: {milliseconds:.2f} ms, {exe.threads} threads")
    if profile:
        console.print(profiled(exe, feeds))


def profiled(exe: Runnable, feeds: Mapping[str, Array]) -> Table:
    """Time the launches, and return a table of them, the slowest first. Raises ValueError for a model that
    isn't one plan."""
    from jangin.bench.report import milliseconds

    if isinstance(exe, SeveralExecutable):
        raise ValueError(
            "--profile is for one device, and this model is for several: compile it with one --target"
        )
    if isinstance(exe, ProgramExecutable):
        raise ValueError(f"--profile can't time kernels one by one, because {IN_STEPS}: leave --profile out")
    if isinstance(exe, StatefulExecutable):
        raise ValueError(
            "--profile is for models without state, and this one keeps some between runs: leave --profile out"
        )
    timings = exe.profile(feeds)
    total = sum(t.seconds for t in timings)
    title = f"{milliseconds(total)} ms a run"
    table = Table("ms", "share", "GB/s", "tasks", "kernel", "computes", title=title)
    ordered = sorted(timings, key=lambda t: -t.seconds)
    for t in ordered[:PROFILED]:
        speed = f"{t.bytes / t.seconds / 1e9:.1f}" if t.seconds else ""
        share, sources = f"{t.seconds / total if total else 0:.1%}", str(t.launch.sources)
        table.add_row(milliseconds(t.seconds), share, speed, str(t.launch.tasks), t.launch.kernel, sources)
    if rest := ordered[PROFILED:]:
        table.caption = f"{len(rest)} more take {milliseconds(sum(t.seconds for t in rest))} ms"
    return table


def describe(name: str, array: Any) -> None:
    """Print an output's type and range. The highest scores are printed too if it looks like class scores (see
    `CLASSES`)."""
    console = terminal()
    if isinstance(array, list):
        console.print(f"{name}: a sequence of {len(array)}")
        if array:
            describe(f"{name}[0]", array[0])
        return
    if not isinstance(array, np.ndarray):
        text = "nothing (an empty optional)" if array is None else str(array)
        if isinstance(array, dict):
            text = ", ".join(f"{label}: {value}" for label, value in array.items())
        console.print(f"{name}: {text[:LONGEST]}")
        return
    text = f"{name}: {array.dtype}{list(array.shape)}"
    if array.size and array.dtype.kind in "fiub":
        wide = array.astype(np.float64)
        text += f"  min {wide.min():.6g}  max {wide.max():.6g}  mean {wide.mean():.6g}"
        if np.isnan(wide).any():
            text += f"  NaN in {np.isnan(wide).mean():.0%}"
    console.print(text)
    if array.dtype.kind == "f" and array.ndim and array.size == array.shape[-1] >= CLASSES:
        row = array.reshape(-1)
        for i in np.argsort(-row)[:TOP]:
            console.print(f"  class {i:>5}  {row[i]:.4f}")


def _save(path: Path, array: Array) -> None:
    whole = BytesIO()
    np.save(whole, array)
    write_whole(path, lambda file: file.write(whole.getbuffer()))


def _file_name(name: str) -> str:
    return "".join(c if c.isalnum() or c in "._-" else "_" for c in name)


def compile_file(
    model: Path, settings: Settings, output: Path, shapes: Sequence[str], target: str | None,
    timings: bool = False, key: Path | None = None, secret: Path | None = None, kept: str = "",
    activations: str = "",
) -> None:  # fmt: skip
    """Compile a model to a `.jgn` file, for this machine or another, and print what is in it.

    With `timings`, compile without the cache and print where the time went. `key` is the PEM file of the
    signing key, and `secret` the file of the encryption key. For `kept` and `activations` see
    `formats_of`."""
    if model.suffix == ".jgn":
        raise ValueError(f"{model} is compiled already: give the model that it came from")
    check_output(output, model)
    refuse_model(output, model)
    options = settings.options(target, shapes, 1, formats=formats_of(model, kept, activations))
    start = time.perf_counter()
    account = Account()
    if timings:
        from jangin.commands.timings import build_timed

        artifact = build_timed(model, options, account)
    else:
        with progress(settings) as tell:
            artifact = build_by(options, model, tell)
    seconds = time.perf_counter() - start
    account.tell(0, 1, "save")
    prefix = None
    if secret is None:
        artifact.save(output)
    else:
        prefix = save_encrypted(output, secret, artifact.write)
    account.tell(1, 1, "save")
    signature = None if key is None else sign(output, key, prefix)
    console, lock = terminal(), "" if secret is None else f" encrypted by {secret}"
    if timings:
        from jangin.commands.timings import kernels_table, steps_table

        console.print(kernels_table(account), steps_table(account))
    console.print(summary(artifact))
    console.print(f"{output}: {output.stat().st_size / 1e6:.1f} MB{lock}, compiled in {seconds:.2f} s")
    if signature is not None:
        console.print(f"{signature}: its signature by {key}")


def summary(made: Compiled) -> Table:
    """Return a table of a compiled model's inputs, outputs and requirements."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for kind, specs in zip(("input", "output"), signature(made), strict=True):
        for spec in specs:
            table.add_row(kind, str(spec))
    if isinstance(made, SeveralArtifact):
        table.add_row("devices", ", ".join(made.names))
        table.add_row("batch", f"shared out by {made.rows}" if made.rows else f"stays whole: {made.reason}")
        table.add_row("placed", ", ".join(made.placed) or "nothing: measured times don't speak for it")
        return table
    if isinstance(made, ProgramArtifact):
        table.add_row("segments", f"{len(made.parts)} plans between steps")
        return table
    if isinstance(made, VariantsArtifact):
        table.add_row("variants", "; ".join(map(listed, made.sizes)))
        table.add_row("weights", f"{weight_bytes(made) / 1e6:.2f} MB")
        return table
    plan = made.plan
    table.add_row("target", *targets(made))
    table.add_row("made by", made.made_by or "a Jangin that didn't say so yet")
    table.add_row("kernels", f"{len({x.kernel for x in plan.launches})} in {len(plan.launches)} launches")
    table.add_row("weights", f"{weight_bytes(made) / 1e6:.2f} MB")
    arena = "grows with the sizes of a run"
    if plan.is_static:
        arena = f"{Layout(Frame(plan), (), Evaluator({})).placement.arena / 1e6:.2f} MB"
    table.add_row("arena", arena)
    return table
