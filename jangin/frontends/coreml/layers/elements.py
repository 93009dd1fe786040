"""Lower elementwise layers and reductions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.coreml.layers.network import Layer, Network, Say, same, two, word
from jangin.ir.graph import Array, CompileError


def _with_number(kind: str) -> Say:
    """Return a function that adds an operation on two inputs, or on one input and the number `alpha`."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        if len(layer.input) > 1:
            net.chain(layer, kind)
        else:
            net.add(layer, kind, {"y": np.float32(m.alpha)})

    return say


ACTIVATIONS = {
    "linear": "linear_activation", "ReLU": "relu", "leakyReLU": "leaky_relu",
    "thresholdedReLU": "thresholded_relu",
    "tanh": "tanh", "scaledTanh": "scaled_tanh", "sigmoid": "sigmoid", "sigmoidHard": "sigmoid_hard",
    "ELU": "elu",
    "softsign": "softsign", "softplus": "softplus",
}  # fmt: skip


def _activation(net: Network, layer: Layer, m: Any) -> None:
    kind = m.WhichOneof("NonlinearityType") or ""
    if kind == "PReLU":
        alpha = m.PReLU.alpha
        count = len(alpha.floatValue) or len(alpha.float16Value) // 2
        net.add(layer, "prelu", {"alpha": net.weights(alpha, [count], "slopes")})
    elif kind in ACTIVATIONS:
        inner = getattr(m, kind)
        args = {f.name: np.float32(getattr(inner, f.name)) for f in inner.DESCRIPTOR.fields}
        net.add(layer, ACTIVATIONS[kind], args)
    else:
        raise CompileError(f"{net.source}: the activation {kind} is not supported")


def _unary(net: Network, layer: Layer, m: Any) -> None:
    """Add a function of x * scale + shift, for the input x."""
    kind = word(m, "type")
    epsilon, alpha = {"epsilon": np.float32(m.epsilon or 1e-6)}, np.float32(m.alpha)
    known: Mapping[str, tuple[str, dict[str, Any]]] = {
        "SQRT": ("sqrt", {}), "RSQRT": ("rsqrt", epsilon), "EXP": ("exp", {}),
        "INVERSE": ("inverse", epsilon), "ABS": ("abs", {}), "LOG": ("log", epsilon),
        "POWER": ("pow", {"y": alpha}),
        "THRESHOLD": ("threshold", {"alpha": alpha}),
    }  # fmt: skip
    start = ""
    scale = m.scale if m.scale else 1.0
    if (scale, m.shift) != (1.0, 0.0):
        line = {"alpha": np.float32(scale), "beta": np.float32(m.shift)}
        start = net.add(layer, "linear_activation", line, end=f"{layer.output[0]} scaled")
    name, args = known[kind]
    net.add(layer, name, args, start=start)


def _line(net: Network, layer: Layer, factor: Array | None, offset: Array | None) -> None:
    """Multiply the input by a factor, and add an offset. Both have a shape of [C], [C, 1, 1] or [C, H, W], or
    are None."""
    start = ""
    if factor is not None:
        end = "" if offset is None else f"{layer.output[0]} scaled"
        start = net.add(layer, "mul", {"y": factor}, end=end)
    if offset is not None:
        net.add(layer, "add", {"y": offset}, start=start)


def _shaped(shape: Sequence[int]) -> list[int]:
    return [int(shape[0]), 1, 1] if len(shape) == 1 else [int(n) for n in shape]


def _scale(net: Network, layer: Layer, m: Any) -> None:
    offset = net.weights(m.bias, _shaped(m.shapeBias), "biases") if m.hasBias else None
    _line(net, layer, net.weights(m.scale, _shaped(m.shapeScale), "factors"), offset)


def _bias(net: Network, layer: Layer, m: Any) -> None:
    _line(net, layer, None, net.weights(m.bias, _shaped(m.shape), "biases"))


def _reduced(kind: str) -> Say:
    def say(net: Network, layer: Layer, m: Any) -> None:
        axes = None if m.reduceAll else list(m.axes)
        net.add(layer, f"reduce_{kind}", {"axes": axes, "keep_dims": bool(m.keepDims)})

    return say


def _reduce(net: Network, layer: Layer, m: Any) -> None:
    """Add the reduction of networks before Core ML's specification 4. It covers channels, rows or columns,
    which are kept with size 1."""
    kinds = {
        "SUM": "sum", "AVG": "mean", "PROD": "prod", "SUMSQUARE": "sum_square",
        "L1": "l1_norm",
        "L2": "l2_norm", "MAX": "max", "MIN": "min",
    }  # fmt: skip
    axes = {"CHW": [-3, -2, -1], "HW": [-2, -1], "C": [-3], "H": [-2], "W": [-1]}[word(m, "axis")]
    kind = word(m, "mode")
    if kind == "LOGSUM":
        epsilon = {"epsilon": np.float32(m.epsilon or 1e-6)}
        logs = net.add(layer, "log", epsilon, end=f"{layer.output[0]} logarithms")
        net.add(layer, "reduce_sum", {"axes": axes, "keep_dims": True}, start=logs)
        return
    if kind not in kinds:
        raise CompileError(f"{net.source}: the mode {kind} is none of LOGSUM, {', '.join(kinds)}")
    net.add(layer, f"reduce_{kinds[kind]}", {"axes": axes, "keep_dims": True})


