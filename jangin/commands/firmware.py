"""`jangin inspect --target cortex-m4`: whether a model fits a microcontroller, before any compiler runs."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rich.table import Table

from jangin.ahead.emit import model_by
from jangin.ahead.estimates import STACK, Layer, code_bytes, layers
from jangin.ahead.model import Model
from jangin.ahead.patches import choices
from jangin.commands.common import Settings, parse_bytes, progress, terminal
from jangin.compiler.cases import cases, loaded
from jangin.files import write_text
from jangin.ir.own_names import own_name
from jangin.ir.plan import Plan, PlanBuffer
from jangin.options import Options

ROWS = 24
"""Lines of the memory's picture, which fit in a terminal."""
COLUMNS = 72
"""Launches that a line of this picture has at most, for a terminal of 80 columns."""
WAYS = 4
"""Lines of the table of patches. Ways in between differ little."""
LONGEST = 48
"""Characters of a layer's name in the table, so that the other columns have space."""


def firmware(
    path: Path, settings: Settings, options: Options, ram: str, flash: str, picture: Path | None
) -> None:
    """Print a model's layers on a microcontroller with flash, RAM and estimated cycles, and its memory plan.

    `ram` and `flash` are what the board has. The first layers run in patches if the model takes more than
    `ram`. Without `ram`, what this would save is printed. `picture` is a file for the memory plan as SVG.
    Raises ValueError, which says what would fit, if the model doesn't fit."""
    room = {k: parse_bytes(f"--{k}", v) for k, v in (("ram", ram), ("flash", flash)) if v}
    console = terminal()
    with progress(settings) as tell:
        options, open_sizes = _with_least_sizes(path, options)
        model = model_by(options, path, "c", "", "inside", tell, room.get("ram"))
    plan = model.parts[-1].plan
    estimates = layers(plan, model.target)
    if open_sizes:
        console.print(f"sizes that the model leaves open: {', '.join(f'{n} = 1' for n in open_sizes)}")
    console.print(_layers_table(estimates, room))
    console.print(memory_picture(plan))
    code, arena = code_bytes(plan, estimates), model.typical_bytes()[0]
    total = {"flash": model.weights.bytes + code, "ram": model.ram}
    console.print(_summary(model, code, arena, estimates))
    if "ram" not in room:
        whole = model_by(options, path, "c", "", "inside", tell, sys.maxsize) if model.patches else model
        _print_patches(path, options, whole.parts[-1].plan)
    if picture is not None:
        write_text(picture, memory_svg(plan))
    _refuse(model, estimates, total, room)


def _with_least_sizes(path: Path, options: Options) -> tuple[Options, list[str]]:
    """Return the options with 1 for each size that the model and the options leave open, and these sizes."""
    graph = loaded(path, options).graph
    names = [n for v in graph.symbols if (n := own_name(v)) not in (options.shapes or {})]
    shapes: Mapping[str, object] = {**(options.shapes or {}), **dict.fromkeys(names, 1)}
    return (options.but(shapes=shapes) if names else options), names


def _layers_table(found: Sequence[Layer], room: Mapping[str, int]) -> Table:
    table = Table("layer", "weights", "code, about", "RAM", "cycles, about", title="layers")
    for layer in found:
        name = layer.name if len(layer.name) <= LONGEST else f"{layer.name[: LONGEST - 1]}…"
        fits = layer.ram + STACK <= room.get("ram", layer.ram + STACK)
        used = f"{layer.ram:,}" if fits else f"{layer.ram:,} (doesn't fit)"
        cycles = f"{layer.kernel.cycles:,.0f}"
        table.add_row(name, f"{layer.weights:,}", f"{layer.kernel.code:,.0f}", used, cycles)
    return table


def _summary(model: Model, code: int, arena: int, found: Sequence[Layer]) -> Table:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_row("target", model.target.name)
    table.add_row("flash", f"{model.weights.bytes:,} bytes of weights, about {code:,} of code")
    kept = f"{model.state.size:,} bytes of state, " if model.state is not None else ""
    table.add_row("RAM", f"{kept}{arena:,} bytes of arena, without inputs and outputs")
    table.add_row("stack", f"at most about {STACK:,} bytes")
    cycles = sum(layer.kernel.cycles for layer in found)
    table.add_row("a run", f"about {cycles / 1e6:.2f} million cycles")
    if model.patches:
        table.add_row("patches", model.patches)
    return table


