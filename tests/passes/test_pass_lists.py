"""Each back end's whole list of passes, for each kind of machine."""

from __future__ import annotations

from dataclasses import replace

import pytest
from nets import Net

from jangin.backends.backend import BACKENDS, backend_of
from jangin.compiler.pipeline import graph_passes, optimize
from jangin.ir.core import Conv
from jangin.options import Options
from jangin.passes.table import GPU_PASSES, GRAPH_PASSES, Pass
from jangin.targets import NAMED
from jangin.targets.gpu import Gpu

V3 = NAMED["x86-64-v3"]
GPU = replace(V3, backend="opencl", machine=Gpu(units=4, group=256, shared=16 << 10))
OF_PROCESSORS = [
    "deep_products", "shared_words", "lookups", "large_windows", "extrema", "scalars", "updates",
]  # fmt: skip


def names(passes: list[Pass] | tuple[Pass, ...]) -> list[str]:
    return [p.name for p in passes]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_back_end_s_list_is_whole(backend: str) -> None:
    for target in (replace(V3, backend=backend), replace(V3, backend=backend, machine=Gpu())):
        found = names([*backend_of(target).passes(target)])
        assert len(found) == len({*found})
        wanted = [n for n in names([*GRAPH_PASSES]) if n in found]
        assert [n for n in found if n in wanted] == wanted, "the common order"
        assert {"simplify", "layout", "integers", "fuse", "in_place"} <= {*found}


def test_what_pays_on_processors_alone() -> None:
    assert [n for n in names([*GRAPH_PASSES]) if n not in names([*GPU_PASSES])] == OF_PROCESSORS
    on_gpu, on_cpu = (names([*backend_of(t).passes(t)]) for t in (GPU, replace(V3, backend="opencl")))
    assert [n for n in on_cpu if n not in on_gpu] == OF_PROCESSORS


def test_planes_are_weighed_on_processors_alone() -> None:
    t = Net()
    graph = t.done(t.relu(t.conv(t.input("x", 1, 3, 64, 64), 8, 3)))
    orders = []
    for target in (replace(V3, backend="opencl"), GPU):
        after = optimize(graph, Options(target), until="layout")
        orders.append([n.attrs.layout for n in after.nodes if isinstance(n.attrs, Conv)])
    assert orders == [["first"], ["last"]]


def test_an_option_leaves_its_pass_out() -> None:
    for options in (Options(V3, winograd=False), Options(GPU, winograd=False)):
        assert "winograd" not in names(graph_passes(options))
        assert "bf16" in names(graph_passes(options))
