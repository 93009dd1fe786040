"""TFLite's operators, one by one, against LiteRT's reference kernels. Integers are equal, and floats are
close."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.compiler.pipeline import import_model
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.options import Options
from jangin.targets.x86 import V2

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
litert = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed"
)

from files import Operator, Tensor, written  # noqa: E402

TOLERANCE = 1e-5
"""The largest difference of floats, as a share of the largest value. Sums of at most some hundred products
are taken in another order."""
SAME, VALID = 0, 1


def reference(model: bytes, feeds: Sequence[Any], kernels: str = "BUILTIN_REF") -> list[Any]:
    runner = litert.Interpreter(
        model_content=model, experimental_op_resolver_type=getattr(litert.OpResolverType, kernels)
    )
    runner.allocate_tensors()
    for detail, given in zip(runner.get_input_details(), feeds, strict=True):
        runner.set_tensor(detail["index"], given)
    runner.invoke()
    return [runner.get_tensor(d["index"]) for d in runner.get_output_details()]


def check(tensors: Sequence[Tensor], operator: Operator, seeds: int = 4) -> None:
    """Compare one operator with LiteRT on random inputs."""
    given = [i for i in operator.inputs if i >= 0 and tensors[i].data is None]
    model = written(tensors, [operator], given, list(operator.outputs))
    exe = jangin.compile(model, threads=1, cache=False)
    random = np.random.default_rng(len(tensors))
    for _ in range(seeds):
        feeds = [values(random, tensors[i]) for i in given]
        wanted = reference(model, feeds)
        found = exe.run({spec.name: v for spec, v in zip(exe.inputs, feeds, strict=True)})
        for got, exact in zip(found.values(), wanted, strict=True):
            assert got.shape == exact.shape and got.dtype == exact.dtype
            if got.dtype.kind == "f":
                np.testing.assert_allclose(got, exact, rtol=0, atol=TOLERANCE * max(1, np.abs(exact).max()))
            else:
                np.testing.assert_array_equal(got, exact)


def values(random: Any, t: Tensor) -> Any:
    if t.dtype == "float32":
        return (random.standard_normal(t.shape) * 2).astype(np.float32)
    if t.dtype == "bool":
        return random.integers(0, 2, t.shape).astype(bool)
    info = np.iinfo(t.dtype)
    low, high = (info.min, info.max) if t.scales else (0, 3)
    return random.integers(low, high + 1, t.shape).astype(t.dtype)


def image(shape: Sequence[int], scale: float = 0.05, zero: int = 3, kind: str = "int8") -> Tensor:
    return Tensor(shape, "float32") if kind == "float32" else Tensor(shape, kind, [scale], [zero])


def weights(shape: Sequence[int], kind: str, axis: int) -> tuple[Tensor, Tensor]:
    random = np.random.default_rng(7)
    count = shape[axis]
    if kind == "float32":
        return (
            Tensor(shape, data=random.standard_normal(shape)),
            Tensor([count], data=random.standard_normal(count)),
        )  # fmt: skip
    scales = random.uniform(0.005, 0.02, count).tolist()
    bias = random.integers(-500, 500, count)
    return (
        Tensor(shape, "int8", scales, [0] * count, axis, random.integers(-127, 128, shape)),
        Tensor([count], "int32", [s * 0.05 for s in scales], [0] * count, 0, bias),
    )


CONV = {"Padding": SAME, "StrideH": 2, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("activation", [0, 1, 3])
def test_convolutions(kind: str, activation: int) -> None:
    w, bias = weights([5, 3, 3, 4], kind, 0)
    options = {**CONV, "FusedActivationFunction": activation}
    check(
        [image([1, 9, 7, 4], kind=kind), w, bias, image([1, 5, 7, 5], 0.07, -9, kind)],
        Operator("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", options),
    )


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("padding", [SAME, VALID])
def test_dilated_convolutions(kind: str, padding: int) -> None:
    w, bias = weights([5, 3, 3, 4], kind, 0)
    options = {"Padding": padding, "StrideH": 1, "StrideW": 1, "DilationHFactor": 2, "DilationWFactor": 3}
    sizes = [9, 7] if padding == SAME else [5, 1]
    check(
        [image([1, 9, 7, 4], kind=kind), w, bias, image([1, *sizes, 5], 0.07, -9, kind)],
        Operator("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", options),
    )
    w, bias = weights([1, 3, 3, 4], kind, 3)
    check(
        [image([1, 9, 7, 4], kind=kind), w, bias, image([1, *sizes, 4], 0.06, -20, kind)],
        Operator(
            "DEPTHWISE_CONV_2D", [0, 1, 2], [3], "DepthwiseConv2DOptions", {**options, "DepthMultiplier": 1}
        ),
    )


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_depthwise_convolutions(kind: str) -> None:
    w, bias = weights([1, 3, 3, 8], kind, 3)
    options = {**CONV, "StrideW": 2, "DepthMultiplier": 2, "FusedActivationFunction": 1}
    check(
        [image([1, 9, 7, 4], kind=kind), w, bias, image([1, 5, 4, 8], 0.06, -20, kind)],
        Operator("DEPTHWISE_CONV_2D", [0, 1, 2], [3], "DepthwiseConv2DOptions", options),
    )


@pytest.mark.parametrize("activation", [0, 1])
@pytest.mark.parametrize("depthwise", [False, True])
def test_unused_channels(depthwise: bool, activation: int) -> None:
    """Channels whose weights are all 0 have tiny scales and biases of 31 bits, as in trained networks. Their
    biases become as small as those of other channels."""
    random = np.random.default_rng()
    axis, shape = (3, [1, 3, 3, 8]) if depthwise else (0, [8, 3, 3, 4])
    w, bias = weights(shape, "int8", axis)
    assert w.data is not None and bias.data is not None
    for n, results in ((1, -4.4), (2, 0.3), (5, 7.6), (6, 300.0)):
        np.moveaxis(w.data, axis, 0)[n] = 0
        bias.data[n] = (1 << 30) * (1 if results > 0 else -1) + random.integers(-200, 200)
        w.scales[n] = abs(results) * 0.06 / 0.05 / (1 << 30)
    options = {**CONV, "StrideW": 2, "FusedActivationFunction": activation}
    kind = "DEPTHWISE_CONV_2D" if depthwise else "CONV_2D"
    options |= {"DepthMultiplier": 2} if depthwise else {}
    table = "DepthwiseConv2DOptions" if depthwise else "Conv2DOptions"
    tensors = [image([1, 9, 7, 4]), w, bias, image([1, 5, 4, 8], 0.06, -20)]
    operator = Operator(kind, [0, 1, 2], [3], table, options)
    check(tensors, operator)
    graph = lower(load(written(tensors, [operator], [0], [3])))
    biases = [a for a in graph.constants.values() if a.shape == (8,) and a.dtype == np.int32]
    assert len(biases) == 1 and np.abs(biases[0]).max() < 1 << 20


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_fully_connected(kind: str) -> None:
    random = np.random.default_rng(3)
    w, bias = weights([6, 33], kind, 0)
    if kind == "int8":
        w = Tensor([6, 33], "int8", [0.01], [0], 0, random.integers(-127, 128, (6, 33)))
        bias = Tensor([6], "int32", [0.0005], [0], 0, random.integers(-500, 500, 6))
    check(
        [image([4, 33], kind=kind), w, bias, image([4, 6], 0.08, 11, kind)],
        Operator("FULLY_CONNECTED", [0, 1, 2], [3], "FullyConnectedOptions", {"FusedActivationFunction": 0}),
        seeds=30,
    )


@pytest.mark.parametrize("scales", [1, 6])
@pytest.mark.parametrize("asymmetric", [False, True])
def test_hybrid_products(asymmetric: bool, scales: int) -> None:
    """Hybrid products: each row of floats is quantized, and multiplied by 8-bit weights."""
    random = np.random.default_rng(3)
    data = random.integers(-127, 128, (6, 33))
    w = Tensor([6, 33], "int8", random.uniform(0.005, 0.02, scales).tolist(), [0] * scales, 0, data)
    bias = Tensor([6], data=random.standard_normal(6))
    options = {"AsymmetricQuantizeInputs": asymmetric, "FusedActivationFunction": 1}
    operator = Operator("FULLY_CONNECTED", [0, 1, 2], [3], "FullyConnectedOptions", options, 9)
    check([Tensor([4, 33]), w, bias, Tensor([4, 6])], operator)


@pytest.mark.parametrize("depthwise, scales", [(False, 1), (False, 5), (True, 5)])
def test_hybrid_convolutions(depthwise: bool, scales: int) -> None:
    random, shape = np.random.default_rng(3), [1, 3, 3, 5] if depthwise else [5, 3, 3, 5]
    step, data = random.uniform(0.005, 0.02, scales).tolist(), random.integers(-127, 128, shape)
    w = Tensor(shape, "int8", step, [0] * scales, 3 if depthwise else 0, data)
    tensors = [Tensor([2, 9, 7, 5]), w, Tensor([5], data=random.standard_normal(5)), Tensor([2, 5, 7, 5])]
    name, table = ("DEPTHWISE_CONV_2D", "Depthwise") if depthwise else ("CONV_2D", "")
    options = {**CONV, "DepthMultiplier": 1} if depthwise else CONV
    check(tensors, Operator(name, [0, 1, 2], [3], f"{table}Conv2DOptions", options, 6 if depthwise else 5))


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("name", ["MAX_POOL_2D", "AVERAGE_POOL_2D"])
def test_pools(kind: str, name: str) -> None:
    options = {
        "Padding": SAME, "StrideH": 2, "StrideW": 2, "FilterHeight": 3, "FilterWidth": 2,
        "FusedActivationFunction": 3,
    }  # fmt: skip
    check(
        [image([1, 9, 7, 4], kind=kind), image([1, 5, 4, 4], kind=kind)],
        Operator(name, [0], [1], "Pool2DOptions", options),
    )


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("name", ["ADD", "SUB", "MUL"])
def test_arithmetic(kind: str, name: str) -> None:
    """Arithmetic, also if one operand broadcasts."""
    for shape in ([2, 5, 7], [1, 1, 7]):
        check(
            [image([2, 5, 7], kind=kind), image(shape, 0.013, -40, kind), image([2, 5, 7], 0.06, 5, kind)],
            Operator(name, [0, 1], [2], f"{name.capitalize()}Options", {"FusedActivationFunction": 0}),
        )


@pytest.mark.parametrize("kind", ["int8", "uint8"])
@pytest.mark.parametrize("name", ["ADD", "SUB"])
def test_sums_of_all_pairs(name: str, kind: str) -> None:
    """Every pair of numbers is added, with scales that are equal or whole multiples and others.

    Jangin adds floats if they give all of LiteRT's results, and integers if not."""
    random, info, floats = np.random.default_rng(11), np.iinfo(kind), 0
    v, w = (np.arange(info.min, info.max + 1).astype(kind)[g] for g in np.divmod(np.arange(1 << 16), 256))
    for n, scales in enumerate([(0.5, 0.5, 1.0), (0.02, 0.02, 0.02), *random.uniform(0.01, 0.1, (6, 3))]):
        tensors = [Tensor([1 << 16], kind, [s], [int(random.choice(v))]) for s in scales]
        options = {"FusedActivationFunction": n % 4 if kind == "int8" else 0}
        operator = Operator(name, [0, 1], [2], f"{name.title()}Options", options)
        model = written(tensors, [operator], [0, 1], [2])
        exe = jangin.compile(model, threads=1, cache=False)
        (got,) = exe.run({"t0": v, "t1": w}).values()
        np.testing.assert_array_equal(got, reference(model, [v, w])[0])
        floats += "i64(" not in "".join(
            map(str, import_model(model, Options(target=V2), until="lower").nodes)
        )
    assert floats >= 5


