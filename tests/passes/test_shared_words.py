"""Channels keep their bias and their shift in one word, with the same results. Other constants stay."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from jangin.ir.dtype import I8, I32, I64
from jangin.ir.expr import Expr, binary, cast, const, maximum, minimum, select
from jangin.ir.graph import Array, Graph
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.passes.precision.shared_words import shared_words
from jangin.targets.micro import CORTEX_M4
from jangin.targets.x86 import V3

CHANNELS, PIXELS = 24, 40


def network(own: Sequence[Array], below: int) -> Graph:
    """Return sums of channels with a bias, multiplied, rounded, shifted and clamped. `own`: the biases, the
    factors, the halves and the shifts."""
    bias, *rest = own
    b = Builder("net", {})
    x = b.input("x", I32, (const(PIXELS), const(CHANNELS)))
    sums = b.map(lambda v, c: v + c, x, b.const(bias.astype(np.int32)))

    def rescaled(v: Expr, by: Expr, add: Expr, right: Expr) -> Expr:
        high = cast(I32, binary("shr", cast(I64, v) * cast(I64, by), const(30, I64)))
        total = high + add
        if below:
            total = total - select(high < const(0, I32), const(below, I32), const(0, I32))
        clamped = minimum(maximum(binary("shr", total, right), const(-128, I32)), const(127, I32))
        return cast(I8, clamped)

    rows = (b.const(a.astype(np.int32).reshape(1, CHANNELS)) for a in rest)
    return b.graph([b.map(rescaled, sums, *rows)], ["out"])


def constants(random: np.random.Generator, zero: int, more: int) -> list[Array]:
    shift = random.integers(1, 15, CHANNELS)
    half = ((2 * zero + 1) << (shift - 1)) + more
    return [
        random.integers(-(1 << 26), 1 << 26, CHANNELS),
        random.integers(1 << 30, 1 << 31, CHANNELS),
        half,
        shift,
    ]


@pytest.mark.parametrize("below", [0, 2])
@pytest.mark.parametrize(("zero", "more"), [(0, 0), (-128, 1), (127, 1), (-7, 0)])
def test_results_stay(zero: int, more: int, below: int) -> None:
    random = np.random.default_rng()
    own = constants(random, zero, more)
    bias = own[0]
    bias[:4] = -(1 << 26), (1 << 26) - 1, -1, 0
    graph = network(own, below)
    made = shared_words(graph, CORTEX_M4)
    assert sum(a.size for a in made.constants.values()) == 2 * CHANNELS
    x = random.integers(-(1 << 18), 1 << 18, (PIXELS, CHANNELS))
    x[:8] = -bias + np.arange(-4, 4)[:, None]
    arrays = {"x": x.astype(np.int32)}
    np.testing.assert_array_equal(run_graph(made, arrays)["out"], run_graph(graph, arrays)["out"])


def test_what_has_no_room_stays() -> None:
    """A bias that needs more than 27 bits, a half that doesn't follow from the shift, and a shift of 0."""
    random = np.random.default_rng()
    for row, changed in ((0, 1 << 26), (2, 12345), (3, 0)):
        rows = constants(random, 3, 1)
        rows[row][5] = changed
        graph = network(rows, 0)
        assert shared_words(graph, CORTEX_M4) is graph


def test_processors_with_memory_keep_separate_constants() -> None:
    graph = network(constants(np.random.default_rng(), 3, 1), 0)
    assert shared_words(graph, V3) is graph
