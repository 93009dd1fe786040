"""Sizes known only at run time: empty ones, those that depend on data, and those that don't fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from build import body, info, model
from onnx import TensorProto, helper

import jangin


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def compiled(
    op: str, shape: Sequence[int | str], constants: Mapping[str, Any], outputs: int = 1, **attrs: Any
) -> Any:
    results = [f"y{i}" for i in range(outputs)]
    node = helper.make_node(op, ["x", *constants], results, **attrs)
    symbols = {d: (0, 64) for d in shape if isinstance(d, str)}
    return jangin.compile(model([node], [info("x", shape)], results, constants), cache=False, shapes=symbols)


def numbers(*shape: int) -> np.ndarray:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_parts_have_to_add_up() -> None:
    exe = compiled("Split", ["rows", 2], {"sizes": ints(6, 1)}, 2)
    assert [y.shape for y in exe(numbers(7, 2))] == [(6, 2), (1, 2)]
    for rows in (1, 8):
        with pytest.raises(ValueError, match=r"\(rows == 7\), which Split 'y0' .* needs: "):
            exe(numbers(rows, 2))


def test_equal_parts_of_too_little() -> None:
    exe = compiled("Split", ["rows"], {}, 3, num_outputs=3)
    assert [y.tolist() for y in exe(numbers(2))] == [[0], [1], []]
    with pytest.raises(ValueError, match="do not meet"):
        exe(numbers(1))


def test_the_best_of_too_few() -> None:
    exe = compiled("TopK", ["rows"], {"k": ints(3)}, 2)
    assert exe(numbers(4))[1].tolist() == [3, 2, 1]
    with pytest.raises(ValueError, match="do not meet"):
        exe(numbers(2))


@pytest.mark.parametrize("op", ["MaxPool", "Conv"])
def test_a_window_over_less_than_itself(op: str) -> None:
    weights = {"w": np.ones((1, 1, 3), np.float32)} if op == "Conv" else {}
    exe = compiled(op, [1, 1, "n"], weights, kernel_shape=[3])
    assert [exe(numbers(1, 1, n)).shape[2] for n in (5, 2)] == [3, 0]
    with pytest.raises(ValueError, match="do not meet"):
        exe(numbers(1, 1, 1))


def test_a_size_that_may_be_squeezed_away() -> None:
    exe = compiled("Squeeze", ["rows", 1, 3], {})
    assert exe(numbers(2, 1, 3)).shape == (2, 3)
    assert exe(numbers(1, 1, 3)).shape == (3,)
    with pytest.raises(ValueError, match=r"rows = 65 do not meet .*64.*; other variants are for rows = 1"):
        exe(numbers(65, 1, 3))


def test_a_slice_of_one_broadcasts() -> None:
    nodes = [
        helper.make_node("Slice", ["x", "from", "to"], ["last"]),
        helper.make_node("Add", ["wide", "last"], ["y"]),
    ]
    constants = {"from": ints(-1), "to": ints(9), "wide": numbers(13)}
    exe = jangin.compile(model(nodes, [info("x", ["n"])], ["y"], constants), cache=False)
    np.testing.assert_array_equal(exe(numbers(4)), numbers(13) + 3)


def test_nothing() -> None:
    assert compiled("Split", [3, 1, 2], {"sizes": ints(0, 1)}, 2, axis=1)(numbers(3, 1, 2))[0].shape == (
        3,
        0,
        2,
    )
    assert compiled("TopK", [2, 4], {"k": ints(0)}, 2)(numbers(2, 4))[1].shape == (2, 0)
    assert compiled("AveragePool", [1, 2, 0], {}, kernel_shape=[1])(numbers(1, 2, 0)).shape == (1, 2, 0)


def test_no_row_for_a_scalar() -> None:
    assert compiled("NonZero", [], {})(np.float32(2)).shape == (0, 1)


@pytest.mark.parametrize(
    "code", [TensorProto.INT64, TensorProto.INT32, TensorProto.FLOAT, TensorProto.DOUBLE]
)
def test_a_range_of_computed_bounds(code: int) -> None:
    dtype = helper.tensor_dtype_to_np_dtype(code)
    inputs = [info(n, [], code) for n in ("first", "last", "step")]
    node = helper.make_node("Range", ["first", "last", "step"], ["y"])
    exe = jangin.compile(model([node], inputs, ["y"]), cache=False)
    for bounds in ((0, 5, 1), (5, 0, -2), (3, 3, 1), (4, 2, 1), (-3, 8, 2)):
        got = exe(*(np.array(v, dtype) for v in bounds))
        np.testing.assert_array_equal(got, np.arange(*bounds, dtype=dtype), strict=True)


def test_a_computed_depth() -> None:
    inputs = [info("x", [3], TensorProto.INT64), info("depth", [], TensorProto.INT64)]
    node = helper.make_node("OneHot", ["x", "depth", "values"], ["y"])
    exe = jangin.compile(model([node], inputs, ["y"], {"values": np.float32([0, 1])}), cache=False)
    np.testing.assert_array_equal(exe(ints(0, 2, 1), np.array(4)), np.eye(4)[[0, 2, 1]])


def test_a_shape_to_expand_to_has_to_fit() -> None:
    """The shape to expand to is data, or another input's size."""
    given = model(
        [helper.make_node("Expand", ["x", "to"], ["y"])],
        [info("x", [3]), info("to", [1], TensorProto.INT64)], ["y"],
    )  # fmt: skip
    sized = model(
        [helper.make_node("Shape", ["z"], ["to"]), helper.make_node("Expand", ["x", "to"], ["y"])],
        [info("x", [3]), info("z", ["n"])], ["y"],
    )  # fmt: skip
    for m, make in ((given, ints), (sized, numbers)):
        exe = jangin.compile(m, cache=False)
        for n in (1, 3):
            np.testing.assert_array_equal(exe(numbers(3), make(n)), numbers(3))
        for n in (2, 5):
            with pytest.raises(ValueError, match="do not meet"):
                exe(numbers(3), make(n))


