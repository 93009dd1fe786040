"""Lower ATen's operators, one file for each family."""

from jangin.frontends.registry import declared
from jangin.frontends.torch.operators import (
    backward,
    conv,
    elementwise,
    index,
    linear,
    losses,
    move,
    normalize,
    order,
    random,
    recurrent,
    reduce,
    resize,
    sizes,
)

OPERATORS = declared((
    backward, conv, elementwise, index, linear, losses, move, normalize, order, random, recurrent, reduce,
    resize, sizes,
))  # fmt: skip
"""Lowerings by the name of an operator, for all its overloads ("add"), or by the name of one overload
("max.dim")."""