@pytest.mark.parametrize("name", ["LOGISTIC", "TANH"])
@pytest.mark.parametrize("kind", ["int8", "uint8", "float32"])
def test_saturating_functions(name: str, kind: str) -> None:
    scale, zero = (1 / 256, -128) if name == "LOGISTIC" else (1 / 128, 0)
    zero += 128 if kind == "uint8" else 0
    for step in (0.05, 0.2):
        check([image([64, 8], step, 9, kind), image([64, 8], scale, zero, kind)], Operator(name, [0], [1]))


@pytest.mark.parametrize("kind", ["int8", "uint8", "float32"])
def test_softmax(kind: str) -> None:
    for step in (0.02, 0.1, 0.4):
        x = image([9, 17], step, 3 if kind == "uint8" else -3, kind)
        y = image([9, 17], 1 / 256, 0 if kind == "uint8" else -128, kind)
        check([x, y], Operator("SOFTMAX", [0], [1], "SoftmaxOptions", {"Beta": 1.0}))


@pytest.mark.parametrize(
    "name, kind",
    [
        *((n, "int8") for n in ("ABS", "ELU", "EXP", "GELU", "HARD_SWISH", "LOG", "RSQRT", "SQRT")),
        ("GELU", "uint8"), ("HARD_SWISH", "uint8"), ("ELU", "float32"), ("HARD_SWISH", "float32"),
    ],
)  # fmt: skip
def test_functions_of_8_bits(name: str, kind: str) -> None:
    """A function of every 8-bit input. Functions without negative arguments begin at 0."""
    low = 0 if kind == "uint8" else -128
    table, version = ("GeluOptions", 2) if name == "GELU" else ("", 1 if name in ("ELU", "HARD_SWISH") else 2)
    for step, made in ((0.05, 0.03), (0.2, 0.1), (0.01, 0.004)):
        zero = low + (0 if name in ("LOG", "RSQRT", "SQRT") else 100)
        every = np.arange(low, low + 256).astype(kind)
        every = every * np.float32(step) if kind == "float32" else every
        tensors = [image([256], step, zero, kind), image([256], made, low + 20, kind)]
        model = written(tensors, [Operator(name, [0], [1], table, {}, version)], [0], [1])
        (wanted,) = reference(
            model, [every], "BUILTIN_WITHOUT_DEFAULT_DELEGATES" if name == "ELU" else "BUILTIN_REF"
        )
        found = jangin.compile(model, threads=1, cache=False)(every)
        np.testing.assert_allclose(found, wanted, rtol=1e-5 if kind == "float32" else 0, atol=0)


