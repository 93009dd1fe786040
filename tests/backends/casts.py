"""Floats beyond the range of integer types, and a model that casts them to integers, for every machine."""

from __future__ import annotations

import numpy as np
import onnx
from onnx import helper

from jangin.ir.arithmetic import convert
from jangin.ir.dtype import F32, I8, I16, I32, I64, U8, U16, U32, U64
from jangin.ir.graph import Array

INTS = (I8, I16, I32, I64, U8, U16, U32, U64)
BEYOND = (
    127.9, 128.0, -128.9, -129.0, 255.9, 256.7, 65535.9, 65536.5, 40000.0, -40000.0, 2147483520.0, 2.0**31,
    -(2.0**31), -2147483904.0, 4294967040.0, 2.0**32, 3e9, -3e9, 5e9, -5e9, 9.2e18, 2.0**63, -(2.0**63),
    -9.3e18, 1.8446742974197924e19, 2.0**64, 1e20, -1e20, 3e38, -3e38,
)  # fmt: skip
"""Floats near the limits of integer types."""


def casts() -> tuple[onnx.ModelProto, Array, Array]:
    """Return a model of all casts, an input (whole vectors and some remaining elements), and the output.

    The model casts the integers back to floats and concatenates them."""
    x = np.array([*BEYOND, np.nan, np.inf, -np.inf, 3.7, -3.7], np.float32)
    kinds = {t: helper.np_dtype_to_tensor_dtype(t.numpy) for t in INTS}
    nodes = [helper.make_node("Cast", ["x"], [f"{t}"], to=kind) for t, kind in kinds.items()]
    nodes += [helper.make_node("Cast", [f"{t}"], [f"{t}_float"], to=onnx.TensorProto.FLOAT) for t in INTS]
    nodes.append(helper.make_node("Concat", [f"{t}_float" for t in INTS], ["y"], axis=0))
    ends = [
        helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [s]) for n, s in (("x", x.size), ("y", None))
    ]
    graph = helper.make_graph(nodes, "casts", ends[:1], ends[1:])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return model, x, np.concatenate([convert(convert(x, t), F32) for t in INTS])
