"""Groups that make one tile of sums together (split-K): the last one to arrive finishes it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import alone
import machine
import mocked
import numpy as np
import pytest
from templates.kernels import Built, conv, matmul, small_conv, small_matmul, workload
from test_cuda_warps import needs_nvrtc

from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import source
from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize, plan_model
from jangin.compiler.plans import make_plan
from jangin.ir.dtype import F32
from jangin.ir.expr import Const, const
from jangin.ir.groups import ARRIVALS
from jangin.ir.products import DOT1BF, DOT1H, DOT1T
from jangin.ir.verify import verify_func
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.targets import resolve
from jangin.templates.gpu import contraction, warps

ON = resolve("cuda:sm_80")
KERNELS: dict[str, tuple[Any, Built]] = {
    "bf16": (warps, small_matmul(DOT1BF, 49, 520, 72)),
    "window": (warps, small_conv(DOT1H, (7, 7), 40, 24, 3)),
    "tf32": (warps, small_matmul(DOT1T, 17, 333, 40)),
    "f32": (contraction, matmul((49, 333), (333, 40))),
    "f32 window": (contraction, conv((9, 9), 24, 40, 3, pad=1)),
}


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", KERNELS)
def test_shared_tiles_have_the_bits_of_native_code(name: str, driver: Any) -> None:
    """Quarters of small whole numbers are added exactly, in any order and with any rounding of products. One
    group that does all shares makes the same as a group for each."""
    template, built = KERNELS[name]
    rng = np.random.default_rng()
    t = template.match(workload(built, target=ON))
    space = [q for q in t.space() if "share" in q]
    for params in (min(space, key=t.estimate), space[rng.integers(len(space))]):
        func = t.schedule(params).func
        verify_func(func)
        arrays = {}
        for p in func.params:
            shape = [int(d.value) for d in p.shape if isinstance(d, Const)]
            arrays[p.name] = (rng.integers(-8, 9, shape) / 4).astype(p.dtype.numpy)
        native = machine.run(func, arrays, {}, machine.target(machine.runnable()[0]))
        out = func.results[0].name
        for groups in (1 << 20, 3, 1):
            for got in alone.Program([func], ON).run(func, arrays, {}, groups, driver):
                np.testing.assert_array_equal(got[out], native[out], err_msg=str(params))


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
def test_a_model_runs_again_and_again(driver: Any) -> None:
    """Two products use the memory for shares one after the other. Each leaves the counts at 0, so that the
    next run gives the same. Groups arrive in orders of their own."""
    b, rng = Builder("net", {}), np.random.default_rng()
    x = b.input("x", F32, (const(33), const(700)))
    for rows, columns in ((700, 600), (600, 500)):
        x = b.matmul(x, b.const((rng.integers(-1, 2, (rows, columns)) / 4).astype(np.float32)))
    model, options = b.graph([x], ["y"]), Options(resolve("cuda").with_figures(units=108), verify=True)
    given = rng.integers(-1, 2, (33, 700)).astype(np.float32)
    (want,) = run_graph(model, {"x": given}).values()
    made = optimize(model, options)
    plan = make_plan(made, schedule_kernels(made, options), options)
    shared = [launch for launch in plan.launches if launch.common != const(0)]
    assert len(shared) == 2 and all("share=" in launch.template for launch in shared)
    assert all(int(str(launch.common)) > ARRIVALS for launch in shared)
    exe = Executable(build(plan, options.target))
    for order in (0, 5, 9):
        driver.mock_order(order)
        np.testing.assert_array_equal(exe(given), want)  # sixteenths of whole numbers are added exactly


ENOUGH = 0.8
"""The least share of ResNet-50's operations in launches with a group for each unit."""
LAUNCHES = 60
"""Most launches of ResNet-50."""


@pytest.mark.parametrize(
    "target, kind",
    [
        ("cuda:sm_90a", "bfloat16"),
        *(pytest.param(t, k, marks=[pytest.mark.slow, pytest.mark.sampled(2)])
          for t, k in (("cuda:sm_80", "bfloat16"), ("cuda:sm_80", "float32"), ("cuda:sm_90a", "float32"))),
    ],
)  # fmt: skip
def test_groups_fill_the_device(target: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """ResNet-50 at batch 1: launches with a group for each unit do most of its operations."""
    monkeypatch.syspath_prepend(str(Path(__file__).parent.parent.parent / "benchmarks"))
    sys.modules.pop("gpu_networks", None)
    networks = pytest.importorskip("gpu_networks", reason="the networks are made by onnx")
    on = resolve(target)
    launches = [
        n for p in plan_model(networks.NETWORKS["resnet50"](kind, 1), Options(on)).plans for n in p.launches
    ]
    done = [(int(str(n.tasks)), float(str(n.flops))) for n in launches]
    filled = sum(flops for groups, flops in done if groups >= on.gpu.units)
    share = filled / sum(flops for _, flops in done)
    assert share >= ENOUGH and len(launches) <= LAUNCHES, (share, len(launches))


@needs_nvrtc
@pytest.mark.slow  # NVIDIA's compiler takes half a second for each kernel
@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", KERNELS)
def test_nothing_is_spilled(target: str, name: str) -> None:
    """Shares are read by ordinary loads, and never by those for memory that nobody writes."""
    template, built = KERNELS[name]
    on = resolve(f"cuda:{target}")
    t = template.match(workload(built, target=on))
    space = [q for q in t.space() if "share" in q]
    compiled = nvrtc.for_architecture(on.cpu).compiled(
        source(t.schedule(min(space, key=t.estimate)).func, on), on.cpu
    )
    assert (compiled.usage.spilled, compiled.usage.stack) == (0, 0), compiled.usage
    text = compiled.ptx.decode()
    arrived = text.index("atom.global.inc.u32")
    assert text.count("ld.global.f32", arrived) + text.count("ld.global.v", arrived) > 0, text[arrived:]
    assert (
        "membar.gl" in text[:arrived]
        or "fence.acq_rel.gpu" in text[:arrived]
        or "fence.sc.gpu" in text[:arrived]
    )
