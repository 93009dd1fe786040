"""`jangin inspect`: show the intermediate representations of a model, and any kernel's code."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.table import Table

from jangin.backends.backend import backend_of
from jangin.commands import placement as nodes
from jangin.commands.common import Settings, progress, say, terminal
from jangin.commands.firmware import firmware
from jangin.commands.minimize import minimize
from jangin.commands.picture.draw import draw
from jangin.commands.program import program_text, steps_table
from jangin.commands.run import summary
from jangin.compiler.cases import Progress, cases, imported, loaded, lowered
from jangin.compiler.driver import build_by
from jangin.compiler.kernels import Job, schedule_kernels, used_symbols
from jangin.compiler.pipeline import (
    Planned,
    build_artifact,
    graph_passes,
    import_model,
    plan_graph,
    plan_model,
)
from jangin.compiler.plans import make_plan
from jangin.files import write_text
from jangin.frontends.format import ModelSource
from jangin.ir import te
from jangin.ir.graph import Graph, Node
from jangin.ir.graph_text import print_graph
from jangin.ir.limits import within
from jangin.ir.own_names import with_own_names
from jangin.ir.plan import Plan
from jangin.ir.program import IN_STEPS
from jangin.ir.text import print_func, print_plan
from jangin.options import Options
from jangin.passes.fusion.stages import is_opaque, opaque_func, stages
from jangin.passes.partition import has_steps
from jangin.passes.table import Pass
from jangin.passes.work import flops
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import checked, read_artifact
from jangin.runtime.explain import explain, explain_plan, explain_program, explain_variants
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.sizes import Signature, TensorSpec, spec_of
from jangin.runtime.variants_artifact import VariantsArtifact, listed
from jangin.targets import Target
from jangin.templates.scheduled import Scheduled

SCHEDULE = ("naive", "steps", "loop")
"""The forms in which any kernel can be shown. Back ends add the forms of their code."""
SHOWN = 400
"""The most characters that are shown of each entry of a model's metadata, because some have whole tables."""
Kernels = dict[str, tuple[Node, Scheduled]]


def inspect(
    model: Path,
    settings: Settings,
    after: str,
    kernel: str,
    show: str,
    shapes: Sequence[str],
    target: str | None,
    placement: bool = False,
    memory: bool = False,
    output: Path | None = None,
    minimal: Path | None = None,
    sizes: bool = False,
    html: Path | None = None,
    times: bool = False,
    ram: str = "",
    flash: str = "",
    picture: Path | None = None,
) -> None:
    """Print a summary of a model, or the part of it that the options choose.

    `after` names a pass whose result is printed. `kernel` and `show` choose one kernel's code. `placement`
    tells where nodes run (written to `output` as JSON too), `memory` where buffers lie, and `sizes` what the
    model's sizes are. `minimal` is the file for the smallest part that fails, and `html` the file for a
    picture of the graph, with `times` of kernels. `ram` and `flash` are what a microcontroller has, and
    `picture` is the file for a picture of its memory."""
    if model.suffix == ".jgn":
        if sizes:
            say(explain(checked(read_artifact(model))))
        else:
            _inspect_compiled(model, after, kernel, placement, memory, html is not None)
        return
    if minimal is not None:
        minimize(model, settings, minimal, shapes, target)
        return
    options = settings.options(target, shapes)
    known = ("import", "lower", *(p.name for p in backend_of(options.target).passes(options.target)), "plan")
    if after and after not in known:
        raise ValueError(f"no pass is called {after!r}; there are {', '.join(known)}")
    shown = (*SCHEDULE, *backend_of(options.target).forms)
    if show not in shown:
        raise ValueError(f"--show {show!r} is unknown; known: {', '.join(shown)}")
    plain = not (after or kernel or placement or memory or sizes or html)
    if (ram or flash or picture) and not (plain and options.target.is_microcontroller):
        raise ValueError(
            f"--ram, --flash and --picture are for microcontrollers, which {options.target.name} isn't: "
            "give for example --target cortex-m4, without options that show something else"
        )
    with within(options.limits):
        if plain and options.target.is_microcontroller:
            firmware(model, settings, options, ram, flash, picture)
        elif html is not None:
            draw(model, settings, options, after, html, times)
        else:
            _inspect_model(model, settings, options, after, kernel, show, placement, memory, sizes, output)


