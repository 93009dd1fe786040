"""Read a caffemodel's blobs by the names of their layers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from jangin.ir.graph import Array, CompileError

Field = descriptor_pb2.FieldDescriptorProto
MESSAGES: Mapping[str, Mapping[str, tuple[int, str]]] = {
    "Net": {"name": (1, "string"), "layers": (2, "OldLayer*"), "layer": (100, "Layer*")},
    "Layer": {"name": (1, "bytes"), "blobs": (7, "Blob*")},
    "OldLayer": {"layer": (1, "OldestLayer"), "name": (4, "bytes"), "blobs": (6, "Blob*")},
    "OldestLayer": {"name": (1, "bytes"), "blobs": (50, "Blob*")},
    "Blob": {
        "num": (1, "int32"), "channels": (2, "int32"), "height": (3, "int32"), "width": (4, "int32"),
        "data": (5, "bytes"), "shape": (7, "Shape"), "double_data": (8, "bytes"),
    },
    "Shape": {"dim": (1, "int64*")},
}  # fmt: skip
"""The parts of caffe.proto that are read: the fields' numbers and types ("*" marks a repeated field).

Packed floats are declared as bytes, which is their form in the file, so that no number becomes a Python
object."""
KINDS = {
    "string": Field.TYPE_BYTES, "bytes": Field.TYPE_BYTES, "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
}  # fmt: skip


@cache
def _net() -> Any:
    """Return the message class of a whole caffemodel."""
    file = descriptor_pb2.FileDescriptorProto(name="jangin_caffe.proto", package="jangin.caffe")
    for name, fields in MESSAGES.items():
        message = file.message_type.add(name=name)
        for label, (number, kind) in fields.items():
            base = kind.rstrip("*")
            field = message.field.add(name=label, number=number)
            field.label = Field.LABEL_REPEATED if kind.endswith("*") else Field.LABEL_OPTIONAL
            field.type = KINDS.get(base, Field.TYPE_MESSAGE)
            if base in MESSAGES:
                field.type_name = f".jangin.caffe.{base}"
            elif kind == "int64*":
                field.options.packed = True
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("jangin.caffe.Net"))


def read_blobs(data: Any, where: str) -> dict[str, list[Array]]:
    """Return the blobs in f32 by the name of their layer, for the layers that have any.

    Raises CompileError if the data is no caffemodel, or if a blob's data doesn't fit its shape."""
    try:
        net = _net().FromString(bytes(data))
    except DecodeError as error:
        raise CompileError(f"{where} is no caffemodel, or a damaged one: {error}") from None
    blobs: dict[str, list[Array]] = {}
    old = (entry.layer if entry.HasField("layer") else entry for entry in net.layers)
    for layer in (*old, *net.layer):
        if layer.blobs:
            name = layer.name.decode(errors="replace")
            blobs[name] = [
                _array(blob, f"{where}: blob {n} of layer {name!r}") for n, blob in enumerate(layer.blobs)
            ]
    return blobs


def _array(blob: Any, what: str) -> Array:
    data, kind = (blob.data, "<f4") if blob.data else (blob.double_data, "<f8")
    dims = (
        list(blob.shape.dim) if blob.HasField("shape") else [blob.num, blob.channels, blob.height, blob.width]
    )
    needed = math.prod(dims) * np.dtype(kind).itemsize
    if min(dims, default=1) < 0 or needed != len(data):
        raise CompileError(
            f"{what} has shape {dims}, which takes {needed} bytes: the damaged file holds {len(data)}"
        )
    return np.frombuffer(data, kind).reshape(dims).astype(np.float32, copy=False)
