"""The whole compiler on one screen: model -> graph -> kernels -> plan -> executable."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from mmap import mmap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.cache import Cache, key, source_digest
from jangin.codegen.build import Builder, compile_modules
from jangin.codegen.flow import flow_module
from jangin.custom import CustomOperator
from jangin.frontends import onnx as onnx_frontend
from jangin.ir.graph import Graph
from jangin.ir.loop import Func
from jangin.ir.plan import LibraryCall, Plan
from jangin.ir.program import Program
from jangin.ir.verify import checked, verify_graph
from jangin.kernels import make_plan, schedule_kernels
from jangin.mapped import map_file, release
from jangin.ops.core import CORE
from jangin.options import Options
from jangin.passes.attention import attention
from jangin.passes.batchnorm import batchnorm
from jangin.passes.cse import cse
from jangin.passes.dce import dce
from jangin.passes.fold import fold
from jangin.passes.fuse import fuse
from jangin.passes.layout import layout
from jangin.passes.lower import lower
from jangin.passes.partition import has_steps, partition
from jangin.passes.place import place as place_pass
from jangin.passes.separable import separable
from jangin.passes.simplify import simplify
from jangin.passes.winograd import winograd as winograd_pass
from jangin.runtime.artifact import Artifact
from jangin.runtime.executable import Executable
from jangin.runtime.program import ProgramExecutable, executable, host_functions
from jangin.runtime.program_artifact import ProgramArtifact, read_artifact
from jangin.runtime.threads import default_threads
from jangin.targets import resolve
from jangin.tune.store import Store, place_of
from jangin.tune.tuner import Outcome
from jangin.tune.tuner import Progress as TuneProgress
from jangin.tune.tuner import tune as tune_graph

if TYPE_CHECKING:
    import onnx

Progress = Callable[[int, int, str], None]
GraphPass = Callable[[Graph], Graph]

GRAPH_PASSES: Mapping[str, GraphPass] = {
    "lower": lower,
    "simplify": simplify,
    "batchnorm": batchnorm,
    "layout": layout,
    "cleanup": simplify,
    "fold": fold,
    "cse": cse,
    "dce": dce,
    "fuse": fuse,
    "attention": attention,
    "separable": separable,
    "winograd": winograd_pass,
    "place": place_pass,
}
"""In order. The whole-graph passes; after `fuse` every node is a kernel or a reshape, and after `place`
perhaps a concatenation or a slice that moves nothing."""


def compile(
    model: str | Path | bytes | onnx.ModelProto,
    target: str = "cpu",
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    winograd: bool = True,
    libraries: str = "never",
    operators: Sequence[CustomOperator] = (),
    cache: bool | str | Path = True,
    tune: str | float | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
) -> Executable | ProgramExecutable:
    """Compile an ONNX model (path, bytes or message) and load it.

    `shapes` binds symbolic sizes, `winograd` allows its rounding, `libraries` other makers' kernels
    (see `Options`); `cache`: keep and reuse compiled models and what tuning found for this machine,
    True for the user's cache folder, a path for another, False for none; `tune`: seconds ("60s", "2m")
    to measure candidates first, for `sizes` of the symbols; `progress(done, total, what)`.
    `operators` are your own (see `jangin.custom`); a model that is compiled with some is not cached.
    Raises CompileError with the node, its operator and what to do about it."""
    options = Options(resolve(target), dict(shapes or {}), winograd, libraries)
    threads = threads if threads is not None else default_threads()
    folder = None if isinstance(cache, bool) else cache
    winners = None if cache is False else Store(folder)
    if winners is not None:
        options = with_winners(options, threads, winners)
    if tune is not None:
        found = tune_model(
            model, options, threads, parse_seconds(tune), sizes, winners,
            lambda done, total, what: _tell(progress, round(done), round(total), f"tune {what}"), operators,
        )  # fmt: skip
        options = replace(options, choices={**options.choices, **found.choices})
    store = None if cache is False or operators else Cache(folder)
    name = "" if store is None else key([source_digest(), options.key(), *_model_bytes(model)])
    if store is not None:
        kept = store.load(name, read_artifact)
        if kept is not None:
            return executable(kept, threads)
    artifact = build_artifact(model, options, progress, operators)
    if store is not None:
        store.put(name, artifact.save)
    return executable(artifact, threads, host_functions(operators))


def with_winners(options: Options, threads: int, store: Store) -> Options:
    """The options with the candidates that won on this machine: those of libraries only where tuned with
    the same `libraries`."""
    found = {
        digest: finding.candidate
        for libraries in dict.fromkeys(("never", options.libraries))
        for digest, finding in store.get(place_of(options.target, threads, libraries)).items()
        if finding.better
    }
    return replace(options, choices=found)


def tune_model(
    model: str | Path | bytes | onnx.ModelProto,
    options: Options,
    threads: int,
    budget: float,
    sizes: Mapping[str, int] | None = None,
    store: Store | None = None,
    progress: TuneProgress | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Outcome:
    """Measure candidates for `budget` seconds, going on from what `store` has, and keep there what is
    found. `sizes`: of symbols that stay open, what to measure for; `progress(seconds, budget, what)`. Raises
    ValueError for a model that needs steps (see `passes.partition`)."""
    graph = import_model(model, options, operators=operators)
    if has_steps(graph):
        raise ValueError("the model runs in steps that depend on its data, and only one plan can be tuned")
    here = place_of(options.target, threads, options.libraries)
    known = {} if store is None else store.get(here)
    outcome = tune_graph(graph, options, threads, sizes or {}, budget, progress, known)
    if store is not None and outcome.findings:
        store.put(here, outcome.findings)
    return outcome


def parse_seconds(text: str | float) -> float:
    """Seconds of 60, "60s" or "2m". Raises ValueError for anything else, and for less than none."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|m|)", str(text))
    if found is None:
        raise ValueError(f"a budget of {text!r} is not understood: write 60s or 2m")
    return float(found[1]) * (60.0 if found[2] == "m" else 1.0)


