"""Convert ONNX's protobuf messages to plain Python and NumPy values. The messages may be malformed or
malicious."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import field
from functools import cache
from typing import Any

import numpy as np

from jangin.frontends.format import Contents
from jangin.frontends.onnx.file import Folder, split
from jangin.frontends.onnx.library import messages
from jangin.frontends.onnx.types import TYPES
from jangin.ir.dtype import STRING, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ir.types import ANY, Type, optional_of, sequence_of, tensor_type
from jangin.mapped import map_file

DENSEST = 1 << 30
"""The most bytes of a sparse constant's dense array. A file of a few bytes can't ask for more memory."""


MANY = 1 << 16
"""Attributes of at least this many numbers become arrays. Trees have millions of them, and each would be an
object."""


def dtype_of(code: int, what: str) -> DType:
    """Return the element type for an ONNX type number. Raises CompileError that names `what` if it isn't
    supported."""
    if code in TYPES:
        return TYPES[code]
    known = code in messages.TensorProto.DataType.values()
    name = messages.TensorProto.DataType.Name(code).lower() if known else f"number {code}"
    raise CompileError(f"{what} has element type {name}, which is not supported")


def type_of(proto: messages.TypeProto, what: str) -> Type:
    """Return the type of a value: a tensor, sequence, optional or map. Raises CompileError that names `what`
    for other types."""
    kind = proto.WhichOneof("value")
    if kind == "tensor_type":
        code = proto.tensor_type.elem_type
        dtype = STRING if code == messages.TensorProto.STRING else dtype_of(code, what)
        if not proto.tensor_type.HasField("shape"):
            return tensor_type(dtype, None)
        dims = proto.tensor_type.shape.dim
        return tensor_type(dtype, tuple(const(d.dim_value) if d.HasField("dim_value") else ANY for d in dims))
    if kind == "sequence_type":
        return sequence_of(type_of(proto.sequence_type.elem_type, what))
    if kind == "optional_type":
        return optional_of(type_of(proto.optional_type.elem_type, what))
    if kind == "map_type":
        code = proto.map_type.key_type
        key = STRING if code == messages.TensorProto.STRING else dtype_of(code, what)
        return Type("map", key, None, type_of(proto.map_type.value_type, what))
    raise CompileError(f"{what} is a {kind or 'value of no type'}, which is not supported")


def tensor(
    proto: messages.TensorProto, what: str, folder: Folder | None, raw: memoryview | None = None
) -> Array:
    """Return a tensor's contents. Strings become an array of objects.

    External data are in `folder`. `raw` has the contents if they were separated from the message. Sizes are
    checked before memory is allocated. Raises CompileError that names `what` if the tensor is malformed."""
    if proto.data_type == messages.TensorProto.STRING:
        return _strings(proto, what)
    dtype = dtype_of(proto.data_type, what)
    dims = tuple(proto.dims)
    if any(d < 0 for d in dims):
        raise CompileError(f"{what} has shape {list(dims)}: a dimension is negative")
    count = math.prod(dims)
    if proto.data_location == messages.TensorProto.EXTERNAL:
        return _external(proto, what, folder, dtype, dims)
    if raw is None and proto.HasField("raw_data"):
        raw = memoryview(proto.raw_data)
    if raw is not None:
        needed = _packed(count, dtype)
        if len(raw) != needed:
            raise CompileError(
                f"{what} has shape {list(dims)} of {dtype}, {needed} bytes; the damaged file holds {len(raw)}"
            )
        return _elements(proto, dtype, dims, raw)
    try:
        array = _typed(proto, dtype) if dtype.bits >= 8 else _unpacked(proto)
    except (ValueError, TypeError, OverflowError) as error:
        raise CompileError(f"{what} of shape {list(dims)} and type {dtype} can't be read: {error}") from None
    if array.shape != dims or array.dtype != dtype.numpy:
        raise CompileError(f"{what} should be {dtype}{list(dims)} but holds {array.dtype}{list(array.shape)}")
    return array


def dense(proto: messages.SparseTensorProto, what: str, folder: Folder | None) -> Array:
    """Return a sparse tensor's contents as a dense array. Raises CompileError that names `what` if the tensor
    is malformed, or if the array would take more than `DENSEST` bytes."""
    values, places = tensor(proto.values, what, folder), tensor(proto.indices, f"{what}'s indices", folder)
    dims = tuple(proto.dims)
    if any(d < 0 for d in dims) or math.prod(dims) * values.itemsize > DENSEST:
        raise CompileError(
            f"{what} has shape {list(dims)}, which is negative, or its array takes more than {DENSEST} bytes"
        )
    listed = (len(values),) if values.ndim == 1 else None
    if places.dtype != np.int64 or places.shape not in (listed, (*(listed or ()), len(dims))):
        raise CompileError(
            f"{what} has values of shape {list(values.shape)} and indices of shape {list(places.shape)} of "
            f"{places.dtype}; it takes n values, and n or n x {len(dims)} indices of int64"
        )
    limits = (math.prod(dims),) if places.ndim == 1 else dims
    columns = places.reshape(len(places), -1)
    if (columns < 0).any() or (columns >= np.array(limits, np.int64)).any():
        raise CompileError(f"{what} has an index outside of its shape {list(dims)}")
    array = np.zeros(dims, values.dtype)
    if places.ndim == 1:
        array.reshape(-1)[places] = values
    else:
        array[tuple(columns.T)] = values
    return array


def _strings(proto: messages.TensorProto, what: str) -> Array:
    dims = tuple(proto.dims)
    if any(d < 0 for d in dims) or len(proto.string_data) != math.prod(dims):
        raise CompileError(f"{what} has shape {list(dims)}, but holds {len(proto.string_data)} strings")
    return np.array([text(s) for s in proto.string_data], object).reshape(dims)


def _packed(count: int, dtype: DType) -> int:
    """Return the number of bytes that elements take in a file. Elements of fewer than 8 bits share bytes."""
    return -(-count * dtype.bits // 8)


def _external(
    proto: messages.TensorProto, what: str, folder: Folder | None, dtype: DType, dims: tuple[int, ...]
) -> Array:
    info = {entry.key: entry.value for entry in proto.external_data}
    location = info.get("location", "")
    if folder is None:
        raise CompileError(
            f"{what} keeps its data in the file '{location}': give the model's path, not its bytes"
        )
    try:
        path = folder.find(location)
    except ValueError as error:
        raise CompileError(f"{what} keeps its data in {_shown(location)}, {error}") from None
    needed = _packed(math.prod(dims), dtype)
    try:
        offset, length = int(info.get("offset", 0)), int(info.get("length", needed))
    except ValueError:
        raise CompileError(f"{what}: offset and length of its external data must be integers") from None
    size = path.stat().st_size
    if length != needed or offset < 0 or offset + length > size:
        raise CompileError(
            f"{what} needs {needed} bytes at {offset} of '{location}', "
            f"which is declared as {length} bytes; the file has {size}: one of them is cut short or damaged"
        )
    return _elements(proto, dtype, dims, memoryview(map_file(path))[offset : offset + needed])


def _shown(location: str) -> str:
    """Return a location as it is shown in an error message: quoted, escaped and shortened."""
    return repr(location if len(location) <= 80 else location[:77] + "...")


def _elements(proto: messages.TensorProto, dtype: DType, dims: tuple[int, ...], raw: memoryview) -> Array:
    """Return the array whose elements are in `raw`. It is a view unless the elements are smaller than a
    byte."""
    if dtype.bits >= 8:
        return np.frombuffer(raw, dtype.numpy).reshape(dims)
    return _unpacked(messages.TensorProto(data_type=proto.data_type, dims=dims, raw_data=bytes(raw)))


_FIELDS = {"f32": "float_data", "f64": "double_data", "i64": "int64_data"}
"""The fields with the elements of some types. They have the elements' own type."""


