"""MIL's operations, a file a family."""

from jangin.frontends.coreml.mil.operators import elementwise, move, recurrent, window
from jangin.frontends.registry import declared

OPERATIONS = declared((elementwise, move, recurrent, window))
"""Lowerings by the names that MIL has."""
