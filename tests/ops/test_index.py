"""Gathers, scatters, one-hot and top-k (indices out of range: `program/test_out_of_range.py`)."""

from __future__ import annotations

import numpy as np
import pytest
from against import check, ints
from guarded import Memory, watched
from one_node import Array, f32, run
from onnx import TensorProto, helper

import jangin
from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Buffer, Var, minimum
from jangin.ops.bounds import limits

X = f32(2, 3, 4, 6)


def indices(low: int, high: int, *shape: int) -> Array:
    return np.random.default_rng(1).integers(low, high, shape)


def test_a_limit_is_not_divided_by_an_empty_axis() -> None:
    """A picture is resized to 8 rows and as many columns as keep its sides' ratio: `8 * w // h` of them."""
    h, w, i = Var("h"), Var("w"), Var("i")
    x = Buffer("x", F32, (h, w))
    clamped = te.compute(Buffer("y", F32, (8, w * 8 // h)), lambda r, c: x[minimum(r, h - 1), c])
    assert [str(needed) for needed, size in limits(clamped) if size is h] == ["1"]
    clamped = te.compute(Buffer("y", F32, (8 * h, i)), lambda r, c: x[minimum(r, h - 1), c])
    assert [str(needed) for needed, size in limits(clamped) if size is h] == ["0"], "no rows, no accesses"


def test_gather() -> None:
    check("Gather", [X, ints(0, -1, 2)], 13, axis=1)
    check("Gather", [X, np.array([[1, 0]], np.int32)], 13, axis=-1)
    check("Gather", [X], 13, axis=2, constants={1: np.array(1)})
    check("GatherElements", [X, indices(-3, 3, 2, 5, 4, 6)], 13, axis=1)


def test_gather_nd() -> None:
    sizes = ["a", "b", "c", "d"]
    check("GatherND", [X, indices(-2, 2, 5, 2)], 13, dims={0: sizes, 1: ["e", 2]})
    check("GatherND", [X, indices(-2, 2, 2, 5, 2)], 13, batch_dims=1, dims={0: sizes, 1: ["a", "f", 2]})


@pytest.mark.parametrize("reduction", ["none", "add", "mul", "max", "min"])
def test_scatter(reduction: str) -> None:
    once = reduction == "none"
    where = np.argsort(X, 1)[:, :2] if once else indices(-3, 3, 2, 2, 4, 6)
    check("ScatterElements", [X, where, f32(2, 2, 4, 6, seed=4)], 18, axis=1, reduction=reduction)
    pairs = np.array([[0, 1], [1, -1], [0, 0] if once else [0, 1]])
    dims = {0: ["a", "b", "c", "d"], 1: ["e", 2]}
    check("ScatterND", [X, pairs, f32(3, 4, 6, seed=5)], 18, reduction=reduction, dims=dims)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("width", [1, 15, 16, 50, "w"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16])
def test_scattered_rows_of_any_width(dtype: type, width: int | str, threads: int) -> None:
    """Rows are copied by vectors, and their remaining elements one by one. Nothing else is touched."""
    own = 37 if isinstance(width, str) else width
    rng, kind = np.random.default_rng(0), helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    x, new = (rng.integers(0, 2, shape).astype(dtype) for shape in ((9, own), (3, own)))
    at = np.array([[7], [-9], [2]])
    infos = [("x", kind, (9, width)), ("at", TensorProto.INT64, at.shape), ("new", kind, (3, width))]
    values = [helper.make_tensor_value_info(*info) for info in infos]
    y = helper.make_tensor_value_info("y", kind, (9, width))
    node = helper.make_node("ScatterND", ["x", "at", "new"], ["y"])
    graph = helper.make_graph([node], "g", values, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)
    memory = Memory(pages=True)
    with watched(memory):
        exe = jangin.compile(model.SerializeToString(), threads=threads, cache=False, isolated=False)
        got = exe(*map(memory.copy, (x, at, new)))
    assert not memory.faults()
    want = x.copy()
    want[at[:, 0]] = new
    np.testing.assert_array_equal(got, want)


def test_scatter_of_booleans() -> None:
    data, where, new = np.array([True, False, False]), ints(1, 1, 0), np.array([True, False, False])
    (out,) = run("ScatterElements", [data, where, new], 18, reduction="add")
    assert out.tolist() == [True, True, False]


def test_max_unpool() -> None:
    x, where = np.array([[[[1, 2], [3, 4]]]], np.float32), np.array([[[[5, 7], [13, 15]]]])
    want = np.zeros(16, np.float32)
    want[[5, 7, 13, 15]] = 1, 2, 3, 4
    check("MaxUnpool", [x, where], 11, want=[want.reshape(1, 1, 4, 4)], kernel_shape=[2, 2], strides=[2, 2])


def test_one_hot() -> None:
    check("OneHot", [ints(0, 3, -1, 9)], 11, axis=0, constants={1: np.array([5]), 2: f32(2)})
    want = np.zeros((3, 5), np.int64)
    want[0, 2] = want[1, 0] = want[2, 4] = 7
    x = np.array([2.9, -0.5, -1.2], np.float32)
    check("OneHot", [x], 11, want=[want], constants={1: np.array(5), 2: np.array([0, 7])})


@pytest.mark.parametrize(("k", "axis", "largest"), [(2, -1, 1), (3, 1, 0), (6, -1, 1), (1, 2, 0)])
def test_top_k(k: int, axis: int, largest: int) -> None:
    x, dims = np.round(X * 2) / 2, {0: ["a", 3, 4, 6]}
    check("TopK", [x], 11, outputs=2, axis=axis, largest=largest, constants={1: ints(k)}, dims=dims)


@pytest.mark.parametrize(("shape", "k"), [((40,), 40), ((3, 70), 33), ((2, 19, 4), 7)])
def test_top_k_of_many_equal_values(shape: tuple[int, ...], k: int) -> None:
    x = np.random.default_rng(0).integers(0, 9, shape).astype(np.float32)
    axis = min(1, len(shape) - 1)
    for largest in (0, 1):
        check("TopK", [x], 11, outputs=2, axis=axis, largest=largest, constants={1: ints(k)})


def test_top_k_before_opset_11() -> None:
    check("TopK", [(X * 3).astype(np.float32)], 10, outputs=2, constants={1: ints(3)})
    order = np.argsort(-X, -1, kind="stable")[..., :3]
    check("TopK", [X], 1, want=[np.take_along_axis(X, order, -1), order], outputs=2, k=3)
