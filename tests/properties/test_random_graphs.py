"""Random graphs through the whole compiler, against the interpreter on the original graph."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from graphs import LARGEST, feeds, random_graph
from hypothesis import given, note, settings
from hypothesis import strategies as st
from repeatable import repeated_by

from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ir.graph_text import print_graph
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.passes.fusion import extrema
from jangin.runtime.device import device_of
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, Target, resolve

HOST = resolve()
TARGETS = [t for t in NAMED.values() if t.triple == HOST.triple and not device_of(t.device).why_not(str(t))]
TOLERANCE = {  # a few roundings to 11 bits, and to 8 bits
    "float16": 2e-2,
    "bfloat16": 1e-1,
}


def compiled(graph: Graph, options: Options, threads: int) -> Executable:
    """Compile the graph. Every launch is shared among the threads, however small it is."""
    graph = optimize(graph, options.but(verify=True))
    plan = make_plan(graph, schedule_kernels(graph, options), options)
    launches = tuple(replace(x, grain=const(1)) for x in plan.launches)
    return Executable(build(replace(plan, launches=launches), options.target), threads)


def assert_close(name: str, got: Array, want: Array) -> None:
    assert got.shape == want.shape and got.dtype == want.dtype, name
    if want.dtype.kind in "biu":
        np.testing.assert_array_equal(got, want, name)
        return
    a, b = got.astype(np.float64), want.astype(np.float64)
    scale = max(1.0, float(np.abs(b).max(initial=0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCE.get(str(want.dtype), 1e-4) * scale, err_msg=name)


def check(graph: Graph, options: Options, threads: int) -> None:
    """Check that a compiled graph gives the interpreter's results, for any size of its symbol."""
    model = compiled(graph, options, threads)
    for n in (LARGEST, 1, 5) if graph.symbols else (1,):
        arrays = feeds(graph, n)
        want, got = run_graph(graph, arrays), model.run(arrays)
        for name in graph.outputs:
            assert_close(f"{name}, n = {n}", got[name], want[name])


@pytest.mark.sampled(3)
@settings(max_examples=30, derandomize=True)
@given(st.integers(0, 2**32), st.integers(1, 10), st.sampled_from(TARGETS), st.integers(1, 4), st.booleans())
def test_random_graphs(seed: int, length: int, target: Target, threads: int, winograd: bool) -> None:
    graph = random_graph(seed, length)
    note(print_graph(graph))
    verify_graph(graph, CORE)
    check(graph, Options(target, winograd=winograd, verify=True), threads)


@pytest.mark.sampled(3)
def test_random_kernels_of_several_results(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extrema of any row are found where the row is made, however short it is."""
    monkeypatch.setattr(extrema, "ROW", 1 / 64)
    several = 0
    for seed in range(150):
        graph, options = random_graph(seed, 1 + seed % 10), Options(TARGETS[seed % len(TARGETS)], verify=True)
        if any(len(n.outputs) > 1 for n in optimize(graph, options).nodes):
            with repeated_by(f"check(random_graph({seed}, {1 + seed % 10}), ...), for {options.target}"):
                check(graph, options, 1 + seed % 3)
            several += 1
    assert several > 20
