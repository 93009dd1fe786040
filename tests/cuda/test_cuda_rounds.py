"""Recurrences on CUDA: one launch does all steps, and its groups wait for one another between two of them."""

from __future__ import annotations

from typing import Any

import mocked
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_cuda_warps import needs_nvrtc

import jangin
from jangin.backends.cuda import dialect, nvrtc
from jangin.backends.cuda.backend import source
from jangin.backends.cuda.prelude import WAITING
from jangin.compiler.pipeline import plan_model
from jangin.ir.groups import grouped, threads
from jangin.ir.kernel import rounds
from jangin.ir.loop import Func
from jangin.options import Options
from jangin.runtime.devices.cuda_code import ROUNDS
from jangin.targets import resolve

pytestmark = mocked.needed
STEPS, SIZES = 5, {"LSTM": 4, "GRU": 3, "RNN": 1}
"""The steps of each recurrence, and the gates of each kind."""


def recurrence(op: str, hidden: int, directions: int, seed: int = 0) -> onnx.ModelProto:
    """Make a recurrent layer whose steps are known only in a run."""
    rng, rows = np.random.default_rng(seed), SIZES[op] * hidden
    shapes = (directions, rows, 7), (directions, rows, hidden), (directions, 2 * rows)
    weights = [numpy_helper.from_array(rng.standard_normal(s).astype(np.float32) / 4, f"w{n}")
               for n, s in enumerate(shapes)]  # fmt: skip
    x, y = (
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", ["s", 3, 7]), ("y", None))
    )
    attrs = {"hidden_size": hidden, "direction": "bidirectional" if directions == 2 else "forward"}
    node = helper.make_node(op, ["x", *(w.name for w in weights)], ["y"], **attrs)
    graph = helper.make_graph([node], "g", [x], [y], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def recurrent(model: onnx.ModelProto, target: str) -> list[Func]:
    plans = plan_model(model, Options(resolve(target))).plans
    return [f for plan in plans for f in plan.kernels.values() if str(rounds(f)) != "1"]


@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
@pytest.mark.parametrize("op", SIZES)
def test_one_launch_does_all_steps(op: str, driver: Any) -> None:
    """A run has as many launches as kernels, on many groups and on one, and at several lengths. Without
    cooperative launches, each step is a launch of its own, with the same bits."""
    model = recurrence(op, 40, 2)
    found: dict[tuple[int, int], list[np.ndarray]] = {}
    for resident, cooperates in ((2, 1), (1, 1), (1, 0)):
        driver.mock_resident(resident, cooperates)
        mocked.forget()
        exe = jangin.compile(model, "cuda")
        for order, steps in ((0, STEPS), (7, STEPS), (0, 2), (0, 1)):
            driver.mock_order(order)
            x = np.random.default_rng(steps).standard_normal((steps, 3, 7)).astype(np.float32)
            before = driver.mock_launches()
            found.setdefault((order, steps), []).append(exe(x))
            launches = driver.mock_launches() - before
            assert (launches == len(exe.plan.launches)) == bool(cooperates) or steps == 1, (order, steps)
    x = np.random.default_rng(STEPS).standard_normal((STEPS, 3, 7)).astype(np.float32)
    for results in found.values():
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])
    np.testing.assert_array_equal(found[0, STEPS][0], found[7, STEPS][0])
    # states are below 1, and each of five steps adds some units of f32's rounding
    np.testing.assert_allclose(found[0, STEPS][0], jangin.compile(model, "cpu")(x), atol=1e-6)


@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
def test_a_missing_barrier_is_found(driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups that don't wait read states that others haven't stored."""
    waits = "else while (*turn == now) OTHERS_GO_ON();"
    assert waits in WAITING
    monkeypatch.setattr(dialect, "WAITING", WAITING.replace(waits, ""))
    model = recurrence("LSTM", 151, 1)
    x = np.random.default_rng(1).standard_normal((STEPS, 3, 7)).astype(np.float32)
    got, want = (jangin.compile(model, target)(x) for target in ("cuda", "cpu"))
    assert not np.allclose(got, want, atol=1e-3)


@needs_nvrtc
@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_nothing_is_spilled(target: str) -> None:
    """States of other groups are read by ordinary loads, never by those for memory that nobody writes."""
    on = resolve(f"cuda:{target}")
    for op in SIZES:
        (func,) = recurrent(recurrence(op, 40, 2), f"cuda:{target}")
        assert grouped(func) and threads(func) == 64
        compiled = nvrtc.for_architecture(on.cpu).compiled(source(func, on), on.cpu)
        assert (compiled.usage.spilled, compiled.usage.stack) == (0, 0), compiled.usage
        text = compiled.ptx.decode()
        whole = text[text.index(f"{ROUNDS}(") :]
        assert ("atom.global.inc.u32" in whole and "membar.gl" in whole) or "fence" in whole
