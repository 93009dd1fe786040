"""A wake word in two parts that keep state: a window of frames with a dense layer, and an SVDF of integers.

The frames are a variable that begins with given values and is moved on by one frame a step. The state of the
SVDF is int16."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).parent.parent / "frontends" / "tflite_format"))
from files import Operator, SubGraph, Tensor, written

FRAMES, BANDS, WORDS, FEATURES, UNITS, MEMORY = 6, 8, 4, 11, 5, 7
SCALES = (0.05, 0.02, 0.0004, 0.0003, 0.08)
"""The scales of the SVDF's input, its two weights, its state and its output."""
ZEROS = (3, -7)


def wake_word() -> bytes:
    """Return a TFLite file: a frame f32[1, 1, 8] and features i8[1, 11] -> scores f32[1, 4] and i8[1, 5]."""
    random = np.random.default_rng(8)

    def integers(dtype: str, size: Sequence[int], most: int, scale: float) -> Tensor:
        return Tensor(size, dtype, [scale], [0], data=random.integers(-most, most + 1, size))

    opened = Operator("VAR_HANDLE", [], [1], "VarHandleOptions", {"SharedName": "frames"}, 1)
    window = [1, FRAMES, BANDS]
    tensors = [
        Tensor([1, 1, BANDS]),
        Tensor([], "resource"),
        Tensor(window),
        Tensor([1, FRAMES - 1, BANDS]),
        Tensor(window),
        Tensor([WORDS, FRAMES * BANDS], data=random.standard_normal((WORDS, FRAMES * BANDS)) / 8),
        Tensor([2], "int32", data=[1, FRAMES * BANDS]),
        Tensor([1, FRAMES * BANDS]),
        Tensor([1, WORDS]),
        *(Tensor([3], "int32", data=d) for d in ([0, 1, 0], window, [1, 1, 1])),
        Tensor([1, FEATURES], "int8", [SCALES[0]], [ZEROS[0]]),
        integers("int8", [UNITS, FEATURES], 127, SCALES[1]),
        integers("int16", [UNITS, MEMORY], 2000, SCALES[3]),
        integers("int32", [UNITS], 3000, SCALES[2] * SCALES[3]),
        Tensor([1, MEMORY * UNITS], "int16", [SCALES[2]], [0], variable=True),
        Tensor([1, UNITS], "int8", [SCALES[4]], [ZEROS[1]]),
    ]
    operators = [
        Operator("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": 1}, 1),
        opened,
        Operator("READ_VARIABLE", [1], [2], "ReadVariableOptions", {}, 1),
        Operator("STRIDED_SLICE", [2, 9, 10, 11], [3], "StridedSliceOptions", {}),
        Operator("CONCATENATION", [3, 0], [4], "ConcatenationOptions", {"Axis": 1}),
        Operator("ASSIGN_VARIABLE", [1, 4], [], "AssignVariableOptions", {}, 1),
        Operator("RESHAPE", [4, 6], [7], "ReshapeOptions", {}),
        Operator("FULLY_CONNECTED", [7, 5, -1], [8], "FullyConnectedOptions", {}),
        Operator(
            "SVDF", [12, 13, 14, 15, 16], [17], "SVDFOptions", {"Rank": 1, "FusedActivationFunction": 1}, 3
        ),
    ]
    start = Tensor(window, data=random.standard_normal(window))
    assign = Operator("ASSIGN_VARIABLE", [1, 2], [], "AssignVariableOptions", {}, 1)
    first = SubGraph([Tensor([4]), Tensor([], "resource"), start], [opened, assign], [], [])
    return written(tensors, operators, [0, 12], [8, 17], first)


def steps(count: int) -> list[list[np.ndarray]]:
    """Return the inputs of successive steps."""
    random = np.random.default_rng()
    return [
        [
            random.standard_normal((1, 1, BANDS)).astype(np.float32),
            random.integers(-128, 128, (1, FEATURES)).astype(np.int8),
        ]
        for _ in range(count)
    ]
