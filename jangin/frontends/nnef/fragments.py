"""Operations that NNEF lacks, as fragments that any reader of NNEF can expand.

The writer adds the fragments that a model needs. If a model has one of them, word for word, the reader takes
it for one operation. A model that is written and read back therefore gives bit-identical results."""

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
    # The error is at most 1.5e-7 (Abramowitz & Stegun, Handbook of Mathematical Functions, 7.1.26). No sum
    # begins with a sign, because NNEF's own parser applies the sign to the whole sum
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
"""The fragments' texts by the operation's name."""


def known(graph: str) -> frozenset[str]:
    """Return the names of the fragments that a model's text contains."""
    return frozenset(name for name, text in FRAGMENTS.items() if text in graph)
