"""Caffe's layers that compare, with NaN, infinities, both zeros and ties, against its published source.

NaN is passed on, as in all formats. With NaN, Caffe's own code depends on the order of operands. Clip gives
its lower end, MAX of Eltwise gives the second operand, and a window's maximum leaves NaN out. Some of its
formulas multiply what they don't choose by 0, so that an infinite number becomes NaN (ReLU of -inf). Jangin
gives the result that the formula is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from test_caffe import layer, write

sys.path.insert(0, str(Path(__file__).parents[2] / "ops"))

from numbers_in_order import LEFT, RIGHT, ROWS, all_told, pooled, softmax

import jangin
from jangin.frontends.caffe.operators import LAYERS

Array = np.ndarray[Any, Any]
IMAGE = ROWS.reshape(1, 2, 8, 8)
GIVEN = {"x": ROWS, "l": LEFT, "r": RIGHT, "i": IMAGE}
Case = tuple[str, str, str, Callable[..., Array]]


def leaky(x: Array, slope: float) -> Array:
    return np.where(x < 0, x * slope, x)


def last_best(x: Array, count: int) -> Array:
    """Return the positions of the largest elements along the last axis. NaN is the largest, and the last of
    equals is first."""
    ranks = np.unique(x, return_inverse=True)[1].reshape(x.shape)
    turned = np.argsort(-ranks[..., ::-1], -1, kind="stable")[..., :count]
    return x.shape[-1] - 1 - turned


def best_of_all(x: Array) -> Array:
    places = last_best(x, 3)
    return np.stack([places, np.take_along_axis(x, places, 1)], 1)


CASES: dict[str, Case] = {
    "relu": ("ReLU", "", "x", lambda x: np.maximum(x, 0)),
    "leaky relu": ("ReLU", "relu_param { negative_slope: 0.2 }", "x", lambda x: leaky(x, np.float32(0.2))),
    "relu6": ("ReLU6", "", "x", lambda x: np.minimum(np.maximum(x, 0), 6)),
    "crelu": ("CReLU", "", "x", lambda x: np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], 1)),
    "prelu": ("PReLU", "", "i", lambda x: leaky(x, 0.25)),
    "elu": ("ELU", "elu_param { alpha: 0.5 }", "x", lambda x: np.where(x > 0, x, 0.5 * np.expm1(x))),
    "clip": ("Clip", "clip_param { min: -1 max: 2 }", "x", lambda x: np.minimum(np.maximum(x, -1), 2)),
    "threshold": ("Threshold", "threshold_param { threshold: 3 }", "x", lambda x: x > 3),
    "absolute": ("AbsVal", "", "x", np.abs),
    "bnll": ("BNLL", "", "x", lambda x: np.logaddexp(x, 0)),
    "maximum": ("Eltwise", "eltwise_param { operation: MAX }", "l r", np.maximum),
    "maximum of three": (
        "Eltwise", "eltwise_param { operation: MAX }", "l r l", lambda x, y, z: np.maximum(x, y),
    ),
    "softmax": ("Softmax", "", "x", lambda x: softmax(x, 1)),
    "pool": ("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", "i", lambda x: pooled(x, 2, 2)),
    "padded pool": (
        "Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 1 round_mode: FLOOR }", "i",
        lambda x: pooled(x, 3, 2, 1),
    ),
    "global pool": (
        "Pooling", "pooling_param { global_pooling: true }", "i", lambda x: x.max((2, 3), keepdims=True),
    ),
    "argmax": ("ArgMax", "argmax_param { axis: 1 }", "x", lambda x: last_best(x, 1)),
    "argmax of a few": ("ArgMax", "argmax_param { axis: 1 top_k: 4 }", "x", lambda x: last_best(x, 4)),
    "argmax of rows": ("ArgMax", "argmax_param { axis: 2 top_k: 2 }", "i",
                       lambda x: last_best(x.swapaxes(2, 3), 2).swapaxes(2, 3)),
    "largest": (
        "ArgMax", "argmax_param { axis: 1 out_max_val: true }", "x", lambda x: x.max(1, keepdims=True),
    ),
    "argmax of all": ("ArgMax", "argmax_param { top_k: 3 out_max_val: true }", "x", best_of_all),
}  # fmt: skip
BY_BOXES = {"DetectionOutput", "ROIPooling"}
APART = {
    "PriorBox",  # their sizes are known
    "Mish", "Sigmoid", "TanH", "Dropout", "Split", "Swish", "BN", "Power", "Exp", "Log", "BatchNorm", "Scale",
    "Bias", "Axpy", "MVN", "Normalize", "Reduction", "Embed", "Concat", "Slice", "Flatten", "Reshape",
    "Permute", "Tile", "Crop", "ShuffleChannel", "LSTM", "RNN", "Convolution", "ConvolutionDepthwise",
    "DepthwiseConvolution", "Deconvolution", "InnerProduct", "LRN", "Upsample", "Unpooling", "MatMul",
    "Interp", "Reorg", "PSROIPooling",
}  # fmt: skip
"""Layers that compare no elements."""


def inputs(given: Mapping[str, Array]) -> str:
    return "".join(
        f'input: "{n}"\ninput_shape {{ {" ".join(f"dim: {d}" for d in a.shape)} }}\n'
        for n, a in given.items()
    )


@cache
def results() -> Mapping[str, Array]:
    """Return the results of all layers, in one network."""
    text = 'name: "walk"\n' + inputs(GIVEN)
    for n, (kind, more, bottoms, _) in enumerate(CASES.values()):
        text += layer(kind, more, bottoms, f"y{n}", f"l{n}")
    slopes = f"l{list(CASES).index('prelu')}"
    with TemporaryDirectory() as folder:
        path = write(Path(folder), text, {slopes: [(2,)]})
        stored = path.with_suffix(".caffemodel")
        rng = np.random.default_rng(0).uniform(0.05, 0.4, (2,)).astype("<f4").tobytes()
        stored.write_bytes(stored.read_bytes().replace(rng, np.full(2, 0.25, "<f4").tobytes()))
        return jangin.compile(path, threads=1, cache=False, isolated=False).run(GIVEN)


@pytest.mark.parametrize("name", CASES)
def test_as_the_source_says(name: str) -> None:
    *_, bottoms, oracle = CASES[name]
    with np.errstate(all="ignore"):
        wanted = oracle(*(GIVEN[n].astype(np.float64) for n in bottoms.split(" ")))
    got = results()[f"y{list(CASES).index(name)}"]
    np.testing.assert_allclose(got.astype(np.float64).reshape(wanted.shape), wanted, 1e-5, 1e-6)


def test_maxima_of_regions(tmp_path: Path) -> None:
    """The region is as large as the image, and each cell is a quarter of it."""
    regions = np.array([[0, 0, 0, 7, 7]], np.float32)
    text = inputs({"i": IMAGE, "r": regions}) + layer(
        "ROIPooling", "roi_pooling_param { pooled_h: 2 pooled_w: 2 spatial_scale: 1 }", "i r"
    )
    exe = jangin.compile(write(tmp_path, text, {}), threads=1, cache=False, isolated=False)
    (got,) = exe.run({"i": IMAGE, "r": regions}).values()
    np.testing.assert_array_equal(got, pooled(IMAGE, 4, 4))


def test_boxes_without_a_score(tmp_path: Path) -> None:
    """NaN is no score: its box is never found, and hides none. The first of boxes with equal scores is
    first."""
    scores = np.array([[np.nan, 0.5, 0.7, np.nan, 0.7, 0.6]], np.float32)
    given = {
        "map": np.zeros((1, 1, 1, 6), np.float32), "image": np.zeros((1, 1, 10, 60), np.float32),
        "moves": np.zeros((1, 24), np.float32), "odds": np.stack([1 - scores, scores], 2).reshape(1, 12),
    }  # fmt: skip
    text = inputs(given) + layer(
        "PriorBox", "prior_box_param { min_size: 2 clip: false }", "map image", "priors", "p"
    )
    text += layer(
        "DetectionOutput",
        "detection_output_param { num_classes: 2 nms_param { nms_threshold: 0.3 top_k: 6 } keep_top_k: 6 "
        "code_type: CENTER_SIZE background_label_id: 0 }", "moves odds priors",
    )  # fmt: skip
    exe = jangin.compile(write(tmp_path, text, {}), threads=1, cache=False, isolated=False)
    (found,) = exe.run({n: a for n, a in given.items() if n in {i.name for i in exe.inputs}}).values()
    best = [2, 4, 5, 1]
    np.testing.assert_allclose(found[0, 0, :, 2], [*scores[0, best], 0, 0])
    np.testing.assert_allclose(found[0, 0, :4, 3], (np.array(best) * 10 + 4) / 60, 1e-6)


def test_every_layer_is_told() -> None:
    all_told(LAYERS, {kind for kind, *_ in CASES.values()} | BY_BOXES, APART)
