"""Sizes that no tensor can have, given at run time, and loops around nothing.

No size is cut to fit. A run refuses it, and names the model's node. A number that means "to the end" is no
size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from build import info, model
from onnx import TensorProto, helper

import jangin
from jangin.ops.builder import MAX_SIZE

I64, F32 = TensorProto.INT64, TensorProto.FLOAT
MANY = MAX_SIZE + 1


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def none(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def compiled(
    op: str, given: Sequence[np.ndarray], constants: Mapping[str, Any] | None = None, results: int = 1,
    **attrs: Any,
) -> Any:  # fmt: skip
    """Compile the node for inputs like the given ones. An input without elements and axes is left out."""
    names = [f"x{i}" if a.size or a.ndim > 1 else "" for i, a in enumerate(given)]
    inputs = [
        info(n, a.shape, I64 if a.dtype == np.int64 else F32)
        for n, a in zip(names, given, strict=True) if n
    ]  # fmt: skip
    outputs = [f"y{i}" for i in range(results)]
    node = helper.make_node(op, [*names, *(constants or {})], outputs, **attrs)
    return jangin.compile(model([node], inputs, outputs, constants), cache=False)


LEFT_OUT = none(0)
SIZES: dict[str, tuple[list[np.ndarray], list[np.ndarray], dict[str, Any]]] = {
    # the inputs of a refused run, those of a run that works, and the constants and attributes
    "Tile": ([none(2, 0), ints(MANY, 1)], [none(2, 0), ints(3, 1)], {}),
    "Expand": ([none(1, 0), ints(3 * MANY, 1)], [none(1, 0), ints(5, 1)], {}),
    "Pad": ([none(2, 0), ints(MANY, 0, 0, 0)], [none(2, 0), ints(1, 0, 1, 0)], {}),
    "ConstantOfShape": ([ints(MANY, 0)], [ints(4, 0)], {}),
    "OneHot": (
        [np.zeros((0, 1), np.int64), ints(1 << 40)], [np.zeros((0, 1), np.int64), ints(4)],
        {"constants": {"v": np.float32([0, 1])}},
    ),
    "Resize": (
        [none(0, 1, 2, 2), LEFT_OUT, LEFT_OUT, ints(0, 1, MANY, 2)],
        [none(0, 1, 2, 2), LEFT_OUT, LEFT_OUT, ints(0, 1, 4, 2)], {},
    ),
    "Split": ([none(3, 0), ints(MANY, 3 - MANY)], [none(3, 0), ints(1, 2)], {"results": 2}),
    "Reshape": ([none(5, 0), ints(1 << 62, 0)], [none(5, 0), ints(7, 0)], {"allowzero": 1}),
    "CenterCropPad": ([none(5, 0), ints(MANY, 0)], [none(5, 0), ints(8, 0)], {}),
    "TopK": ([none(0, 5), ints(MANY + 2)], [none(0, 5), ints(2)], {"results": 2}),
    "Range": ([ints(0), ints(MANY), ints(1)], [ints(0), ints(6), ints(2)], {}),
}  # fmt: skip


@pytest.mark.parametrize("op", SIZES)
def test_a_size_beyond_any_tensor_is_refused(op: str) -> None:
    refused, fine, settings = SIZES[op]
    exe = compiled(op, fine, **settings)
    made = exe(*(a for a in fine if a is not LEFT_OUT))
    assert all(max(y.shape) <= 8 for y in (made if isinstance(made, tuple) else (made,)))
    with pytest.raises(
        ValueError, match=rf"{op} 'y0' .*: the size \w+ is \d+, but may be -?\d+ to {MAX_SIZE}"
    ):
        exe(*(a for a in refused if a is not LEFT_OUT))


@pytest.mark.parametrize(
    ("bounds", "dtype"),
    [((0, 5, 0), np.int64), ((5, 5, 0), np.int64), ((5, 0, 0), np.float32), ((0, np.nan, 1), np.float32),
     ((0, np.inf, 1), np.float32), ((0, 5, 1e-30), np.float32)],
)  # fmt: skip
def test_a_range_without_a_length_is_refused(bounds: tuple[float, ...], dtype: Any) -> None:
    given = [np.array(v, dtype) for v in bounds]
    code = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    node = helper.make_node("Range", ["a", "b", "c"], ["y"])
    exe = jangin.compile(model([node], [info(n, [], code) for n in "abc"], ["y"]), cache=False)
    with pytest.raises(ValueError, match=r"Range 'y' .*: the size"):
        exe(*given)
    with pytest.raises(jangin.CompileError, match=r"has no length|takes \d+ bytes"):
        jangin.compile(model([node], [], ["y"], dict(zip("abc", given, strict=True))), cache=False)


def test_any_integer_is_a_position() -> None:
    """Slices end at the axis's end, even if the axis is longer than the largest size of an input."""
    x = np.arange(5, dtype=np.float32)
    exe = compiled("Slice", [x, ints(0), ints(0)])
    far = 1 << 63
    for first, last in ((1, far - 1), (-far, 2), (-far, far - 1), (MANY, far - 1), (-3, 1 << 62), (0, -far)):
        np.testing.assert_array_equal(exe(x, ints(first), ints(last)), x[first:last])
    nodes = [
        helper.make_node("Expand", ["x", "to"], ["wide"]),
        helper.make_node("Reshape", ["wide", "flat"], ["long"], allowzero=1),
        helper.make_node("Slice", ["long", "from", "end"], ["y"]),
    ]
    constants = {"to": ints(MAX_SIZE, 2, 0), "flat": ints(2 * MAX_SIZE, 0), "from": ints(3)}
    longer = model(nodes, [info("x", [1, 1, 0]), info("end", [1], I64)], ["y"], constants)
    exe = jangin.compile(longer, cache=False)
    assert exe(none(1, 1, 0), ints(far - 1)).shape == (2 * MAX_SIZE - 3, 0)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("op", ["ReduceL1", "ReduceLogSumExp", "ReduceMax", "ReduceProd"])
