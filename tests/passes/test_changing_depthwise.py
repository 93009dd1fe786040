"""Depthwise convolutions whose weights change are quick windows, as those with constant weights are."""

from __future__ import annotations

import numpy as np
import pytest
from nets import Net

from jangin.compiler.pipeline import build_plan
from jangin.options import Options
from jangin.passes.partition import prune
from jangin.runtime.load import executable

pytestmark = pytest.mark.sampled(3)


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize(("channels", "kernel", "pad"), [(16, 3, 1), (21, 5, 2), (32, 3, 0), (5, 2, 1)])
def test_weights_that_are_an_input(channels: int, kernel: int, pad: int, stride: int) -> None:
    """The template of other sums took 40 to 80 times the kernel's bound."""
    t = Net()
    x, w = t.input("x", 2, channels, 12, 11), t.input("w", channels, 1, kernel, kernel)
    two = {"strides": (stride, stride), "dilations": (1, 1), "pads": (pad,) * 4}
    exe = executable(build_plan(prune(t.done(t.b.conv(x, w, groups=channels, **two))), Options()), 1)
    assert any(launch.template.startswith("window") for launch in exe.plan.launches)
    random = np.random.default_rng(3)
    a = random.standard_normal((2, channels, 12, 11)).astype(np.float32)
    k = random.standard_normal((channels, 1, kernel, kernel)).astype(np.float32)
    wide = np.pad(a.astype(np.float64), [(0, 0), (0, 0), (pad, pad), (pad, pad)])
    windows = np.lib.stride_tricks.sliding_window_view(wide, (kernel, kernel), axis=(2, 3))
    want = np.einsum("nchwij,cij->nchw", windows[:, :, ::stride, ::stride], k[:, 0])
    np.testing.assert_allclose(exe.run({"x": a, "w": k})["y0"], want, rtol=1e-5, atol=1e-5)
