"""Reading at run-time positions and Fourier transforms."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from against import check, ints
from one_node import f32, run

X = f32(1, 2, 5, 7)
GRID = f32(1, 4, 5, 2) * 1.3
MODES = list(product(["bilinear", "nearest", "bicubic"], ["zeros", "border", "reflection"], [0, 1]))


@pytest.mark.parametrize(("mode", "padding", "align"), MODES)
def test_grid_sample(mode: str, padding: str, align: int) -> None:
    how = {"mode": mode, "padding_mode": padding, "align_corners": align, "tolerance": 1e-4}
    check("GridSample", [X, GRID], 16, dims={0: ["n", "c", "h", "w"], 1: ["n", "p", "q", 2]}, **how)


@pytest.mark.parametrize("padding", ["zeros", "border", "reflection"])
def test_grid_sample_survives_any_position(padding: str) -> None:
    grid = GRID.copy()
    grid.reshape(-1)[:6] = np.nan, np.inf, -np.inf, 1e30, -1e30, 0
    for mode in ("bilinear", "nearest", "bicubic"):
        assert run("GridSample", [X, grid], 16, mode=mode, padding_mode=padding)[0].shape == (1, 2, 4, 5)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("mode", "ratio", "opset"), list(product(["avg", "max"], [0, 2], [10, 16])))
def test_roi_align(mode: str, ratio: int, opset: int) -> None:
    rois = np.array([[0, 0, 3, 3], [1, 1, 5, 2], [-2, 0, 9, 9]], np.float32)
    bins = {"output_height": 2, "output_width": 3, "spatial_scale": 0.7}
    inputs = [f32(2, 3, 4, 6), rois, ints(0, 1, 0)]
    check("RoiAlign", inputs, opset, mode=mode, sampling_ratio=ratio, dims={}, tolerance=1e-4, **bins)


def test_max_roi_pool() -> None:
    x = f32(2, 3, 4, 6)
    rois = np.array([[0, 0, 0, 3, 3], [1, 1, 1, 5, 2], [0, 2, 2, 2, 2], [1, -5, -9, 99, 99]], np.float32)
    check("MaxRoiPool", [x, rois[:3]], 11, pooled_shape=[2, 2], spatial_scale=1.0, dims={})
    assert run("MaxRoiPool", [x, rois], 11, pooled_shape=[3, 2])[0].shape == (4, 3, 3, 2)


def test_deform_conv() -> None:
    inputs = [f32(1, 4, 6, 6), None, f32(1, 36, 6, 6) * 2, None, f32(1, 18, 6, 6)]
    constants = {1: f32(6, 2, 3, 3), 3: f32(6)}
    how = {"offset_group": 2, "group": 2, "pads": [1] * 4, "constants": constants}
    check("DeformConv", inputs, 19, dims={}, tolerance=1e-4, **how)


def test_fourier_transforms() -> None:
    check("DFT", [f32(2, 9, 1)], 17, onesided=1, dims={}, tolerance=1e-4)
    check("DFT", [f32(2, 9, 2)], 17, inverse=1, dims={0: ["b", 9, 2]}, tolerance=1e-4)
    check("DFT", [f32(2, 9, 4, 2)], 17, axis=2, constants={1: np.array(6)}, dims={}, tolerance=1e-4)
    x = f32(3, 8)
    half = np.fft.rfft(x).astype(np.complex64).view(np.float32).reshape(3, 5, 2)
    check("DFT", [half], 20, want=[x[..., None]], inverse=1, onesided=1, dims={})


def test_spectra() -> None:
    constants = {1: np.array(7), 2: np.hanning(16).astype(np.float32), 3: np.array(16)}
    check("STFT", [f32(2, 50, 1)], 17, constants=constants, dims={0: ["b", "l", 1]}, tolerance=1e-4)
    want = run("STFT", [f32(2, 50, 1)], 17, constants=constants)
    check("STFT", [f32(2, 50, 1)[..., 0]], 17, constants=constants, want=want, dims={0: ["b", "l"]})
    edges = {3: np.array(0, np.float32), 4: np.array(4096, np.float32)}
    sizes = {0: np.array(8), 1: np.array(64), 2: np.array(8192)}
    check("MelWeightMatrix", [], 17, constants={**sizes, **edges})