@pytest.mark.parametrize("shape", [(4, MAX_SIZE, 1 << 28, 0), (1 << 27, 1 << 27, 0, 8), (MAX_SIZE, 0, 3, 8)])
def test_reductions_of_nothing_end(shape: tuple[int, ...], op: str, known: bool) -> None:
    """Reductions of empty tensors end, however many iterations the loops around the empty one have."""
    axes = [i for i, n in enumerate(shape) if n > 8 or n == 0] + [2] * (shape[2] == 3)
    names = [n if known else f"s{i}" for i, n in enumerate(shape)]
    node = helper.make_node(op, ["x", "axes"], ["y"], keepdims=0)
    m = model([node], [info("x", names)], ["y"], {"axes": ints(*axes)})
    ranges = None if known else {f"s{i}": (0, MAX_SIZE) for i in range(4)}
    got = jangin.compile(m, cache=False, shapes=ranges)(none(*shape))
    want = {"ReduceL1": 0, "ReduceLogSumExp": -np.inf, "ReduceMax": -np.inf, "ReduceProd": 1}[op]
    np.testing.assert_array_equal(got, np.full(4 if shape[0] == 4 else 8, want, np.float32))


@pytest.mark.parametrize(
    ("op", "shape", "size"), [("Tile", (4, 0), (1 << 62, 1)), ("Pad", (2, 3), (-(1 << 63), 0) * 2)]
)
def test_known_sizes_that_wrap_around_are_refused(
    op: str, shape: tuple[int, ...], size: tuple[int, ...]
) -> None:
    with pytest.raises(jangin.CompileError, match=rf"{op} 'y0' .*no tensor has a size|{op} 'y0' .*multiply"):
        compiled(op, [none(*shape)], {"size": ints(*size)})