def gemm(rows: int | str, bias: Sequence[int | str]) -> Any:
    inputs = [info("a", [rows, 4]), info("b", [4, 3]), info("c", bias)]
    node = helper.make_node("Gemm", ["a", "b", "c"], ["y"])
    return jangin.compile(model([node], inputs, ["y"]), cache=False)


def test_a_bias_may_not_be_larger_than_the_product() -> None:
    for bias in ((5, 2, 3), (1, 2, 3), (4, 3), (2, 6)):
        with pytest.raises(jangin.CompileError, match="doesn't broadcast to a product"):
            gemm(2, bias)
    with pytest.raises(jangin.CompileError, match="doesn't broadcast to a product"):
        gemm(1, (2, 3))
    exe = gemm("rows", ("m", 3))
    for rows, m in ((1, 1), (2, 1), (2, 2), (5, 5)):
        a, b, c = numbers(rows, 4), numbers(4, 3), numbers(m, 3)
        np.testing.assert_allclose(exe(a, b, c), a @ b + c)
    for rows, m in ((1, 2), (2, 3), (3, 2)):
        with pytest.raises(ValueError, match="do not meet"):
            exe(numbers(rows, 4), numbers(4, 3), numbers(m, 3))


def test_nothing_repeated_without_end() -> None:
    """Loops around an empty one don't run, however many iterations they have."""
    often = (1 << 31) - 1
    tile = helper.make_node("Tile", ["x", "r"], ["y"])
    known = model([tile], [info("x", [2, 0])], ["y"], {"r": ints(often, 1)})
    assert jangin.compile(known, cache=False)(numbers(2, 0)).shape == (2 * often, 0)
    inputs = [info("x", [2, "n"]), info("r", [2], TensorProto.INT64)]
    exe = jangin.compile(model([tile], inputs, ["y"]), cache=False, shapes={"n": (0, 8)})
    for columns, r in ((3, (often, 0)), (0, (often, 3)), (3, (0, often))):
        assert exe(numbers(2, columns), ints(*r)).shape == (2 * r[0], columns * r[1])
    for columns, r in ((3, (2, 2)), (3, (1, 1)), (5, (3, 1))):
        np.testing.assert_array_equal(exe(numbers(2, columns), ints(*r)), np.tile(numbers(2, columns), r))