def _compared(kind: str) -> Say:
    """Return a function that adds a comparison of two inputs, or of one input and the number `alpha`. Its
    result is 1.0 if it is true, else 0.0."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        end = f"{layer.output[0]} truth"
        if len(layer.input) > 1:
            truth = net.add(layer, kind, inputs=("x", "y"), end=end)
        else:
            truth = net.add(layer, kind, {"y": np.float32(m.alpha)}, end=end)
        net.add(layer, "cast", {"dtype": "fp32"}, start=truth)

    return say


def _where(net: Network, layer: Layer, m: Any) -> None:
    truth = net.add(layer, "cast", {"dtype": "bool"}, end=f"{layer.output[0]} truth")
    net.add(layer, "select", inputs=("cond", "a", "b"), start=truth)


def _logical(kind: str) -> Say:
    """Return a function that adds a logical operation. Its operands and its result are truth values that are
    stored as floats."""

    def say(net: Network, layer: Layer, m: Any) -> None:
        out = layer.output[0]
        names = [
            net.node("mil.cast", {"x": [x]}, [f"{out} truth {n}"], {"dtype": "bool"})
            for n, x in enumerate(layer.input)
        ]
        inputs = {k: [v] for k, v in zip(("x", "y"), names, strict=False)}
        truth = net.node(f"mil.{kind}", inputs, [f"{out} truth"])
        net.add(layer, "cast", {"dtype": "fp32"}, start=truth)

    return say


def _average(net: Network, layer: Layer, m: Any) -> None:
    total = net.chain(layer, "add", f"{layer.output[0]} sum")
    net.add(layer, "real_div", {"y": np.float32(len(layer.input))}, start=total)


def _dot(net: Network, layer: Layer, m: Any) -> None:
    """Add the dot product of two inputs over their channels. The layer's cosine similarity also divides it by
    the product of the inputs' lengths."""
    out, channels = layer.output[0], {"axes": [-3], "keep_dims": True}
    products = net.add(layer, "mul", inputs=("x", "y"), end=f"{out} products")
    total = net.add(
        layer, "reduce_sum", channels, start=products, end=f"{out} sum" if m.cosineSimilarity else ""
    )
    if m.cosineSimilarity:
        lengths = [
            net.node("mil.reduce_l2_norm", {"x": [x]}, [f"{out} length {n}"], channels)
            for n, x in enumerate(layer.input[:2])
        ]
        both = net.node("mil.mul", {"x": lengths[:1], "y": lengths[1:]}, [f"{out} lengths"])
        net.node("mil.real_div", {"x": [total], "y": [both]}, [out])


_PLAIN = (
    "ceil", "floor", "sign", "round", "exp2", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh",
    "tanh", "asinh", "acosh", "atanh", "erf",
)  # fmt: skip
_TWO = {
    "mod": "mod", "min": "minimum", "max": "maximum", "add": "add", "pow": "pow", "divide": "real_div",
    "floorDiv": "floor_div", "multiply": "mul", "subtract": "sub",
}  # fmt: skip
_REDUCED = {
    "L1": "l1_norm", "L2": "l2_norm", "Max": "max", "Min": "min", "Sum": "sum", "Prod": "prod",
    "Mean": "mean", "LogSum": "log_sum", "SumSquare": "sum_square", "LogSumExp": "log_sum_exp",
}  # fmt: skip
_COMPARED = {
    "equal": "equal", "notEqual": "not_equal", "lessThan": "less", "lessEqual": "less_equal",
    "greaterThan": "greater", "greaterEqual": "greater_equal",
}  # fmt: skip


def _numbers(kind: str, **fields: str) -> Say:
    """Return a function that converts a layer to MIL's operation `kind` of one input and numbers. `fields`
    has the layer's fields with the numbers, by MIL's names."""
    return lambda net, layer, m: net.add(
        layer, kind, {key: np.float32(getattr(m, field)) for key, field in fields.items()}
    )


LAYERS: Mapping[str, Say] = {
    **{name: same(name) for name in _PLAIN},
    **{f"{name}Broadcastable": two(kind) for name, kind in _TWO.items()},
    **{f"reduce{name}": _reduced(kind) for name, kind in _REDUCED.items()},
    **{name: _compared(kind) for name, kind in _COMPARED.items()},
    **{f"logical{n}": _logical(f"logical_{n.lower()}") for n in ("Or", "Xor", "Not", "And")},
    "activation": _activation, "add": _with_number("add"), "average": _average, "bias": _bias,
    "clampedReLU": _numbers("clamped_relu", alpha="alpha", beta="beta"),
    "clip": _numbers("clip", alpha="minVal", beta="maxVal"), "copy": same("identity"), "dot": _dot,
    "gelu": lambda net, layer, m: net.add(layer, "gelu", {"mode": word(m, "mode")}),
    "max": lambda net, layer, m: net.chain(layer, "maximum"),
    "min": lambda net, layer, m: net.chain(layer, "minimum"), "multiply": _with_number("mul"),
    "reduce": _reduce, "scale": _scale, "unary": _unary, "whereBroadcastable": _where,
}  # fmt: skip
