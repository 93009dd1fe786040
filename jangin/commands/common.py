"""Helpers of the commands: settings, terminals, the progress bar, model inputs."""

from __future__ import annotations

import errno
import os
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

import jangin
from jangin.commands.tables import laid_out, tabbed
from jangin.compiler.account import Account
from jangin.compiler.driver import compile_by
from jangin.environment import has_columns
from jangin.frontends.format import Format, opened
from jangin.frontends.gguf.format import GgufFormat
from jangin.frontends.onnx.format import OnnxFormat
from jangin.frontends.table import format_of
from jangin.ir.graph import Array
from jangin.ir.limits import Limits
from jangin.ir.program import IN_STEPS
from jangin.options import ABOUT, Common, Given, Options
from jangin.pictures import PICTURES, read_picture
from jangin.runtime.executable import Executable
from jangin.runtime.load import Runnable
from jangin.runtime.program import ProgramExecutable
from jangin.runtime.several import SeveralExecutable
from jangin.runtime.sizes import TensorSpec
from jangin.runtime.stateful import StatefulExecutable
from jangin.runtime.threads import default_threads
from jangin.runtime.variants import VariantsExecutable
from jangin.visible import visible

PIPED = 160
"""The width in columns of output to a file or pipe, unless COLUMNS is set. Tables keep one line for each row
at twice a terminal's usual width."""
CONVERTED = (".onnx", ".tflite", ".nnef", ".tgz", ".tar.gz", ".tar")
"""The endings of the files that `jangin convert` writes."""
REPORTED = 0.05
"""The report of --verbose leaves out steps of the compiler that take fewer seconds than this. Compiling takes
seconds, so shorter steps hardly matter to a user."""
SHARES = {"kernels": (0.25, 0.9), "compile": (0.9, 1.0)}
"""The shares of a compilation's time at which its long steps begin and end. Reading the model and its passes
take the time before.

The shares were measured by --verbose for SqueezeNet, MiniLM and EfficientNet-B0."""


class Settings:
    """The options that come before the command: `verbose`, and `given`, which are options of `jangin.compile`
    by name."""

    def __init__(self, verbose: bool = False, **given: Unpack[Common]) -> None:
        self.verbose, self.given = verbose, given

    def options(
        self,
        target: str | None = None,
        shapes: Sequence[str] = (),
        threads: int | None = None,
        **more: Unpack[Given],
    ) -> Options:
        """Return the options of a compilation: those that come before the command and those after it. For
        `shapes` see `parse_shapes`."""
        return Options(target, parse_shapes(shapes), threads, **self.given).but(**more)


def formats_of(model: Path, kept: str, activations: str) -> Sequence[Format]:
    """Return the model's format with the given types, or an empty sequence if no types are given.

    `kept` is the type of a GGUF file's cached keys and values. `activations` is the type of activations, for
    a GGUF or an ONNX file. Raises ValueError for an unknown type or for another format."""
    if not kept and not activations:
        return ()
    reader = format_of(opened(model))
    if isinstance(reader, GgufFormat):
        return (GgufFormat(kept or reader.cache, activations or reader.activations),)
    if kept:
        raise ValueError(f"--kv-cache is for GGUF files, and {model} is none: leave --kv-cache out")
    if not isinstance(reader, OnnxFormat):
        raise ValueError(
            f"--activations is for GGUF and ONNX files, and {model} is none: leave --activations out"
        )
    return (OnnxFormat(activations),)


class _Terminal(Console):
    """A console that escapes control characters and prints no markup. Lines of text aren't wrapped, so that
    paths can be copied.

    Tables are laid out for the console's width. If `plain`, they are written with tabs, for other
    programs."""

    plain = False

    def print(self, *objects: Any, **how: Any) -> None:
        if not any(isinstance(o, Table) for o in objects):
            super().print(*objects, **{"soft_wrap": True, **how})
            return
        for o in objects:
            item = laid_out(o, self) if isinstance(o, Table) and not self.plain else o
            if isinstance(item, Table) and self.plain:
                self.file.write(visible(tabbed(item)))
            else:
                super().print(item, soft_wrap=not isinstance(item, Table))

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