def test_steps_of_no_sequence() -> None:
    node = helper.make_node("RNN", ["x", "w", "r"], ["y"], hidden_size=2)
    weights = {"w": np.ones((1, 2, 3), np.float32), "r": np.ones((1, 2, 2), np.float32)}
    sizes = {"n": (0, 8), "steps": (0, (1 << 31) - 1)}
    exe = jangin.compile(
        model([node], [info("x", ["steps", "n", 3])], ["y"], weights), cache=False, shapes=sizes
    )
    steps = (1 << 31) - 1
    assert exe(np.zeros((steps, 0, 3), np.float32)).shape == (steps, 1, 0, 2)
    np.testing.assert_allclose(exe(np.ones((1, 2, 3), np.float32)), np.full((1, 1, 2, 2), np.tanh(3)), 1e-6)


@pytest.mark.parametrize("limit", [1, 7, 60])
def test_boxes_that_overlap_none_of_higher_score(limit: int) -> None:
    rng = np.random.default_rng(limit)
    boxes = np.sort(rng.random((1, 60, 4)), -1).astype(np.float32)
    scores = rng.random((3, 60)).astype(np.float32).round(1)
    given = {"boxes": boxes, "limit": ints(limit), "iou": np.array([0.3], np.float32)}
    node = helper.make_node("NonMaxSuppression", ["boxes", "x", "limit", "iou"], ["y0"])
    exe = jangin.compile(model([node], [info("x", (1, 3, 60))], ["y0"], given), cache=False)
    want = [(0, c, i) for c in range(3) for i in _kept(boxes[0], scores[c], limit)]
    assert exe(scores[None]).tolist() == [list(row) for row in want]


def _kept(boxes: np.ndarray, scores: np.ndarray, limit: int) -> list[int]:
    kept: list[int] = []
    for i in np.argsort(-scores, kind="stable"):
        low, high = np.maximum(boxes[kept, :2], boxes[i, :2]), np.minimum(boxes[kept, 2:], boxes[i, 2:])
        inter = np.maximum(high - low, 0).prod(-1)
        area = (boxes[:, 2:] - boxes[:, :2]).prod(-1)
        if len(kept) < limit and not (inter / (area[kept] + area[i] - inter) > 0.3).any():
            kept.append(int(i))
    return kept


@pytest.mark.parametrize("open_inside", [False, True])
def test_a_loop_of_no_turns(open_inside: bool) -> None:
    """A loop without turns stacks no rows. The rows' size is kept, and a size that only a turn would know is
    0."""
    nodes = [
        helper.make_node("NonZero" if open_inside else "Add", ["v"] if open_inside else ["v", "v"], ["part"])
    ]
    inner = body(
        "step",
        [*nodes, helper.make_node("Identity", ["v"], ["w"]), helper.make_node("Identity", ["on"], ["again"])],
        [info("i", [], TensorProto.INT64), info("on", [], TensorProto.BOOL), info("v", ["n"])],
        ["again", "w", "part"],
    )
    node = helper.make_node("Loop", ["trips", "", "x"], ["last", "y"], body=inner)
    inputs = [info("trips", [], TensorProto.INT64), info("x", ["n"])]
    exe = jangin.compile(model([node], inputs, ["last", "y"], {}), cache=False)
    x = np.float32([1, 2, 3])
    for trips in (0, 2, 0):
        last, y = exe(np.array(trips), x)
        np.testing.assert_array_equal(last, x)
        row = (1, 3 if trips else 0) if open_inside else (3,)
        assert y.shape == (trips, *row)
