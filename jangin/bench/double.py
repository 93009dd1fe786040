"""Run a model in float64, as the reference of all errors."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import shorten

import numpy as np
import onnx
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from jangin.bench.engine import Engine, Job
from jangin.ir.graph import Array

CAUSE = 160
"""The most characters of the cause of a failure, two lines of a terminal."""
FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16)
TYPES = {"Cast": "to", "EyeLike": "dtype", "RandomNormal": "dtype", "RandomUniform": "dtype"}
"""The attributes that give the element type of a result, by operator."""
ALWAYS_FLOAT = {"Resize": 2, "Upsample": 1}
"""The inputs that ONNX has in float32 only, by operator."""


def float64(job: Job) -> Engine:
    """Return an engine that has the results of an ONNX model in float64. The model is computed once.

    ONNX Runtime computes them without optimizations. If it can't, ONNX's reference does, or else ONNX Runtime
    in float32. The version says which it was, and why each better way failed."""
    import onnxruntime as ort

    feeds = job.feeds()
    wide = {n: a.astype(np.float64) if a.dtype.kind == "f" or a.dtype.name == "bfloat16" else a
            for n, a in feeds.items()}  # fmt: skip
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = job.threads, 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL

    def run(model: str, given: Mapping[str, Array]) -> dict[str, Array]:
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        names = [o.name for o in session.get_outputs()]
        return dict(zip(names, session.run(names, dict(given)), strict=True))

    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder, "double.onnx"))

        def written() -> str:
            if not os.path.exists(path):
                model = doubled(onnx.load(job.model))
                onnx.save(model, path, save_as_external_data=True, location="weights")
            return path

        outputs, name = _first(
            {
                f"ONNX Runtime {ort.__version__} in float64": lambda: run(written(), wide),
                f"ONNX's reference {onnx.__version__} in float64": lambda: _by_reference(written(), wide),
                f"ONNX Runtime {ort.__version__} in float32": lambda: run(job.model, feeds),
            }
        )
    return Engine(lambda: outputs, name)


def _first(ways: Mapping[str, Callable[[], dict[str, Array]]]) -> tuple[dict[str, Array], str]:
    """Call the functions `ways` in order until one doesn't fail. Return its results, and its name with the
    causes of earlier failures. Raises the last function's exception if all fail."""
    failures: list[str] = []
    for number, (name, way) in enumerate(ways.items(), 1):
        try:
            return way(), f"{name} ({'; '.join(failures)})" if failures else name
        except Exception as error:  # kernels or operators are missing, which each way says in its own way
            if number == len(ways):
                raise
            text = " ".join(f"{type(error).__name__}: {error}".split())
            failures.append(f"{name} failed: {shorten(text, CAUSE, placeholder=' ...')}")
    raise AssertionError("there is a way")


def _by_reference(path: str, feeds: Mapping[str, Array]) -> dict[str, Array]:
    from onnx.reference import ReferenceEvaluator

    runner = ReferenceEvaluator(path)
    outputs = dict(zip(runner.output_names, runner.run(None, dict(feeds)), strict=True))
    if any(a.dtype == np.float32 for a in outputs.values()):
        raise TypeError(
            "ONNX's reference computes an operator of the model in float32, so that its errors aren't known"
        )
    return outputs


def doubled(model: ModelProto) -> ModelProto:
    """Return the model with all floats in float64. Raises ValueError for models that hold their own
    functions."""
    if model.functions:
        raise ValueError(
            "the model has functions of its own, and the reference in float64 takes none: inline them first"
        )
    copy = ModelProto()
    copy.CopyFrom(model)
    _double(copy.graph)
    return copy


def _double(graph: GraphProto) -> None:
    del graph.value_info[:]
    for value in (*graph.input, *graph.output):
        kind = value.type.tensor_type
        if kind.elem_type in FLOATS:
            kind.elem_type = TensorProto.DOUBLE
    for tensor in graph.initializer:
        _widen(tensor)
    nodes = [new for node in graph.node for new in _doubled_node(node)]
    del graph.node[:]
    graph.node.extend(nodes)


def _doubled_node(node: NodeProto) -> Iterator[NodeProto]:
    """Yield the nodes that compute in float64 what a node computes in float32."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            _double(attribute.g)
        elif attribute.type == AttributeProto.TENSOR:
            _widen(attribute.t)
        elif attribute.name == TYPES.get(node.op_type) and attribute.i in FLOATS:
            attribute.i = TensorProto.DOUBLE
    names = {a.name: a for a in node.attribute}
    if node.op_type == "ConstantOfShape" and "value" not in names:
        node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(np.zeros(1))))
    for name in ("value_float", "value_floats"):
        if node.op_type == "Constant" and name in names:
            number = np.asarray(helper.get_attribute_value(names[name]), np.float64)
            node.attribute.remove(names[name])
            node.attribute.append(helper.make_attribute("value", numpy_helper.from_array(number)))
    at = ALWAYS_FLOAT.get(node.op_type, len(node.input))
    if at < len(node.input) and node.input[at]:
        narrow = f"{node.output[0]}/{node.input[at]}/float"
        yield helper.make_node("Cast", [node.input[at]], [narrow], to=TensorProto.FLOAT)
        node.input[at] = narrow
    yield node


def _widen(tensor: TensorProto) -> None:
    if tensor.data_type in FLOATS:
        name = tensor.name
        tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float64), name))
