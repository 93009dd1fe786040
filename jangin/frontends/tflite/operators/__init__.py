"""TensorFlow Lite's builtin operators, a file a family, and some custom ones."""

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
"""Lowerings by the names that the schema has."""