def _inspect_model(
    model: Path,
    settings: Settings,
    options: Options,
    after: str,
    kernel: str,
    show: str,
    placement: bool,
    memory: bool,
    sizes: bool,
    output: Path | None,
) -> None:
    if after and after != "plan":
        say(print_graph(import_model(model, options, until=after)))
        return
    if sizes:
        with progress(settings) as tell:
            say(_explained(model, options, tell))
        return
    if len(options.target.each) > 1:
        artifact = build_by(options, model)
        assert isinstance(artifact, SeveralArtifact)
        _inspect_several(artifact, after, placement, memory)
        return
    if placement:
        _placement(model, settings, options, output)
        return
    with progress(settings) as tell:
        graph = import_model(model, options, tell)
        program = build_artifact(model, options, tell) if has_steps(graph) else None
    if isinstance(program, ProgramArtifact):
        _inspect_program(program, after, kernel)
    else:
        _inspect_graph(model, graph, settings, options, after, kernel, show, memory)


def _inspect_graph(
    model: Path,
    graph: Graph,
    settings: Settings,
    options: Options,
    after: str,
    kernel: str,
    show: str,
    memory: bool,
) -> None:
    """Print one kernel's code, the plan, or its buffers if the options request one of these. Otherwise print
    a summary of the graph's kernels."""
    with progress(settings) as tell:

        def made(jobs: Sequence[Job]) -> Iterator[Scheduled]:
            for done, job in enumerate(jobs):
                tell(done, len(jobs), "kernels")
                yield job()

        scheduled = schedule_kernels(graph, options, lambda jobs: [*made(jobs)])
        plan = make_plan(graph, scheduled, options)
    nodes = {n.outputs[0]: n for n in graph.nodes if n.op == "kernel"}
    kernels = {entry[0].func.name: (nodes[out], entry[0]) for out, entry in scheduled.items()}
    if kernel:
        texts = [kernel_text(graph, *k, show, options.target) for k in _find(kernel, kernels, plan)]
        say("\n".join(texts))
    elif after == "plan":
        say(print_plan(plan))
    elif memory:
        terminal().print(_memory(plan))
    else:
        _summary(model, options, kernels, plan)


def _explained(model: ModelSource, options: Options, tell: Progress) -> str:
    variants = cases(loaded(model, options), options, tell)
    parts = [(case.sizes, *_variant(plan_graph(case.graph, options, tell))) for case in variants.made]
    return explain_variants(parts, variants.absent)


def _variant(planned: Planned) -> tuple[Sequence[TensorSpec], str]:
    """Return the outputs of a plan or program, and a description of its sizes."""
    if planned.program is None:
        (plan,) = planned.plans
        signature = Signature(plan)
        return signature.outputs, explain_plan(plan, signature.inputs)
    region = planned.program.region
    inputs, outputs = ([spec_of(region.values[n]) for n in e] for e in (region.inputs, region.outputs))
    return outputs, explain_program(planned.program, planned.plans, inputs)


def _placement(model: ModelSource, settings: Settings, options: Options, output: Path | None) -> None:
    with progress(settings) as tell:
        planned = plan_model(model, options, tell)
    rows = nodes.placement(import_model(model, options, until="import"), planned)
    terminal().print(nodes.table(rows))
    if output is not None:
        write_text(output, json.dumps(nodes.as_json(rows), indent=1) + "\n")


def _inspect_compiled(
    model: Path, after: str, kernel: str, placement: bool, memory: bool, html: bool
) -> None:
    if kernel or html or after not in ("", "plan"):
        raise ValueError(
            f"{model} is compiled: it has a plan, but no other IR; inspect the model it came from"
        )
    artifact = checked(read_artifact(model))
    if isinstance(artifact, VariantsArtifact):
        terminal().print(summary(artifact))
        for sizes, part in zip(artifact.sizes, artifact.parts, strict=True):
            terminal().print(f"variant for {listed(sizes)}:")
            _inspect_part(part, after, placement, memory)
    elif isinstance(artifact, SeveralArtifact):
        _inspect_several(artifact, after, placement, memory)
    else:
        _inspect_part(artifact, after, placement, memory)


def _inspect_several(made: SeveralArtifact, after: str, placement: bool, memory: bool) -> None:
    terminal().print(nodes.devices_table(made) if placement else summary(made))
    for name, part in zip(made.names, made.parts, strict=True) if after or memory else ():
        terminal().print(f"on {name}:")
        for whole in part.parts if isinstance(part, VariantsArtifact) else [part]:
            _inspect_part(whole, after, placement, memory)


def _inspect_part(made: Artifact | ProgramArtifact, after: str, placement: bool, memory: bool) -> None:
    if isinstance(made, ProgramArtifact):
        _inspect_program(made, after, "")
    elif after:
        say(print_plan(made.plan))
    elif placement:
        terminal().print(steps_table(made))
    elif memory:
        terminal().print(_memory(made.plan))
    else:
        terminal().print(summary(made))


