"""Make float16 and bfloat16 models of the benchmark models, by rounding.

    .venv/bin/python benchmarks/make_halves.py
    .venv/bin/python benchmarks/run.py --precision float16 --peers onnxruntime,openvino

The models come from benchmarks/make_models.py. All their floats become 16-bit, both weights and computed
values. Inputs and outputs stay float32, so that all engines and the original model take the same. Numbers
that are too large become the type's largest. Each model becomes NAME_float16.onnx and NAME_bfloat16.onnx
beside the original.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
from catalogue import CATALOGUE, HALVES, HALVES_OF, MODELS, halved
from onnx import AttributeProto, GraphProto, NodeProto, TensorProto, helper, numpy_helper, version_converter

TYPES = {
    "float16": (TensorProto.FLOAT16, np.dtype(np.float16)),
    "bfloat16": (TensorProto.BFLOAT16, np.dtype(ml_dtypes.bfloat16)),
}
FLOAT = TensorProto.FLOAT
OPSET = 22
"""The first opset that allows bfloat16 everywhere."""


def rounded(tensor: TensorProto, precision: str) -> None:
    """Round a float32 tensor to 16 bits. Other tensors stay unchanged."""
    if tensor.data_type != FLOAT:
        return
    number, dtype = TYPES[precision]
    most = float(ml_dtypes.finfo(dtype).max)
    array = np.clip(numpy_helper.to_array(tensor), -most, most).astype(dtype)
    name, sizes = tensor.name, list(tensor.dims)
    tensor.CopyFrom(helper.make_tensor(name, number, sizes, array.tobytes(), raw=True))


def convert(graph: GraphProto, precision: str) -> None:
    """Convert a graph's floats to 16 bits, between casts of its inputs and outputs."""
    number, _ = TYPES[precision]
    for tensor in graph.initializer:
        rounded(tensor, precision)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                rounded(attribute.t, precision)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == FLOAT:
                attribute.i = number
    del graph.value_info[:]
    held = {tensor.name for tensor in graph.initializer}
    before = [e.name for e in graph.input if e.type.tensor_type.elem_type == FLOAT and e.name not in held]
    after = [e.name for e in graph.output if e.type.tensor_type.elem_type == FLOAT]
    inside = {name: f"{name}.{precision}" for name in (*before, *after)}
    for node in graph.node:
        node.input[:] = [inside.get(n, n) for n in node.input]
        node.output[:] = [inside.get(n, n) for n in node.output]
    casts = [_cast(name, inside[name], number) for name in before]
    nodes = [*casts, *graph.node, *(_cast(inside[name], name, FLOAT) for name in after)]
    del graph.node[:]
    graph.node.extend(nodes)


def _cast(of: str, to: str, number: int) -> NodeProto:
    return helper.make_node("Cast", [of], [to], to=number)


def make(name: str, precision: str, folder: Path) -> Path:
    """Convert one model into a folder."""
    model = version_converter.convert_version(onnx.load(CATALOGUE[name].path), OPSET)
    convert(model.graph, precision)
    out = folder / halved(CATALOGUE[name], precision).path.name
    onnx.save(model, out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("models", nargs="*", default=HALVES_OF, metavar="MODEL", help="default: %(default)s")
    parser.add_argument("--out", type=Path, default=MODELS, help="the folder (default: where the models lie)")
    args = parser.parse_args()
    for name in args.models:
        for precision in HALVES:
            print(make(name, precision, args.out))


if __name__ == "__main__":
    main()
