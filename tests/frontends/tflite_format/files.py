"""Small TFLite files of one operator, written by the schema's own functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import flatbuffers
import numpy as np
import tflite

KINDS = {
    "float32": tflite.TensorType.FLOAT32, "int8": tflite.TensorType.INT8, "uint8": tflite.TensorType.UINT8,
    "int32": tflite.TensorType.INT32, "int64": tflite.TensorType.INT64, "bool": tflite.TensorType.BOOL,
    "int16": tflite.TensorType.INT16, "resource": tflite.TensorType.RESOURCE,
    "complex64": tflite.TensorType.COMPLEX64, "uint32": tflite.TensorType.UINT32,
    "uint64": tflite.TensorType.UINT64, "string": tflite.TensorType.STRING,
    "int4": tflite.TensorType.INT4, "float16": tflite.TensorType.FLOAT16,
    "float64": tflite.TensorType.FLOAT64, "uint16": tflite.TensorType.UINT16,
}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A tensor of a TFLite file.

    `data`: the contents of a constant. `scales` and `zeros`: the quantization, along `axis` if there are
    several scales. `variable`: whether it is a state. `sparse`: the order of its axes, the axes of its
    blocks, and for each level its size, or its segments and indices. `signature`: its shape with -1 for free
    sizes. `at`: where a constant lies in the file, behind the model."""

    shape: Sequence[int]
    dtype: str = "float32"
    scales: Sequence[float] = ()
    zeros: Sequence[int] = ()
    axis: int = 0
    data: Any = None
    sparse: tuple[Sequence[int], Sequence[int], Sequence[Any]] | None = None
    variable: bool = False
    signature: Sequence[int] = ()
    at: int = 0


@dataclass(frozen=True)
class Operator:
    """An operator of a TFLite file.

    A builtin operator has `options` by the schema's names, in the table `table`. A custom operator has the
    bytes of its options. `between`: tensors that hold the quantization of the operator's intermediate
    results."""

    name: str
    inputs: Sequence[int]
    outputs: Sequence[int]
    table: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)
    version: int = 2
    custom: bytes | None = None
    between: Sequence[int] = ()


@dataclass(frozen=True)
class SubGraph:
    """A sub-graph: the body of an operator, or the sub-graph that CALL_ONCE runs."""

    tensors: Sequence[Tensor]
    operators: Sequence[Operator]
    inputs: Sequence[int]
    outputs: Sequence[int]


@dataclass(frozen=True)
class Signature:
    """A signature of the sub-graph `graph`, with its own names of tensors, by their numbers."""

    key: str
    graph: int
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def written(
    tensors: Sequence[Tensor], operators: Sequence[Operator], inputs: Sequence[int], outputs: Sequence[int],
    *bodies: SubGraph, signatures: Sequence[Signature] = (),
) -> bytes:  # fmt: skip
    """Return the bytes of a TFLite file with one sub-graph and with `bodies`, which are numbered from 1."""
    b = flatbuffers.Builder(1024)
    graphs = [SubGraph(tensors, operators, inputs, outputs), *bodies]
    held = [t for g in graphs for t in g.tensors if t.data is not None]
    made = [(b.CreateByteVector(b""), None), *((b.CreateByteVector(_contents(t)), t) for t in held)]
    buffers = []
    for data, t in made:
        tflite.BufferStart(b)
        if t is not None and t.at:
            tflite.BufferAddOffset(b, t.at)
            tflite.BufferAddSize(b, len(_contents(t)))
        else:
            tflite.BufferAddData(b, data)
        buffers.append(tflite.BufferEnd(b))
    places = iter(range(1, len(buffers)))
    codes = iter(range(sum(len(g.operators) for g in graphs)))
    subgraphs = [_graph(b, g, places, codes) for g in graphs]
    listed = [_code(b, o) for g in graphs for o in g.operators]
    signed = [_signature(b, s) for s in signatures]
    parts = [
        _vector(b, start, items)
        for start, items in (
            (tflite.ModelStartOperatorCodesVector, listed), (tflite.ModelStartSubgraphsVector, subgraphs),
            (tflite.ModelStartBuffersVector, buffers), (tflite.ModelStartSignatureDefsVector, signed),
        )
    ]  # fmt: skip
    tflite.ModelStart(b)
    tflite.ModelAddVersion(b, 3)
    tflite.ModelAddOperatorCodes(b, parts[0])
    tflite.ModelAddSubgraphs(b, parts[1])
    tflite.ModelAddBuffers(b, parts[2])
    tflite.ModelAddSignatureDefs(b, parts[3])
    b.Finish(tflite.ModelEnd(b), b"TFL3")
    out = bytes(b.Output())
    for t in sorted((t for t in held if t.at), key=lambda t: t.at):
        assert len(out) <= t.at
        out = out.ljust(t.at, b"\0") + _contents(t)
    return out