def _inspect_program(artifact: ProgramArtifact, after: str, kernel: str) -> None:
    if kernel:
        raise ValueError(
            f"--kernel shows the loops of no kernel here, because {IN_STEPS}: leave --kernel out"
        )
    if after:
        say(program_text(artifact))
    else:
        terminal().print(summary(artifact))
        terminal().print(steps_table(artifact))


def kernel_text(graph: Graph, node: Node, scheduled: Scheduled, show: str, target: Target) -> str:
    """Return a kernel's text in the form `show`: its naive loop nest, the schedule's steps, the scheduled
    nest, or code of the target's back end."""
    if show == "naive":
        if is_opaque(node):
            return print_func(opaque_func(node))
        parts, inputs, results = stages(node)
        symbols = used_symbols(parts, (*inputs, *results), graph.symbols)
        return print_func(te.lower(scheduled.func.name, parts, inputs, symbols, len(results)))
    if show == "steps":
        return "".join(f"{line}\n" for line in (f"template {scheduled.template}", *scheduled.steps))
    if show == "loop":
        return print_func(scheduled.func)
    return backend_of(target).forms[show](scheduled.func, target)


def _find(name: str, kernels: Kernels, plan: Plan) -> list[tuple[Node, Scheduled]]:
    """Return the kernel called `name`, or the kernels that compute the model's node of this name. Raises
    ValueError if there are none."""
    if name in kernels:
        return [kernels[name]]
    launches = [x.kernel for x in plan.launches if name in (s.name for s in x.sources)]
    if launches:
        return [kernels[k] for k in dict.fromkeys(launches)]
    close = [k for k in kernels if name in k]
    hint = f"did you mean {', '.join(close[:5])}?" if close else f"there are {', '.join(list(kernels)[:20])}…"
    raise ValueError(f"no kernel or node is called {name!r}; {hint}")


def _summary(model: ModelSource, options: Options, kernels: Kernels, plan: Plan) -> None:
    console = terminal()
    source = imported(model, options)
    whole = source.graph
    for name, text in source.metadata.items():
        if text:
            console.print(f"{name}: {str(text)[:SHOWN]}")
    fused = import_model(model, options, until="fuse")
    for kind, names in (("input", whole.inputs), ("output", whole.outputs)):
        for name in names:
            said = whole.value(name)
            # formats needn't declare an output's shape
            tensor = fused.value(name) if said.shape is None else said
            tensor = with_own_names(tensor, (*whole.symbols, *fused.symbols))
            console.print(f"{kind} {name}: {tensor}")
    counts = Counter(n.op.removeprefix(f"{source.dialect.domain}.") for n in whole.nodes)
    weights = sum(a.nbytes for a in whole.constants.values())
    console.print(f"{len(whole.nodes)} nodes: " + ", ".join(f"{n} {op}" for op, n in counts.most_common()))
    work = flops(fused)
    known = "depends on the sizes" if work is None else f"{work / 1e9:.3f} GFLOP a run"
    console.print(f"weights {weights / 1e6:.2f} MB, {known}")
    console.print(_passes(model, options))
    table = Table("kernel", "template", "tasks", "grain", "computes", title="kernels, in order")
    for launch in plan.launches:
        template = kernels[launch.kernel][1].template
        sources = str(launch.sources)
        sizes = str(launch.tasks), str(launch.grain)
        table.add_row(launch.kernel, template, *sizes, sources)
    console.print(table)


def _passes(model: ModelSource, options: Options) -> Table:
    table = Table("pass", "nodes after it", "seconds")
    whole = imported(model, options)
    table.add_row("import", str(len(whole.graph.nodes)), "")
    lower = Pass("lower", lambda *_: lowered(whole, options))
    graph = whole.graph
    for step in (lower, *graph_passes(options)):
        start = time.perf_counter()
        graph = step.run(graph, options.target)
        table.add_row(step.name, str(len(graph.nodes)), f"{time.perf_counter() - start:.2f}")
    return table


def _memory(plan: Plan) -> Table:
    table = Table("buffer", "type", "kind", "offset", "live in launches", title="memory")
    for b in plan.buffers:
        kind = f"alias of {b.base}" if b.kind == "alias" else b.kind
        live = f"{b.live[0]} – {b.live[1]}" if b.kind == "arena" else ""
        shape = ", ".join(map(str, b.shape))
        offset = "" if b.offset is None else str(b.offset)
        table.add_row(b.name, f"{b.dtype}[{shape}]", kind, offset, live)
    return table
