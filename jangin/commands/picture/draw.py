"""`jangin inspect --html`: draw a model's graph, as imported or after a pass, with measured times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from jangin.commands.common import Settings, fixed_sizes, progress, random_input, terminal
from jangin.commands.picture.page import page
from jangin.compiler.cases import imported
from jangin.compiler.driver import compile_by
from jangin.compiler.pipeline import import_model, plan_model
from jangin.files import write_text
from jangin.frontends.lower import typed
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.visible import visible

REPEATS = 20
"""A kernel's time is the median over this many runs, which a few interruptions don't move."""


def draw(model: Path, settings: Settings, options: Options, after: str, output: Path, times: bool) -> None:
    """Write an HTML page of a model's graph, as imported or after the pass `after`.

    With `times`, the kernels are measured on this machine. Raises ValueError if the model then isn't one
    plan."""
    if after == "plan":
        raise ValueError(
            "a plan is no graph: --html shows the graph after a pass, the last of which is `in_place`"
        )
    with progress(settings) as tell:
        planned = plan_model(model, options, tell)
    graph = import_model(model, options, until=after) if after else typed(imported(model, options))
    launches = [x for plan in planned.plans for x in plan.launches]
    seconds = _measured(model, options) if times else {}
    title = f"{model.name} after {after}" if after else model.name
    write_text(output, visible(page(title, graph, launches, seconds)))
    terminal().print(f"{output}: {len(graph.nodes)} nodes, {output.stat().st_size / 1e3:.0f} kB")


def _measured(model: Path, options: Options) -> Mapping[str, float]:
    exe = compile_by(options.but(threads=1), model)
    if not isinstance(exe, Executable):
        raise ValueError(
            "--times needs known sizes, and a model without branches and loops: give sizes by --shape, or "
            "leave --times out"
        )
    sizes = fixed_sizes(options.shapes)
    feeds = {spec.name: random_input(spec, sizes, seed) for seed, spec in enumerate(exe.inputs)}
    seconds: Counter[str] = Counter()
    for t in exe.launches(feeds).times(REPEATS):
        seconds[t.launch.kernel] += t.seconds  # type: ignore[assignment]
    return seconds
