"""Loops that are too long for Mesa's llvmpipe: refused by name, right below the limit and elsewhere."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from on_adapter import NONE, usable
from onnx import TensorProto, helper

import jangin
from jangin.runtime.devices.webgpu import opened
from jangin.runtime.devices.wgsl_loops import ENDED, iterations

ADAPTERS = usable()
LAUNCH = {"share": 3, "rounds": 2, "s0": 100}
"""The numbers of a launch."""


def running_sum(length: int | str) -> onnx.ModelProto:
    """Return a model of one loop whose iterations depend on each other."""
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [length]) for n in "xy")
    axis = helper.make_tensor("axis", TensorProto.INT64, [], [0])
    graph = helper.make_graph([helper.make_node("CumSum", ["x", "axis"], ["y"])], "g", [x], [y], [axis])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def loop(end: str, *inner: str, first: str = "0") -> list[str]:
    return [f"  for (var n1: i32 = {first}; n1 < {end}; n1++) {{", *inner, "  }"]


@pytest.mark.parametrize(
    ("body", "made"),
    [
        (["  let v0 = 1;"], 0),
        (loop("100"), 100),
        (loop("100", first="40"), 60),
        (loop("32"), 0),  # which may be unrolled
        (loop("32", *loop("50")), 1600),
        (loop("50", *loop("32")), 50),
        (loop("50", *loop("60"), *loop("70")), 50 * (1 + 60 + 70)),
        (loop("s0"), 100),
        (loop("hi", *loop("100"), first="lo"), 300),
        (loop("v7", *loop("100")), 100),  # bounds that aren't known
        (["  if (v1) {", *loop("100"), "  } else {", *loop("50"), "  }"], 150),
        (["  for (var s1 = u.first; s1 < u.first + u.rounds; s1++) {", *loop("100"), "  }"], 200),
    ],
)
def test_iterations(body: list[str], made: int) -> None:
    assert iterations(body, LAUNCH) == made


@pytest.mark.skipif(not ADAPTERS, reason=NONE)
@pytest.mark.parametrize("length", [ENDED - 1, ENDED + 1])
@pytest.mark.parametrize("is_known", [True, False])
def test_long_loops(length: int, is_known: bool) -> None:
    exe = jangin.compile(running_sum(length if is_known else "N"), target="webgpu")
    x = np.ones(length, np.float32)
    if length > ENDED and opened(ADAPTERS[0]).ends_loops:
        with pytest.raises(RuntimeError, match=rf"CumSum 'y'.* {ENDED} iterations.* makes {length}"):
            exe(x)
    else:
        np.testing.assert_array_equal(exe(x), np.cumsum(x))
