"""Operations and bytes of kernels, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin

TABLE = np.arange(5000 * 16, dtype=np.float32).reshape(5000, 16)
WEIGHTS = np.ones((16, 24), np.float32)


def launches(node: onnx.NodeProto, x: tuple[int, list[Any]], **constants: np.ndarray) -> list[Any]:
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", *x)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return list(jangin.build(model, "x86-64-v3", threads=1, cache=False).plan.launches)


def test_matrix_product() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    (launch,) = launches(node, (TensorProto.FLOAT, [7, 16]), w=WEIGHTS)
    assert (str(launch.flops), str(launch.bytes)) == (
        str(2 * 7 * 16 * 24),
        str(4 * (7 * 16 + 16 * 24 + 7 * 24)),
    )


def test_symbolic_sizes_give_expressions() -> None:
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    (launch,) = launches(node, (TensorProto.FLOAT, ["rows", 16]), w=WEIGHTS)
    assert str(launch.flops) == f"(rows * {2 * 16 * 24})"
    assert str(launch.bytes) == f"((rows * {4 * (16 + 24)}) + {4 * 16 * 24})"


@pytest.mark.parametrize("rows", [1, 3])
def test_a_gather_reads_what_it_gathers(rows: int) -> None:
    node = helper.make_node("Gather", ["w", "x"], ["y"])
    launch = launches(node, (TensorProto.INT64, [rows]), w=TABLE)[-1]
    assert int(str(launch.flops)) == 0
    assert int(str(launch.bytes)) <= 2 * 4 * 16 * rows + 8 * 16 * rows
