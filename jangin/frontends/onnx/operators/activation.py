"""Lower activations and the operators related to softmax."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.frontends.onnx.operators.families import unary
from jangin.frontends.onnx.registry import one_of, op
from jangin.ir.expr import Buffer, Expr, Load, cast, eq, select
from jangin.ir.te import compute
from jangin.ops.activation import ACTIVATIONS, CORNERS, gelu, gelu_tanh, selu, shrink, swish
from jangin.ops.axes import axis_of, product
from jangin.ops.builder import Builder
from jangin.ops.elementwise import widened
from jangin.ops.reduce import first_extreme
from jangin.ops.values import Tensor

NAMES: Mapping[str, str] = {
    "Affine": "affine",
    "Celu": "celu",
    "Elu": "elu",
    "HardSigmoid": "hard_sigmoid",
    "HardSwish": "hard_swish",
    "LeakyRelu": "leaky_relu",
    "Mish": "mish",
    "ParametricSoftplus": "scaled_softplus",
    "Relu": "relu",
    "ScaledTanh": "scaled_tanh",
    "Sigmoid": "sigmoid",
    "Softplus": "softplus",
    "Softsign": "softsign",
    "Swish": "swish",
    "Tanh": "tanh",
    "ThresholdedRelu": "thresholded_relu",
}
"""Names of functions in `ops.activation`, by ONNX's activations. The attributes of these activations are the
functions' parameters."""


def _gelu(x: Expr, approximate: str = "none") -> Expr:
    one_of("approximate", approximate, ("none", "tanh"))
    return gelu_tanh(x) if approximate == "tanh" else gelu(x)


SIMPLE = unary(
    {
        **{name: ACTIVATIONS[neutral] for name, neutral in NAMES.items() if neutral not in CORNERS},
        "Gelu": _gelu,
        "Shrink": lambda x, lambd=0.5, bias=0.0: shrink(x, lambd, bias),
    }
)
SMOOTH = unary(
    {name: ACTIVATIONS[neutral] for name, neutral in NAMES.items() if neutral in CORNERS}, corner="shared"
)
SELU_1 = unary({"Selu": lambda x, alpha=1.6732, gamma=1.0507: selu(x, alpha, gamma)})
SELU_6 = unary({"Selu": selu}, since=6)
MICROSOFT = unary({"Gelu": gelu, "QuickGelu": lambda x, alpha=1.702: swish(x, alpha)}, domain="com.microsoft")


@op("BiasGelu", domain="com.microsoft")
def bias_gelu(b: Builder, x: Tensor, bias: Tensor) -> Tensor:
    return b.map(widened(lambda v, w: gelu(v + w)), x, bias)


@op("FastGelu", domain="com.microsoft")
def fast_gelu(b: Builder, x: Tensor, bias: Tensor | None = None) -> Tensor:
    if bias is None:
        return b.map(widened(lambda v: gelu_tanh(v)), x)
    return b.map(widened(lambda v, w: gelu_tanh(v + w)), x, bias)


# --- softmax ---------------------------------------------------------------------------------

Rowwise = Callable[[Tensor, int], Tensor]


def _flattened(b: Builder, x: Tensor, axis: int, fn: Rowwise) -> Tensor:
    """Return `fn` of x with the axes from `axis` on flattened into one. Softmax and its relatives are defined
    in this way before opset 13."""
    axis = axis if axis == x.rank else axis_of(axis, x.rank)
    if axis == x.rank - 1:
        return fn(x, axis)
    flat = (product(x.shape[:axis]), product(x.shape[axis:]))
    return b.reshape(fn(b.reshape(x, flat), 1), x.shape)


@op("Softmax", since=13)
def softmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    return b.softmax(x, axis_of(axis, x.rank))


@op("LogSoftmax", since=13)
def log_softmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    return b.softmax(x, axis_of(axis, x.rank), log=True)


@op("Softmax")
def softmax_1(b: Builder, x: Tensor, axis: int = 1) -> Tensor:
    return _flattened(b, x, axis, b.softmax)


@op("LogSoftmax")
def log_softmax_1(b: Builder, x: Tensor, axis: int = 1) -> Tensor:
    return _flattened(b, x, axis, lambda t, a: b.softmax(t, a, log=True))


@op("Hardmax", since=13)
def hardmax(b: Builder, x: Tensor, axis: int = -1) -> Tensor:
    """Return 1 at the first of the largest elements along `axis`, and 0 elsewhere."""
    axis = axis_of(axis, x.rank)
    source = Buffer("x0", x.dtype, x.shape)
    first, stages = first_extreme(source, axis, "max")
    out = Buffer("out", x.dtype, x.shape)

    def at(*index: Expr) -> Expr:
        chosen = eq(index[axis], Load(first, (*index[:axis], *index[axis + 1 :])))
        return cast(x.dtype, select(chosen, 1, 0))

    return b.stages([*stages, compute(out, at)], [x])


@op("Hardmax")
def hardmax_1(b: Builder, x: Tensor, axis: int = 1) -> Tensor:
    return _flattened(b, x, axis, lambda t, a: hardmax(b, t, a))