def _signature(b: Any, s: Signature) -> int:
    ends = []
    for names, start in (
        (s.inputs, tflite.SignatureDefStartInputsVector), (s.outputs, tflite.SignatureDefStartOutputsVector),
    ):  # fmt: skip
        tables = []
        for name, tensor in names.items():
            text = b.CreateString(name)
            tflite.TensorMapStart(b)
            tflite.TensorMapAddName(b, text)
            tflite.TensorMapAddTensorIndex(b, tensor)
            tables.append(tflite.TensorMapEnd(b))
        ends.append(_vector(b, start, tables))
    key = b.CreateString(s.key)
    tflite.SignatureDefStart(b)
    tflite.SignatureDefAddInputs(b, ends[0])
    tflite.SignatureDefAddOutputs(b, ends[1])
    tflite.SignatureDefAddSignatureKey(b, key)
    tflite.SignatureDefAddSubgraphIndex(b, s.graph)
    return int(tflite.SignatureDefEnd(b))


def _contents(t: Tensor) -> bytes:
    """Return the bytes of a tensor's buffer.

    A buffer of texts (bytes) holds their number, the beginning of each, the end, and then the texts. A buffer
    of int4 holds two numbers a byte, the first in the lower half."""
    if t.dtype == "int4":
        codes = np.asarray(t.data).reshape(-1).astype(np.uint8) & 15
        codes = np.append(codes, np.zeros(codes.size % 2, np.uint8))
        return bytes(codes[0::2] | codes[1::2] << 4)
    if t.dtype != "string":
        return np.asarray(t.data, t.dtype).tobytes()
    ends = np.cumsum([4 * (len(t.data) + 2), *map(len, t.data)])
    return np.array([len(t.data), *ends], np.int32).tobytes() + b"".join(t.data)


def _graph(b: Any, g: SubGraph, places: Iterator[int], codes: Iterator[int]) -> int:
    tables = [_tensor(b, n, t, 0 if t.data is None else next(places)) for n, t in enumerate(g.tensors)]
    nodes = [_operator(b, next(codes), o) for o in g.operators]
    ends = [b.CreateNumpyVector(np.array(i, np.int32)) for i in (g.inputs, g.outputs)]
    whole = _vector(b, tflite.SubGraphStartTensorsVector, tables)
    listed = _vector(b, tflite.SubGraphStartOperatorsVector, nodes)
    tflite.SubGraphStart(b)
    tflite.SubGraphAddTensors(b, whole)
    tflite.SubGraphAddInputs(b, ends[0])
    tflite.SubGraphAddOutputs(b, ends[1])
    tflite.SubGraphAddOperators(b, listed)
    return int(tflite.SubGraphEnd(b))


def _vector(b: Any, start: Any, items: Sequence[int]) -> int:
    start(b, len(items))
    for item in reversed(items):
        b.PrependUOffsetTRelative(item)
    return int(b.EndVector())


def _tensor(b: Any, n: int, t: Tensor, buffer: int) -> int:
    name = b.CreateString(f"t{n}")
    shape = b.CreateNumpyVector(np.array(t.shape, np.int32))
    signature = b.CreateNumpyVector(np.array(t.signature, np.int32))
    quantization = None
    if t.scales:
        scales = b.CreateNumpyVector(np.array(t.scales, np.float32))
        zeros = b.CreateNumpyVector(np.array(t.zeros or [0] * len(t.scales), np.int64))
        tflite.QuantizationParametersStart(b)
        tflite.QuantizationParametersAddScale(b, scales)
        tflite.QuantizationParametersAddZeroPoint(b, zeros)
        tflite.QuantizationParametersAddQuantizedDimension(b, t.axis)
        quantization = tflite.QuantizationParametersEnd(b)
    sparsity = None if t.sparse is None else _sparsity(b, *t.sparse)
    tflite.TensorStart(b)
    if sparsity is not None:
        tflite.TensorAddSparsity(b, sparsity)
    tflite.TensorAddShape(b, shape)
    tflite.TensorAddType(b, KINDS[t.dtype])
    tflite.TensorAddBuffer(b, buffer)
    tflite.TensorAddName(b, name)
    tflite.TensorAddIsVariable(b, t.variable)
    if t.signature:
        tflite.TensorAddShapeSignature(b, signature)
    if quantization is not None:
        tflite.TensorAddQuantization(b, quantization)
    return int(tflite.TensorEnd(b))


