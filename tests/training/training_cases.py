"""Batches and a model of ONNX that several tests of training share."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def batch(kind: str) -> tuple[Any, Any]:
    torch.manual_seed(2)
    x = torch.randn(5, 6)
    labels = torch.tensor([0, 3, 1, -100, 2])
    targets = {
        "labels": labels, "numbers": torch.randn(5, 4) * 2, "truth": torch.randint(0, 2, (5, 4)).float(),
        "chances": torch.softmax(torch.randn(5, 4), -1), "integers": torch.randint(0, 2, (5, 4)),
    }  # fmt: skip
    return x, targets[kind]


def onnx_model(extra: str = "") -> Any:
    """Return a layer of ONNX, with its weights and its bias. `extra` names an operator of one's own behind
    it."""
    from onnx import TensorProto, helper, numpy_helper

    rng = np.random.default_rng(7)
    w, c = (rng.uniform(-1, 1, s).astype(np.float32) for s in ((6, 4), (4,)))
    nodes = [helper.make_node("Gemm", ["x", "w", "c"], ["h"])]
    nodes.append(helper.make_node(extra or "Relu", ["h"], ["y"], domain="mine" if extra else ""))
    info = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [5, 6]), ("y", [5, 4]))]
    held = [numpy_helper.from_array(a, n) for a, n in ((w, "w"), (c, "c"))]
    graph = helper.make_graph(nodes, "layer", info[:1], info[1:], held)
    domains = [helper.make_opsetid("", 20), helper.make_opsetid("mine", 1)]
    return helper.make_model(graph, opset_imports=domains, ir_version=10), w, c
