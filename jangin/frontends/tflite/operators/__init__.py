"""TensorFlow Lite's builtin operators, a file a family."""

from jangin.frontends.tflite.operators import conv, elementwise, move, reduce
from jangin.frontends.tflite.operators.registry import builtins

BUILTINS = builtins((conv, elementwise, move, reduce))
"""Lowerings by the names that the schema has."""
