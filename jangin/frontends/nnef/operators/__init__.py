"""Lower NNEF's operations, one file for each family."""

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
"""Standard operations that have no lowering here. They are expanded by the standard's own definition."""
_UNPOOL = (
    "size: integer[], border: string = 'constant', padding: (integer,integer)[] = [], "
    "stride: integer[] = [], dilation: integer[] = [], output_shape: integer[] = [] ) "
    "-> ( output: tensor<scalar> );"
)
UNDECLARED: Mapping[str, str] = {
    "avg_unpool": f"fragment avg_unpool( input: tensor<scalar>, {_UNPOOL}",
    "max_unpool": f"fragment max_unpool( input: tensor<scalar>, index: tensor<integer>, {_UNPOOL}",
}
"""Declarations of operations that the package `nnef` knows the shapes of, although neither it nor the
standard declares them.

They are declared like `debox` and `desample`, which compute the same."""
