"""Lower Caffe's layers, one file for each family."""

from jangin.frontends.caffe.operators import detection, elementwise, move, recurrent, window
from jangin.frontends.registry import declared

LAYERS = declared((detection, elementwise, move, recurrent, window))
"""Lowerings by the layers' types."""
