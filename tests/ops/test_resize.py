"""Resize and Upsample: every mode against ONNX Runtime, also with symbolic sizes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from against import check, ints
from one_node import Array, f32, lowered, run

from jangin.ir.core import Compute
from jangin.ir.graph import CompileError

X = f32(1, 2, 5, 7)
IMAGE: dict[int, list[int | str]] = {0: [1, 2, "height", "width"]}
NONE = np.zeros(0, np.float32)
COORDINATES = ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"]
ROUNDINGS = ["round_prefer_floor", "floor", "ceil", "round_prefer_ceil"]


def scales(*values: float) -> dict[int, Array]:
    return {1: NONE, 2: np.array(values, np.float32)}


@pytest.mark.parametrize(("coordinates", "rounding"), list(product(COORDINATES, ROUNDINGS)))
def test_nearest(coordinates: str, rounding: str) -> None:
    mode = {"coordinate_transformation_mode": coordinates, "nearest_mode": rounding}
    factors = (
        [(1, 1, 2, 2), (1, 1, 3, 2)] if coordinates == "align_corners" else [(1, 1, 2, 2), (1, 1, 0.6, 1.7)]
    )
    for f in factors:
        check("Resize", [X], 13, constants=scales(*f), **mode)
    for size in [(1, 2, 10, 14), (1, 2, 3, 4), (1, 2, 1, 9)]:
        check("Resize", [X], 13, constants={1: NONE, 2: NONE, 3: ints(*size)}, dims=IMAGE, **mode)


@pytest.mark.parametrize(("mode", "coordinates"), list(product(["linear", "cubic"], COORDINATES)))
def test_interpolated(mode: str, coordinates: str) -> None:
    how = {"mode": mode, "coordinate_transformation_mode": coordinates, "tolerance": 1e-4}
    factors = [(1, 1, 2, 2)] if coordinates == "align_corners" else [(1, 1, 2, 2), (1, 1, 3, 0.5)]
    for f in factors:
        check("Resize", [X], 13, constants=scales(*f), **how)
    for size in [(1, 2, 10, 14), (1, 2, 3, 4)]:
        check("Resize", [X], 13, constants={1: NONE, 2: NONE, 3: ints(*size)}, dims=IMAGE, **how)


def test_cubic_without_what_lies_outside() -> None:
    how = {"mode": "cubic", "exclude_outside": 1, "cubic_coeff_a": -0.5}
    check("Resize", [X], 13, constants=scales(1, 1, 2, 0.7), tolerance=1e-4, **how)


@pytest.mark.parametrize("mode", ["linear", "cubic"])
@pytest.mark.parametrize("size", [(3, 4), (10, 3), (2, 14)])
def test_antialias(mode: str, size: tuple[int, int]) -> None:
    how = {"mode": mode, "antialias": 1, "axes": [2, 3], "constants": {3: ints(*size)}}
    check("Resize", [X], 18, dims={0: ["n", "c", 5, 7]}, tolerance=1e-4, **how)


def test_crop_and_aspect_ratio() -> None:
    roi = np.array([0, 0, 0.2, -0.1, 1, 1, 0.7, 1.2], np.float32)
    check(
        "Resize", [X], 13, mode="linear", coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=7.0, constants={1: roi, 2: NONE, 3: ints(1, 2, 4, 6)}, dims=IMAGE, tolerance=1e-4,
    )  # fmt: skip
    for policy in ("not_larger", "not_smaller"):
        how = {"mode": "linear", "axes": [2, 3], "keep_aspect_ratio_policy": policy}
        check("Resize", [X], 18, constants={3: ints(9, 20)}, dims={}, tolerance=1e-4, **how)


def test_older_forms() -> None:
    check("Upsample", [X], 9, constants={1: np.array((1, 1, 2, 3), np.float32)})
    check("Upsample", [X], 7, mode="linear", scales=[1.0, 1.0, 2.0, 2.0])
    want = [X.repeat(2, 2).repeat(3, 3)]
    check("Upsample", [X], 1, want=want, height_scale=2.0, width_scale=3.0)
    check("Resize", [X], 10, constants={1: np.array((1, 1, 0.6, 0.6), np.float32)})
    check("Resize", [X], 10, mode="linear", constants={1: np.array((1, 1, 1.5, 0.6), np.float32)})
    how = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}
    check("Resize", [X], 11, constants=scales(1, 1, 2, 2), **how)


def test_other_ranks_and_types() -> None:
    check("Resize", [f32(1, 1, 3, 4, 5)], 13, mode="linear", constants=scales(1, 1, 2, 2, 1.5))
    x = np.abs(f32(1, 3, 4, 4) * 50).astype(np.uint8)
    check("Resize", [x], 13, mode="linear", constants=scales(1, 1, 2, 2), tolerance=1)


def test_doubling_reads_half_the_index() -> None:
    for coordinates in ("asymmetric", "half_pixel"):
        graph = lowered(
            "Resize", [X], 13, constants=scales(1, 1, 2, 2), coordinate_transformation_mode=coordinates
        )
        columns, rows = graph.nodes[0].of(Compute).stages
        assert str(columns.body) == "x0[i0, i1, i2, (i3 // 2)]"
        assert str(rows.body) == "axis3[i0, i1, (i2 // 2), i3]"


def test_errors() -> None:
    with pytest.raises(CompileError, match="run time"):
        run("Resize", [X, None, np.array((1, 1, 2, 2), np.float32)], 13)
    with pytest.raises(CompileError, match="'area'"):
        run("Resize", [X], 13, mode="area", constants=scales(1, 1, 2, 2))


@pytest.mark.parametrize("antialias", [0, 1])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_axes_without_entries(mode: str, antialias: int) -> None:
    """A result without elements needs no positions. An empty axis has nothing for others."""
    how = {"mode": mode, "antialias": antialias if mode != "nearest" else 0}
    (y,) = run("Resize", [f32(1, 2, 3, 2)], 18, constants={3: ints(1, 2, 0, 4)}, **how)
    assert y.shape == (1, 2, 0, 4)
    with pytest.raises(CompileError, match="without entries"):
        run("Resize", [f32(1, 2, 0, 2)], 18, constants={3: ints(1, 2, 4, 4)}, **how)
