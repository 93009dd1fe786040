"""Models that run without code: NumPy computes their lowered graphs.

Such a model is ready as soon as it is read. It is a model like any other, but its device interprets graphs.
Inputs are checked, variants chosen and branches taken as in the compiled model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Any, NoReturn

import numpy as np

from jangin.compiler.cases import cases, imported
from jangin.frontends.format import ModelSource
from jangin.ir.core import Concat, Conv, LoopNest, Map
from jangin.ir.expr import Expr
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.own_names import with_own_names
from jangin.ir.plan import Plan, PlanBuffer
from jangin.ir.quick import quick_stage
from jangin.ir.sources import Sources
from jangin.ir.te import Stage
from jangin.ops.interpret import run_node, stages_of
from jangin.ops.layers import FUNCTIONS
from jangin.ops.quick import Memory, quick_node
from jangin.options import Options
from jangin.passes.constraints import constraints
from jangin.passes.partition import has_steps, partition
from jangin.runtime.artifact import Artifact
from jangin.runtime.compiled import Compiled
from jangin.runtime.device import Module, NativeCall, Transfer
from jangin.runtime.layout import Layout
from jangin.runtime.libraries import on_one_thread
from jangin.runtime.load import Runnable, executable
from jangin.runtime.profile import Launches
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.variants_artifact import VariantsArtifact


class Unsuitable(Exception):
    """NumPy would compute the model too slowly, or not at all."""


class Overtaken(Exception):
    """The interpreter stopped because something better can run the model."""


def interpreted(
    model: ModelSource, options: Options, stop: Callable[[], bool], alone: bool = False
) -> Runnable:
    """Return a model that is ready to be interpreted. Its runs raise Overtaken once `stop()` is true. Its
    products take one thread, or as many as NumPy takes if no compiler runs beside it (`alone`). Sizes that
    have one name are one size here, though compiled models may let them differ.

    Raises Unsuitable for a model with variables or with loops that NumPy can't compute as a whole. Raises
    CompileError as compiling does."""
    whole = imported(model, options)
    if whole.metadata.get("state"):
        raise Unsuitable("the model has variables")
    variants, device = cases(whole, options, layers=True), Interpreter(stop, alone)
    parts = tuple(device.part(c.graph, whole.metadata) for c in variants.made)
    artifact: Compiled = parts[0]
    if len(parts) > 1 or variants.absent:
        artifact = VariantsArtifact(parts, tuple(c.sizes for c in variants.made), variants.absent)
    functions = {name: partial(_called, function, alone) for name, function in FUNCTIONS.items()}
    return executable(artifact, options.threads, functions, device)


def _called(function: Callable[..., Any], alone: bool, *inputs: Any, **settings: Any) -> Any:
    """Call a function of `ops.layers` on as many threads as the rest of the model (see `interpreted`)."""
    with nullcontext() if alone else on_one_thread():
        return function(*inputs, **settings)


class Interpreter:
    """The device that interprets graphs. It knows the graph of each plan that it has made."""

    name = "interpreter"

    def __init__(self, stop: Callable[[], bool], alone: bool) -> None:
        self.stop, self.alone = stop, alone
        self._graphs: dict[Plan, Graph] = {}

    def part(self, graph: Graph, metadata: Mapping[str, Any]) -> Artifact | ProgramArtifact:
        """Return a lowered graph as an artefact for this device."""
        if not has_steps(graph):
            return self._artifact(graph, metadata, graph.constraints)
        program, segments = partition(graph, self.name)
        plans = tuple(
            self._artifact(s, {}, {**(constraints(s) if s.symbols else {}), **s.constraints})
            for s in segments
        )
        return ProgramArtifact(program, plans, b"", metadata, self.name)

    def _artifact(
        self, graph: Graph, metadata: Mapping[str, Any], required: Mapping[Expr, Sources]
    ) -> Artifact:
        slow = next((n for n in graph.nodes if isinstance(n.attrs, LoopNest)), None)
        if slow is not None or graph.updates:
            raise Unsuitable(f"{slow.source or slow.name}: it is a loop" if slow else "a run changes inputs")
        ends = dict.fromkeys((*graph.inputs, *graph.outputs))
        buffers = tuple(
            PlanBuffer(n, graph.dtype(n), graph.shape(n), "input" if n in graph.inputs else "output")
            for n in ends
        )
        plan = Plan(
            graph.name, self.name, graph.inputs, graph.outputs, tuple(graph.symbols.items()),
            required, buffers, (), bound=graph.bound, joined=graph.joined,
        )  # fmt: skip
        plan = with_own_names(plan, graph.symbols)
        self._graphs[plan] = graph
        return Artifact(plan, (), metadata=metadata, device=self.name)

    def why_not(self, target: str) -> str:
        return ""

    def is_processor(self, target: str) -> bool:
        return True

    def transfer(self, target: str) -> Transfer:
        return Transfer(0.0, 0.0)

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: Module | None) -> Module:
        return _Module(self._graphs[plan], self.stop, threads, self.alone)

    def flow(self, code: bytes) -> None:
        return None


class _Module:
    """A graph that is interpreted. Each of its runs needs no memory of its own, so it is its own `Memory`."""

    alignment, copies = 1, False

    def __init__(self, graph: Graph, stop: Callable[[], bool], threads: int, alone: bool) -> None:
        self._graph, self._stop, self.threads, self._alone = graph, stop, threads, alone
        self._stages: dict[str, Sequence[Stage]] = {}
        self._symbols = [v.name for v in graph.symbols]
        self._steps = _with_deaths(graph)

    def memory(self) -> _Module:
        return self

    def prepare(self, layout: Layout) -> None:
        """Does nothing, because NumPy allocates what it needs."""

    def again(self, given: Sequence[Any]) -> None:
        return None

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        graph = self._graph
        memory = Memory()
        symbols = dict(zip(self._symbols, layout.sizes, strict=True))
        values: dict[str, Array] = {**graph.constants, **dict(zip(graph.inputs, inputs, strict=True))}
        with nullcontext() if self._alone else on_one_thread():
            for node, dead in self._steps:
                if self._stop():
                    raise Overtaken
                values.update(self._results(node, values, symbols, memory, dead))
                for name in dead:
                    del values[name]
        return {name: np.array(values[name], order="C") for name, _, _ in layout.outputs}

    def _results(
        self,
        node: Node,
        values: Mapping[str, Array],
        symbols: Mapping[str, int],
        memory: Memory,
        dead: Collection[str],
    ) -> Mapping[str, Array]:
        result = None
        if isinstance(node.attrs, (Map, Conv, Concat)):
            unused, threads = memory.ends(values, node.inputs, dead), 1 if self._alone else self.threads
            inputs, dtype = [values[n] for n in node.inputs], self._graph.dtype(node.outputs[0])
            result = quick_node(node, dtype, inputs, symbols, memory, threads, unused)
        if result is None:
            return run_node(self._graph, node, values, symbols, quick_stage, self._stages_of)
        return {node.outputs[0]: result}

    def _stages_of(self, graph: Graph, node: Node) -> Sequence[Stage]:
        """Return a node's stages, which are made once for all runs."""
        if node.name not in self._stages:
            self._stages[node.name] = stages_of(graph, node)
        return self._stages[node.name]

    def read(self, layout: Layout, buffer: PlanBuffer) -> NoReturn:
        raise AssertionError("no value of the plan is in an arena")

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        raise ValueError(
            "the model isn't compiled yet, and has no kernels to time: compile it with wait=True"
        )

    def native_call(self, layout: Layout) -> NativeCall:
        raise AssertionError("Python runs the steps of interpreted programs")


def _with_deaths(graph: Graph) -> list[tuple[Node, list[str]]]:
    """Return each node with the names of the values that no later node needs."""
    needed = {*graph.outputs}
    deaths = []
    for node in reversed(graph.nodes):
        touched = {*filter(None, node.inputs), *node.outputs}
        deaths.append((node, sorted(touched - needed)))
        needed |= touched
    return deaths[::-1]
