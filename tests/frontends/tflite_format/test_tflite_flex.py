"""TensorFlow's own operators in train graphs, against their definitions in float64. LiteRT can't run them
without TensorFlow."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

import jangin
from jangin import CompileError

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")

from files import Operator, Signature, SubGraph, Tensor, flex, written

RANDOM = np.random.default_rng(0)
ROUNDING = 1e-5
"""The largest error beside the largest number. Float32 adds up to some hundred products."""
Pads = tuple[int, int, int, int]
"""The numbers before the height, before the width, after the height and after the width."""


def compiled(model: bytes, *feeds: Any) -> list[Any]:
    exe = jangin.compile(model, threads=1, cache=False)
    return list(exe.run({s.name: v for s, v in zip(exe.inputs, feeds, strict=True)}).values())


def padded(size: Sequence[int], kernel: Sequence[int], attributes: Mapping[str, Any]) -> Pads:
    """Return the padding of an image by TensorFlow's definition of SAME, VALID and EXPLICIT."""
    if attributes["padding"] == "VALID":
        return 0, 0, 0, 0
    if attributes["padding"] == "EXPLICIT":
        _, _, top, bottom, left, right, _, _ = attributes["explicit_paddings"]
        return top, left, bottom, right
    before, after = [], []
    for i in (0, 1):
        step, far = attributes["strides"][1 + i], attributes.get("dilations", (1, 1, 1, 1))[1 + i]
        whole = max(0, (-(-size[i] // step) - 1) * step + (kernel[i] - 1) * far + 1 - size[i])
        before.append(whole // 2)
        after.append(whole - whole // 2)
    return (*before, *after)


def convolved(x: Any, w: Any, attributes: Mapping[str, Any]) -> Any:
    """Return the convolution of x [N, H, W, C] and filters [H, W, in, out], with groups."""
    kernel, (_, down, right, _) = w.shape[:2], attributes["strides"]
    _, far, wide, _ = attributes.get("dilations", (1, 1, 1, 1))
    top, left, bottom, end = padded(x.shape[1:3], kernel, attributes)
    image = np.pad(x, ((0, 0), (top, bottom), (left, end), (0, 0)))
    rows = (image.shape[1] - (kernel[0] - 1) * far - 1) // down + 1
    columns = (image.shape[2] - (kernel[1] - 1) * wide - 1) // right + 1
    ins = w.shape[2]
    groups = x.shape[3] // ins
    outs = w.shape[3] // groups
    y = np.zeros((x.shape[0], rows, columns, w.shape[3]))
    for (i, j), n in product(np.ndindex(*kernel), range(groups)):
        part = image[:, i * far :, j * wide :, n * ins : (n + 1) * ins][:, ::down, ::right]
        y[..., n * outs : (n + 1) * outs] += part[:, :rows, :columns] @ w[i, j][:, n * outs : (n + 1) * outs]
    return y


def filters_gradient(x: Any, sizes: Sequence[int], g: Any, attributes: Mapping[str, Any]) -> Any:
    """Return the gradient of the filters. A convolution is linear in them, so each element's derivative is
    the convolution by a filter of zeros and a one."""
    out = np.zeros(sizes)
    for at in np.ndindex(*sizes):
        one = np.zeros(sizes)
        one[at] = 1
        out[at] = (convolved(x, one, attributes) * g).sum()
    return out


def pool_places(x: Any, attributes: Mapping[str, Any]) -> Any:
    """Return the rows and columns [N, rows, columns, C] of the first maximum of each window."""
    kernel, (_, down, right, _) = attributes["ksize"][1:3], attributes["strides"]
    top, left, bottom, end = padded(x.shape[1:3], kernel, attributes)
    image = np.pad(x, ((0, 0), (top, bottom), (left, end), (0, 0)), constant_values=-np.inf)
    rows = (image.shape[1] - kernel[0]) // down + 1
    columns = (image.shape[2] - kernel[1]) // right + 1
    places = np.zeros((2, x.shape[0], rows, columns, x.shape[3]), int)
    for n, i, j, c in np.ndindex(*places.shape[1:]):
        window = image[n, i * down : i * down + kernel[0], j * right : j * right + kernel[1], c]
        row, column = np.unravel_index(window.argmax(), window.shape)
        places[:, n, i, j, c] = row + i * down - top, column + j * right - left
    return places


def pool_gradient(x: Any, g: Any, attributes: Mapping[str, Any]) -> Any:
    out, places = np.zeros(x.shape), pool_places(x, attributes)
    for n, i, j, c in np.ndindex(*g.shape):
        row, column = places[:, n, i, j, c]
        out[n, row, column, c] += g[n, i, j, c]
    return out


def numbers(*shape: int) -> Any:
    return RANDOM.standard_normal(shape).astype(np.float32)


def close(got: Any, wanted: Any) -> None:
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=0, atol=ROUNDING * np.abs(wanted).max())


def test_gradient_of_relu() -> None:
    """A gradient passes where the feature is above 0, and not at 0."""
    g, x = numbers(2, 3, 5), numbers(2, 3, 5)
    x[0, 0, :3] = 0, -0.0, np.nan
    whole = [Tensor([2, 3, 5])] * 3
    model = written(whole, [flex("ReluGrad", [0, 1], [2], T=1)], [0, 1], [2])
    np.testing.assert_array_equal(compiled(model, g, x)[0], g * (x > 0))


POOLS = {
    "same": {"ksize": [1, 3, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"},
    "valid": {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"},
    "overlapping": {"ksize": [1, 3, 3, 1], "strides": [1, 1, 2, 1], "padding": "VALID"},
    "explicit": {
        "ksize": [1, 3, 3, 1], "strides": [1, 2, 1, 1], "padding": "EXPLICIT",
        "explicit_paddings": [0, 0, 1, 0, 2, 1, 0, 0],
    },
}  # fmt: skip


@pytest.mark.parametrize("name", POOLS)
def test_gradient_of_maxima(name: str) -> None:
    """Inputs of few different numbers have many equal maxima, whose first one has the whole gradient."""
    attributes: Any = POOLS[name]
    x = RANDOM.integers(-2, 3, (2, 7, 6, 3)).astype(np.float32)
    places = pool_places(x, attributes)
    g = numbers(*places.shape[1:])
    tensors = [Tensor(x.shape), Tensor(g.shape), Tensor(g.shape), Tensor(x.shape)]
    operator = flex("MaxPoolGrad", [0, 1, 2], [3], T=1, data_format="NHWC", **attributes)
    model = written(tensors, [operator], [0, 1, 2], [3])
    close(compiled(model, x, numbers(*g.shape), g)[0], pool_gradient(x.astype(float), g, attributes))


CONVOLUTIONS: dict[str, Any] = {
    "same": ([3, 3, 4, 5], {"strides": [1, 1, 1, 1], "padding": "SAME"}),
    "strided": ([3, 2, 4, 3], {"strides": [1, 2, 2, 1], "padding": "SAME"}),
    "valid": ([2, 3, 4, 1], {"strides": [1, 1, 2, 1], "padding": "VALID"}),
    "apart": ([3, 2, 4, 2], {"strides": [1, 1, 1, 1], "padding": "SAME", "dilations": [1, 2, 3, 1]}),
    "groups": ([3, 3, 2, 4], {"strides": [1, 2, 1, 1], "padding": "SAME"}),
    "explicit": (
        [3, 3, 4, 2],
        {"strides": [1, 2, 1, 1], "padding": "EXPLICIT", "explicit_paddings": [0, 0, 1, 0, 2, 1, 0, 0]},
    ),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_gradient_of_filters(name: str) -> None:
    sizes, attributes = CONVOLUTIONS[name]
    x = numbers(2, 7, 6, 4)
    g = numbers(*convolved(x, np.zeros(sizes), attributes).shape)
    tensors = [Tensor(x.shape), Tensor([4], "int32", data=sizes), Tensor(g.shape), Tensor(sizes)]
    given = {"T": 1, "use_cudnn_on_gpu": True, "data_format": "NHWC", "explicit_paddings": [], **attributes}
    model = written(tensors, [flex("Conv2DBackpropFilter", [0, 1, 2], [3], **given)], [0, 2], [3])
    close(compiled(model, x, g)[0], filters_gradient(x.astype(float), sizes, g, attributes))


def refused(operator: Operator, tensors: Sequence[Tensor], message: str) -> None:
    inputs = [i for i in operator.inputs if tensors[i].data is None]
    with pytest.raises(CompileError, match=message):
        jangin.compile(written(tensors, [operator], inputs, operator.outputs), cache=False)


def test_what_is_refused() -> None:
    image, pooled = Tensor([1, 4, 4, 2]), Tensor([1, 2, 2, 2])
    tensors = [image, pooled, pooled, image]
    whole: Any = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    for changed, message in (
        ({"data_format": "NCHW"}, "data_format 'NCHW'"), ({"padding": "WRAP"}, "padding 'WRAP'"),
        ({"strides": [2, 2, 2, 1]}, "strides"), ({"ksize": [1, 2]}, "ksize"), ({"strides": 3}, "strides 3"),
        ({"strides": [1, 1, 1, 1]}, "t have the shape"), ({"other": 3}, "options other are not supported"),
        ({"padding": "EXPLICIT"}, "explicit_paddings"),
    ):  # fmt: skip
        refused(flex("MaxPoolGrad", [0, 1, 2], [3], **{**whole, **changed}), tensors, message)
    sizes = Tensor([4], "int32", data=[3, 3, 3, 2])
    given = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    odd = [image, sizes, image, Tensor([3, 3, 3, 2])]
    refused(flex("Conv2DBackpropFilter", [0, 1, 2], [3], **given), odd, "don't fit the channels")
    refused(flex("SaveV2", [0], [1]), [image, image], "the executable.s attribute `state`")
    cut = flex("ReluGrad", [0, 1], [2], T=1)
    bad = Operator(cut.name, cut.inputs, cut.outputs, version=1, custom=(cut.custom or b"")[:-3])
    refused(bad, [image] * 3, "damaged|options of")
    wrong = Operator("FlexReluGrad", [0, 1], [2], version=1, custom=flex("Relu", [], []).custom)
    refused(wrong, [image] * 3, "has the options of another operator: Relu")


# -- a file that trains ----------------------------------------------------------------------------

RATE, COUNT = 0.003, 4
FILTERS, WEIGHTS = numbers(3, 3, 2, 3) / 3, numbers(27, 2) / 5
WHOLE = {"strides": [1, 1, 1, 1], "padding": "SAME"}
HALVES = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "VALID"}


class File:
    """The tensors and operators of a sub-graph, in their order."""

    def __init__(self) -> None:
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []

    def tensor(self, *given: Any, **named: Any) -> int:
        self.tensors.append(Tensor(*given, **named))
        return len(self.tensors) - 1

    def add(self, name: str, inputs: Sequence[int], shape: Sequence[int], **options: Any) -> int:
        """Append a builtin operator with float32 results, and return its result."""
        table = options.pop("table", "")
        out = self.tensor(shape)
        self.operators.append(Operator(name, inputs, [out], table, options))
        return out

    def flex(self, name: str, inputs: Sequence[int], shape: Sequence[int], **attributes: Any) -> int:
        out = self.tensor(shape)
        self.operators.append(flex(name, inputs, [out], T=1, **attributes))
        return out

    def variable(self, name: str) -> int:
        handle = self.tensor([], "resource")
        self.operators.append(
            Operator("VAR_HANDLE", [], [handle], "VarHandleOptions", {"SharedName": name}, 1)
        )
        return handle

    def assign(self, handle: int, value: int) -> None:
        self.operators.append(
            Operator("ASSIGN_VARIABLE", [handle, value], [], "AssignVariableOptions", {}, 1)
        )

    def once(self, graph: int) -> None:
        self.operators.append(
            Operator("CALL_ONCE", [], [], "CallOnceOptions", {"InitSubgraphIndex": graph}, 1)
        )

    def read(self, handle: int, shape: Sequence[int]) -> int:
        return self.add("READ_VARIABLE", [handle], shape, table="ReadVariableOptions")

    def forward(self, x: int, filters: int, weights: int) -> tuple[int, ...]:
        """Append a convolution, a relu, a pool and a product. Return the values that backward reads."""
        order = self.tensor([4], "int32", data=[3, 0, 1, 2])
        turned = self.add("TRANSPOSE", [filters, order], [3, 3, 3, 2], table="TransposeOptions")
        zeros = self.tensor([3], data=np.zeros(3))
        options = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
        y = self.add("CONV_2D", [x, turned, zeros], [COUNT, 6, 6, 3], table="Conv2DOptions", **options)
        active = self.add("RELU", [y], [COUNT, 6, 6, 3])
        two = {"StrideH": 2, "StrideW": 2, "FilterHeight": 2, "FilterWidth": 2, "Padding": 1}
        best = self.add("MAX_POOL_2D", [active], [COUNT, 3, 3, 3], table="Pool2DOptions", **two)
        flat = self.add("RESHAPE", [best, self.tensor([2], "int32", data=[COUNT, 27])], [COUNT, 27])
        out = self.add("BATCH_MATMUL", [flat, weights], [COUNT, 2], table="BatchMatMulOptions")
        return active, best, flat, out

    def update(self, handle: int, value: int, gradient: int, shape: Sequence[int]) -> None:
        rate = self.tensor([], data=RATE)
        step = self.add("MUL", [gradient, rate], shape, table="MulOptions")
        self.assign(handle, self.add("SUB", [value, step], shape, table="SubOptions"))


def training_file() -> bytes:
    """Return a file whose signatures train, infer, save and restore the filters and the weights."""
    train = File()
    x, target = train.tensor([COUNT, 6, 6, 2]), train.tensor([COUNT, 2])
    train.once(4)
    handles = [train.variable(n) for n in ("filters", "weights")]
    filters, weights = train.read(handles[0], [3, 3, 2, 3]), train.read(handles[1], [27, 2])
    active, best, flat, out = train.forward(x, filters, weights)
    error = train.add("SUB", [out, target], [COUNT, 2], table="SubOptions")
    turned = {"table": "BatchMatMulOptions"}
    by_weights = train.add("BATCH_MATMUL", [flat, error], [27, 2], AdjX=True, **turned)
    back = train.add("BATCH_MATMUL", [error, weights], [COUNT, 27], AdjY=True, **turned)
    sizes = train.tensor([4], "int32", data=[COUNT, 3, 3, 3])
    back = train.add("RESHAPE", [back, sizes], [COUNT, 3, 3, 3])
    back = train.flex("MaxPoolGrad", [active, best, back], [COUNT, 6, 6, 3], **HALVES)
    back = train.flex("ReluGrad", [back, active], [COUNT, 6, 6, 3])
    sizes = train.tensor([4], "int32", data=[3, 3, 2, 3])
    by_filters = train.flex("Conv2DBackpropFilter", [x, sizes, back], [3, 3, 2, 3], **WHOLE)
    train.update(handles[0], filters, by_filters, [3, 3, 2, 3])
    train.update(handles[1], weights, by_weights, [27, 2])

    infer = File()
    seen = infer.tensor([COUNT, 6, 6, 2])
    infer.once(4)
    own = [infer.variable(n) for n in ("filters", "weights")]
    *_, guess = infer.forward(seen, infer.read(own[0], [3, 3, 2, 3]), infer.read(own[1], [27, 2]))

    save = File()
    save.once(4)
    kept = [
        save.read(save.variable(n), shape) for n, shape in (("filters", [3, 3, 2, 3]), ("weights", [27, 2]))
    ]
    restore = File()
    given = [restore.tensor([3, 3, 2, 3]), restore.tensor([27, 2])]
    restore.once(4)
    for name, value in zip(("filters", "weights"), given, strict=True):
        restore.assign(restore.variable(name), value)
    answer = restore.add("ADD", [given[1], given[1]], [27, 2], table="AddOptions")

    first = File()
    for name, data in (("filters", FILTERS), ("weights", WEIGHTS)):
        first.assign(first.variable(name), first.tensor(data.shape, data=data))
    bodies = [SubGraph(f.tensors, f.operators, ins, outs) for f, ins, outs in (
        (infer, [seen], [guess]), (save, [], kept), (restore, given, [answer]), (first, [], []),
    )]  # fmt: skip
    names = ("filters", "weights")
    signatures = (
        Signature("train", 0, {"x": x, "target": target}, {"error": error}),
        Signature("infer", 1, {"x": seen}, {"y": guess}),
        Signature("save", 2, {}, dict(zip(names, kept, strict=True))),
        Signature("restore", 3, dict(zip(names, given, strict=True)), {"twice": answer}),
    )
    return written(train.tensors, train.operators, [x, target], [error], *bodies, signatures=signatures)


def step_in_float64(x: Any, target: Any, filters: Any, weights: Any) -> tuple[Any, Any, Any]:
    """Return the error, and the filters and weights after one step."""
    active = np.maximum(convolved(x, filters, WHOLE), 0)
    best = active.reshape(COUNT, 3, 2, 3, 2, 3).max((2, 4))
    flat = best.reshape(COUNT, 27)
    error = flat @ weights - target
    back = pool_gradient(active, (error @ weights.T).reshape(best.shape), HALVES) * (active > 0)
    by_filters = filters_gradient(x, filters.shape, back, WHOLE)
    return error, filters - RATE * by_filters, weights - RATE * flat.T @ error


@pytest.mark.sampled(3)
def test_a_file_trains_infers_saves_and_restores() -> None:
    """All four signatures share their variables. Ten steps follow float64."""
    model = training_file()
    train, infer, save, restore = (
        jangin.compile(model, threads=1, cache=False, formats=[jangin.TfliteFormat(signature=key)])
        for key in ("train", "infer", "save", "restore")
    )
    for other in (infer, save, restore):
        other.share(train)
    filters, weights = FILTERS.astype(float), WEIGHTS.astype(float)
    x, target = numbers(COUNT, 6, 6, 2), numbers(COUNT, 2)
    before, kept, errors = infer(x), save.run({}), []
    for _ in range(10):
        wanted, filters, weights = step_in_float64(x.astype(float), target, filters, weights)
        errors.append(train(x, target))
        np.testing.assert_allclose(errors[-1], wanted, rtol=0, atol=1e-4)
    assert np.square(errors[-1]).sum() < np.square(errors[0]).sum(), "nothing was learnt"
    trained = save.run({})
    np.testing.assert_allclose(trained["filters"], filters, rtol=0, atol=1e-4)
    np.testing.assert_allclose(trained["weights"], weights, rtol=0, atol=1e-4)
    after = infer(x)
    restore.run(kept)
    np.testing.assert_array_equal(infer(x), before)
    restore.run(trained)
    np.testing.assert_array_equal(infer(x), after)
