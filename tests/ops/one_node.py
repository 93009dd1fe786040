"""Runs models of one ONNX node through import, lowering and the interpreter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import ModelProto, helper, numpy_helper

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import Graph
from jangin.ops.interpret import run_graph

Array = NDArray[Any]


def model(
    op: str, inputs: Sequence[Array | None], opset: int, constants: Mapping[int, Array] | None = None,
    outputs: int = 1, domain: str = "", dims: Mapping[int, Sequence[int | str]] | None = None,
    version: int = 1, **attrs: Any,
) -> ModelProto:  # fmt: skip
    """Make a model of one node. `version` is the version of its `domain`.

    `constants` replaces inputs by number. `dims` declares shapes other than the inputs' own."""
    constants, dims = constants or {}, dims or {}
    names = [f"in{i}" for i in range(max([len(inputs), *(n + 1 for n in constants)]))]
    given = {i: a for i, a in enumerate(inputs) if a is not None and i not in constants}
    used = [n if i in given or i in constants else "" for i, n in enumerate(names)]
    results = [f"out{i}" for i in range(outputs)]
    node = helper.make_node(op, used, results, name="node", domain=domain, **attrs)
    declared = [
        helper.make_tensor_value_info(
            names[i], helper.np_dtype_to_tensor_dtype(a.dtype), dims.get(i, a.shape)
        )
        for i, a in given.items()
    ]
    graph = helper.make_graph(
        [node],
        "one",
        declared,
        [helper.make_empty_tensor_value_info(n) for n in results],
        [numpy_helper.from_array(a, names[i]) for i, a in constants.items()],
    )
    imports = [helper.make_opsetid("", opset)] + ([helper.make_opsetid(domain, version)] if domain else [])
    return helper.make_model(graph, opset_imports=imports)


def lowered(*args: Any, **kwargs: Any) -> Graph:
    return lower(load(model(*args, **kwargs)))


def run(op: str, inputs: Sequence[Array | None], opset: int, **kwargs: Any) -> list[Array]:
    """Interpret the node, and return its outputs."""
    graph = lowered(op, inputs, opset, **kwargs)
    feeds = {f"in{i}": a for i, a in enumerate(inputs) if f"in{i}" in graph.inputs}
    return list(run_graph(graph, feeds).values())


def f32(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