@pytest.mark.parametrize("kind", ["int8", "uint8", "float32"])
def test_slopes_and_squares(kind: str) -> None:
    x, made = image([500], 0.07, 4, kind), image([500], 0.05, 30, kind)
    slopes = np.random.default_rng(2).integers(0, 100, 500)
    slope = Tensor([500], kind, [0.01], [5], 0, slopes / 70 if kind == "float32" else slopes)
    check([x, slope, made], Operator("PRELU", [0, 1], [2], version=1))
    if kind != "uint8":
        check([x, image([500], 0.03, -4, kind), made], Operator("SQUARED_DIFFERENCE", [0, 1], [2]))


@pytest.mark.parametrize("kind", ["int8", "float32"])
@pytest.mark.parametrize("axes", [[1, 2], [1], [-1]])
@pytest.mark.parametrize("name", ["MEAN", "SUM", "REDUCE_MAX"])
def test_reductions(name: str, axes: list[int], kind: str) -> None:
    x = image([2, 5, 3, 4], kind=kind)
    if (name, kind) == ("SUM", "int8"):
        pytest.skip("LiteRT's reference kernel gives -1 whatever its input: test_sums_of_integers is for it")
    kept = [1 if i in [a % 4 for a in axes] else d for i, d in enumerate(x.shape)]
    result = image(kept, 0.05 if name == "REDUCE_MAX" else 0.03, 3 if name == "REDUCE_MAX" else -8, kind)
    check(
        [x, Tensor([len(axes)], "int32", data=axes), result],
        Operator(name, [0, 1], [2], "ReducerOptions", {"KeepDims": True}),
    )


