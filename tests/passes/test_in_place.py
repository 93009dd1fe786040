"""Concatenations and splits move no data if kernels write the parts at their places."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from nets import RANGES, N, Net, feeds

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Kernel
from jangin.ir.expr import Var
from jangin.ir.graph import Graph
from jangin.ir.interpret import run_plan
from jangin.ir.plan import Plan
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.passes.memory.views import View, views
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, resolve

M = Var("M")
MADE, HERE = (Options(t, verify=True) for t in (NAMED["x86-64-v3"], resolve()))
"""Options for two targets. Graphs and plans are checked for the first, and code runs on the second."""


def ops(graph: Graph) -> list[str]:
    """Return the operators between kernels, and those that are kernels on their own."""
    bodies = [n.of(Kernel).body.nodes if n.op == "kernel" else (n,) for n in graph.nodes]
    return [body[0].op for body in bodies if len(body) == 1]


def planned(graph: Graph, options: Options) -> tuple[Graph, Plan]:
    after = optimize(graph, options)
    return after, make_plan(after, schedule_kernels(after, options), options)


def in_place(graph: Graph, n: int = 2) -> tuple[Graph, Plan]:
    """Return the graph after all passes, and its plan. Their results, and those of machine code, are
    checked."""
    used = {d for name in graph.inputs for d in graph.shape(name)}
    graph = replace(graph, symbols={v: r for v, r in graph.symbols.items() if v in used})
    (after, plan), (_, here) = (planned(graph, o) for o in (MADE, HERE))
    verify_graph(after, CORE)
    given = feeds(graph, n)
    want = run_graph(graph, given)
    for got in (
        run_graph(after, given),
        run_plan(plan, given),
        Executable(build(here, HERE.target)).run(given),
    ):
        for name, value in want.items():
            np.testing.assert_allclose(got[name], value, rtol=1e-4, atol=1e-4)
    return after, plan


def dense(batch: object = 1) -> Graph:
    """Make a dense block of two layers, each of which reads all earlier ones, and a last reader."""
    t = Net()
    x = t.relu(t.conv(t.input("x", batch, 3, 4, 4), 8, 3))  # type: ignore[arg-type]
    for _ in range(2):
        grown = t.relu(t.bias(t.conv(t.relu(t.bias(x)), 12, 1)))
        x = t.b.concat([x, t.conv(grown, 4, 3, stride=1)], 1)
    return t.done(t.conv(t.relu(t.bias(x)), 5, 1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, N], ids=["static", "symbolic"])
def test_a_dense_block_lies_in_one_buffer(batch: object) -> None:
    after, plan = in_place(dense(batch))
    assert ops(after).count("concat") == 2
    assert not any(n.op == "concat" for k in after.nodes if k.op == "kernel" for n in k.of(Kernel).body.nodes)
    (base,) = {v.base for v in views(after).values()}
    writers = [r for r in plan.launches if r.args[-1] == base]
    assert len(writers) == 3
    assert {v.start for v in views(after).values()} == {(0, 0, 0, 0), (0, 0, 0, 8), (0, 0, 0, 12)}


def test_kernels_that_write_different_parts_are_one() -> None:
    t = Net()
    x = t.input("x", 16, 8)
    parts = [t.relu(t.b.matmul(x, t.input(f"w{i}", 8, 8))) for i in range(3)]
    after, plan = in_place(t.done(t.b.matmul(t.b.concat(parts, 1), t.weight(24, 8))))
    assert len(views(after)) == 3
    written = [r for r in plan.launches if r.args[-1] == views(after)[next(iter(views(after)))].base]
    assert len({r.kernel for r in written[1:]}) == 1


def test_a_part_knows_its_rows_by_another_symbol_than_the_whole() -> None:
    t = Net()
    t.b.symbols[M] = RANGES[N]
    parts = [t.linear(t.input(f"x{i}", rows, 8), 8) for i, rows in enumerate((N, M))]
    after, _ = in_place(t.done(t.linear(t.b.concat(parts, 1), 4)))
    assert len(views(after)) == 2


def test_a_part_in_two_results_is_copied_to_the_second() -> None:
    t = Net()
    a, b, c = (t.conv(t.relu(t.input(f"x{i}", 1, 4, 5, 5)), 8, 1) for i in range(3))
    after, _ = in_place(t.done(t.conv(t.b.concat([a, b], 1), 4, 1), t.conv(t.b.concat([b, c], 1), 4, 1)))
    assert ops(after).count("concat") == 2
    assert [n.name[-6:] for n in after.nodes if ".part" in n.name] == [".part0"]


def test_what_the_caller_gives_or_wants_is_left_where_it_is() -> None:
    t = Net()
    x = t.input("x", 5, 4)
    y = t.b.matmul(x, t.weight(4, 4))
    after, _ = in_place(t.done(t.b.concat([x, y], 1), y))
    assert not views(after)


def test_rotations_stay_in_their_reader() -> None:
    t = Net()
    x = t.input("x", 3, 8)
    low, high = (t.b.slice(x, [0, s], [3, 4], [1, 1]) for s in (0, 4))
    turned = t.b.concat([t.b.map(lambda v: -v, high), low], 1)
    after, _ = in_place(t.done(t.mul(t.add(x, turned), x)))
    assert "concat" not in ops(after)


@pytest.mark.sampled(2)
def test_a_slice_that_kernels_read_is_no_copy() -> None:
    t = Net()
    x = t.conv(t.input("x", 1, 4, 6, 6), 32, 3)
    left, right = (t.b.slice(x, [0, s, 0, 0], [1, 16, 6, 6], [1] * 4) for s in (0, 16))
    after, _ = in_place(t.done(t.conv(left, 8, 1), t.conv(t.relu(t.conv(right, 8, 1)), 4, 1)))
    found = views(after)
    assert sorted(v.start for v in found.values()) == [(0, 0, 0, 0), (0, 0, 0, 16)]
    assert all(isinstance(v, View) for v in found.values())
