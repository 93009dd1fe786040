"""The choices that `jangin tune` compares: precisions, devices and numbers of threads."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich import box
from rich.progress import BarColumn
from rich.table import Table

from jangin.bench.report import milliseconds, threads_text
from jangin.commands.common import bar_with
from jangin.compiler.objective import Trial, counts, measure, opened
from jangin.compiler.request import winners_of
from jangin.energy import EnergyError
from jangin.files import writing
from jangin.ir.limits import within
from jangin.ir.records import dataclass
from jangin.options import LATENCY, OBJECTIVES, Common, Options
from jangin.quantization.quantize import DropMissed, quantize
from jangin.study.pareto import frontier
from jangin.study.settings import PRECISIONS
from jangin.tune.joules import Meter

FLOATS = "float32"
"""The precision of a model as it is."""


@dataclass(frozen=True)
class Goal:
    """The goal of tuning: an objective, on some devices, which are the target alone if none is named.

    `table` tells if the costs of all devices and numbers of threads are wanted. `meter` is an external meter
    of energy, or "".

    `precisions` are those to choose from. All but float32 are made by quantizing on `data`, and kept in the
    folder `folder`. One that loses more than the share `drop` of quality is left out."""

    objective: str = LATENCY
    devices: Sequence[str] = ()
    table: bool = False
    meter: str = ""
    precisions: Sequence[str] = (FLOATS,)
    data: Path | None = None
    drop: float = 0.005
    folder: Path | None = None

    @property
    def alone(self) -> bool:
        """Whether one device is tuned for one number of threads, by the time alone."""
        return not (self.objective != LATENCY or self.devices or self.table or self.made)

    @property
    def made(self) -> list[str]:
        """The precisions that are made by quantizing."""
        return [p for p in self.precisions if p != FLOATS]

    def check(self) -> None:
        """Raise ValueError for a goal that means nothing."""
        unknown = next((p for p in self.precisions if p not in PRECISIONS), None)
        if unknown is not None:
            raise ValueError(f"--precision {unknown!r} is unknown: there are {', '.join(PRECISIONS)}")
        if self.made and (self.data is None or self.folder is None):
            raise ValueError("--precision quantizes: give --data to do it on, and -o FOLDER for the models")


@dataclass(frozen=True)
class Choice:
    """A choice: a precision, and the trial of a device and a number of threads. `path` is the model's file in
    the precision, and `drop` the share of quality that it loses."""

    precision: str
    path: Path
    drop: float
    trial: Trial

    @property
    def place(self) -> str:
        return f"{self.trial.point.target} with {threads_text(self.trial.point.threads)}"


def compared(model: Path, options: Options, seconds: float, goal: Goal) -> tuple[list[Choice], str]:
    """Tune for each precision, device and number of threads, and compare their costs. Return the choices, and
    notes about them. These tell where the joules are from, or why there are none, and which precisions were
    left out."""
    with ExitStack() as stack:
        try:
            meter: Meter | None = stack.enter_context(opened(options, goal.meter))
            notes = [f"Joules are above rest, by {meter.source}."] if meter is not None else []
        except EnergyError as error:
            if goal.objective != LATENCY:
                raise
            meter, notes = None, [f"Joules weren't measured: {error}."]
        stack.enter_context(within(options.limits, seconds))
        devices, store = goal.devices or (options.asked,), winners_of(options)
        choices, share = list[Choice](), seconds / len(goal.precisions)
        for precision in goal.precisions:
            try:
                path, drop = _quantized(model, precision, options, goal)
            except DropMissed as error:
                notes.append(f"{precision} is left out: {error}.")
                continue
            with shown() as tell:
                trials = measure(path, options, devices, counts(options), share, meter, store, tell)
            choices += [Choice(precision, path, drop, trial) for trial in trials]
            if any(t.outcome.stopped for t in trials):
                break
        if meter is not None and meter.warning:
            notes.append(f"Warning: {meter.warning}.")
    if not choices:
        raise ValueError(" ".join(notes))
    return choices, " ".join(notes)


def _quantized(model: Path, precision: str, options: Options, goal: Goal) -> tuple[Path, float]:
    """Return the file of a model in a precision, and the share of quality that it loses. Raises DropMissed if
    it would lose too much."""
    if precision == FLOATS:
        return model, 0.0
    assert goal.data is not None and goal.folder is not None  # `check` has seen to it
    keywords = {name: getattr(options, name) for name in Common.__annotations__}
    quantized = quantize(model, goal.data, precision, drop=goal.drop, **keywords)  # its sizes stay open
    path = goal.folder / f"{model.stem}-{precision}.onnx"
    with writing(goal.folder):
        goal.folder.mkdir(parents=True, exist_ok=True)
    quantized.save(path)
    return path, quantized.drop


@contextmanager
def shown() -> Iterator[Callable[[float, float, str], None]]:
    """Show a progress bar inside this context. Its value is the function to be called with the progress."""
    with bar_with("{task.description:<40}", BarColumn(), "{task.fields[time]}") as bar:
        task = bar.add_task("import", total=1.0, time="")

        def tell(done: float, total: float, what: str) -> None:
            clock = f"{done:.0f} of {total:.0f} s"
            bar.update(task, completed=done, total=total, description=what[-40:], time=clock)

        yield tell


def costs(choices: Sequence[Choice], note: str) -> Table:
    """Return the table of what a run costs, to choose from. Choices on the Pareto frontier are marked: none
    is as good in everything and better in something."""
    result = Table(box=box.SIMPLE_HEAD, padding=(0, 1), title="Costs of a run", caption=note)
    for heading in ("precision", "device", "threads", "ms", "mJ", "mJ·s", "MB", "drop", "frontier", "least"):
        result.add_column(heading, justify="left" if heading in ("precision", "device", "least") else "right")
    points = [c.trial.point for c in choices]
    marks = frontier([(p.seconds, p.joules, p.bytes, c.drop) for p, c in zip(points, choices, strict=True)])
    least = {o: min(points, key=lambda p, o=o: p.figure(o)) for o in OBJECTIVES}  # type: ignore[misc]
    for choice, point, mark in zip(choices, points, marks, strict=True):
        known = point.joules is not None
        result.add_row(
            choice.precision,
            point.target,
            str(point.threads),
            milliseconds(point.seconds),
            f"{point.figure('energy') * 1e3:.4g}" if known else "",
            f"{point.figure('edp') * 1e3:.4g}" if known else "",
            "" if point.bytes is None else f"{point.bytes / 1e6:.1f}",
            f"{choice.drop:.2%}" if choice.precision != FLOATS else "",
            "*" if mark else "",
            ", ".join(o for o in OBJECTIVES if least[o] is point and math.isfinite(point.figure(o))),
        )
    return result