def test_sums_of_integers() -> None:
    """An integer sum is within one step of the exact one. The multiplier has 31 bits, and the sum is rounded
    twice."""
    tensors = [image([6, 40]), Tensor([1], "int32", data=[1]), image([6], 0.4, -8)]
    model = written(tensors, [Operator("SUM", [0, 1], [2], "ReducerOptions", {"KeepDims": False})], [0], [2])
    x = np.random.default_rng(0).integers(-128, 128, (6, 40)).astype(np.int8)
    exact = np.clip(
        np.rint(((x.astype(np.float64) - 3) * np.float32(0.05)).sum(1) / np.float32(0.4)) - 8, -128, 127
    )
    assert np.abs(jangin.compile(model, threads=1, cache=False)(x) - exact).max() <= 1


@pytest.mark.parametrize("name", ["RELU", "RELU6", "RELU_N1_TO_1"])
@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_bounds(name: str, kind: str) -> None:
    check([image([50], 0.07, 4, kind), image([50], 0.05, -100, kind)], Operator(name, [0], [1], version=1))


@pytest.mark.parametrize("kind", ["int8", "float32"])
def test_leaky_relu(kind: str) -> None:
    check(
        [image([500], 0.07, 4, kind), image([500], 0.05, -10, kind)],
        Operator("LEAKY_RELU", [0], [1], "LeakyReluOptions", {"Alpha": 0.2}),
    )


