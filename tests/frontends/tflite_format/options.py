"""Every option of every builtin operator for every type: files of one operator, with names that say the
option and the type."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from files import Operator, Tensor
from option_kinds import ACTIVATIONS, QUANTIZED, RANDOM, Case, called, kinds, numbers, tensor, typed
from option_moves import moves

UNARY: dict[str, tuple[str, list[dict[str, Any]]]] = {
    **{n: ("", [{}]) for n in (
        "ABS", "CEIL", "COS", "ELU", "EXP", "FLOOR", "HARD_SWISH", "LOG", "LOGISTIC", "LOGICAL_NOT", "NEG",
        "RELU", "RELU6", "RELU_N1_TO_1", "RELU_0_TO_1", "ROUND", "RSQRT", "SIGN", "SIN", "SQRT", "SQUARE",
        "TANH", "LOG_SOFTMAX", "ZEROS_LIKE", "DEQUANTIZE", "WHERE")},
    "GELU": ("GeluOptions", [{"Approximate": False}, {"Approximate": True}]),
    "LEAKY_RELU": ("LeakyReluOptions", [{"Alpha": a} for a in (0.1, -0.5, 1.5)]),
    "SOFTMAX": ("SoftmaxOptions", [{"Beta": 1.0}, {"Beta": 0.5}]),
    "L2_NORMALIZATION": ("L2NormOptions", [{"FusedActivationFunction": a} for a in ACTIVATIONS]),
    "SHAPE": ("ShapeOptions", [{"OutType": 2}, {"OutType": 4}]),
    "RANK": ("", [{}]),
    "LOCAL_RESPONSE_NORMALIZATION": ("LocalResponseNormalizationOptions", [
        {"Radius": 2, "Bias": 1.0, "Alpha": 0.1, "Beta": 0.5}]),
    "BUCKETIZE": ("BucketizeOptions", [{"Boundaries": np.float32([-1, 0, 2.5])}]),
    "SPACE_TO_DEPTH": ("SpaceToDepthOptions", [{"BlockSize": 2}]),
    "DEPTH_TO_SPACE": ("DepthToSpaceOptions", [{"BlockSize": 2}]),
    "UNPACK": ("UnpackOptions", [{"Axis": a, "Num": 2} for a in (0, 3, -1)]),
}  # fmt: skip
IMAGE = [1, 4, 6, 8]
SHAPES = {
    "SPACE_TO_DEPTH": [1, 2, 3, 32],
    "DEPTH_TO_SPACE": [1, 8, 12, 2],
    "RANK": [],
    "SHAPE": [4],
}
RESULTS = {"DEQUANTIZE": "float32", "WHERE": "int64", "RANK": "int32", "BUCKETIZE": "int32"}
FIXED = {  # the scales that kernels demand of results
    "LOGISTIC": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (2.0**-15, 0)},
    "TANH": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128), "int16": (2.0**-15, 0)},
    "SOFTMAX": {"int8": (1 / 256, -128), "uint8": (1 / 256, 0), "int16": (2.0**-15, 0)},
    "LOG_SOFTMAX": {"int8": (16 / 256, 127), "uint8": (16 / 256, 255)},
    "L2_NORMALIZATION": {"int8": (1 / 128, 0), "uint8": (1 / 128, 128)},
}


def unary() -> Iterator[tuple[str, Case]]:
    for name, (table, options) in UNARY.items():
        for (dtype, quantized), given in product(kinds(), options):
            if dtype in ("int8", "uint8", "int16") and not quantized and name not in MOVING:
                continue  # LiteRT takes a missing scale as 0
            shape = list(IMAGE)
            if name == "UNPACK":
                shape[given["Axis"]] = 2
            out = SHAPES.get(name, shape)
            if name == "UNPACK":
                out = [d for i, d in enumerate(shape) if i != given["Axis"] % 4]
            if name == "WHERE":
                out = [0, 4]
            x = tensor(shape, dtype, quantized)
            result = RESULTS.get(name, dtype)
            if name == "SHAPE":
                result = "int32" if given["OutType"] == 2 else "int64"
            y = tensor(out, result, quantized and result == dtype, 1 if name in MOVING else 0.7)
            if quantized and dtype in FIXED.get(name, {}):
                scale, zero = FIXED[name][dtype]
                y = Tensor(out, dtype, [scale], [zero])
            count = given.get("Num", 1)
            label = (
                called(name, typed(dtype, quantized), *given.values())
                if name != "BUCKETIZE"
                else called(name, typed(dtype, quantized))
            )
            yield (
                label,
                (
                    [x, *[y] * count],
                    Operator(name, [0], [*range(1, 1 + count)], table, given, 1 if dtype == "float32" else 3),
                ),
            )


MOVING = {"SPACE_TO_DEPTH", "DEPTH_TO_SPACE", "UNPACK", "ZEROS_LIKE"}
BINARY: dict[str, tuple[str, list[dict[str, Any]]]] = {
    **{n: (t, [{"FusedActivationFunction": a} for a in ACTIVATIONS]) for n, t in (
        ("ADD", "AddOptions"), ("SUB", "SubOptions"), ("MUL", "MulOptions"), ("DIV", "DivOptions"))},
    **{n: ("", [{}]) for n in (
        "FLOOR_DIV", "FLOOR_MOD", "MAXIMUM", "MINIMUM", "POW", "SQUARED_DIFFERENCE", "ATAN2", "LOGICAL_AND",
        "LOGICAL_OR", "BITWISE_XOR", "RIGHT_SHIFT", "PRELU", "ADD_N", "EQUAL", "NOT_EQUAL", "LESS",
        "LESS_EQUAL", "GREATER", "GREATER_EQUAL")},
}  # fmt: skip
SCALED = {"ADD", "SUB", "MUL", "DIV", "PRELU", "SQUARED_DIFFERENCE"}
COMPARING = {"EQUAL", "NOT_EQUAL", "LESS", "LESS_EQUAL", "GREATER", "GREATER_EQUAL"}


def binary() -> Iterator[tuple[str, Case]]:
    for name, (table, options) in BINARY.items():
        for (dtype, quantized), given, alike, shape in product(
            kinds(), options, (True, False), ([1, 2, 3, 4], [4], [1, 2, 1, 4])
        ):
            if not alike and (not quantized or shape == [4]):
                continue
            if dtype in ("int8", "uint8", "int16") and not quantized and name in SCALED | COMPARING:
                continue
            x = tensor([1, 2, 3, 4], dtype, quantized)
            z = tensor(shape, dtype, quantized, 1 if alike else 1.7)
            y = tensor([1, 2, 3, 4], "bool" if name in COMPARING else dtype, quantized, 1 if alike else 2.3)
            given = {"PotScaleInt16": False, **given} if name in ("ADD", "SUB") else given
            label = called(
                name, typed(dtype, quantized), "alike" if alike else "apart", shape, *given.values()
            )
            yield label, ([x, z, y], Operator(name, [0, 1], [2], table, given, 2))


REDUCERS = ("SUM", "MEAN", "REDUCE_MAX", "REDUCE_MIN", "REDUCE_PROD", "REDUCE_ANY", "REDUCE_ALL")


def reductions() -> Iterator[tuple[str, Case]]:
    for name, (dtype, quantized), keep, axes in product(
        REDUCERS, kinds(), (True, False), ([1], [1, 2], [-1], [0, 1, 2, 3])
    ):
        gone = {a % 4 for a in axes}
        shape = [2, 4, 3, 5]
        out = [1 if i in gone else d for i, d in enumerate(shape) if keep or i not in gone]
        for factor in (1, 2.5) if quantized else (1,):
            y = tensor(out, dtype, quantized, factor)
            label = called(name, typed(dtype, quantized), keep, axes, factor)
            yield label, ([tensor(shape, dtype, quantized), numbers(*axes), y],
                          Operator(name, [0, 1], [2], "ReducerOptions", {"KeepDims": keep}))  # fmt: skip
    for name, (dtype, quantized), out, axis in product(
        ("ARG_MAX", "ARG_MIN"), kinds(), ("int32", "int64"), (0, 1, -1)
    ):
        shape = [3, 4, 5]
        y = Tensor([d for i, d in enumerate(shape) if i != axis % 3], out)
        options = {"OutputType": 2 if out == "int32" else 4}
        table = "ArgMaxOptions" if name == "ARG_MAX" else "ArgMinOptions"
        label = called(name, typed(dtype, quantized), out, axis)
        yield label, ([tensor(shape, dtype, quantized), numbers(axis, shape=[]), y],
                      Operator(name, [0, 1], [2], table, options))  # fmt: skip
    for (dtype, quantized), exclusive, backwards in product(kinds(), (True, False), (True, False)):
        shape = [2, 5, 3]
        options = {"Exclusive": exclusive, "Reverse": backwards}
        label = called("CUMSUM", typed(dtype, quantized), exclusive, backwards)
        x = tensor(shape, dtype, quantized)
        yield label, ([x, numbers(1, shape=[]), x],
                      Operator("CUMSUM", [0, 1], [2], "CumsumOptions", options))  # fmt: skip


def windows() -> Iterator[tuple[str, Case]]:
    image = [1, 7, 8, 4]
    for name, (dtype, quantized), act, padding in product(
        ("MAX_POOL_2D", "AVERAGE_POOL_2D", "L2_POOL_2D"), kinds(), ACTIVATIONS, (0, 1)
    ):
        o = {
            "Padding": padding,
            "StrideH": 2,
            "StrideW": 1,
            "FilterHeight": 2,
            "FilterWidth": 3,
            "FusedActivationFunction": act,
        }
        out = [1, 4, 8, 4] if padding == 0 else [1, 3, 6, 4]
        label = called(name, typed(dtype, quantized), act, padding)
        yield (
            label,
            (
                [tensor(image, dtype, quantized), tensor(out, dtype, quantized)],
                Operator(name, [0], [1], "Pool2DOptions", o),
            ),
        )
    for name, act, padding, dilation, kind in product(
        ("CONV_2D", "DEPTHWISE_CONV_2D"), ACTIVATIONS, (0, 1), (1, 2), WEIGHTS
    ):
        yield called(name, kind, act, padding, dilation), _convolution(name, act, padding, dilation, kind)
    for name, act, keep, hybrid, kind in product(
        ("FULLY_CONNECTED",), ACTIVATIONS, (True, False), (True, False), WEIGHTS
    ):
        yield called(name, kind, act, keep, hybrid), _fully_connected(act, keep, hybrid, kind)
    for act, padding, kind in product(ACTIVATIONS, (0, 1), WEIGHTS):
        yield called("TRANSPOSE_CONV", kind, act, padding), _transposed(act, padding, kind)
    for adj_x, adj_y, hybrid, kind in product((True, False), (True, False), (True, False), PRODUCTS):
        yield called("BATCH_MATMUL", *kind, adj_x, adj_y, hybrid), _matmul(adj_x, adj_y, hybrid, kind)


WEIGHTS = (
    "float32",
    "int8",
    "int8 each",
    "uint8",
    "int16",
    "int16 of 64",
    "int16 of int4",
    "int8 of int4",
    "int8 of int4 each",
    "hybrid",
    "hybrid each",
    "hybrid of int4",
    "hybrid of int4 each",
    "hybrid of uint8",
    "float of int8",
    "float of float16",
)
PRODUCTS = (
    ("float32", "float32"),
    ("int8", "int8"),
    ("int16", "int16"),
    ("float32", "int8"),
    ("uint8", "uint8"),
    ("int8", "int4"),
)


def _weights(kind: str, shape: Sequence[int], axis: int) -> tuple[str, Tensor, Tensor | None, Tensor]:
    """Return the activations' type, the weights, the bias and a result tensor with its quantization."""
    each = kind.endswith("each")
    source = kind.split()[0]
    held = (
        "int4"
        if "int4" in kind
        else {
            "hybrid": "uint8" if "uint8" in kind else "int8",
            "float": kind.split()[-1],
            "int16": "int8",
        }.get(source, source)
    )
    activations = {"hybrid": "float32", "float": "float32"}.get(source, source)
    count = shape[axis]
    low, high = (-7, 8) if held == "int4" else (0, 256) if held == "uint8" else (-127, 128)
    data = RANDOM.standard_normal(shape) if held.startswith("float") else RANDOM.integers(low, high, shape)
    scales = [0.01 * (1 + i / 8) for i in range(count)] if each else [0.02]
    zeros = [128] if held == "uint8" else [0] * len(scales)
    w = (
        Tensor(shape, held, data=data)
        if held.startswith("float")
        else Tensor(shape, held, scales, zeros, axis, data=data)
    )
    if activations == "float32":
        return activations, w, Tensor([count], data=RANDOM.standard_normal(count)), w
    wide = "int64" if "64" in kind else "int32"
    of_x = QUANTIZED[activations][0]
    bias = Tensor(
        [count],
        wide,
        [of_x * s for s in scales],
        [0] * len(scales),
        0,
        data=RANDOM.integers(-500, 500, count),
    )
    return activations, w, bias, w