def terminal(error: bool = False) -> Console:
    """Return a console as wide as the terminal, or as COLUMNS tells. Output to a file or pipe has 160
    columns."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() or has_columns() else PIPED
    return _Terminal(file=stream, highlight=False, markup=False, emoji=False, width=width)


def plain(wanted: bool) -> None:
    """Set whether tables are written for other programs, with tabs, or laid out for people."""
    _Terminal.plain = wanted


def say(text: str) -> None:
    """Print text without markup or wrapping, such as intermediate representations and code. Control
    characters are escaped, and a missing final newline is added."""
    print(visible(text), end="" if text.endswith("\n") else "\n")


def alarm(what: str, text: str) -> Text:
    """Return a text that begins with the label `what` in bold red."""
    return Text.assemble((what, "bold red"), f" {text}")


class _Bars(Progress):
    """Progress bars that appear at their first update, so that an error before it leaves no bar."""

    def __enter__(self) -> Self:
        return self

    def update(self, *given: Any, **fields: Any) -> None:
        super().update(*given, **fields)
        self.start()


def bar_with(*columns: ProgressColumn | str, memory: float = 30.0) -> Progress:
    """Return a progress bar on stderr with these columns. It appears at its first update, and disappears at
    the end. Text columns may contain its fields in braces. The time left is estimated from the last `memory`
    seconds."""
    console = terminal(error=True)
    bar_columns = (TextColumn(c, markup=False) if isinstance(c, str) else c for c in columns)
    return _Bars(
        *bar_columns,
        console=console,
        transient=True,
        disable=not console.is_terminal,
        speed_estimate_period=memory,
    )


@contextmanager
def progress(settings: Settings) -> Iterator[Callable[[int, int, str], None]]:
    """Inside this context, show a progress bar for a compilation on stderr. With `verbose`, each step's
    seconds are printed at the end. The context's value is the function to be called with the progress."""
    account = Account()
    columns = ("{task.description:<10}", BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with bar_with(*columns) as bar:
        task = bar.add_task("import", total=1.0)

        def tell(done: int, total: int, what: str) -> None:
            account.tell(done, total, what)
            bar.update(
                task, completed=max(bar.tasks[0].completed, share(done, total, what)), description=what
            )

        yield tell
        tell(1, 1, "load")
    if settings.verbose:
        times = {what: seconds.wall for what, seconds in account.steps.items()}
        steps = [f"{what} {seconds:.2f} s" for what, seconds in times.items() if seconds >= REPORTED]
        terminal(error=True).print("steps: " + (", ".join(steps) or "none that took time (from the cache)"))


def share(done: int, total: int, what: str) -> float:
    """Return the part of a compilation's time, from 0 to 1, that has passed when the compiler reports this
    progress."""
    first, last = SHARES.get(what, (0.0, SHARES["kernels"][0]))
    return first + (last - first) * done / max(total, 1)


def executable(model: Path, settings: Settings, options: Options) -> Runnable:
    """Compile a model, or load a `.jgn` file, and return it ready to run."""
    if model.suffix == ".jgn":
        return jangin.load(model, threads=options.threads)
    with progress(settings) as tell:
        compiled: Runnable = compile_by(options, model, tell)
        return compiled


def check_output(output: Path, model: Path) -> None:
    """Check that an output can be written, before any other work.

    Raises ValueError if the output is the model itself, and PermissionError if its folder isn't writable."""
    if output.exists() and model.exists() and output.samefile(model):
        raise ValueError(f"{output} is the model itself: give another output")
    folder = next(p for p in (output.absolute(), *output.absolute().parents) if p.is_dir())
    if not os.access(folder, os.W_OK | os.X_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def refuse_model(output: Path, model: Path) -> None:
    """Raise ValueError if the output of a compilation has the name of a model file that `jangin convert`
    writes."""
    if output.name.endswith(CONVERTED):
        command = shlex.join(["jangin", "convert", str(model), str(output)])
        raise ValueError(f"{output} is no compiled model; to write the model in that format: {command}")


def parse_shapes(texts: Sequence[str]) -> dict[str, Any]:
    """Parse shapes, and return them by name. `batch=1` fixes a symbol, and `seq=1..512` gives its range.
    `image=1x3x224x224` gives the shape of a whole input, in which `?` leaves a size as it is.

    Raises ValueError for anything else."""
    shapes: dict[str, Any] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        try:
            if not separator:
                raise ValueError
            if ".." in value:
                low, _, high = value.partition("..")
                shapes[name] = (int(low), int(high))
            elif "x" in value or value == "?":
                shapes[name] = tuple(None if n == "?" else int(n) for n in value.split("x"))
            else:
                shapes[name] = int(value)
        except ValueError:
            raise ValueError(
                f"--shape {text!r} is not understood: write batch=1, seq=1..512 or image=1x3x224x224"
            ) from None
    return shapes


def parse_counts(text: str, flag: str = "--threads") -> list[int]:
    """Parse a list of counts such as `1,2`, without repetition. For threads, `all` is as many as the process
    may use. Raises ValueError, which names the flag, for anything else."""
    whole = {"all": default_threads()} if flag == "--threads" else {}
    try:
        counts = [whole.get(n) or int(n) for n in text.split(",")]
    except ValueError:
        counts = []
    if not counts or min(counts) < 1:
        example = "1,2 or 1,all" if whole else "1,2"
        raise ValueError(f"{flag} {text!r} is no list of counts: write {example}")
    return [*dict.fromkeys(counts)]


UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
"""Bytes of each unit of memory."""


def parse_bytes(option: str, text: str) -> int:
    """Return the bytes of a text such as "64K". Raise ValueError, which names the option, for any other
    text."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KM]?)B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise ValueError(f"{option} {text!r} is no size: write for example {option} 64K")
    return int(float(match[1]) * UNITS[match[2].upper()])


def parse_limits(text: str) -> Limits:
    """Parse limits such as `seconds=60,memory=2G,nodes=100000`. Each part is optional. Raises ValueError for
    anything else."""
    limits: dict[str, float] = {}
    for part in filter(None, text.split(",")):
        match = re.fullmatch(r"(seconds)=(\d+(?:\.\d+)?)()|(memory)=(\d+)([KMG]?)|(nodes)=(\d+)()", part)
        if match is None:
            raise ValueError(f"--limits {text!r} is not understood: write seconds=60,memory=2G,nodes=100000")
        name, number, unit = (g for g in match.groups() if g is not None)
        limits[name] = float(number) if name == "seconds" else int(number) * UNITS[unit]
    return Limits(**limits)  # type: ignore[arg-type]


def fixed_sizes(shapes: Mapping[str, Any]) -> dict[str, int]:
    """Return those entries of `shapes` that fix a symbol to one size."""
    return {name: size for name, size in shapes.items() if isinstance(size, int)}


def parse_inputs(texts: Sequence[str], specs: Sequence[TensorSpec]) -> dict[str, str]:
    """Parse inputs, and return the text of each by name. A text is `name=what`, or only `what` if the model
    has one input. Raises ValueError for an unknown input."""
    names = [spec.name for spec in specs]
    inputs: dict[str, str] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator and len(names) == 1:
            name, value = names[0], text
        if name not in names or not value:
            raise ValueError(f"--input {text!r}: write name=file.npy; the inputs are {', '.join(names)}")
        inputs[name] = value
    return inputs


def single_plan(exe: Runnable, model: Path, feeds: Mapping[str, Array]) -> Executable:
    """Return the executable of the one plan that runs these inputs. Raises ValueError if the model is a
    program, has state, or is for several devices."""
    if isinstance(exe, StatefulExecutable):
        raise ValueError(
            f"{model} keeps state from run to run, and this command takes only models without state; "
            "`jangin run` takes it"
        )
    if isinstance(exe, VariantsExecutable):
        exe = exe.variant(feeds)
    if isinstance(exe, SeveralExecutable):
        raise ValueError(
            f"{model} is for several devices at once, and this command takes one: compile it with one "
            "--target"
        )
    if isinstance(exe, ProgramExecutable):
        raise ValueError(
            f"this command can't take {model}, because {IN_STEPS}: fix sizes by --shape, or use `jangin run`"
        )
    return exe


def read_inputs(
    exe: Runnable,
    texts: Sequence[str],
    sizes: Mapping[str, int],
    pixels: str = "unit",
    seed: int = 0,
) -> dict[str, Array]:
    """Return an array for each input, as `texts` tell (see `parse_inputs`). All other inputs are random."""
    sources = parse_inputs(texts, exe.inputs)
    return {
        spec.name: read_input(spec, sources.get(spec.name, "random"), sizes, pixels, seed + i)
        for i, spec in enumerate(exe.inputs)
    }


def read_input(spec: TensorSpec, what: str, sizes: Mapping[str, int], pixels: str, seed: int) -> Array:
    """Return an array for one input. `what` is "random", or the path of a .npy file or a picture.

    Raises ValueError if the array can't fit, and OSError for a file that can't be read."""
    if what == "random":
        return random_input(spec, sizes, seed)
    path = Path(what)
    if path.suffix == ".npy":
        return np.asarray(np.load(path, allow_pickle=False))
    if path.suffix.lower() in PICTURES:
        return read_picture(path, spec, pixels)
    raise ValueError(f"{what!r} is no input: give a .npy file, a picture or `random`")


def random_input(spec: TensorSpec, sizes: Mapping[str, int], seed: int) -> Array:
    from jangin.bench.arrays import random_array

    missing = [d for d in spec.shape if not isinstance(d, int) and d not in sizes]
    if missing:
        raise ValueError(f"input {spec}: give its size with --shape {missing[0]}=1")
    shape = [d if isinstance(d, int) else sizes[d] for d in spec.shape]
    return random_array(np.random.default_rng(seed), spec.dtype, shape, mask="mask" in spec.name.lower())


def flags(settings: Settings) -> list[str]:
    """Return the options before the command as words, for commands that this one runs."""
    words = []
    for name, value in settings.given.items():
        on, _, off = ABOUT[name].flag.partition("/")
        if name == "limits":
            told = ((limit, getattr(value, limit)) for limit in ("seconds", "memory", "nodes"))
            words += [on, ",".join(f"{k}={str(n).removesuffix('.0')}" for k, n in told if n is not None)]
        elif name == "cache" and value is False:
            words.append("--no-cache")
        elif isinstance(value, bool):
            words += [on] if value else [off] if off else []
        else:
            words += [on, str(value)]
    return words
