"""Operators of model formats, each lowered to core ones: the explicit table of them."""

from jangin.ops import (
    activation,
    conv,
    elementwise,
    index,
    integer,
    linear,
    loss,
    move,
    normalize,
    quantize,
    reduce,
    registry,
    resize,
    scan,
    scatter,
    shape,
    window,
)

OPERATORS = registry.table(
    [
        elementwise,
        activation,
        reduce,
        normalize,
        quantize,
        loss,
        scan,
        shape,
        move,
        index,
        scatter,
        window,
        conv,
        linear,
        integer,
        resize,
    ]
)