def _convolution(name: str, act: int, padding: int, dilation: int, kind: str) -> Case:
    deep = name.startswith("DEPTH")
    shape, axis = ([1, 3, 2, 8], 3) if deep else ([5, 3, 2, 4], 0)
    activations, w, bias, _ = _weights(kind, shape, axis)
    h, v = (7, 8) if padding == 0 else (7 - 2 * dilation, 8 - dilation)
    o = {
        "Padding": padding,
        "StrideH": 1,
        "StrideW": 1,
        "DilationHFactor": dilation,
        "DilationWFactor": dilation,
        "FusedActivationFunction": act,
    }
    if deep:
        o["DepthMultiplier"] = 2
    y = tensor([2, h, v, shape[axis]], activations, True, 6)
    return [tensor([2, 7, 8, 4], activations), w, bias, y], Operator(
        name, [0, 1, 2], [3], "DepthwiseConv2DOptions" if deep else "Conv2DOptions", o, 3
    )


def _fully_connected(act: int, keep: bool, asymmetric: bool, kind: str) -> Case:
    activations, w, bias, _ = _weights(kind, [5, 8], 0)
    o = {"KeepNumDims": keep, "AsymmetricQuantizeInputs": asymmetric, "FusedActivationFunction": act}
    y = tensor([2, 3, 5] if keep else [6, 5], activations, True, 6)
    return [tensor([2, 3, 8], activations), w, bias, y], Operator(
        "FULLY_CONNECTED", [0, 1, 2], [3], "FullyConnectedOptions", o, 9
    )


