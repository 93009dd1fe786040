"""Kernels for work-groups with elements of every type, through the passes. Native code runs their blocks and
threads one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from jangin.backends.backend import Kernel
from jangin.backends.llvm.backend import LLVM
from jangin.compiler import plans as planning
from jangin.compiler.build import build
from jangin.ir.dtype import F32, DType
from jangin.ir.expr import Expr
from jangin.ir.groups import grouped
from jangin.ir.kernel import scratch_bytes
from jangin.ir.loop import Func
from jangin.ir.plan import Plan
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.passes.table import GPU_PASSES, Pass
from jangin.runtime.executable import Executable
from jangin.targets import Target, resolve
from jangin.targets.gpu import Gpu
from jangin.templates.choose import Match
from jangin.templates.gpu.table import TEMPLATES
from templates.test_types import ALLOWED, CASES, Layer, graph_of, kernels


class Serial(LLVM):
    """Native code of kernels for work-groups."""

    name = "serial"

    def templates(self, target: Target) -> Mapping[str, Match]:
        return TEMPLATES

    def passes(self, target: Target) -> Sequence[Pass]:
        return GPU_PASSES

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        return super().code(kernel, HERE, written)

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        return super().runner(plan, HERE)


HERE = resolve()
TARGET = replace(HERE, backend=Serial(), machine=Gpu(units=4, group=128, shared=16 << 10))
QUICK = ("3x3", "product", "batched-turned", "softmax", "max-pool", "sum-first")


@pytest.fixture(autouse=True)
def shared_in_scratch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make native code place shared buffers in its scratch memory."""

    def all_of(func: Func, *, groups: bool = False) -> Expr:
        return scratch_bytes(func)

    monkeypatch.setattr(planning, "scratch_bytes", all_of)
    yield


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("layer", "dtype", "make"),
    [pytest.param(*c, marks=() if c[0] in QUICK and c[1] is not F32 else pytest.mark.slow) for c in CASES],
    ids=lambda v: "" if callable(v) else str(v),
)
def test_every_type(layer: str, dtype: DType, make: Layer) -> None:
    options = Options(TARGET, winograd=False, verify=True)
    graph, t = graph_of(dtype, make)
    fused, chosen = kernels(graph, options)
    assert all(grouped(kernel.func) for kernel, _ in chosen.values())
    model = Executable(build(planning.make_plan(fused, chosen, options), options.target), 1)
    arrays = {n: t.numbers(graph.dtype(n), *(int(str(d)) for d in graph.shape(n))) for n in graph.inputs}
    want, got = run_graph(graph, arrays)["out"], model.run(arrays)["out"]
    if want.dtype.kind not in "f" and str(want.dtype) != "bfloat16":
        np.testing.assert_array_equal(got, want)
        return
    scale = np.abs(want.astype(np.float64)).max()
    error = np.abs(got.astype(np.float64) - want.astype(np.float64)).max() / scale
    assert error <= ALLOWED[graph.dtype("out")], error
