"""Lower ATen's operators, one file for each family."""

from jangin.frontends.registry import declared
from jangin.frontends.torch.operators import (
    conv,
    elementwise,
    index,
    linear,
    move,
    normalize,
    order,
    recurrent,
    reduce,
    resize,
    sizes,
)

OPERATORS = declared(
    (conv, elementwise, index, linear, move, normalize, order, recurrent, reduce, resize, sizes)
)
"""Lowerings by name, of all overloads ("add") or of one overload ("max.dim")."""
