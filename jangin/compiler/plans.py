"""Makes the plan of a graph with scheduled kernels: buffers, packed constants and launches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.compiler.kernels import Chosen
from jangin.ir.checks import Check
from jangin.ir.core import IndexCheck, Kernel
from jangin.ir.expr import Expr, Var, const, eq, select
from jangin.ir.graph import Array, Graph, Node, Value
from jangin.ir.groups import grouped, threads
from jangin.ir.kernel import launch_bytes, scratch_bytes
from jangin.ir.loop import Func
from jangin.ir.own_names import with_own_names
from jangin.ir.plan import ONE, ZERO, Launch, Plan
from jangin.ir.simplify import prove, simplify
from jangin.ir.sources import Sources
from jangin.ir.traversal import rewrite, substitute
from jangin.ir.verify import checked
from jangin.ir.verify_plan import verify_plan
from jangin.mapped import Large
from jangin.options import Options
from jangin.passes.constraints import constraints
from jangin.passes.memory.buffers import plan_buffers
from jangin.passes.memory.overlaps import overlapped
from jangin.passes.memory.updates import overwritten, updated_arguments
from jangin.passes.memory.views import start_symbols, views
from jangin.runtime.threads import default_threads
from jangin.templates.grain import grain_of
from jangin.templates.scheduled import Packing, Scheduled

LATER: Array = np.empty(0)
"""Stands for a constant that hasn't been packed yet."""


def make_plan(
    graph: Graph,
    scheduled: Chosen,
    options: Options,
    constants: dict[str, Array] | None = None,
    begin: Callable[[Plan], object] | None = None,
) -> Plan:
    """Return the plan of a graph with scheduled kernels: buffers, packed constants and launches.

    `constants` holds the graph's constants if the graph itself has none. They are packed in place, and those
    that the plan doesn't need are removed. `begin` gets the plan before it has constants."""
    constants = dict(graph.constants) if constants is None else constants
    values = dict(graph.values)
    held = sum(a.nbytes for a in constants.values())
    launches, funcs, calls, nodes = [], {}, {}, []
    packings: dict[str, tuple[str, Packing]] = {}
    scratch: dict[str, Expr] = {}
    whole = replace(graph, constants=constants)  # a result lies over no constant
    aliases, places = views(graph), {**graph.updates, **overwritten(whole)}
    for node in graph.nodes:
        if node.op == "kernel":
            kernel, args = scheduled[node.outputs[0]]
            args = updated_arguments(node, kernel, args, places)
            args = _arguments(kernel, args, packings, values)
            input_count = len(args) - len(node.outputs)
            nodes.append(replace(node, inputs=args[:input_count], outputs=args[input_count:]))
            if kernel.func.name not in funcs:
                scratch[kernel.func.name] = _scratch(kernel, options)
            starts = {n: aliases[n].start for n in node.outputs if n in aliases}
            grain = grain_of(kernel, held, options.target)
            launch = _launch(kernel, args, node, starts, scratch[kernel.func.name], grain, options)
            launches.append(_unless_empty(launch, node.outputs, graph))
            funcs[kernel.func.name] = kernel.func
            if kernel.call is not None:
                calls[kernel.func.name] = kernel.call
        elif node.op == "reshape":
            nodes.append(node)
    needed = {*graph.outputs, *(n for node in nodes for n in node.inputs)}
    plain = [n for n in constants if n in needed]
    packings = dict(sorted(packings.items(), key=lambda item: -constants[item[1][0]].nbytes))
    constant = dict.fromkeys([*plain, *packings], LATER)
    updates = {out: places.pop(out) for out in graph.updates if out in places}
    named = replace(graph, values=values, constants=constant, updates=updates)
    checks = tuple(c for n in nodes if n.op == "kernel" for c in _checks(n))
    buffers = plan_buffers(named, nodes, [c.buffer for c in checks], places)
    symbols = tuple(graph.symbols.items())
    required = {**(constraints(graph) if symbols else {}), **graph.constraints}
    plan = Plan(
        graph.name, str(options.target), graph.inputs, graph.outputs, symbols, required, buffers,
        tuple(launches), {}, funcs, calls, graph.bound, graph.joined, checks,
        updates,
    )  # fmt: skip
    if options.target.machine.fusion.small_values:
        plan = overlapped(plan)
    plan = with_own_names(plan, graph.symbols)
    if begin is not None:
        begin(plan)
    _pack(constants, packings, needed)
    plan = replace(plan, constants={b.name: constants[b.name] for b in buffers if b.kind == "constant"})
    if options.verify:
        checked("planning", verify_plan, plan)
    return plan


