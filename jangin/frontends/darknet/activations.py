"""Activations and normalization, which Darknet's layers with weights share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jangin.frontends.dialect import Inputs
from jangin.ir.expr import Expr, call, select
from jangin.ops import activation as functions
from jangin.ops.axes import per_channel
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

ACTIVATIONS: Mapping[str, Callable[[Expr], Expr]] = {
    "linear": lambda x: x,
    "logistic": functions.sigmoid,
    "relu": functions.relu,
    "relu6": lambda x: functions.clip(x, 0.0, 6.0),
    "leaky": lambda x: functions.leaky_relu(x, 0.1),
    "relie": lambda x: functions.leaky_relu(x, 0.01),
    "ramp": lambda x: functions.relu(x) + x * 0.1,
    "tanh": functions.tanh,
    "hardtan": lambda x: functions.clip(x, -1.0, 1.0),
    "loggy": lambda x: functions.sigmoid(x) * 2.0 - 1.0,
    "elu": functions.elu,
    "selu": lambda x: functions.selu(x, 1.6732, 1.0507),
    "gelu": functions.gelu_tanh,
    "mish": functions.mish,
    "swish": functions.swish,
    "silu": functions.swish,
    "hard_mish": lambda x: select(x > 0, x, select(x < -2, 0.0, x * x * 0.5 + x)),
    "revleaky": lambda x: functions.leaky_relu(x, 0.1),
    "stair": lambda x: call("floor", x * 0.5) + (x - call("floor", x)) * _odd(x),
    "lhtan": lambda x: select(x < 0, x * 0.001, select(x > 1, (x - 1.0) * 0.001 + 1.0, x)),
    "plse": lambda x: select(
        x < -4, (x + 4.0) * 0.01, select(x > 4, (x - 4.0) * 0.01 + 1.0, x * 0.125 + 0.5)
    ),
}
"""Activations by their names in a cfg (src/activations.h)."""


def _odd(x: Expr) -> Expr:
    """Return 1 if a number rounded down is odd, else 0."""
    whole = call("floor", x)
    return whole - call("floor", whole * 0.5) * 2.0


EPSILON = 1e-6
"""The number that is added to the standard deviation; it isn't added to the variance (src/blas.c,
normalize_cpu)."""


def tensor(value: Any) -> Tensor:
    assert isinstance(value, Tensor)
    return value


def normalized(b: Builder, x: Tensor, bias: Tensor, rest: Inputs) -> Tensor:
    """Normalize x by constant statistics, scales and biases. They are folded to a factor and an offset for
    each channel. Without `rest`, only the bias is added."""
    if not rest:
        return b.map(lambda v, o: v + o, x, per_channel(b, bias, x.rank) if x.rank > 2 else bias)
    scales, mean, variance = (b.require_constant(tensor(t), "a statistic").astype(np.float64) for t in rest)
    offset = b.require_constant(bias, "a bias").astype(np.float64)
    factor = scales / (np.sqrt(variance) + EPSILON)
    whole = [b.const(a.astype(np.float32)) for a in (factor, offset - mean * factor)]
    spread = [per_channel(b, t, x.rank) if x.rank > 2 else t for t in whole]
    return b.map(lambda v, f, o: v * f + o, x, *spread)
