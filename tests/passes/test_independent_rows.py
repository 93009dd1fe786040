"""The batches that can be divided among devices."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.compiler.cases import lowered
from jangin.frontends.table import load
from jangin.options import Options
from jangin.passes.rows import Mixed, row_symbol
from jangin.targets import resolve

Build = Callable[[], list[onnx.NodeProto]]
OPTIONS = Options(resolve())


def node(op: str, *inputs: str, out: str = "y", **attrs: object) -> onnx.NodeProto:
    return helper.make_node(op, list(inputs), [out], **attrs)


def model(nodes: list[onnx.NodeProto], out: list[object], given: list[object] | None = None) -> bytes:
    rng = np.random.default_rng(0)
    arrays = {
        "w": rng.standard_normal((4, 3, 3, 3)), "m": rng.standard_normal((6, 6)), "v": rng.standard_normal(6)
    }  # fmt: skip
    sizes = {"keep": [0, -1], "heads": [0, 2, 3], "all": [-1, 3], "first": [0], "back": [-1, 6]}
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    constants += [numpy_helper.from_array(np.int64(a), n) for n, a in sizes.items()]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, shape)
        for n, shape in (("x", given or ["batch", 6]), ("y", out))
    ]
    graph = helper.make_graph(nodes, "rows", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]).SerializeToString()


def rows_of(text: bytes) -> str:
    return row_symbol(lowered(load(text, {}), OPTIONS))


APART = {
    "dense": ([node("MatMul", "x", "m", out="a"), node("Softmax", "a")], ["batch", 6]),
    "heads": (
        [
            node("Reshape", "x", "heads", out="a"),
            node("Transpose", "a", out="b", perm=[1, 0, 2]),
            node("Softmax", "b", out="c"),
            node("Transpose", "c", out="d", perm=[1, 0, 2]),
            node("Reshape", "d", "keep"),
        ],
        ["batch", 6],
    ),
    "merged rows": (
        [node("Reshape", "x", "all", out="a"), node("Relu", "a", out="b"), node("Reshape", "b", "back")],
        ["batch", 6],
    ),
    "normalized": ([node("LayerNormalization", "x", "v", axis=-1)], ["batch", 6]),
}
TOGETHER = {
    "softmax over rows": ([node("Softmax", "x", axis=0)], ["batch", 6], "mixes rows"),
    "their mean": (
        [node("ReduceMean", "x", "first", out="a"), node("Sub", "x", "a")],
        ["batch", 6],
        "(mixes rows|row's number)",
    ),
    "running sum": ([node("CumSum", "x", "zero")], ["batch", 6], "may mix rows"),
    "turned": ([node("Transpose", "x", perm=[1, 0])], [6, "batch"], "doesn't have one row for each"),
    "two rows": ([node("Concat", "x", "x", axis=0)], ["2*batch", 6], "mixes rows"),
    "rows apart": ([node("Reshape", "x", "turn")], [6, "batch"], "mixes rows|no row"),
    "how many": (
        [node("Shape", "x", out="s", end=1), node("Cast", "s", out="f", to=1), node("Add", "x", "f")],
        ["batch", 6],
        "how many there are",
    ),
}


@pytest.mark.parametrize("name", APART)
def test_rows_apart(name: str) -> None:
    assert rows_of(model(*APART[name])) == "batch"


def test_a_convolution() -> None:
    nodes = [node("Conv", "x", "w", out="a"), node("GlobalAveragePool", "a", out="b"), node("Flatten", "b")]
    assert rows_of(model(nodes, ["batch", 4], ["batch", 3, 8, 8])) == "batch"


@pytest.mark.parametrize("name", TOGETHER)
def test_rows_together(name: str) -> None:
    nodes, out, why = TOGETHER[name]
    extra = {"zero": np.int64(0), "turn": np.int64([6, -1])}
    text = onnx.load_from_string(model(nodes, out))
    text.graph.initializer.extend(numpy_helper.from_array(a, n) for n, a in extra.items())
    with pytest.raises(Mixed, match=why):
        rows_of(text.SerializeToString())


def test_a_fixed_batch() -> None:
    with pytest.raises(Mixed, match="compile it with a free batch"):
        rows_of(model([node("Relu", "x")], [4, 6], [4, 6]))