def _typed(proto: messages.TensorProto, dtype: DType) -> Array:
    """Return the array of a tensor whose elements are in the message's typed fields, which older writers use.
    Floats of up to 16 bits are there as the numbers of their bits."""
    name = _FIELDS.get(dtype.name) or ("uint64_data" if dtype.name in ("u32", "u64") else "int32_data")
    kind = dtype.numpy if name in _FIELDS.values() else np.uint64 if name == "uint64_data" else np.int32
    held = np.array(getattr(proto, name), kind)
    if dtype.kind == "f" and name == "int32_data":
        return held.astype(f"u{dtype.numpy.itemsize}").view(dtype.numpy).reshape(tuple(proto.dims))
    return held.astype(dtype.numpy, copy=False).reshape(tuple(proto.dims))


def _unpacked(proto: messages.TensorProto) -> Array:
    """Return the array of a tensor whose elements are smaller than a byte. ONNX's library converts it, which
    few models need."""
    from onnx import numpy_helper

    array: Array = numpy_helper.to_array(proto)
    return array


def attribute(proto: messages.AttributeProto, what: str, folder: Folder | None) -> Any:
    """Return an attribute's value: a number, a string, a tuple of them, or an array. Graphs are converted by
    the caller."""
    kind = proto.type
    kinds = messages.AttributeProto
    if kind in (kinds.FLOAT, kinds.INT):
        return proto.f if kind == kinds.FLOAT else proto.i
    if kind == kinds.STRING:
        return text(proto.s)
    if kind == kinds.FLOATS:
        return numbers(proto.floats, "d")
    if kind == kinds.INTS:
        return numbers(proto.ints, "q")
    if kind == kinds.STRINGS:
        strings = list(proto.strings)
        known = {s: text(s) for s in set(strings)}  # trees describe millions of nodes by few different words
        return tuple(map(known.__getitem__, strings))
    where = f"attribute '{proto.name}' of {what}"
    if kind == kinds.TENSOR:
        return tensor(proto.t, where, folder)
    if kind == kinds.TENSORS:
        return tuple(tensor(t, where, folder) for t in proto.tensors)
    if kind == kinds.SPARSE_TENSOR:
        return dense(proto.sparse_tensor, where, folder)
    if kind == kinds.TYPE_PROTO:
        return type_of(proto.tp, where)
    named = kinds.AttributeType.Name(kind) if kind in kinds.AttributeType.values() else str(kind)
    raise CompileError(f"{where} is of kind {named.lower()}, which is not supported")


