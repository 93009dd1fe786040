"""The whole compiler on one screen: model -> graph -> kernels -> plan -> executable."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.cache import Cache, key
from jangin.codegen.build import build
from jangin.codegen.llvm import scratch_bytes
from jangin.frontends import onnx as onnx_frontend
from jangin.ir.expr import Buffer, Const, Expr, Var, walk
from jangin.ir.graph import Array, Graph, Node, Value
from jangin.ir.loop import Func
from jangin.ir.plan import Launch, Plan
from jangin.ir.simplify import Range, simplify
from jangin.ir.text import print_func
from jangin.ir.verify import VerifyError, verify_func, verify_graph, verify_plan
from jangin.ops.core import CORE
from jangin.options import Options
from jangin.passes.batchnorm import batchnorm
from jangin.passes.constraints import constraints
from jangin.passes.cse import cse
from jangin.passes.dce import dce
from jangin.passes.fold import fold
from jangin.passes.fuse import fuse
from jangin.passes.layout import layout
from jangin.passes.lower import lower
from jangin.passes.memory import plan_buffers
from jangin.passes.simplify import simplify as simplify_graph
from jangin.passes.stages import canonical, is_opaque, opaque_func, stages
from jangin.passes.winograd import winograd as winograd_pass
from jangin.runtime.artifact import Artifact
from jangin.runtime.executable import Executable
from jangin.targets import resolve
from jangin.templates.choose import choose, opaque
from jangin.templates.scheduled import Packing, Scheduled
from jangin.version import __version__

if TYPE_CHECKING:
    import onnx

Progress = Callable[[int, int, str], None]
GraphPass = Callable[[Graph], Graph]

GRAPH_PASSES: Mapping[str, GraphPass] = {
    "lower": lower,
    "simplify": simplify_graph,
    "batchnorm": batchnorm,
    "layout": layout,
    "cleanup": simplify_graph,
    "fold": fold,
    "cse": cse,
    "dce": dce,
    "fuse": fuse,
    "winograd": winograd_pass,
}
"""In order. The whole-graph passes; after `fuse` every node is a kernel or a reshape."""

GRAIN_OPS = 20_000.0
"""Vector operations that a hand-out to another thread should be worth: some 5 us."""


def compile(
    model: str | Path | bytes | onnx.ModelProto,
    target: str = "cpu",
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    winograd: bool = True,
    cache: bool | str | Path = True,
    progress: Progress | None = None,
) -> Executable:
    """Compile an ONNX model (path, bytes or message) and load it.

    `shapes` binds symbolic sizes, `winograd` allows its rounding (see `Options`); `cache`: keep and
    reuse compiled models, True for the user's cache folder, a path for another, False for none;
    `progress(done, total, what)`.
    Raises CompileError with the node, its operator and what to do about it."""
    options = Options(resolve(target), dict(shapes or {}), winograd)
    store = None if cache is False else Cache(None if cache is True else cache)
    name = "" if store is None else key(["jangin", __version__, options.key(), *_model_bytes(model)])
    if store is not None:
        found = store.load(name, Artifact.read)
        if found is not None:
            return Executable(found, threads)
    artifact = build_artifact(model, options, progress)
    if store is not None:
        store.put(name, artifact.save)
    return Executable(artifact, threads)


def build_artifact(
    model: str | Path | bytes | onnx.ModelProto, options: Options, progress: Progress | None = None
) -> Artifact:
    """The compiler itself."""
    graph = import_model(model, options, progress)
    scheduled = schedule_kernels(graph, options, progress)
    plan = make_plan(graph, scheduled, options)
    return build(plan, options.target, lambda done, total: _tell(progress, done, total, "compile"))


def import_model(
    model: str | Path | bytes | onnx.ModelProto,
    options: Options,
    progress: Progress | None = None,
    until: str = "",
) -> Graph:
    """The model after the graph passes (after the pass `until`, where one is named)."""
    graph = onnx_frontend.load(model, options.shapes)
    if until == "import":
        return graph
    passes = graph_passes(options)
    for n, (name, graph_pass) in enumerate(passes.items()):
        _tell(progress, n, len(passes), name)
        graph = graph_pass(graph)
        if options.verify:
            _verified(name, verify_graph, graph, CORE)
        if name == until:
            break
    return graph


def graph_passes(options: Options) -> dict[str, GraphPass]:
    """The passes of a compilation, in order."""
    return {n: p for n, p in GRAPH_PASSES.items() if n != "winograd" or options.winograd}


def schedule_kernels(
    graph: Graph, options: Options, progress: Progress | None = None
) -> Mapping[str, tuple[Scheduled, tuple[str, ...]]]:
    """For each kernel node (by its result) the scheduled kernel and its argument names; equal
    kernels share one."""
    made: dict[str, Scheduled] = {}
    chosen: dict[str, tuple[Scheduled, tuple[str, ...]]] = {}
    kernels = [n for n in graph.nodes if n.op == "kernel"]
    for n, node in enumerate(kernels):
        _tell(progress, n, len(kernels), "schedule")
        chosen[node.outputs[0]] = _schedule(node, graph, options, made)
    if options.verify:
        for kernel in made.values():
            _verified(f"the template {kernel.template}", verify_func, kernel.func)
    return chosen


def _schedule(
    node: Node, graph: Graph, options: Options, made: dict[str, Scheduled]
) -> tuple[Scheduled, tuple[str, ...]]:
    name = _kernel_name(node)
    if is_opaque(node):
        func = opaque_func(node)
        text = print_func(replace(func, name="nest"))
        if text not in made:
            made[text] = opaque(replace(func, name=f"{name}_{len(made)}"))
        return made[text], (*node.inputs, node.outputs[0])
    parts, inputs, out = stages(node)
    args = (*(b.name for b in inputs), out.name)
    symbols = used_symbols(parts, (*inputs, out), graph.symbols)
    renamed, params, _, digest = canonical(parts, inputs, out, symbols)
    fixed = {p.name: () for p, b in zip(params, inputs, strict=True) if b.name in graph.constants}
    digest = f"{digest} {sorted(fixed)}"
    if digest not in made:
        unique = f"{name}_{len(made)}"
        made[digest] = choose(unique, renamed, params, symbols, fixed, options.target)
    return made[digest], args


def _kernel_name(node: Node) -> str:
    """An identifier made of the anchor's name."""
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in node.name)
    return f"k_{text[:40]}"


