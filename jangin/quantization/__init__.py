"""Models in smaller numbers: `jangin.quantize`."""
