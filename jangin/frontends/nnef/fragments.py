"""Operations that NNEF lacks, as fragments which any reader of NNEF can expand.

The writer puts them into a model that needs them. Where a model has one of them, word for word, it is one
operation to the reader too, so that what is written and read back computes the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping

EXTENSIONS = "extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;\n"
FRAGMENTS: Mapping[str, str] = {
    "layer_normalization": """
fragment layer_normalization( x: tensor<scalar>, axes: integer[], epsilon: scalar ) -> ( y: tensor<scalar> )
{
    mean, variance = moments(x, axes = axes);
    y = (x - mean) / sqrt(variance + epsilon);
}
""",
    "rms_normalization": """
fragment rms_normalization( x: tensor<scalar>, axes: integer[], epsilon: scalar ) -> ( y: tensor<scalar> )
{
    y = x / sqrt(mean_reduce(x * x, axes = axes) + epsilon);
}
""",
    "hard_sigmoid": """
fragment hard_sigmoid( x: tensor<scalar>, alpha: scalar, beta: scalar ) -> ( y: tensor<scalar> )
{
    y = max(min(x * alpha + beta, 1.0), 0.0);
}
""",
    "log_softmax": """
fragment log_softmax( x: tensor<scalar>, axes: integer[] ) -> ( y: tensor<scalar> )
{
    moved = x - max_reduce(x, axes = axes);
    y = moved - log(sum_reduce(exp(moved), axes = axes));
}
""",
    # to 1.5e-7 (Abramowitz & Stegun, Handbook of Mathematical Functions, 7.1.26). No sign is before a sum,
    # as NNEF's own parser takes it for that of the whole sum
    "erf": """
fragment erf( x: tensor<scalar> ) -> ( y: tensor<scalar> )
{
    t = 1.0 / (1.0 + 0.3275911 * abs(x));
    low = t * (0.254829592 - t * (0.284496736 - t * 1.421413741));
    series = low - t * t * t * t * (1.453152027 - t * 1.061405429);
    y = sign(x) * (1.0 - series / exp(x * x));
}
""",
}
"""By the operation's name."""


def known(graph: str) -> frozenset[str]:
    """Which of them a model's text has."""
    return frozenset(name for name, text in FRAGMENTS.items() if text in graph)
