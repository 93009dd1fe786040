"""Operators of model formats, each lowered to core ones: the explicit table of them."""

from jangin.ops import (
    activation,
    elementwise,
    index,
    linear,
    normalize,
    quantize,
    reduce,
    registry,
    resize,
    shape,
    window,
)

OPERATORS = registry.table(
    [elementwise, activation, reduce, normalize, quantize, shape, index, window, linear, resize]
)
