"""Shape operators: every opset's form, symbolic sizes, and shape arithmetic that vanishes."""

from __future__ import annotations

import numpy as np
import pytest
from against import check, interpreted, ints
from one_node import f32, lowered, run
from onnx import TensorProto, helper, numpy_helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.expr import Var, const
from jangin.ir.graph import CompileError
from jangin.ops.axes import divide
from jangin.ops.builder import Builder
from jangin.ops.values import DATA_LIMIT

X = f32(2, 3, 4, 6)


@pytest.mark.parametrize("shape", [(0, -1), (2, -1), (-1, 6), (0, 0, 24), (-1,), (0, -1, 2, 3), (1, -1, 1)])
def test_reshape(shape: tuple[int, ...]) -> None:
    check("Reshape", [X], 13, constants={1: ints(*shape)})


def test_reshape_of_nothing_with_allowzero() -> None:
    check("Reshape", [f32(0, 3)], 14, constants={1: ints(3, 0)}, allowzero=1, dims={})


def test_reshape_as_attribute() -> None:
    check("Reshape", [X], 1, want=[X.reshape(2, -1, 8)], shape=[0, -1, 8])


def test_size_quotients_are_exact() -> None:
    b, s = Var("b"), Var("s")
    assert divide((b + 1) * (s + 2) * 12, (s + 2) * 4, {}) == divide(b * 3 + 3, const(1), {})
    assert str(divide(b * s * 768, b * s * 64, {})) == "12"
    assert "//" in str(divide(b * 5, const(10), {}))


def test_contents_of_a_large_table_are_computed_at_run_time() -> None:
    """Each element of a tensor with known contents is a choice in the kernel that needs the tensor."""
    b, size = Builder("tables", {}), Var("n")
    b.symbols[size] = const(1), const(100)
    at = b.sizes(np.array([[size * n for n in range(40)]], object))
    fixed = b.sizes(np.array([[*map(const, range(40))]], object))
    table = b.map(lambda u, v: u - v, at, b.reshape(at, (40, 1)))
    assert table.data is None and DATA_LIMIT < 40 * 40
    known = b.map(lambda u, v: u - v, fixed, b.reshape(fixed, (40, 1)))
    value = b.constant_value(b.materialize(known))
    assert value is not None and np.array_equal(value, np.arange(40) - np.arange(40)[:, None])


@pytest.mark.parametrize("axis", range(-4, 5))
def test_flatten(axis: int) -> None:
    check("Flatten", [X], 13, axis=axis)


def test_squeeze_and_unsqueeze() -> None:
    x, dims = f32(1, 3, 1, 2), {0: [1, "a", 1, "b"]}
    check("Squeeze", [x], 11, axes=[0, -2], dims=dims)
    check("Squeeze", [x], 13, dims=dims)
    check("Squeeze", [x], 13, constants={1: ints(2)})
    check("Unsqueeze", [X], 11, axes=[0, 5])
    check("Unsqueeze", [X], 13, constants={1: ints(-1, 1)})
    with pytest.raises(CompileError, match="axis 1 has 3 entries"):
        run("Squeeze", [x], 11, axes=[1])


def test_split() -> None:
    check("Split", [X], 1, want=np.split(X, 2, 2), axis=2, outputs=2)
    check("Split", [X], 11, axis=1, split=[1, 2], outputs=2, dims={0: ["a", 3, "b", "c"]})
    check("Split", [X], 13, axis=-1, outputs=3)
    check("Split", [X], 13, axis=-1, outputs=2, constants={1: ints(2, 4)}, dims={0: ["a", "b", "c", 6]})
    check("Split", [f32(7, 2)], 18, axis=0, outputs=3, num_outputs=3)
    with pytest.raises(CompileError, match="don't add up"):
        run("Split", [X], 11, axis=1, split=[1, 1], outputs=2)


def test_concat_and_transpose() -> None:
    dims = {0: ["a", "b", 4, "c"], 1: ["a", "b", 4, "c"]}
    check("Concat", [X, X + 1], 11, axis=-2, dims=dims)
    check("Concat", [X, X + 1], 1, want=[np.concatenate([X, X + 1], 1)], dims=dims)
    check("Transpose", [X], 13)
    check("Transpose", [X], 13, perm=[2, 0, 3, 1])


