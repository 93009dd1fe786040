"""`jangin compile --emit object|shared|c`: compile models that run without Jangin."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.table import Table

from jangin.ahead.emit import Emitted, check_extras, emit_by
from jangin.commands.common import (
    Settings,
    check_output,
    formats_of,
    parse_bytes,
    progress,
    refuse_model,
    terminal,
)


def emit_files(
    model: Path, settings: Settings, folder: Path, shapes: Sequence[str], target: str | None, kind: str,
    name: str, constants: str, force: bool, kept: str, activations: str, api: str, package: str,
    ram: str = "", candidates: bool = False, shards: str = "",
) -> None:  # fmt: skip
    """Compile a model ahead of time, print its memory use, and write its files to a folder. Raises
    FileExistsError for existing files unless `force`. For `kept` and `activations` see `formats_of`, for
    `api`, with commas between languages, `package`, `ram`, `candidates` and `shards` see `emit`."""
    if model.suffix == ".jgn":
        raise ValueError(f"{model} is compiled already: --emit {kind} needs the model it was made of")
    check_output(folder, model)
    refuse_model(folder, model)
    options = settings.options(target, shapes, 1, formats=formats_of(model, kept, activations))
    languages = [language for language in api.split(",") if language]
    check_extras(options, kind, languages, package)
    start = time.perf_counter()
    with progress(settings) as tell:
        emission = emit_by(
            options, model, kind, name, constants, tell, parse_bytes("--ram", ram) if ram else None,
            candidates=candidates,
        )  # fmt: skip
    emission = emission.extended(languages, package, parse_bytes("--shards", shards) if shards else None)
    console = terminal()
    console.print(summary(emission))
    emission.save(folder, force=force)
    files = ", ".join(emission.files)
    console.print(f"{folder}: {files}; compiled in {time.perf_counter() - start:.2f} s", soft_wrap=True)


def summary(made: Emitted) -> Table:
    """Return a table of the model's memory use: flash for code and constants, and RAM for a run on one
    thread."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("target", made.model.target.name)
    code = "" if made.code is None else f"{made.code:,} bytes of code"
    where = " in a file beside it" if made.model.beside else ""
    flash = ", ".join(t for t in (code, f"{made.weights:,} bytes of weights{where}") if t)
    if made.code is None:
        compiler = made.model.target.c_compiler
        by = f"{compiler} (not installed here)" if compiler and not shutil.which(compiler) else "the compiler"
        flash = f"{flash}, and what {by} makes of the code"
    table.add_row("flash", flash)
    at = "".join(f", {name} = {size}" for name, size in made.at.items())
    state = f"{made.state:,} bytes of state, " if made.state else ""
    stack = "" if made.stack is None else f", at most {made.stack:,} of stack"
    table.add_row("RAM", f"{state}{made.ram:,} bytes of arena{stack} (one thread{at})")
    if made.at and made.model.target.is_microcontroller:
        table.add_row("", " ".join(("fix sizes with", *(f"--shape {name}=1" for name in made.at))))
    if made.model.patches:
        table.add_row("patches", made.model.patches)
    return table
