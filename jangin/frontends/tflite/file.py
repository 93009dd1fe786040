"""Write a TensorFlow Lite file: tensors and operators become a flatbuffer, by the package that has the
schema."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import flatbuffers
import numpy as np
import tflite

from jangin.ir.dtype import BOOL, F16, F32, I8, I32, I64, DType
from jangin.ir.graph import Array
from jangin.ir.records import dataclass

CODES: Mapping[DType, int] = {
    F32: tflite.TensorType.FLOAT32, F16: tflite.TensorType.FLOAT16, I8: tflite.TensorType.INT8,
    I32: tflite.TensorType.INT32, I64: tflite.TensorType.INT64, BOOL: tflite.TensorType.BOOL,
}  # fmt: skip
"""The schema's numbers of the element types that the writer supports."""
OPTIONS: Mapping[str, str] = {
    "ADD": "AddOptions", "SUB": "SubOptions", "MUL": "MulOptions", "DIV": "DivOptions",
    "CONV_2D": "Conv2DOptions", "DEPTHWISE_CONV_2D": "DepthwiseConv2DOptions",
    "FULLY_CONNECTED": "FullyConnectedOptions", "BATCH_MATMUL": "BatchMatMulOptions",
    "AVERAGE_POOL_2D": "Pool2DOptions", "MAX_POOL_2D": "Pool2DOptions",
    "CONCATENATION": "ConcatenationOptions", "RESHAPE": "ReshapeOptions", "GATHER": "GatherOptions",
    "SOFTMAX": "SoftmaxOptions",
    "STRIDED_SLICE": "StridedSliceOptions", "MIRROR_PAD": "MirrorPadOptions", "GELU": "GeluOptions",
    "LEAKY_RELU": "LeakyReluOptions", "RESIZE_BILINEAR": "ResizeBilinearOptions",
    "RESIZE_NEAREST_NEIGHBOR": "ResizeNearestNeighborOptions", "CAST": "CastOptions",
    **dict.fromkeys(
        ("MEAN", "SUM", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL"),
        "ReducerOptions",
    ),
}  # fmt: skip
"""For each operator with options, the name of the schema's table for them."""
VERSIONS: Mapping[str, tuple[int, int]] = {
    "CONV_2D": (1, 3), "DEPTHWISE_CONV_2D": (2, 3), "FULLY_CONNECTED": (5, 5), "QUANTIZE": (1, 2),
    "RESHAPE": (1, 1), "BROADCAST_TO": (2, 2), "RESIZE_BILINEAR": (3, 3), "RESIZE_NEAREST_NEIGHBOR": (3, 3),
}  # fmt: skip
"""For each operator, the versions that introduced float operands and int8 operands. For operators that aren't
listed, these are 1 and 2."""
SPARE = 65536
"""Bytes that the flatbuffer builder reserves for a file's unique parts, such as the model's and the graph's
tables. They take less, and the builder grows if they don't."""
ENTRY, RECORD = 12, 512
"""`ENTRY` is the number of bytes of a scale with its zero point. `RECORD` is the largest number of bytes that
the other fields of a tensor or operator take."""
ALIGNMENT = 16
"""The positions of buffers' contents in a file are multiples of this number of bytes, as the schema
demands."""


@dataclass(frozen=True)
class Scales:
    """The quantization of an int8 or int32 tensor: real value = (q - zero) * scale. There is one scale, or
    one for each entry along `axis`."""

    scale: tuple[float, ...]
    zero: tuple[int, ...]
    axis: int = 0

    def quantized(self, x: Array) -> Array:
        """Return floats quantized to int8 by the only scale."""
        whole = np.rint(x / np.float32(self.scale[0])) + self.zero[0]
        return np.asarray(np.clip(whole, *I8.limits), np.int8)


@dataclass(frozen=True)
class Tensor:
    """A tensor of the file. `data` has the elements of a constant, and is None for other tensors."""

    shape: tuple[int, ...]
    dtype: DType
    scales: Scales | None = None
    data: Array | None = None


@dataclass(frozen=True)
class Operator:
    """A builtin operator. `options` has numbers or lists of integers by their names in the schema."""

    name: str
    inputs: Sequence[str]
    output: str
    options: Mapping[str, Any]


class File:
    """The contents of a file: tensors by name, and operators in the order of the computation."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}
        self.operators: list[Operator] = []

    def data(self, inputs: Sequence[str], outputs: Sequence[str], described: str = "") -> bytes:
        """Return the bytes of the file. `inputs` and `outputs` are names of tensors, and `described` is the
        model's description."""
        held = [t.data for t in self.tensors.values() if t.data is not None]
        b = flatbuffers.Builder(sum(a.nbytes for a in held) + self._described())
        buffers = [_table(b, "Buffer", {}), *(_table(b, "Buffer", {"Data": _bytes(b, a)}) for a in held)]
        filled = iter(range(1, len(buffers)))
        places = {name: n for n, name in enumerate(self.tensors)}
        tensors = [
            _tensor(b, name, t, 0 if t.data is None else next(filled)) for name, t in self.tensors.items()
        ]
        kinds = list(dict.fromkeys((o.name, self._version(o)) for o in self.operators))
        operators = [_operator(b, o, kinds.index((o.name, self._version(o))), places) for o in self.operators]
        parts = {
            "Tensors": _vector(b, tflite.SubGraphStartTensorsVector, tensors),
            "Inputs": _numbers(b, [places[n] for n in inputs]),
            "Outputs": _numbers(b, [places[n] for n in outputs]),
            "Operators": _vector(b, tflite.SubGraphStartOperatorsVector, operators),
            "Name": b.CreateString("main"),
        }
        graph, listed = _table(b, "SubGraph", parts), [_code(b, *kind) for kind in kinds]
        model = {
            "Version": 3,
            "OperatorCodes": _vector(b, tflite.ModelStartOperatorCodesVector, listed),
            "Subgraphs": _vector(b, tflite.ModelStartSubgraphsVector, [graph]),
            "Description": b.CreateString(described or "Jangin"),
            "Buffers": _vector(b, tflite.ModelStartBuffersVector, buffers),
        }
        b.Finish(_table(b, "Model", model), b"TFL3")
        return bytes(memoryview(b.Bytes)[b.Head() :])  # `Output` would copy the bytes first

    def _described(self) -> int:
        """Return an upper bound of the bytes that everything but the constants takes. If a flatbuffer's
        builder were too small, it would double its buffer, which includes the constants."""
        entries = sum(len(t.scales.scale) for t in self.tensors.values() if t.scales is not None)
        names = sum(len(name.encode()) for name in self.tensors)
        return SPARE + ENTRY * entries + names + RECORD * (len(self.tensors) + len(self.operators))

    def _version(self, o: Operator) -> int:
        kinds = [self.tensors[n].dtype for n in (*o.inputs, o.output) if n]
        if o.name == "DEQUANTIZE":
            return 3 if F16 in kinds else 2
        if o.name == "QUANTIZE":
            return VERSIONS[o.name][kinds[0] is I8]
        return VERSIONS.get(o.name, (1, 2))[I8 in kinds]


def _table(b: Any, name: str, fields: Mapping[str, Any]) -> int:
    getattr(tflite, f"{name}Start")(b)
    for key, value in fields.items():
        getattr(tflite, f"{name}Add{key}")(b, value)
    return int(getattr(tflite, f"{name}End")(b))


def _vector(b: Any, start: Callable[[Any, int], object], items: Sequence[int]) -> int:
    start(b, len(items))
    for item in reversed(items):
        b.PrependUOffsetTRelative(item)
    return int(b.EndVector())


def _numbers(b: Any, values: Sequence[float], kind: type = np.int32) -> int:
    return int(b.CreateNumpyVector(np.array(values, kind)))


def _bytes(b: Any, array: Array) -> int:
    raw = np.ascontiguousarray(array).tobytes()
    b.Prep(ALIGNMENT, len(raw))
    return int(b.CreateByteVector(raw))


def _tensor(b: Any, name: str, t: Tensor, buffer: int) -> int:
    parts = {
        "Shape": _numbers(b, t.shape), "Type": CODES[t.dtype], "Buffer": buffer, "Name": b.CreateString(name),
        "HasRank": True,
    }  # fmt: skip
    if t.scales is not None:
        scales = {
            "Scale": _numbers(b, t.scales.scale, np.float32),
            "ZeroPoint": _numbers(b, t.scales.zero, np.int64),
            "QuantizedDimension": t.scales.axis,
        }
        parts["Quantization"] = _table(b, "QuantizationParameters", scales)
    return _table(b, "Tensor", parts)


def _operator(b: Any, o: Operator, kind: int, places: Mapping[str, int]) -> int:
    parts = {
        "OpcodeIndex": kind, "Inputs": _numbers(b, [places[n] for n in o.inputs]),
        "Outputs": _numbers(b, [places[o.output]]),
    }  # fmt: skip
    if o.name in OPTIONS:
        options = {k: _numbers(b, v) if isinstance(v, list) else v for k, v in o.options.items()}
        parts["BuiltinOptionsType"] = getattr(tflite.BuiltinOptions, OPTIONS[o.name])
        parts["BuiltinOptions"] = _table(b, OPTIONS[o.name], options)
    return _table(b, "Operator", parts)


LAST_OLD = 127
"""The largest operator number that the file format's older field can hold. It stands there for all greater
numbers, which a newer field has."""


def _code(b: Any, name: str, version: int) -> int:
    number = getattr(tflite.BuiltinOperator, name)
    return _table(
        b, "OperatorCode",
        {"DeprecatedBuiltinCode": min(number, LAST_OLD), "BuiltinCode": number, "Version": version},
    )  # fmt: skip
