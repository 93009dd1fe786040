"""Lower TensorFlow's own operators in train graphs, whose names begin with "Flex" in a TFLite file.

LiteRT gives them to TensorFlow. Their options are FlexBuffers of two texts: the operator's name, and a
message NodeDef of TensorFlow with its attributes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.gradients.reverse import gradients
from jangin.ir.expr import Const, Expr, cast
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.simplify import simplify
from jangin.ops import conv, pool
from jangin.ops.axes import channels_first, channels_last
from jangin.ops.values import Tensor
from jangin.ops.window import Window
from jangin.protobuf import fields, varint

PREFIX = "Flex"
OP, ATTRIBUTES = 2, 5
"""The numbers of fields in TensorFlow's node_def.proto: the operator's name, and its attributes."""
LIST, TEXT, INTEGER, TRUTH, TYPE = 1, 2, 3, 5, 6
"""The numbers of fields in TensorFlow's attr_value.proto, one for each kind of value."""
SIGN = 1 << 63
"""The sign bit of an int64. Protocol buffers store negative numbers as unsigned ones of 64 bits."""


def node_attributes(name: str, data: bytes) -> dict[str, Any]:
    """Return the attributes of a custom operator whose name begins with `PREFIX`: texts, integers, and tuples
    of integers. A value of another kind is left as its bytes. Damaged options raise CompileError or the
    decoder's error."""
    from flatbuffers import flexbuffers

    own, node = (entry.AsStringBytes for entry in flexbuffers.GetRoot(bytearray(data)).AsVector)
    parts = [(n, content) for n, _, content in fields(memoryview(node)) if content is not None]
    named = [bytes(content).decode() for n, content in parts if n == OP]
    attributes = dict(_entry(content) for n, content in parts if n == ATTRIBUTES)
    if {own.decode(errors="replace"), *named} != {name.removeprefix(PREFIX)}:
        raise CompileError(f"{name} has the options of another operator: {', '.join(named) or 'none'}")
    return {n: value for n, value in attributes.items() if not n.startswith("_")}  # TensorFlow's own notes


def _entry(data: memoryview) -> tuple[str, Any]:
    """Return the name and value of one attribute."""
    name, value = "", b""
    for number, _, content in fields(data):
        if number == 1 and content is not None:
            name = bytes(content).decode()
        elif number == 2 and content is not None:
            value = _value(content)
    return name, value


def _value(data: memoryview) -> Any:
    """Return the value of an AttrValue. A message without a field is an empty text."""
    for number, whole, content in fields(data):
        if number == TEXT and content is not None:
            return bytes(content).decode()
        if number in (INTEGER, TRUTH, TYPE) and content is None:
            return _signed(varint(whole, varint(whole, 0)[1])[0])
        if number == LIST and content is not None:
            return _integers(content)
        return bytes(whole)
    return ""


def _integers(data: memoryview) -> tuple[int, ...] | bytes:
    """Return a list of integers, packed or not, or the bytes of a list of another kind."""
    numbers: list[int] = []
    for number, whole, content in fields(data):
        if number != INTEGER:
            return bytes(data)
        run, at = (whole, varint(whole, 0)[1]) if content is None else (content, 0)
        while at < len(run):
            value, at = varint(run, at)
            numbers.append(_signed(value))
    return tuple(numbers)


def _signed(value: int) -> int:
    return value - (value & SIGN) * 2


# -- gradients -----------------------------------------------------------------------------------


@lowers("FlexReluGrad")
def relu_grad(c: Call) -> Tensor:
    """Return the gradients of a relu's result (input 0), times 1 if its features (input 1) are above 0, else
    times 0."""
    if static_shape(c.x().shape) != static_shape(c.x(1).shape):
        raise CompileError(f"gradients {c.x()} of features {c.x(1)}: both must have one shape")
    return c.b.map(lambda g, x: g * cast(g.dtype, x > 0), c.x(), c.x(1))