def numbers(values: Sequence[float], code: str) -> Sequence[float]:
    """Return an attribute's numbers as a tuple, or as an array of `code`'s type if they are many."""
    if len(values) < MANY:
        return tuple(values)
    dtype = np.dtype(code)
    quick = hasattr(values, "__array__")  # older versions of Protobuf give numbers one by one
    held = np.asarray(values, dtype) if quick else np.fromiter(values, dtype, len(values))
    many = array(code)
    many.frombytes(held.data.cast("B"))
    return many


def text(raw: bytes | str) -> str:
    """Return a text field as a string. Protobuf gives bytes for a field that isn't valid UTF-8."""
    return raw if isinstance(raw, str) else raw.decode("utf-8", "replace")


@dataclass(frozen=True)
class ModelFile:
    """A model that has been parsed.

    `contents` has the data of large initializers by number. They aren't in the message `proto`. `folder`
    holds external data, and is None if the model has no path."""

    proto: messages.ModelProto
    contents: Mapping[int, memoryview] = field(default_factory=dict)
    folder: Folder | None = None


def read_model(given: Contents) -> ModelFile:
    """Return a model that is parsed. Raises CompileError if the contents are no ONNX model."""
    if given.message is not None:
        return ModelFile(given.message)
    parts = split(memoryview(given.data))
    proto = messages.ModelProto()
    size = len(given.data)
    try:
        proto.ParseFromString(parts.message)
    except Exception as error:  # protobuf's DecodeError, whose class depends on the implementation
        raise CompileError(f"{given} is not an ONNX model, or is cut short ({size} bytes): {error}") from None
    if not proto.HasField("graph"):
        raise CompileError(f"{given} is not an ONNX model: it holds no graph ({size} bytes)")
    _check_text(proto, str(given))
    return ModelFile(proto, parts.contents, None if given.path is None else Folder(given.path))


def _check_text(message: Any, what: str) -> None:
    """Raise CompileError if a name in a message, or in a message inside it, isn't valid UTF-8. Protobuf gives
    such names as bytes."""
    texts, parts = _fields(message.DESCRIPTOR)
    for name, repeated in texts:
        value = getattr(message, name)
        if any(isinstance(v, bytes) for v in (value if repeated else (value,))):
            raise CompileError(f"{what} is malformed: a {name} in it is not text")
    for name, repeated in parts:
        if repeated or message.HasField(name):
            value = getattr(message, name)
            for part in value if repeated else (value,):
                _check_text(part, what)


@cache
def _fields(kind: Any) -> tuple[tuple[tuple[str, bool], ...], tuple[tuple[str, bool], ...]]:
    """Return the text fields and the message fields of a message type, each with whether it repeats. Fields
    that Jangin doesn't read are left out."""
    read = [f for f in kind.fields if f.name not in ("doc_string", "value_info", "metadata_props")]
    texts = tuple((f.name, _repeats(f)) for f in read if f.type == f.TYPE_STRING)
    return texts, tuple((f.name, _repeats(f)) for f in read if f.type == f.TYPE_MESSAGE)


def _repeats(field: Any) -> bool:
    older = not hasattr(field, "is_repeated")  # protobuf before 6.31
    return bool(field.label == field.LABEL_REPEATED if older else field.is_repeated)
