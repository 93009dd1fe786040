"""Lower TensorFlow Lite's builtin operators, with one file for each family, and some custom operators."""

from jangin.frontends.registry import declared
from jangin.frontends.tflite.operators import (
    complex,
    conv,
    custom,
    elementwise,
    move,
    newton,
    parts,
    random,
    recurrent,
    reduce,
    stablehlo,
    text,
)

BUILTINS = declared(
    (complex, conv, custom, elementwise, move, newton, parts, random, recurrent, reduce, stablehlo, text)
)
"""Lowerings by the names that the operators have in the schema."""