def test_quantizing_and_back() -> None:
    check([Tensor([300]), image([300], 0.03, 7)], Operator("QUANTIZE", [0], [1], "QuantizeOptions"))
    check([image([300], 0.05), image([300], 0.03, 7)], Operator("QUANTIZE", [0], [1], "QuantizeOptions"))
    check([image([300]), Tensor([300])], Operator("DEQUANTIZE", [0], [1], "DequantizeOptions"))


def test_moves() -> None:
    """Integers are moved unchanged. Padding has the integer that stands for 0."""
    x = image([2, 6, 5, 3])
    amounts = Tensor([4, 2], "int32", data=[[0, 0], [1, 2], [0, 1], [0, 0]])
    check([x, amounts, image([2, 9, 6, 3])], Operator("PAD", [0, 1], [2], "PadOptions"))
    order = Tensor([4], "int32", data=[0, 3, 1, 2])
    check([x, order, image([2, 3, 6, 5])], Operator("TRANSPOSE", [0, 1], [2], "TransposeOptions"))
    bounds = [Tensor([4], "int32", data=v) for v in ([0, -1, 1, 0], [2, 0, 5, 3], [1, -2, 2, 1])]
    masks = {"BeginMask": 0, "EndMask": 2, "ShrinkAxisMask": 0, "EllipsisMask": 0, "NewAxisMask": 0}
    check(
        [x, *bounds, image([2, 3, 2, 3])],
        Operator("STRIDED_SLICE", [0, 1, 2, 3], [4], "StridedSliceOptions", masks),
    )
    check(
        [x, image([2, 6, 5, 2]), image([2, 6, 5, 5])],
        Operator(
            "CONCATENATION", [0, 1], [2], "ConcatenationOptions", {"Axis": 3, "FusedActivationFunction": 0}
        ),
    )
    blocks, none = Tensor([2], "int32", data=[2, 5]), Tensor([2, 2], "int32", data=[[0, 0], [0, 0]])
    check(
        [x, blocks, none, image([20, 3, 1, 3])],
        Operator("SPACE_TO_BATCH_ND", [0, 1, 2], [3], "SpaceToBatchNDOptions"),
    )
    check(
        [image([20, 3, 1, 3]), blocks, none, image([2, 6, 5, 3])],
        Operator("BATCH_TO_SPACE_ND", [0, 1, 2], [3], "BatchToSpaceNDOptions"),
    )


