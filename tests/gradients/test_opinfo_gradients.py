"""Gradients of PyTorch's operators over its own OpInfo database, against autograd in float64."""

from __future__ import annotations

from random import Random

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo database needs expecttest")

from opinfo import calls, modules, operators, title
from outcomes import counted


def test_a_sample_of_gradients() -> None:
    seed = 2
    counts, wrong = counted(calls(Random(seed).sample(operators(), 10), 1))
    assert not wrong, (seed, wrong)
    assert not counts["refused"] and counts["right"] > 4, counts


COMPOSED = (
    "_upsample_bilinear2d_aa", "angle", "diagonal_scatter", "dist", "hypot", "index_reduce.amax",
    "index_reduce.mean", "index_reduce.prod", "ldexp", "lgamma", "masked.median", "mvlgamma.mvlgamma_p_3",
    "nanmedian", "narrow_copy", "nn.functional.embedding_bag", "polygamma.polygamma_n_0", "put",
    "special.erfcx", "special.log_ndtr", "special.ndtri", "unfold",
)  # fmt: skip
"""Operators that no table of PyTorch's takes apart. Jangin makes them of others."""


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", COMPOSED)
def test_operators_that_are_made_of_others(name: str) -> None:
    """A forward result that differs fails too."""
    counts, wrong = counted(calls([i for i in operators() if title(i) == name], 2))
    assert not wrong, wrong
    assert counts["right"], counts


def test_a_sample_of_modules() -> None:
    counts, wrong = counted(modules(("nn.BatchNorm1d", "nn.Bilinear", "nn.GRUCell", "nn.PReLU"), 1))
    assert not wrong, wrong
    assert counts["right"] == 8, counts


@pytest.mark.slow  # some hundred calls: minutes
def test_gradients_of_all_modules() -> None:
    counts, wrong = counted(modules())
    print(f"\n{dict(counts)}")
    assert not wrong, wrong
    compared = counts["right"] + counts["wrong"] + counts["explained"] + counts["refused"]
    assert counts["right"] >= 0.95 * compared, counts


@pytest.mark.slow  # two thousand calls: minutes
def test_gradients_of_all_operators() -> None:
    counts, wrong = counted(calls(operators(), 4))
    print(f"\n{dict(counts)}")
    assert not wrong, wrong
    compared = counts["right"] + counts["wrong"] + counts["explained"] + counts["refused"]
    assert counts["right"] >= 0.95 * compared, counts
