"""A small model, and the output of a command."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class Done:
    """The text that a command printed, and its exit status."""

    status: int
    out: str
    err: str


Cli = Callable[..., Done]


def small_model() -> onnx.ModelProto:
    """A convolution with 3 channels on 8 x 8, ReLU, mean, and 12 class scores; `batch` is symbolic."""
    rng = np.random.default_rng(0)
    constants = {
        "kernel": rng.standard_normal((16, 3, 3, 3)).astype(np.float32),
        "scores": rng.standard_normal((16, 12)).astype(np.float32),
    }
    nodes = [
        helper.make_node("Conv", ["image", "kernel"], ["c"], name="conv1", pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["c"], ["r"], name="relu1"),
        helper.make_node("ReduceMean", ["r"], ["m"], name="mean1", axes=[2, 3], keepdims=0),
        helper.make_node("MatMul", ["m", "scores"], ["y"], name="scores1"),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 12])],
        [numpy_helper.from_array(a, n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