def _checks(kernel: Node) -> Iterator[Check]:
    """Yield the checks, at run time, that a kernel's indices are in range."""
    for node in kernel.of(Kernel).body.nodes:
        if isinstance(node.attrs, IndexCheck):
            yield Check(
                kernel.outputs[0], node.attrs.sizes, node.attrs.from_end, node.source or Sources.of(node.name)
            )


def _arguments(
    kernel: Scheduled, args: tuple[str, ...], packings: dict[str, tuple[str, Packing]], values: dict[str, Any]
) -> tuple[str, ...]:
    """Return a kernel's arguments, with the names of packed constants in place of the originals. Each packed
    constant is added to `packings`, with the original's name, and to `values`."""
    out = list(args)
    for i, param in enumerate(kernel.func.params):
        packing: Packing | None = kernel.packings.get(param.name)
        if packing is None:
            continue
        perm, *sizes = packing.layout
        out[i] = f"{args[i]}@{perm}{'x'.join(map(str, sizes))}"
        if out[i] not in packings:
            packings[out[i]] = args[i], packing
            values[out[i]] = Value(out[i], param.dtype, param.shape)
    return tuple(out)


def _pack(
    constants: dict[str, Array], packings: Mapping[str, tuple[str, Packing]], needed: Collection[str]
) -> None:
    """Pack constants on all cores, and remove from `constants` all that the plan doesn't need. The largest
    are packed first, while memory holds few others. Each original is removed after its last packing."""
    left = Counter(source for source, _ in packings.values())
    for name in [n for n in constants if n not in needed and n not in left]:
        del constants[name]
    memory = Large()
    with ThreadPoolExecutor(default_threads()) as threads:
        packed = threads.map(
            lambda item: item[1].apply(constants[item[0]], memory.empty), [*packings.values()]
        )
        for (name, (source, _)), array in zip(packings.items(), packed, strict=True):
            constants[name] = array
            left[source] -= 1
            if not left[source] and source not in needed:
                del constants[source]


def _unless_empty(launch: Launch, results: Sequence[str], graph: Graph) -> Launch:
    """Return the launch, which at run time gets no tasks if its results are empty. Otherwise a Tile of
    nothing could loop 2**40 times around an empty loop."""
    tasks, rounds, symbols = launch.tasks, launch.rounds, graph.symbols
    first, *others = (graph.shape(n) for n in results)
    for size in (d for d in first if all(d in shape for shape in others)):
        if prove(size > 0, symbols) or (rounds == ONE and _vanishes(tasks, size)):
            continue
        empty = eq(size, ZERO)
        tasks = simplify(select(empty, ZERO, tasks), symbols)
        rounds = rounds if rounds == ONE else simplify(select(empty, ZERO, rounds), symbols)
    return replace(launch, tasks=tasks, rounds=rounds)


def _vanishes(count: Expr, size: Expr) -> bool:
    """Return whether a number of tasks or rounds simplifies to 0 if the size is 0."""
    return simplify(rewrite(count, lambda e: ZERO if e is size else None)) == ZERO


def _scratch(kernel: Scheduled, options: Options) -> Expr:
    return scratch_bytes(kernel.func, groups=options.target.groups)


def _launch(
    kernel: Scheduled,
    args: tuple[str, ...],
    node: Node,
    starts: Mapping[str, tuple[int, ...]],
    scratch: Expr,
    grain: Expr,
    options: Options,
) -> Launch:
    """Return the launch of a kernel. `starts` gives, for each result that is part of a larger buffer, the
    indices at which it begins. `scratch` is the bytes of working memory."""
    func: Func = kernel.func
    start: dict[Var, Expr] = {}
    for name, result in zip(node.outputs, func.results, strict=True):
        start |= zip(start_symbols(result), map(const, starts.get(name, ())), strict=False)

    def of_model(e: Expr) -> Expr:
        return simplify(substitute(e, kernel.sizes)) if kernel.sizes else e

    ours = func if kernel.call is None or kernel.call.rest is None else kernel.call.rest
    local = (threads(ours),) if options.target.groups and grouped(ours) else ()
    return Launch(
        func.name, args, tuple({**kernel.sizes, **start}.get(v, v) for v, _ in func.symbols),
        of_model(kernel.tasks), of_model(grain), of_model(scratch),
        node.source, kernel.label, of_model(kernel.flops), of_model(kernel.bytes),
        kernel.call.library if kernel.call else "", of_model(kernel.rounds), kernel.function, local,
        of_model(launch_bytes(func)) if local else ZERO,
    )  # fmt: skip