@pytest.mark.parametrize("name", ["EQUAL", "LESS", "GREATER_EQUAL"])
def test_comparisons(name: str) -> None:
    table = {"EQUAL": "EqualOptions", "LESS": "LessOptions", "GREATER_EQUAL": "GreaterEqualOptions"}[name]
    check([image([200]), image([200]), Tensor([200], "bool")], Operator(name, [0, 1], [2], table))


@pytest.mark.parametrize("corners, centres", [(False, False), (True, False), (False, True)])
def test_resizing(corners: bool, centres: bool) -> None:
    size = Tensor([2], "int32", data=[7, 13])
    options = {"AlignCorners": corners, "HalfPixelCenters": centres}
    for name, table in (("BILINEAR", "Bilinear"), ("NEAREST_NEIGHBOR", "NearestNeighbor")):
        check(
            [Tensor([1, 5, 6, 3]), size, Tensor([1, 7, 13, 3])],
            Operator(f"RESIZE_{name}", [0, 1], [2], f"Resize{table}Options", options),
        )
    for shape in ([7, 13], [3, 4], [5, 1]):
        given, made = (image(s, kind="int8") for s in ([1, 5, 6, 3], [1, *shape, 3]))
        resize = Operator("RESIZE_BILINEAR", [0, 1], [2], "ResizeBilinearOptions", options)
        check([given, Tensor([2], "int32", data=shape), made], resize)


@pytest.mark.parametrize("kind", ["float32", "int8"])
@pytest.mark.parametrize("padding", [SAME, VALID])
def test_transposed_convolutions(kind: str, padding: int) -> None:
    w, bias = weights([5, 3, 2, 4], kind, 0)
    shape = [1, 8, 10, 5] if padding == SAME else [1, 9, 10, 5]
    options = {"Padding": padding, "StrideH": 2, "StrideW": 2}
    tensors = [Tensor([4], "int32", data=shape), w, image([1, 4, 5, 4], kind=kind), bias]
    conv = Operator("TRANSPOSE_CONV", [0, 1, 2, 3], [4], "TransposeConvOptions", options, 3)
    check([*tensors, image(shape, 0.11, -5, kind)], conv)


