"""ATen's operators, a file a family."""

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
from jangin.frontends.torch.operators.registry import operators

OPERATORS = operators(
    (conv, elementwise, index, linear, move, normalize, order, recurrent, reduce, resize, sizes)
)
"""Lowerings by name, of all overloads ("add") or of one ("max.dim")."""
