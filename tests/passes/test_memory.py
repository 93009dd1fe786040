"""Memory planning: the buffers of a plan, and that no two live ones overlap."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest
from nets import TARGET, N, Net, attention, convolutional, feeds

from jangin.ahead.emit import for_kind
from jangin.ahead.memory import memory_of
from jangin.compiler.pipeline import lowered_plan
from jangin.ir.core import Concat, Reshape, Slice, Softmax
from jangin.ir.dtype import F32
from jangin.ir.expr import Const, const
from jangin.ir.graph import Graph
from jangin.ir.interpret import run_plan
from jangin.ir.plan import ALIGN, Launch, Plan, PlanBuffer
from jangin.ir.te import lower
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.passes.fusion.fuse import fuse
from jangin.passes.fusion.stages import stages
from jangin.passes.layouts.layout import channels_last
from jangin.passes.memory.buffers import plan_buffers


def planned(graph: Graph) -> Plan:
    """Make a plan of naive kernels."""
    launches, kernels = [], {}
    for node in graph.nodes:
        if node.op == "kernel":
            body, inputs, (out,) = stages(node)
            func = kernels[node.name] = lower(node.name, body, inputs, graph.symbols)
            args, sizes = (*(b.name for b in inputs), out.name), tuple(v for v, _ in func.symbols)
            launches.append(Launch(node.name, args, sizes, const(1), const(0), const(0)))
    return Plan(
        graph.name, "", graph.inputs, graph.outputs, tuple(graph.symbols.items()), {},
        plan_buffers(graph, graph.nodes), tuple(launches), graph.constants, kernels,
    )  # fmt: skip


def fixed(graph: Graph, n: int) -> Graph:
    """Return the graph for one batch size, without symbols."""
    values = {
        name: replace(v, shape=tuple(const(n) if d == N else d for d in v.shape or ()))
        for name, v in graph.values.items()
    }
    nodes = [
        replace(k, attrs=Reshape(values[k.outputs[0]].shape)) if k.op in ("reshape", "slice") else k
        for k in graph.nodes
    ]
    return replace(graph, values=values, symbols={}, nodes=tuple(nodes))


def kinds(graph: Graph) -> dict[str, str]:
    return {b.name: b.kind + (f" of {b.base}" if b.base else "") for b in plan_buffers(graph, graph.nodes)}


def size(b: PlanBuffer) -> int:
    return int(np.prod([d.value for d in b.shape if isinstance(d, Const)])) * b.dtype.bytes


@pytest.mark.parametrize("net", [attention, convolutional])
def test_a_static_plan_shares_one_arena(net: Callable[[], Graph]) -> None:
    graph = fixed(channels_last(net(), TARGET), 1)
    plan = planned(fuse(graph, TARGET))
    arena = [b for b in plan.buffers if b.kind == "arena"]
    assert arena and all(b.offset is not None and b.offset % 64 == 0 for b in arena)
    for a, b in combinations(arena, 2):
        assert a.offset is not None and b.offset is not None
        together = a.live[0] <= b.live[1] and b.live[0] <= a.live[1]
        apart = a.offset + size(a) <= b.offset or b.offset + size(b) <= a.offset
        assert apart or not together
    assert max((b.offset or 0) + size(b) for b in arena) < sum(map(size, arena))


def test_a_plan_computes_what_its_graph_does() -> None:
    graph = fixed(attention(), 1)
    x = feeds(graph, 1)
    got = run_plan(planned(fuse(graph, TARGET)), x)["y0"]
    np.testing.assert_allclose(got, run_graph(graph, x)["y0"], rtol=1e-4, atol=1e-5)


def test_symbolic_sizes_have_no_offsets() -> None:
    graph = fuse(attention(), TARGET)
    assert all(b.offset is None for b in plan_buffers(graph, graph.nodes))


def test_a_kernel_writes_the_output_that_reshapes_it() -> None:
    t = Net()
    y = t.relu(t.input("x", N, 6))
    z = t.b.reshape(y, [N, 2, 3])
    graph = fuse(t.done(z, t.b.softmax(z, 2)), TARGET)
    (kernel, middle) = (n.outputs[0] for n in graph.nodes if n.op == "kernel")
    reshaped = next(n.outputs[0] for n in graph.nodes if n.op == "reshape" and n.inputs == (kernel,))
    assert kinds(graph) == {
        "x": "input",
        "y0": "output",
        "y1": "output",
        kernel: "alias of y0",
        reshaped: "alias of y0",
        middle: "alias of y1",
    }


def test_one_value_as_two_outputs() -> None:
    t = Net()
    y = t.relu(t.input("x", N, 6))
    graph = fuse(t.done(y, t.b.reshape(y, [N, 2, 3])), TARGET)
    kernel = next(n.outputs[0] for n in graph.nodes if n.op == "kernel")
    assert kinds(graph) == {"x": "input", "y0": "output", kernel: "alias of y0", "y1": "alias of y0"}


def test_outputs_that_are_inputs_or_constants_stay_aliases() -> None:
    t = Net()
    x, w = t.input("x", N, 6), t.weight(3)
    t.input("unused", N)
    graph = t.done(t.b.reshape(x, [N, 2, 3]), w)
    assert kinds(graph) == {
        "x": "input",
        "unused": "input",
        w.name: "constant",
        "y0": "alias of x",
        "y1": f"alias of {w.name}",
    }


def test_lives_reach_through_aliases() -> None:
    t = Net()
    a = t.b.softmax(t.input("x", N, 6), 1)
    b = t.b.softmax(t.b.reshape(a, [N, 2, 3]), 2)
    c = t.b.softmax(b, 1)
    flat = t.b.reshape(a, [N, 3, 2])
    graph = fuse(t.done(t.b.reshape(t.add(t.b.softmax(t.b.reshape(c, [N, 3, 2]), 1), flat), [N, 6])), TARGET)
    lives = {p.name: p.live for p in plan_buffers(graph, graph.nodes) if p.kind == "arena"}
    assert lives[a.name] == (0, 3)
    assert lives[b.name] == (1, 2) and lives[c.name] == (2, 3)
    assert all(p.dtype is F32 for p in plan_buffers(graph, graph.nodes))


def test_what_a_step_reads_of_its_state_does_not_wait() -> None:
    """Four windows are read at the beginning of the graph, and each has its next frame from the one before.
    Only one window at a time lies in the arena, with its copy in another layout and a frame."""
    t, frames, states = Net(), 15, 4
    y = t.input("x", 1, 8, 1)
    windows = [t.b.node(Softmax(2), [t.input(f"state{n}", 1, 8, frames)]) for n in range(states)]
    moved = []
    for window in windows:
        whole = t.b.node(Concat(2), [window, y])
        moved.append(t.b.node(Slice(tuple(map(const, (0, 0, 1))), (1, 1, 1), window.shape), [whole]))
        y = t.relu(t.conv(whole, 8, frames + 1, pad=0))
    graph = t.done(y, *moved)
    updates = {out: f"state{n}" for n, out in enumerate(graph.outputs[1:])}
    options = for_kind(Options("cortex-m4", None, 1), "c", "inside")
    plan = lowered_plan(replace(graph, updates=updates), options)
    assert plan.updates == updates
    window = 8 * (frames + 1) * 4
    assert window <= memory_of(plan).bytes({}) <= 2 * window + ALIGN
