"""Darknet's layers that compare, with NaN, infinities, both zeros and ties, against its published source.

NaN is passed on, as in all formats. With NaN, Darknet's own code depends on the order of operands. Its maxima
leave NaN out, and relu6 and hard_mish make 0 of it. Its formulas multiply what they don't choose by 0, `x *
(x > 0)`, so that an infinite number becomes NaN. Jangin gives the result that the formula is for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_darknet import write

sys.path.insert(0, str(Path(__file__).parents[2] / "ops"))

from numbers_in_order import ROWS, all_told, pooled, softmax

import jangin
from jangin.frontends.darknet.activations import ACTIVATIONS
from jangin.frontends.darknet.dialect import ACROSS, LAYERS, LEAST, RECURRENT
from jangin.frontends.darknet.format import DarknetFormat

Array = np.ndarray[Any, Any]
IMAGE = ROWS.reshape(1, 2, 8, 8)
NET = "[net]\nwidth=8\nheight=8\nchannels=2\n"


def elu(x: Array, alpha: float = 1.0) -> Array:
    return np.where(x >= 0, x, alpha * np.expm1(x))


def leaky(slope: float) -> Callable[[Array], Array]:
    return lambda x: np.where(x > 0, x, slope * x)


def hard_mish(x: Array) -> Array:
    return np.where(x > 0, x, np.where(x < -2, 0, x * x / 2 + x))


def stair(x: Array) -> Array:
    """Return Darknet's `stair`. It is NaN for infinite numbers, because C doesn't define their integer."""
    whole = np.floor(x)
    return np.where(np.isinf(x), np.nan, np.floor(x / 2) + np.where(whole % 2 == 0, 0, x - whole))


def lhtan(x: Array) -> Array:
    return np.where(x < 0, 0.001 * x, np.where(x > 1, 0.001 * (x - 1) + 1, x))


def plse(x: Array) -> Array:
    return np.where(x < -4, 0.01 * (x + 4), np.where(x > 4, 0.01 * (x - 4) + 1, 0.125 * x + 0.5))


def positive_parts(x: Array) -> Array:
    parts = np.maximum(x, 0)
    return parts / (parts.sum(1, keepdims=True) + LEAST)


def powers(x: Array) -> Array:
    parts = np.exp(x)
    return parts / (parts.sum(1, keepdims=True) + LEAST)


OF_ONE: dict[str, Callable[[Array], Array]] = {
    "relu": lambda x: np.maximum(x, 0), "relu6": lambda x: np.clip(x, 0, 6), "leaky": leaky(0.1),
    "relie": leaky(0.01), "revleaky": leaky(0.1), "ramp": lambda x: np.maximum(x, 0) + 0.1 * x,
    "hardtan": lambda x: np.clip(x, -1, 1), "elu": elu, "selu": lambda x: 1.0507 * elu(x, 1.6732),
    "hard_mish": hard_mish, "stair": stair, "lhtan": lhtan, "plse": plse,
    "normalize_channels": positive_parts, "normalize_channels_softmax": powers,
    "normalize_channels_softmax_maxval": lambda x: powers(x - x.max(1, keepdims=True)),
}  # fmt: skip
SMOOTH = {"linear", "logistic", "tanh", "loggy", "gelu", "mish", "swish", "silu"}
"""Activations that compare nothing."""
SECTIONS: dict[str, tuple[str, Callable[[Array], Array]]] = {
    "maxpool": ("size=2\nstride=2\npadding=0\n", lambda x: pooled(x, 2, 2)),
    "maxpool padded": ("size=3\nstride=2\npadding=2\n", lambda x: pooled(x, 3, 2, 1)),
    "maxpool of channels": (
        "maxpool_depth=1\nout_channels=1\nsize=1\nstride=1\n", lambda x: x.max(1, keepdims=True),
    ),
    "softmax": ("groups=1\n", lambda x: softmax(x.reshape(1, -1), 1).reshape(x.shape)),
    "softmax of groups": ("groups=8\n", lambda x: softmax(x.reshape(8, 16), 1).reshape(x.shape)),
}  # fmt: skip
APART = {
    "avgpool", "batchnorm", "connected", "convolutional", "region", "reorg", "route", "control_channels",
    "crop", "deconvolutional", "detection", "gaussian_yolo", "implicit", "implicit_add", "implicit_mul",
    "local", "local_avgpool", "reorg3d", "shift_channels", "sam", "scale_channels", "shortcut", "upsample",
    "yolo", *RECURRENT,
}  # fmt: skip
"""Sections that compare no elements, except in their activations."""


def alike(text: str, oracle: Callable[[Array], Array], folder: Path) -> None:
    exe = jangin.compile(write(folder, NET + text, 0), threads=1, cache=False, isolated=False)
    (got,) = exe.run({"data": IMAGE}).values()
    with np.errstate(all="ignore"):
        wanted = oracle(IMAGE.astype(np.float64))
    np.testing.assert_allclose(got.reshape(wanted.shape), wanted, 1e-5, 1e-6)


@pytest.mark.parametrize("name", OF_ONE)
def test_activations(name: str, tmp_path: Path) -> None:
    alike(f"[activation]\nactivation={name}\n", OF_ONE[name], tmp_path)


@pytest.mark.parametrize("name", SECTIONS)
def test_sections(name: str, tmp_path: Path) -> None:
    options, oracle = SECTIONS[name]
    alike(f"[{name.split(' ')[0]}]\n{options}", oracle, tmp_path)


def test_boxes_without_a_score(tmp_path: Path) -> None:
    """NaN is no score: its box is never found, and hides none."""
    text = "[net]\nwidth=8\nheight=8\nchannels=6\n[yolo]\nmask=0\nanchors=1,1\nclasses=1\nnum=1\n"
    exe = jangin.compile(
        write(tmp_path, text, 0), formats=[DarknetFormat(nms=0.3, score=0.1, most=9)], cache=False,
        isolated=False,
    )  # fmt: skip
    x = np.zeros((1, 6, 8, 8), np.float32)
    x[0, 4] = -9.0
    x[0, 4, 1, 1:7], x[0, 4, 3, 3] = (3.0, np.nan, 2.0, np.nan, np.inf, 3.0), -np.inf
    (found,) = exe(x)
    certain = 1 / (1 + np.exp(-np.array([np.inf, 3, 3, 2])))
    np.testing.assert_allclose(found[:, 4], [*certain * 0.5, *[0] * 5], 1e-5)
    np.testing.assert_allclose(found[:4, 0], (np.array([5, 1, 6, 3]) + 0.5) / 8, 1e-5)


def test_everything_is_told() -> None:
    all_told({*ACTIVATIONS, *ACROSS}, OF_ONE, SMOOTH)
    walked = {name.split(" ")[0] for name in SECTIONS} | {"activation", "nms"}
    all_told({*LAYERS, *RECURRENT}, walked, APART)