@lowers("FlexMaxPoolGrad")
def max_pool_grad(c: Call) -> Tensor:
    """Return the gradient of the pool's input, which is input 0. Input 1 is the pool's result, and input 2 is
    the result's gradient. The first of equal maxima has all of a window's gradient, as in TensorFlow's kernel
    for processors."""
    b = c.b
    x = b.map(lambda v: v, channels_first(b, c.x()))  # no gradient goes through what made the input
    g = channels_first(b, c.x(2))
    best = pool.max_pool(b, x, _window(c, x, _spatial(c, "ksize")))
    _fitting(c, best, g)
    return channels_last(b, gradients(b, best, [x], g)[0])


@lowers("FlexConv2DBackpropFilter")
def conv_2d_backprop_filter(c: Call) -> Tensor:
    """Return the gradient [H, W, in, out] of a convolution's filters. Input 0 is the convolution's input,
    input 1 the filters' sizes, and input 2 the gradient of the convolution's result."""
    b, sizes = c.b, c.integers(1)
    x, g = channels_first(b, c.x()), channels_first(b, c.x(2))
    c.options.get("use_cudnn_on_gpu")  # it has no influence on the numbers
    if len(sizes) != 4 or min(sizes) < 1:
        raise CompileError(f"filters of {sizes} aren't [height, width, in, out]")
    *kernel, ins, outs = sizes
    channels = static_shape(x.shape[1:2])
    if channels is None or channels[0] % ins:
        raise CompileError(f"filters of {sizes} don't fit the channels of {c.x()}")
    window = _window(c, x, kernel)
    filters = b.expand(b.scalar(0, x.dtype), [outs, ins, *kernel])
    y = conv.conv(
        b, x, filters, None, strides=window.strides, dilations=window.dilations, pads=window.pads,
        groups=channels[0] // ins,
    )  # fmt: skip
    _fitting(c, y, g)
    return b.transpose(gradients(b, y, [filters], g)[0], [2, 3, 1, 0])


def _spatial(c: Call, name: str) -> list[int]:
    """Return an attribute's numbers along the height and the width. Raises CompileError unless those along
    the other axes are 1."""
    numbers = _numbers(c, name, (1, 1, 1, 1))
    if len(numbers) != 4 or numbers[0] != 1 or numbers[3] != 1 or min(numbers) < 1:
        raise CompileError(f"{name} {list(numbers)} must be four numbers from 1 on, the first and last 1")
    return [*numbers[1:3]]


def _window(c: Call, x: Tensor, kernel: Sequence[int]) -> Window:
    """Return the window over x, with channels first, that the attributes describe."""
    if c.options.get("data_format", "NHWC") != "NHWC":
        raise CompileError(f"data_format {c.options['data_format']!r}: TensorFlow Lite's is NHWC")
    padding, around = c.options.get("padding"), _numbers(c, "explicit_paddings", ())
    strides, dilations = _spatial(c, "strides"), _spatial(c, "dilations")
    if padding == "SAME":
        return Window.same(c.b, x, kernel, strides=strides, dilations=dilations)
    if padding not in ("VALID", "EXPLICIT"):
        raise CompileError(f"padding {padding!r} is none of SAME, VALID and EXPLICIT")
    if padding == "VALID":
        return Window.over(c.b, x, kernel, strides=strides, dilations=dilations)
    if len(around) != 8 or any(around[i] for i in (0, 1, 6, 7)) or min(around) < 0:
        raise CompileError(f"explicit_paddings {list(around)} must pad the height and the width alone")
    pads = [around[2], around[4], around[3], around[5]]
    return Window.over(c.b, x, kernel, strides=strides, dilations=dilations, pads=pads)


def _numbers(c: Call, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    value = c.options.get(name, default)
    if not isinstance(value, tuple):
        raise CompileError(f"{name} {value!r} must be a list of integers")
    return value


def _fitting(c: Call, y: Tensor, g: Tensor) -> None:
    """Raise CompileError unless a gradient has the shape of the result that it is for."""
    apart: list[Expr] = [simplify(a - n, c.b.symbols) for a, n in zip(y.shape, g.shape, strict=True)]
    if any(isinstance(d, Const) and int(d.value) for d in apart):
        raise CompileError(f"the gradient {g} doesn't have the shape of the result {y}")
