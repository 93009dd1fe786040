"""Compares one-node models with ONNX Runtime, for the inputs' own shapes and for symbolic ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnxruntime
from one_node import Array, lowered, model
from onnx import ModelProto

from jangin.ir.graph import Graph
from jangin.ops.interpret import run_graph

onnxruntime.set_default_logger_severity(4)
Dims = Mapping[int, Sequence[int | str]]


def onnxruntime_outputs(proto: ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    proto.ir_version = 8
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = {i.name for i in session.get_inputs()}
    return [np.asarray(o) for o in session.run(None, {n: a for n, a in feeds.items() if n in names})]


def interpreted(graph: Graph, feeds: Mapping[str, Array]) -> list[Array]:
    return list(run_graph(graph, {n: feeds[n] for n in graph.inputs}).values())


def symbolic(inputs: Sequence[Array | None], constants: Mapping[int, Array]) -> dict[int, list[int | str]]:
    """Return a symbol for every dimension of every input that is not a constant."""
    return {
        i: [f"in{i}_size{k}" for k in range(a.ndim)]
        for i, a in enumerate(inputs)
        if a is not None and i not in constants
    }


def check(
    op: str, inputs: Sequence[Array | None], opset: int, *, want: Sequence[Array] | None = None,
    dims: Dims | None = None, tolerance: float = 1e-5, **settings: Any,
) -> Graph:  # fmt: skip
    """Check that the node gives `want`, or ONNX Runtime's results. Returns the graph for symbolic sizes.

    The check is repeated with `dims` as symbols, or with all dimensions as symbols. `dims={}` leaves this
    out."""
    feeds = {f"in{i}": a for i, a in enumerate(inputs) if a is not None}
    if want is None:
        want = onnxruntime_outputs(model(op, inputs, opset, **settings), feeds)
    if dims is None:
        dims = symbolic(inputs, settings.get("constants") or {})
    graph = lowered(op, inputs, opset, **settings)
    for shapes in [None, dims] if dims else [None]:
        graph = lowered(op, inputs, opset, dims=shapes, **settings)
        for got, right in zip(interpreted(graph, feeds), want, strict=True):
            assert got.dtype == right.dtype
            assert got.shape == right.shape
            np.testing.assert_allclose(got.astype(np.float64), right.astype(np.float64), tolerance, tolerance)
    return graph


def ints(*values: int) -> Array:
    return np.array(values, np.int64)
