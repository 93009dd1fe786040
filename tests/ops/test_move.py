"""Slices, pads and similar operators, with constant and with symbolic sizes."""

from __future__ import annotations

import numpy as np
import pytest
from against import check, ints
from one_node import f32, lowered, run

from jangin.ir.graph import CompileError

X = f32(2, 3, 4, 6)
LAST, FIRST = 2**63 - 1, -(2**63)
CUTS = [
    ([0], [3], [2], [1]), ([-2], [99], [2], [1]), ([1], [LAST], [3], [2]), ([-1], [FIRST], [3], [-1]),
    ([-1], [FIRST], [3], [-2]), ([4], [0], [3], [-2]), ([0, 1], [1000, -1], [1, 2], [1, 1]),
    ([5], [2], [3], [1]), ([-100], [2], [3], [1]), ([3], [-100], [3], [-1]), ([2], [2**31 - 1], [-1], [3]),
    ([100], [1], [3], [-1]),
]  # fmt: skip


@pytest.mark.parametrize(("starts", "ends", "axes", "steps"), CUTS)
def test_slice(starts: list[int], ends: list[int], axes: list[int], steps: list[int]) -> None:
    constants = {n: ints(*v) for n, v in enumerate((starts, ends, axes, steps), 1)}
    check("Slice", [X], 13, constants=constants)


def test_slice_by_attributes() -> None:
    check("Slice", [X], 9, starts=[1, -3], ends=[2**31 - 1, -1], axes=[1, 3])
    check("Slice", [X], 9, starts=[1, 0], ends=[2, 2])


def test_end_of_a_symbolic_axis_is_its_size() -> None:
    graph = lowered(
        "Slice", [X], 9, dims={0: ["n", "c", "h", "width"]}, starts=[1], ends=[2**31 - 1], axes=[3]
    )
    assert str(graph.shape("out0")[3]) == "max(((min(1, width) * -1) + width), 0)", "an empty axis has none"


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect"])
def test_pad(mode: str) -> None:
    amounts = [0, 1, 2, 0, 1, 0, 1, 3]
    check("Pad", [X], 13, mode=mode, constants={1: ints(*amounts)})
    check("Pad", [X], 10, mode=mode, pads=amounts)
    want = [np.pad(X, list(zip(amounts[:4], amounts[4:], strict=True)), mode)]  # type: ignore[call-overload]
    check("Pad", [X], 1, want=want, mode=mode, paddings=amounts)


def test_pad_values() -> None:
    amounts = ints(0, 1, 2, 0, 1, 0, 1, 3)
    check("Pad", [X], 13, constants={1: amounts, 2: np.array(2.5, np.float32)})
    check("Pad", [(X * 9).astype(np.int64)], 13, constants={1: amounts, 2: np.array(-7)})
    fill = np.array(3, np.float32)
    check("Pad", [X, None, fill], 13, constants={1: amounts}, dims={0: ["a", "b", "c", "d"]})
    check("Pad", [X], 13, constants={1: ints(0, -1, 2, 0, 1, 0, -1, 3)})


def test_pad_axes_and_wrap() -> None:
    check("Pad", [X], 19, mode="wrap", constants={1: ints(0, 1, 2, 0, 1, 0, 1, 3)})
    check("Pad", [X], 18, constants={1: ints(1, 2, 3, 4), 3: ints(-1, 1)})
    with pytest.raises(CompileError, match="8 pads"):
        run("Pad", [X], 13, constants={1: ints(1, 1)})


def test_center_crop_pad() -> None:
    dims = {0: ["a", "b", "c", "d"]}
    check("CenterCropPad", [X], 18, axes=[2, 3], constants={1: ints(3, 9)}, dims=dims)
    check("CenterCropPad", [X], 18, axes=[-1, -2], constants={1: ints(3, 4)}, dims=dims)


def test_reverse_sequence() -> None:
    check("ReverseSequence", [f32(4, 3, 2), ints(1, 4, 2)], 10)
    check("ReverseSequence", [f32(3, 4, 2), ints(1, 4, 2)], 10, batch_axis=0, time_axis=1)
