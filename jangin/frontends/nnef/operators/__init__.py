"""NNEF's operations, a file a family."""

from collections.abc import Mapping

from jangin.frontends.nnef.operators import elementwise, move, reduce, region, window
from jangin.frontends.registry import declared

OPERATIONS = declared((elementwise, move, reduce, region, window))
"""Lowerings by the operation's name."""
DEFINED = (
    "rms_pool", "local_mean_normalization", "local_variance_normalization", "local_contrast_normalization",
    "l1_normalization", "l2_normalization", "nearest_downsample", "area_downsample", "separable_conv",
    "separable_deconv",
)  # fmt: skip
"""Standard operations that are lowered by the standard's definition."""
_UNPOOL = (
    "size: integer[], border: string = 'constant', padding: (integer,integer)[] = [], "
    "stride: integer[] = [], dilation: integer[] = [], output_shape: integer[] = [] ) "
    "-> ( output: tensor<scalar> );"
)
UNDECLARED: Mapping[str, str] = {
    "avg_unpool": f"fragment avg_unpool( input: tensor<scalar>, {_UNPOOL}",
    "max_unpool": f"fragment max_unpool( input: tensor<scalar>, index: tensor<integer>, {_UNPOOL}",
}
"""Operations of which the package `nnef` knows the shapes, and which neither it nor the standard declares.
Their declarations are those of `debox` and `desample`, which they are."""