@pytest.mark.parametrize("counts", [(1, 1, 2, 1), (2, 1, 1, 3), (1, 1, 1, 1)])
def test_tile(counts: tuple[int, ...]) -> None:
    check("Tile", [X], 13, constants={1: ints(*counts)})


def test_tile_before_opset_6() -> None:
    constants = {1: np.array(3, np.float32), 2: np.array(-1, np.float32)}
    check("Tile", [X], 1, want=[np.tile(X, (1, 1, 1, 3))], constants=constants)


def test_expand() -> None:
    check("Expand", [f32(3, 1)], 13, constants={1: ints(2, 3, 4)}, dims={0: ["a", 1]})
    check("Expand", [f32(3, 1)], 13, constants={1: ints(1, 4)}, dims={0: ["a", 1]})


def test_made_tensors() -> None:
    check("ConstantOfShape", [], 11, constants={0: ints(2, 3)})
    check("EyeLike", [f32(3, 5)], 11, k=1)
    check("EyeLike", [f32(3, 5)], 11, k=-1, dtype=TensorProto.INT64)
    check("Trilu", [X], 14, upper=0, constants={1: np.array(1)})
    check("Trilu", [X, np.array(-2)], 14, upper=0, dims={0: ["a", "b", "c", "d"]})
    bounds = np.float32(1), np.float32(5.1), np.float32(0.7)
    check("Range", [], 11, constants={i: np.array(v) for i, v in enumerate(bounds)})
    check("Range", [], 11, constants={0: np.array(9), 1: np.array(-2), 2: np.array(-3)})
    assert run("Constant", [], 13, value_floats=[1.5, 2.0])[0].tolist() == [1.5, 2.0]


@pytest.mark.parametrize("mode", ["DCR", "CRD"])
def test_depth_and_space(mode: str) -> None:
    check("DepthToSpace", [f32(2, 8, 3, 4)], 13, blocksize=2, mode=mode)
    if mode == "DCR":
        check("SpaceToDepth", [f32(2, 2, 4, 6)], 13, blocksize=2, dims={0: ["a", "b", 4, 6]})


def test_shape_arithmetic_vanishes() -> None:
    """A reshape of heads as exporters write it vanishes: Shape, Gather, Mul, Unsqueeze, Concat, Reshape."""
    node = helper.make_node
    nodes = [
        node("Shape", ["x"], ["s"]),
        node("Gather", ["s", "zero"], ["batch"]),
        node("Gather", ["s", "one"], ["seq"]),
        node("Unsqueeze", ["batch", "axis"], ["b1"]),
        node("Unsqueeze", ["seq", "axis"], ["s1"]),
        node("Concat", ["b1", "s1", "heads", "rest"], ["shape"], axis=0),
        node("Reshape", ["x", "shape"], ["y"]),
        node("Slice", ["s", "axis", "two"], ["front"]),
        node("Concat", ["front", "width"], ["back"], axis=0),
        node("Reshape", ["y", "back"], ["z"]),
    ]
    values = {"zero": 0, "one": 1, "axis": [0], "heads": [4], "rest": [-1], "two": [2], "width": [24]}
    constants = [numpy_helper.from_array(np.array(v, np.int64), n) for n, v in values.items()]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "seq", 24])]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "z")]
    graph = lower(load(helper.make_model(helper.make_graph(nodes, "g", inputs, outputs, constants))))
    assert {n.op for n in graph.nodes} == {"reshape"}
    assert [str(d) for d in graph.shape("y")] == ["batch", "seq", "4", "6"]
    x = f32(2, 5, 24)
    y, z = interpreted(graph, {"x": x})
    assert y.shape == (2, 5, 4, 6)
    np.testing.assert_array_equal(z, x)


def test_size_of_symbols_is_computed() -> None:
    graph = lowered("Size", [X], 13, dims={0: ["a", "b", "c", "d"]})
    assert int(interpreted(graph, {"in0": X})[0]) == X.size