def _print_patches(path: Path, options: Options, plan: Plan) -> None:
    """Print how little memory the first layers would take in patches, by estimates."""
    table = Table("patches", "layers", "arena, about", "more operations", title="first layers in patches")
    ways, why = choices(cases(loaded(path, options), options).made[-1].graph, plan, options)
    for choice in ways[:: max(1, -(-len(ways) // WAYS))]:
        operations = f"{100 * choice.cost.extra:.0f} %"
        table.add_row(str(choice.split.count), f"up to {choice.last}", f"{choice.bytes:,.0f}", operations)
    if ways:
        terminal().print(table, "--ram SIZE takes the first that fits.", sep="\n")
    else:
        terminal().print(f"no layers can run in patches: {why}")


def _refuse(model: Model, found: Sequence[Layer], total: Mapping[str, int], room: Mapping[str, int]) -> None:
    """Raise ValueError if the model takes more than there is, with the layers at fault and what would fit."""
    over = [k for k in room if total[k] > room[k]]
    if not over:
        return
    parts = []
    if "ram" in over:
        worst = max(found, key=lambda layer: layer.ram)
        parts.append(
            f"it takes {total['ram']:,} bytes of RAM with its stack, and there are {room['ram']:,}: "
            f"the layer {worst.name[:LONGEST]} alone takes {worst.ram:,}, and {model.patches}"
        )
    if "flash" in over:
        heavy = max(found, key=lambda layer: layer.weights)
        parts.append(
            f"it takes about {total['flash']:,} bytes of flash, and there are {room['flash']:,}: "
            f"the weights of {heavy.name[:LONGEST]} alone take {heavy.weights:,}"
        )
    raise ValueError(
        f"{model.name} doesn't fit: {'; '.join(parts)}; {' or '.join(_ways(found, total, room, over))}"
    )


def _ways(
    found: Sequence[Layer], total: Mapping[str, int], room: Mapping[str, int], over: Sequence[str]
) -> Iterator[str]:
    """Yield what would make a model fit."""
    if any(layer.floats for layer in found):
        yield "make it int8, which takes about a quarter (jangin quantize)"
    if "ram" in over and room["ram"] > STACK:
        share = math.sqrt((room["ram"] - STACK) / (total["ram"] - STACK))
        yield f"give it an image with {100 * share:.0f} % of the height and width"
    if "flash" in over:
        yield f"use a network with {100 * room['flash'] / total['flash']:.0f} % of the weights"
    yield "choose a larger board"


# --- pictures of the memory plan


def _arena(plan: Plan) -> tuple[list[PlanBuffer], int]:
    placed = [b for b in plan.buffers if b.kind == "arena" and b.bytes]
    return placed, max(((b.offset or 0) + (b.bytes or 0) for b in placed), default=0)


def memory_picture(plan: Plan) -> str:
    """Return the memory plan as text: launches from left to right, addresses from below upwards. Each letter
    is a buffer, and "#" is memory that a result takes over from an operand in the same launch."""
    placed, total = _arena(plan)
    if not total:
        return "no memory between layers"
    letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
    launches = len(plan.launches)
    shown = min(launches, COLUMNS)
    lines = []
    for row in reversed(range(ROWS)):
        at = (row + 0.5) * total / ROWS
        here = [(n, b) for n, b in enumerate(placed) if 0 <= at - (b.offset or 0) < (b.bytes or 0)]
        cells = []
        for column in range(shown):
            launch = column * launches // shown
            live = [n for n, b in here if b.live[0] <= launch <= b.live[1]]
            cells.append("#" if len(live) > 1 else letters[live[0] % len(letters)] if live else "·")
        lines.append(f"{at / 1e3:8.1f} KB  {''.join(cells)}")
    return "\n".join(["memory plan: launches from left to right", *lines])


def memory_svg(plan: Plan) -> str:
    """Return the memory plan as SVG: a rectangle for each buffer, as wide as its life."""
    placed, total = _arena(plan)
    wide, high, left = 960, 480, 80
    launches = max(1, len(plan.launches))
    shapes = []
    for n, b in enumerate(placed):
        x, w = left + b.live[0] * wide / launches, (b.live[1] - b.live[0] + 1) * wide / launches
        h = (b.bytes or 0) * high / total
        y = high - (b.offset or 0) * high / total - h
        colour = f"hsl({n * 137 % 360} 60% 65%)"
        title = escape(f"{b.name}: {b.bytes:,} bytes at {b.offset}, launches {b.live[0]} to {b.live[1]}")
        shapes.append(
            f'<rect x="{x:.1f}" y="{y:.1f}" width="{w:.1f}" height="{h:.1f}" fill="{colour}" '
            f'fill-opacity="0.7" stroke="black" stroke-width="0.5"><title>{title}</title></rect>'
        )
    shapes.append(f'<text x="4" y="12">{total:,} B</text><text x="4" y="{high}">0</text>')
    box = f'viewBox="0 0 {wide + left} {high + 8}" font-family="sans-serif" font-size="11"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {box}>\n' + "\n".join(shapes) + "\n</svg>\n"
