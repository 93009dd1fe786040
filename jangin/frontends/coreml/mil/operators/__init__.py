"""Lower MIL's operations, one file for each family."""

from jangin.frontends.coreml.mil.operators import elementwise, move, recurrent, window
from jangin.frontends.registry import declared

OPERATIONS = declared((elementwise, move, recurrent, window))
"""Lowerings by MIL's names of the operations."""
