"""TensorFlow Lite's builtin operators, a file a family."""

from jangin.frontends.registry import declared
from jangin.frontends.tflite.operators import conv, elementwise, move, reduce

BUILTINS = declared((conv, elementwise, move, reduce))
"""Lowerings by the names that the schema has."""