def build_artifact(
    model: str | Path | bytes | onnx.ModelProto,
    options: Options,
    progress: Progress | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Artifact | ProgramArtifact:
    """The compiler itself."""
    graph = import_model(model, options, progress, until="lower", operators=operators)
    metadata = onnx_frontend.metadata(model)
    if not has_steps(graph):
        return replace(build_plan(graph, options, progress), metadata=metadata)
    program, segments = partition(graph, str(options.target))
    parts = tuple(build_plan(s, options, progress) for s in segments)
    flow = compile_modules([("flow", flow_module(options.target.triple))], options.target)
    return ProgramArtifact(program, parts, flow, metadata)


def build_plan(graph: Graph, options: Options, progress: Progress | None = None) -> Artifact:
    """A lowered graph of core operators alone: one plan and its code. Kernels compile while others are
    scheduled."""
    with Builder(options.target) as builder:
        plan = lowered_plan(graph, options, progress, builder.add)
        _tell(progress, 0, 1, "compile")
        return builder.artifact(plan, lambda done, total: _tell(progress, done, total, "compile"))


def lowered_plan(
    graph: Graph,
    options: Options,
    progress: Progress | None = None,
    made: Callable[[Func, LibraryCall | None], None] | None = None,
) -> Plan:
    """A lowered graph's plan. `made` gets each kernel as it is scheduled."""
    graph = optimize(graph, options, progress)
    scheduled = schedule_kernels(
        graph, options, lambda done, total: _tell(progress, done, total, "schedule"), made
    )
    constants = dict(graph.constants)
    graph = replace(graph, constants={})  # so that each can go once it is packed
    return make_plan(graph, scheduled, options, constants)


@dataclass(frozen=True)
class Planned:
    """What a model becomes, without code: one plan, or a program and its segments' plans."""

    program: Program | None
    plans: tuple[Plan, ...]


def plan_model(
    model: str | Path | bytes | onnx.ModelProto,
    options: Options,
    progress: Progress | None = None,
    operators: Sequence[CustomOperator] = (),
) -> Planned:
    """The compiler up to code generation."""
    graph = import_model(model, options, progress, until="lower", operators=operators)
    if not has_steps(graph):
        return Planned(None, (lowered_plan(graph, options, progress),))
    program, segments = partition(graph, str(options.target))
    return Planned(program, tuple(lowered_plan(s, options, progress) for s in segments))


def import_model(
    model: str | Path | bytes | onnx.ModelProto,
    options: Options,
    progress: Progress | None = None,
    until: str = "",
    operators: Sequence[CustomOperator] = (),
) -> Graph:
    """The model after the graph passes (after the pass `until`, where one is named). A model that needs
    steps (see `passes.partition`) is lowered only: its segments are optimized one by one."""
    graph = onnx_frontend.load(model, options.shapes)
    if until == "import":
        return graph
    _tell(progress, 0, len(GRAPH_PASSES), "lower")
    graph = lower(graph, {(o.domain, o.name): o.lower for o in operators})
    if has_steps(graph):
        return graph
    if options.verify:
        checked("lower", verify_graph, graph, CORE)
    return graph if until == "lower" else optimize(graph, options, progress, until)


def optimize(graph: Graph, options: Options, progress: Progress | None = None, until: str = "") -> Graph:
    """A lowered graph after the other passes."""
    passes = graph_passes(options)
    for n, (name, graph_pass) in enumerate(passes.items()):
        if name == "lower":
            continue
        _tell(progress, n, len(passes), name)
        graph = graph_pass(graph)
        release(graph.constants.values())
        if options.verify:
            checked(name, verify_graph, graph, CORE)
        if name == until:
            break
    return graph


def graph_passes(options: Options) -> dict[str, GraphPass]:
    """The passes of a compilation, in order."""
    return {n: p for n, p in GRAPH_PASSES.items() if n != "winograd" or options.winograd}


def _model_bytes(model: str | Path | bytes | onnx.ModelProto) -> list[bytes | mmap]:
    """What the cache key takes of the model: its bytes, and, where it has external data, the name, size
    and time of the files beside it."""
    if isinstance(model, bytes):
        return [model]
    if isinstance(model, (str, os.PathLike)):
        path = Path(model)
        data = map_file(path) if path.is_file() else b""
        beside = (
            sorted(p for p in path.parent.glob("*") if p.is_file()) if data.find(b"location") >= 0 else []
        )
        return [data, *(f"{p.name} {p.stat().st_size} {p.stat().st_mtime_ns}".encode() for p in beside)]
    return [model.SerializeToString(deterministic=True)]


def _tell(progress: Progress | None, done: int, total: int, what: str) -> None:
    if progress is not None:
        progress(done, total, what)