def used_symbols(
    parts: Sequence[Any], buffers: Sequence[Buffer], symbols: Mapping[Var, Range]
) -> dict[Var, Range]:
    """Those size symbols that a kernel mentions, in the graph's order."""
    found: set[Expr] = set()
    for b in buffers:
        for d in b.shape:
            found.update(walk(d))
    for stage in parts:
        exprs = [stage.body, stage.result, *(a.extent for a in (*stage.axes, *stage.reduce_axes))]
        for e in exprs:
            found.update(n for n in walk(e) if isinstance(n, Var))
    return {v: r for v, r in symbols.items() if v in found}


def make_plan(
    graph: Graph, scheduled: Mapping[str, tuple[Scheduled, tuple[str, ...]]], options: Options
) -> Plan:
    """Buffers, packed constants and launches."""
    constants = dict(graph.constants)
    values = dict(graph.values)
    launches, funcs, nodes = [], {}, []
    for node in graph.nodes:
        if node.op == "kernel":
            kernel, args = scheduled[node.outputs[0]]
            args = _pack(kernel, args, constants, values)
            nodes.append(replace(node, inputs=args[:-1]))
            launches.append(_launch(kernel, args, node))
            funcs[kernel.func.name] = kernel.func
        else:
            nodes.append(node)
    packed = replace(graph, values=values).with_nodes(nodes, values=values, constants=constants)
    buffers = plan_buffers(packed, packed.nodes)
    used = {b.name: packed.constants[b.name] for b in buffers if b.kind == "constant"}
    symbols = tuple(graph.symbols.items())
    plan = Plan(
        graph.name, str(options.target), graph.inputs, graph.outputs, symbols, constraints(graph), buffers,
        tuple(launches), used, funcs,
    )  # fmt: skip
    if options.verify:
        _verified("planning", verify_plan, plan)
    return plan


def _pack(
    kernel: Scheduled, args: tuple[str, ...], constants: dict[str, Array], values: dict[str, Any]
) -> tuple[str, ...]:
    """The arguments with each constant that the kernel wants in another layout packed."""
    out = list(args)
    for i, param in enumerate(kernel.func.params):
        packing: Packing | None = kernel.packings.get(param.name)
        if packing is None:
            continue
        name = f"{args[i]}@{packing.perm}{packing.axis}x{packing.groups}x{packing.width}"
        if name not in constants:
            constants[name] = packing.apply(constants[args[i]])
            values[name] = Value(name, param.dtype, param.shape)
        out[i] = name
    return tuple(out)


def _launch(kernel: Scheduled, args: tuple[str, ...], node: Node) -> Launch:
    func: Func = kernel.func
    tasks = simplify(kernel.tasks, dict(func.symbols))
    grain = max(1, round(GRAIN_OPS / max(kernel.cost, 1.0)))
    alone = isinstance(tasks, Const) and int(tasks.value) <= grain
    return Launch(
        func.name, args, tuple(v for v, _ in func.symbols), tasks, 0 if alone else grain,
        scratch_bytes(func), tuple(node.source.split("; ")),
    )  # fmt: skip


def _model_bytes(model: str | Path | bytes | onnx.ModelProto) -> list[bytes]:
    """What the cache key takes of the model: its bytes, and what its external data files are."""
    if isinstance(model, bytes):
        return [model]
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        beside = sorted(p for p in path.parent.glob("*") if p.suffix in (".data", ".bin", ".weight"))
        stamps = [f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}".encode() for p in beside]
        return [path.read_bytes() if path.is_file() else b"", *stamps]
    return [model.SerializeToString(deterministic=True)]


def _verified(stage: str, check: Callable[..., None], *args: Any) -> None:
    """`check(*args)`, its error naming the stage that broke the IR."""
    try:
        check(*args)
    except VerifyError as error:
        raise VerifyError(f"after {stage}: {error}") from error


def _tell(progress: Progress | None, done: int, total: int, what: str) -> None:
    if progress is not None:
        progress(done, total, what)


def flops(graph: Graph) -> int | None:
    """Multiply-adds times two of the convolutions and matrix products of a fused static graph; None
    where a size is symbolic."""
    total = 0
    for node in graph.nodes:
        if node.op != "kernel" or is_opaque(node):
            continue
        for stage in stages(node)[0]:
            if stage.combiner != "sum" or not stage.reduce_axes:
                continue
            sizes = [a.extent for a in (*stage.axes, *stage.reduce_axes)]
            if not all(isinstance(s, Const) for s in sizes):
                return None
            total += 2 * int(np.prod([int(s.value) for s in sizes if isinstance(s, Const)]))
    return total
