"""NNEF's windows (convolutions, pools) and regions, compared with NNEF-Tools' interpreter in float64 if it
has them, else with NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import onnxruntime
import pytest
from nnef_operations import (
    SHOWN,
    Array,
    check,
    covers,
    given,
    here,
    near,
    reference,
    run,
    torched,
    value,
)
from onnx import TensorProto, helper

from jangin.ir.graph import CompileError

__all__ = ["here"]


WINDOWS: list[dict[str, Any]] = [
    {"padding": [], "stride": [], "dilation": []},
    {"padding": [], "stride": [2, 3], "dilation": []},
    {"padding": [(1, 1), (0, 2)], "stride": [2, 1], "dilation": []},
    {"padding": [(2, 1), (2, 2)], "stride": [1, 2], "dilation": [2, 1]},
]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("groups", [1, 2, 0])
@covers("conv", "deconv")
def test_conv(window: dict[str, Any], groups: int) -> None:
    filters = {1: (6, 4, 3, 3), 2: (6, 2, 3, 3), 0: (4, 1, 3, 3)}[groups]
    check("conv", given((2, 4, 7, 9), filters, (1, filters[0])), groups=groups, **window)
    filters = {1: (4, 6, 3, 3), 2: (4, 3, 3, 3), 0: (4, 1, 3, 3)}[groups]
    outputs = filters[1] * (groups or 4)
    check("deconv", given((2, 4, 5, 6), filters, (1, outputs)), groups=groups, **window)


@covers("conv", "deconv")
def test_conv_otherwise() -> None:
    for border in ("replicate", "reflect"):
        padding = [(1, 1), (0, 2)]
        x = given((2, 4, 7, 9), (6, 4, 3, 3), (1, 6))
        check("conv", x, border=border, padding=padding, stride=[1, 1], dilation=[1, 1])
    check("conv", given((2, 4, 9), (6, 4, 3), (1, 6)))
    check("conv", given((1, 2, 4, 5, 3), (3, 2, 2, 3, 1), (1, 3)))
    padding = [(1, 1), (1, 1)]
    shape = [2, 3, 10, 11]
    check(
        "deconv",
        given((2, 4, 5, 6), (4, 3, 3, 3), (1, 3)),
        padding=padding,
        stride=[2, 2],
        output_shape=shape,
    )


POOLS: list[dict[str, Any]] = [
    {"size": [1, 1, 3, 2], "padding": [], "stride": [1, 1, 2, 1], "dilation": [1, 1, 1, 1]},
    {
        "size": [1, 1, 3, 3],
        "padding": [(0, 0), (0, 0), (1, 1), (1, 0)],
        "stride": [1, 1, 2, 2],
        "dilation": [],
    },
    {"size": [1, 3, 1, 1], "padding": [], "stride": [1, 1, 1, 1], "dilation": []},
    {"size": [1, 2, 3, 1], "padding": [(0, 0)] * 4, "stride": [1, 2, 1, 1], "dilation": []},
]


@pytest.mark.parametrize("window", POOLS)
@pytest.mark.parametrize("border", ["constant", "ignore"])
@covers("avg_pool", "box", "max_pool", "rms_pool")
def test_pools(window: dict[str, Any], border: str) -> None:
    x = given((2, 4, 7, 9))
    for name in ("max_pool", "avg_pool", "rms_pool", "box"):
        check(name, x, border=border, **window)
    check("box", x, border=border, normalize=True, **window)


@covers("argmax_pool", "max_pool_with_index", "sample")
@pytest.mark.parametrize("border", ["constant", "ignore"])
def test_places_of_pools(border: str) -> None:
    x = given((2, 4, 7, 9))
    for window in (w for w in POOLS if w["size"][:2] == [1, 1]):
        check("argmax_pool", x, border=border, **window)
        call = ", ".join(f"{k} = {value(v)}" for k, v in {"border": border, **window}.items())
        best, at = run(f"max_pool_with_index(x0, {call})", x, "m, i")
        wanted = reference["max_pool_with_index"](torched(x[0]), border=border, **window)
        near(best, wanted[0].numpy(), "max_pool_with_index")
        near(at, wanted[1].numpy(), "max_pool_with_index")
        near(run(f"sample(x0, x1, {call})", [*x, at])[0], best, "sample")
        SHOWN.update({"max_pool_with_index", "sample"})


@covers("avg_unpool", "debox", "desample", "max_unpool")
def test_unpooling() -> None:
    (x,) = given((2, 4, 6, 9))
    window = {"size": [1, 1, 2, 3], "padding": [(0, 0)] * 4, "stride": [1, 1, 2, 3]}
    call = ", ".join(f"{k} = {value(v)}" for k, v in window.items())
    best, at = run(f"max_pool_with_index(x0, {call})", [x], "m, i")
    check("desample", [best, at], **window)
    check(
        "max_unpool",
        [best, at],
        lambda *_: reference["desample"](*map(torched, [best, at]), **window),
        **window,
    )
    check("avg_unpool", [best], lambda v: reference["debox"](torched(v), **window, normalize=True), **window)
    check("debox", [best], **window)
    check("debox", [best], **window, normalize=True)
    check("debox", [best], size=[1, 1, 3, 3], padding=[], stride=[1, 1, 2, 2])


ROIS = np.array(
    [[0, 0, 6, 8], [1, 2, 5, 3], [0.4, 1.6, 6.4, 7.7], [2.6, 3.1, 3.2, 8.9], [-1.3, 4, 4, 11.2],
     [6, 9, 8, 9.1], [3, 2, 3, 7], [1.25, 0.5, 6.875, 8.125]], np.float32,
)  # fmt: skip
"""Regions of a map of 7 x 9: with and without fractions, smaller than the result, empty, and beyond the
borders."""
IMAGES = np.array([1, 0, 1, 1, 0, 0, 1, 0], np.int64)


def pooled_regions(x: Array, rois: Array, images: Array, size: list[int], mode: Callable[..., Any]) -> Array:
    """Compute the standard's cells, of which the first begins where its region does. Empty cells give 0."""
    out = np.zeros((len(rois), x.shape[1], *size))
    for n, (region, image) in enumerate(zip(np.round(rois).astype(int), images, strict=True)):
        for cell in np.ndindex(*size):
            taken = []
            for axis, i in enumerate(cell):
                low, high = region[axis], region[axis + len(size)]
                first = low + i * ((high - low) // size[axis])
                taken.append(slice(max(first, 0), max(first + -((low - high) // size[axis]), 0)))
            found = x[image][(slice(None), *taken)]
            if found.size:
                out[(n, slice(None), *cell)] = mode(found, axis=tuple(range(1, found.ndim)))
    return out


def resampled_regions(x: Array, rois: Array, images: Array, size: list[int], method: str) -> Array:
    """Compute the standard's formulas for up-sampling by size / extent, in float64."""
    out = np.zeros((len(rois), x.shape[1], *size))
    for n, (region, image) in enumerate(zip(rois.astype(np.float64), images, strict=True)):
        at = x[image]
        for axis, count in enumerate(size):
            low, extent, i = region[axis], region[axis + len(size)] - region[axis], np.arange(count)
            place = {
                "symmetric": low + (i + 0.5) * extent / count - 0.5,
                "asymmetric": low + i * extent / count,
                "aligned": low + i * (extent - 1) / max(count - 1, 1),
            }[method]
            j, last = np.floor(place), x.shape[2 + axis] - 1
            u = (place - j).reshape(-1, *[1] * (len(size) - axis - 1))
            below, above = (np.clip(v, 0, last).astype(int) for v in (j, j + 1))
            at = at.take(below, axis + 1) * (1 - u) + at.take(above, axis + 1) * u
        out[n] = at
    return out


@covers("avg_roi_pool", "max_roi_pool")
@pytest.mark.parametrize("size", [[2, 3], [1, 1], [4, 2]])
def test_region_pools(size: list[int]) -> None:
    x = [*given((2, 3, 7, 9)), ROIS, IMAGES]
    for compiled in (False, True):
        check("avg_roi_pool", x, lambda *a: pooled_regions(*a, size, np.mean), compiled, output_size=size)
        check("max_roi_pool", x, lambda *a: pooled_regions(*a, size, np.max), compiled, output_size=size)
    line = [x[0][:, :, :, 4].copy(), ROIS[:, ::2].copy(), IMAGES[:, None]]
    check(
        "max_roi_pool",
        line,
        lambda v, r, i: pooled_regions(v, r, i[:, 0], size[:1], np.max),
        output_size=size[:1],
    )


@covers("roi_resample")
@pytest.mark.parametrize("method", ["symmetric", "asymmetric", "aligned"])
def test_resampled_regions(method: str) -> None:
    x = [*given((2, 3, 7, 9)), ROIS, IMAGES]
    for size in ([2, 3], [1, 1], [9, 8]):
        how = {"output_size": size, "method": method}
        check("roi_resample", x, lambda *a, s=size: resampled_regions(*a, s, method), size[0] == 2, **how)


@covers("avg_roi_align", "max_roi_align")
def test_aligned_regions() -> None:
    """Means also equal those of ONNX's RoiAlign if a region lies inside the map."""
    x = given((2, 3, 7, 9))[0]
    for method, rate in (("symmetric", [2, 3]), ("aligned", [1, 2])):
        how = {"output_size": [2, 3], "sampling_rate": rate, "resize_method": method}

        def pooled(v: Array, r: Array, i: Array, mode: Any, rate: Any = rate, method: Any = method) -> Array:
            y = resampled_regions(v, r, i, [2 * rate[0], 3 * rate[1]], method)
            return mode(y.reshape(len(r), v.shape[1], 2, rate[0], 3, rate[1]), axis=(3, 5))

        check("avg_roi_align", [x, ROIS, IMAGES], lambda *a, f=pooled: f(*a, np.mean), **how)
        check("max_roi_align", [x, ROIS, IMAGES], lambda *a, f=pooled: f(*a, np.max), **how)
    session = onnxruntime.InferenceSession(roi_align())
    inside = np.array([[0.75, 1, 6, 8], [2, 0.5, 2.5, 7.25]], np.float32)
    (wanted,) = session.run(None, {"x": x, "rois": inside[:, [1, 0, 3, 2]], "images": IMAGES[:2]})
    check(
        "avg_roi_align", [x, inside, IMAGES[:2]], lambda *_: wanted, output_size=[2, 3], sampling_rate=[2, 2]
    )


def roi_align() -> bytes:
    value = helper.make_tensor_value_info
    node = helper.make_node(
        "RoiAlign", ["x", "rois", "images"], ["y"], output_height=2, output_width=3, sampling_ratio=2,
        coordinate_transformation_mode="half_pixel",
    )  # fmt: skip
    inputs = [value(n, TensorProto.FLOAT, None) for n in ("x", "rois")]
    graph = helper.make_graph(
        [node],
        "g",
        [*inputs, value("images", TensorProto.INT64, None)],
        [value("y", TensorProto.FLOAT, None)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 16)], ir_version=9)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("avg_roi_pool(x0, x1, x2, output_size = [2])", "spatial axis"),
        ("max_roi_pool(x0, x2, x2, output_size = [2, 2])", "4 numbers each|type"),
        ("roi_resample(x0, x1, x2, output_size = [2, 2], method = 'cubic')", "method 'cubic' is none of"),
        ("avg_roi_align(x0, x1, x2, output_size = [2, 2], sampling_rate = [0, 1])", "sampling_rate"),
    ],
)
def test_wrong_regions(call: str, message: str) -> None:
    with pytest.raises(CompileError, match=message):
        run(call, [*given((1, 3, 5, 5), (2, 4)), np.zeros(2, np.int64)])


def test_an_image_that_is_none() -> None:
    with pytest.raises(IndexError):
        run("max_roi_pool(x0, x1, x2, output_size = [1, 1])", [*given((1, 3, 5, 5)), ROIS[:1], IMAGES[:1]])
