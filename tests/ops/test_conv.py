"""Convolutions, transposed convolutions and integer convolutions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from against import check, ints
from one_node import Array, f32, run

from jangin.ir.graph import CompileError

X = f32(2, 3, 7, 6)
BATCH: dict[int, list[int | str]] = {0: ["n", 3, "height", "width"]}


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "pad"), list(product([1, 3], [1, 2], [1, 2], [0, 1]))
)
@pytest.mark.parametrize("group", [1, 3])
def test_conv(kernel: int, stride: int, dilation: int, pad: int, group: int) -> None:
    constants = {1: f32(6, 3 // group, kernel, kernel, seed=1), 2: f32(6, seed=2)}
    window = {"strides": [stride] * 2, "dilations": [dilation] * 2, "pads": [pad, 0, pad, pad]}
    check("Conv", [X], 11, group=group, constants=constants, dims=BATCH, **window)


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER", "VALID"])
@pytest.mark.parametrize(("stride", "kernel"), [(1, 3), (2, 3), (2, 2), (3, 2)])
def test_automatic_padding(auto_pad: str, stride: int, kernel: int) -> None:
    constants = {1: f32(4, 3, kernel, kernel, seed=1)}
    check("Conv", [X], 11, strides=[stride] * 2, auto_pad=auto_pad, constants=constants, dims=BATCH)


def test_other_ranks() -> None:
    check("Conv", [f32(2, 4, 9)], 11, constants={1: f32(4, 2, 3)}, group=2, pads=[1, 1])
    pads, weights = [1, 1, 1, 0, 1, 0], f32(4, 2, 3, 3, 2)
    check("Conv", [f32(1, 2, 5, 5, 4)], 11, constants={1: weights}, pads=pads, strides=[1, 2, 1])
    with pytest.raises(CompileError, match="same rank"):
        run("Conv", [X], 11, constants={1: f32(4, 3, 3)})


@pytest.mark.parametrize(("kernel", "stride", "dilation"), list(product([1, 2, 3, 4], [1, 2, 3], [1, 2])))
@pytest.mark.parametrize("group", [1, 3])
def test_conv_transpose(kernel: int, stride: int, dilation: int, group: int) -> None:
    constants = {1: f32(3, 2, kernel, kernel, seed=3), 2: f32(2 * group)}
    pad = 1 if kernel > 1 else 0
    extra = [1, 0] if stride > 1 else [0, 0]
    check(
        "ConvTranspose", [X], 11, strides=[stride] * 2, dilations=[dilation] * 2, pads=[pad] * 4,
        output_padding=extra, group=group, constants=constants, dims=BATCH,
    )  # fmt: skip


@pytest.mark.parametrize(("kernel", "stride", "dilation"), list(product([1, 2, 3, 4], [1, 2, 3], [1, 2])))
@pytest.mark.parametrize("where", ["x", "w"])
def test_what_no_window_reaches_is_no_product(kernel: int, stride: int, dilation: int, where: str) -> None:
    """An infinity or NaN changes the results whose windows cover it, and no others."""
    x, w = f32(2, 3, 4, 5), f32(3, 2, kernel, kernel, seed=3)
    for holes in (x, w)[where == "w" :][:1]:
        holes[0, 0, 0, 0], holes[1, 1, -1, -1] = np.inf, np.nan
    with np.errstate(invalid="ignore"):
        check("ConvTranspose", [x], 11, strides=[stride] * 2, dilations=[dilation] * 2, constants={1: w})


def test_conv_transpose_of_given_size() -> None:
    constants = {1: f32(3, 2, 3, 3)}
    for shape in ([15, 13], [14, 14]):
        check("ConvTranspose", [X], 11, strides=[2, 2], output_shape=shape, constants=constants)
    for auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        check("ConvTranspose", [X], 11, strides=[2, 2], auto_pad=auto_pad, constants=constants, dims=BATCH)
    check("ConvTranspose", [f32(2, 4, 5)], 11, strides=[2], group=2, constants={1: f32(4, 3, 5)})


def test_fused_conv() -> None:
    constants = {1: f32(4, 3, 3, 3), 2: f32(4)}
    check("FusedConv", [X], 11, domain="com.microsoft", activation="Relu", constants=constants, dims={})


def test_col2im() -> None:
    constants = {1: ints(5, 5), 2: ints(2, 3)}
    check("Col2Im", [f32(1, 12, 12)], 18, constants=constants, dims={0: ["n", 12, 12]})


def whole(low: int, high: int, dtype: str, *shape: int) -> Array:
    return np.random.default_rng(0).integers(low, high, shape).astype(dtype)


def test_quantized_convolutions() -> None:
    x = whole(0, 255, "uint8", 2, 4, 5, 5)
    constants = {1: whole(0, 9, "uint8", 6, 4, 3, 3), 2: np.array(9, np.uint8)}
    check("ConvInteger", [x], 10, pads=[1] * 4, constants=constants, dims={0: ["n", 4, "h", "w"]})
    constants = {
        1: np.array(0.02, np.float32), 2: np.array(120, np.uint8), 3: whole(-9, 9, "int8", 6, 2, 3, 3),
        4: f32(6) ** 2 * 0.1, 5: np.zeros(6, np.int8), 6: np.array(0.2, np.float32),
        7: np.array(100, np.uint8), 8: np.arange(6).astype(np.int32) * 100,
    }  # fmt: skip
    check("QLinearConv", [x], 10, pads=[1] * 4, group=2, constants=constants, dims={0: ["n", 4, "h", "w"]})
