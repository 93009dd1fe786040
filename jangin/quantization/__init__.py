"""Quantize models: `jangin.quantize`."""