def _transposed(act: int, padding: int, kind: str) -> Case:
    activations, w, bias, _ = _weights(kind, [5, 3, 2, 4], 0)
    out = [1, 8, 6, 5] if padding == 0 else [1, 9, 6, 5]
    o = {"Padding": padding, "StrideH": 2, "StrideW": 2, "FusedActivationFunction": act}
    y = tensor(out, activations, True, 6)
    return [numbers(*out), w, tensor([1, 4, 3, 4], activations), bias, y], Operator(
        "TRANSPOSE_CONV", [0, 1, 2, 3], [4], "TransposeConvOptions", o, 4
    )


def _matmul(adj_x: bool, adj_y: bool, asymmetric: bool, kind: tuple[str, str]) -> Case:
    x = tensor([2, 4, 3] if adj_x else [2, 3, 4], kind[0])
    shape = [2, 5, 4] if adj_y else [2, 4, 5]
    w = (
        tensor(shape, kind[1])
        if kind[0] == kind[1]
        else Tensor(shape, kind[1], [0.02], [0], 0, data=RANDOM.integers(-7, 8, shape))
    )
    o = {"AdjX": adj_x, "AdjY": adj_y, "AsymmetricQuantizeInputs": asymmetric}
    return [x, w, tensor([2, 3, 5], kind[0], True, 6)], Operator(
        "BATCH_MATMUL", [0, 1], [2], "BatchMatMulOptions", o, 4
    )


def cases() -> dict[str, Case]:
    found: dict[str, Case] = {}
    for made in (unary, binary, reductions, moves, windows):
        for name, case in made():
            assert name not in found, name
            found[name] = case
    return found
