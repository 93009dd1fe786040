"""Lower TensorFlow Lite's builtin operators, with one file for each family, and some custom operators."""

from jangin.frontends.registry import declared
from jangin.frontends.tflite.operators import (
    binary,
    casts,
    checkpoints,
    complex,
    conv,
    custom,
    elementwise,
    flex,
    move,
    newton,
    parts,
    random,
    recurrent,
    reduce,
    resize,
    stablehlo,
    text,
)

BUILTINS = declared((
    binary, casts, checkpoints, complex, conv, custom, elementwise, flex, move, newton, parts, random,
    recurrent, reduce, resize, stablehlo, text,
))  # fmt: skip
"""Lowerings by the names that the operators have in the schema."""