@pytest.mark.parametrize("padding", [SAME, VALID])
@pytest.mark.parametrize("size", [[8, 10], [7, 9], [9, 10], [9, 11], [10, 12], [5, 6], [8, 9]], ids=str)
def test_transposed_convolutions_of_odd_sizes(size: list[int], padding: int) -> None:
    """An image that doesn't fit the result's size is refused, as LiteRT does."""
    w, bias = weights([5, 3, 2, 4], "float32", 0)
    wanted = Tensor([4], "int32", data=[1, *size, 5])
    tensors = [wanted, w, Tensor([1, 4, 5, 4]), bias, Tensor([1, *size, 5])]
    options = {"Padding": padding, "StrideH": 2, "StrideW": 2}
    conv = Operator("TRANSPOSE_CONV", [0, 1, 2, 3], [4], "TransposeConvOptions", options, 3)
    down, across = size if padding == SAME else (size[0] - 2, size[1] - 1)
    if (-(-down // 2), -(-across // 2)) == (4, 5):
        check(tensors, conv)
        return
    model = written(tensors, [conv], [2], [4])
    with pytest.raises(RuntimeError, match="failed to prepare"):
        reference(model, [np.zeros([1, 4, 5, 4], np.float32)])
    with pytest.raises(
        jangin.CompileError, match=f"output_shape of {size[0]}x{size[1]} pixels needs an image of"
    ):
        jangin.compile(model, threads=1, cache=False)


@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_batched_products(kind: str) -> None:
    for x, y, turned in (([2, 3, 5], [2, 5, 4], {}), ([3, 5], [4, 5], {"AdjY": True})):
        left, right = image(x, 0.04, 7, kind), image(y, 0.03, -2 if kind == "int8" else 0, kind)
        out = image([*x[:-1], 4], 0.2, 9, kind)
        check([left, right, out], Operator("BATCH_MATMUL", [0, 1], [2], "BatchMatMulOptions", turned))


@pytest.mark.parametrize("asymmetric", [False, True])
@pytest.mark.parametrize("turned", [{}, {"AdjX": True}, {"AdjY": True}])
def test_hybrid_batched_products(turned: Mapping[str, bool], asymmetric: bool) -> None:
    """Hybrid batched products: each row of floats is quantized, and multiplied by an 8-bit constant."""
    x = [2, 33, 4] if "AdjX" in turned else [2, 4, 33]
    y = [6, 33] if "AdjY" in turned else [33, 6]
    w = Tensor(y, "int8", [0.01], [0], 0, np.random.default_rng(3).integers(-127, 128, y))
    options = {**turned, "AsymmetricQuantizeInputs": asymmetric}
    operator = Operator("BATCH_MATMUL", [0, 1], [2], "BatchMatMulOptions", options, 4)
    check([Tensor(x), w, Tensor([2, 4, 6])], operator)


SPARSE = {
    "rows": ([4, 6], ([0, 1], [], [4, ([0, 2, 2, 3, 5], [1, 4, 0, 2, 5])]), 5),
    "columns": ([4, 6], ([1, 0], [], [6, ([0, 1, 1, 3, 4, 4, 5], [2, 0, 3, 1, 3])]), 5),
    "blocks": ([4, 6], ([0, 1, 2, 3], [0, 1], [2, ([0, 1, 3], [2, 0, 1]), 2, 2]), 12),
}
"""The shape, the positions of the numbers, and their count, for each way to store sparse weights."""


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_weights(name: str) -> None:
    """The weights of a dense layer are stored by rows, by columns or by blocks."""
    shape, sparse, count = SPARSE[name]
    stored = np.random.default_rng(5).standard_normal(count)
    tensors = [Tensor([3, 6]), Tensor(shape, data=stored, sparse=sparse), Tensor(shape), Tensor([3, 4])]
    operators = [
        Operator("DENSIFY", [1], [2], version=1),
        Operator("FULLY_CONNECTED", [0, 2, -1], [3], "FullyConnectedOptions", {}),
    ]
    model = written(tensors, operators, [0], [3])
    x = np.random.default_rng(6).standard_normal((3, 6)).astype(np.float32)
    (wanted,) = reference(model, [x])
    np.testing.assert_allclose(jangin.compile(model, threads=1, cache=False)(x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "sparse",
    [
        ([0, 1], [], [4, ([0, 2, 2, 3, 9], [1, 4, 0, 2, 5])]), ([0, 0], [], [4, 6]),
        ([0, 1], [], [4, ([0, 2, 2, 3, 5], [1, 4, 0, 2, 6])]), ([0, 1], [], [1 << 30, 1 << 30]),
        ([0, 1], [], [4, 6]), ([0, 1], [], [4, ([0], [])]),
    ],
)  # fmt: skip
def test_sparse_weights_that_are_wrong(sparse: Any) -> None:
    tensors = [Tensor([4, 6], data=np.ones(5), sparse=sparse), Tensor([4, 6])]
    with pytest.raises(jangin.CompileError, match=r"sparse|damaged"):
        jangin.compile(written(tensors, [Operator("DENSIFY", [0], [1], version=1)], [], [1]), cache=False)
