"""Convert layers of Caffe's first two syntaxes (V0: `layers { layer {`, V1: `type: CONVOLUTION`) to the last
one."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.frontends.caffe.prototxt import Message, Scalar
from jangin.ir.graph import CompileError

V1_TYPES: Mapping[str, str] = {
    "ABSVAL": "AbsVal", "ARGMAX": "ArgMax", "BNLL": "BNLL", "DUMMY_DATA": "DummyData",
    "HDF5_DATA": "HDF5Data", "HDF5_OUTPUT": "HDF5Output", "IM2COL": "Im2col", "LRN": "LRN", "MVN": "MVN",
    "RELU": "ReLU",
    "PRELU": "PReLU", "SOFTMAX_LOSS": "SoftmaxWithLoss", "TANH": "TanH",
}  # fmt: skip
"""The names of V1 types that aren't only joined words, as INNER_PRODUCT is for InnerProduct."""
V0_TYPES: Mapping[str, str] = {
    "conv": "Convolution", "pool": "Pooling", "innerproduct": "InnerProduct", "relu": "ReLU",
    "dropout": "Dropout", "softmax": "Softmax", "softmax_loss": "SoftmaxWithLoss", "lrn": "LRN",
    "concat": "Concat", "data": "Data", "split": "Split", "flatten": "Flatten", "bnll": "BNLL",
    "tanh": "TanH", "sigmoid": "Sigmoid", "accuracy": "Accuracy", "images": "ImageData",
    "hdf5_data": "HDF5Data",
    "euclidean_loss": "EuclideanLoss", "eltwise": "Eltwise",
}  # fmt: skip
V0_FIELDS: Mapping[str, Mapping[str, str]] = {
    "Convolution": {
        "num_output": "num_output", "biasterm": "bias_term", "pad": "pad", "kernelsize": "kernel_size",
        "group": "group", "stride": "stride",
    },
    "Pooling": {"pool": "pool", "pad": "pad", "kernelsize": "kernel_size", "stride": "stride"},
    "InnerProduct": {"num_output": "num_output", "biasterm": "bias_term"},
    "LRN": {"local_size": "local_size", "alpha": "alpha", "beta": "beta", "k": "k"},
    "Concat": {"concat_dim": "concat_dim"},
}  # fmt: skip
"""The names of parameters that V0's flat fields have now, by the type of layer."""
PARAMETERS = {
    "Convolution": "convolution_param", "Pooling": "pooling_param", "InnerProduct": "inner_product_param",
    "LRN": "lrn_param", "Concat": "concat_param",
}  # fmt: skip


def layers(net: Message) -> list[Message]:
    """Return a network's layers in the last syntax, whatever their syntax is. Raises CompileError for a
    mixture."""
    old, new = net.messages("layers"), net.messages("layer")
    if old and new:
        raise CompileError("the prototxt has both `layers` and `layer`, which belong to different syntaxes")
    return new or [_from_v0(m) if "layer" in m.fields else _from_v1(m) for m in old]


def _from_v1(layer: Message) -> Message:
    kind = layer.word("type")
    name = V1_TYPES.get(kind, "".join(part.capitalize() for part in kind.split("_")))
    return Message(layer.line, {**layer.fields, "type": [name if kind.isupper() else kind]})


def _from_v0(outer: Message) -> Message:
    (layer, *more) = outer.messages("layer")
    kind = layer.word("type")
    if more or kind not in V0_TYPES:
        why = f"[{kind}] is not supported" if not more else "holds several layers"
        raise CompileError(f"the layer in line {outer.line}, of Caffe's first syntax, {why}")
    name = V0_TYPES[kind]
    fields: dict[str, list[Scalar | Message]] = {
        k: outer.fields[k] for k in ("bottom", "top") if k in outer.fields
    }
    known = V0_FIELDS.get(name, {})
    params = Message(layer.line, {known[k]: v for k, v in layer.fields.items() if k in known})
    fields["name"], fields["type"] = layer.fields.get("name", []), [name]
    if params.fields:
        fields[PARAMETERS[name]] = [params]
    return Message(layer.line, fields)
