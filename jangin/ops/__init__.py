"""Operators of model formats, each lowered to core ones: the explicit table of them."""

from jangin.ops import (
    activation,
    attention,
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
    sample,
    scan,
    scatter,
    shape,
    signal,
    window,
)

OPERATORS = registry.table(
    [
        elementwise,
        activation,
        reduce,
        normalize,
        quantize,
        attention,
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
        sample,
        signal,
    ]
)
