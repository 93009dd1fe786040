"""NNEF's operations, a file a family."""

from jangin.frontends.nnef.operators import elementwise, move, reduce, window
from jangin.frontends.registry import declared

OPERATIONS = declared((elementwise, move, reduce, window))
"""Lowerings by the operation's name."""
DEFINED = (
    "rms_pool", "local_mean_normalization", "local_variance_normalization", "local_contrast_normalization",
    "l1_normalization", "l2_normalization", "nearest_downsample", "area_downsample", "separable_conv",
    "separable_deconv",
)  # fmt: skip
"""Standard operations that are lowered by the standard's definition."""
