"""Lower layers of neural networks, one file for each family."""

from collections.abc import Mapping

from jangin.frontends.coreml.layers import control, elements, move, recurrent, windows
from jangin.frontends.coreml.layers.network import Say

LAYERS: Mapping[str, Say] = {
    **elements.LAYERS, **move.LAYERS, **windows.LAYERS, **recurrent.LAYERS, **control.LAYERS,
}  # fmt: skip
"""Functions that convert a layer, by the name of the layer's message in Core ML."""