def _sparsity(b: Any, order: Sequence[int], blocks: Sequence[int], levels: Sequence[Any]) -> int:
    tables = []
    for level in levels:
        held = []
        for values in () if isinstance(level, int) else level:
            numbers = b.CreateNumpyVector(np.array(values, np.int32))
            tflite.Int32VectorStart(b)
            tflite.Int32VectorAddValues(b, numbers)
            held.append(tflite.Int32VectorEnd(b))
        tflite.DimensionMetadataStart(b)
        if held:
            tflite.DimensionMetadataAddFormat(b, tflite.DimensionType.SPARSE_CSR)
            tflite.DimensionMetadataAddArraySegmentsType(b, tflite.SparseIndexVector.Int32Vector)
            tflite.DimensionMetadataAddArraySegments(b, held[0])
            tflite.DimensionMetadataAddArrayIndicesType(b, tflite.SparseIndexVector.Int32Vector)
            tflite.DimensionMetadataAddArrayIndices(b, held[1])
        else:
            tflite.DimensionMetadataAddDenseSize(b, level)
        tables.append(tflite.DimensionMetadataEnd(b))
    metadata = _vector(b, tflite.SparsityParametersStartDimMetadataVector, tables)
    orders = [b.CreateNumpyVector(np.array(v, np.int32)) for v in (order, blocks)]
    tflite.SparsityParametersStart(b)
    tflite.SparsityParametersAddTraversalOrder(b, orders[0])
    tflite.SparsityParametersAddBlockMap(b, orders[1])
    tflite.SparsityParametersAddDimMetadata(b, metadata)
    return int(tflite.SparsityParametersEnd(b))


def _operator(b: Any, n: int, o: Operator) -> int:
    ends = [b.CreateNumpyVector(np.array(i, np.int32)) for i in (o.inputs, o.outputs, o.between)]
    options, custom = None, None if o.custom is None else b.CreateByteVector(o.custom)
    if o.table:
        vectors = {
            k: b.CreateString(v) if isinstance(v, str) else b.CreateNumpyVector(_numbers(v))
            for k, v in o.options.items()
            if isinstance(v, (list, str, np.ndarray))
        }
        getattr(tflite, f"{o.table}Start")(b)
        for key, value in o.options.items():
            getattr(tflite, f"{o.table}Add{key}")(b, vectors.get(key, value))
        options = getattr(tflite, f"{o.table}End")(b)
    tflite.OperatorStart(b)
    tflite.OperatorAddOpcodeIndex(b, n)
    tflite.OperatorAddInputs(b, ends[0])
    tflite.OperatorAddOutputs(b, ends[1])
    if o.between:
        tflite.OperatorAddIntermediates(b, ends[2])
    if options is not None and hasattr(tflite.BuiltinOptions2, o.table):
        tflite.OperatorAddBuiltinOptions2Type(b, getattr(tflite.BuiltinOptions2, o.table))
        tflite.OperatorAddBuiltinOptions2(b, options)
    elif options is not None:
        tflite.OperatorAddBuiltinOptionsType(b, getattr(tflite.BuiltinOptions, o.table))
        tflite.OperatorAddBuiltinOptions(b, options)
    if custom is not None:
        tflite.OperatorAddCustomOptions(b, custom)
    return int(tflite.OperatorEnd(b))


def _numbers(given: Any) -> Any:
    return given if isinstance(given, np.ndarray) else np.array(given, np.int32)


def _code(b: Any, o: Operator) -> int:
    name = None if o.custom is None else b.CreateString(o.name)
    number = getattr(tflite.BuiltinOperator, o.name if name is None else "CUSTOM")
    tflite.OperatorCodeStart(b)
    tflite.OperatorCodeAddDeprecatedBuiltinCode(b, min(number, 127))
    tflite.OperatorCodeAddBuiltinCode(b, number)
    tflite.OperatorCodeAddVersion(b, o.version)
    if name is not None:
        tflite.OperatorCodeAddCustomCode(b, name)
    return int(tflite.OperatorCodeEnd(b))


def flex(name: str, inputs: Sequence[int], outputs: Sequence[int], **attributes: Any) -> Operator:
    """Return an operator of TensorFlow's own, whose attributes are texts, truths, integers or lists of
    integers."""
    from flatbuffers import flexbuffers

    def text(number: int, content: bytes) -> bytes:
        assert len(content) < 128, "longer ones have more bytes of length"
        return bytes([number << 3 | 2, len(content)]) + content

    def valued(value: Any) -> bytes:
        if isinstance(value, str):
            return text(2, value.encode())
        if isinstance(value, (list, tuple)):
            return text(1, text(3, bytes(value)))
        return bytes([(5 if isinstance(value, bool) else 3) << 3, value])

    entries = (text(5, text(1, n.encode()) + text(2, valued(v))) for n, v in attributes.items())
    node = text(1, b"node") + text(2, name.encode()) + b"".join(entries)
    builder = flexbuffers.Builder()
    with builder.Vector():
        builder.String(name)
        builder.String(node.decode())
    return Operator(f"Flex{name}", inputs, outputs, version=1, custom=bytes(builder.Finish()))
