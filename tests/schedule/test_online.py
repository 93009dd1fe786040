"""Online softmax: softmax and the sums that it weights, in one pass, beside the nests that it is made of."""

from __future__ import annotations

import numpy as np
import pytest
from templates.kernels import SYMBOL, SYMBOLS, Size, attention, random_inputs

from jangin.ir import te
from jangin.ir.interpret import run_func
from jangin.ir.loop import Func
from jangin.ir.verify import verify_func
from jangin.schedule.checks import ScheduleError
from jangin.schedule.steps import apply, parse_steps

from .nests import naive

TILED = """
merge(2, (r0, r1)) split(ai2, 4) split(ai2i, 2) split(ai3, 6) split(ai3i, 3) split(fi2, 4) split(fi2i, 2)
split(fi3, 4) split(fi3i, 2) split(fk0, 6) reorder((fi2o, fi3o, fi2io, fi3io, fi2ii, fi3ii))
privatize(out.acc, (fi2io, fi3io, fi2ii, fi3ii), (weights)) pad_terms(out.acc)
reorder((ai2o, ai3o, ai2io, ai3io, ai2ii, ai3ii)) privatize(scores.acc, (ai2io, ai3io, ai2ii, ai3ii))
"""
ONLINE = "online((fi2o, fi3o, fk0o), (ai2o, ai3o)) simplify()"


def kernel(queries: Size, keys: Size, blind: bool = False) -> Func:
    parts, inputs = attention(1, queries, keys, 3, 4, blind=blind)
    return te.lower("k", parts, inputs, SYMBOLS if SYMBOL in (queries, keys) else {})


def tiled(func: Func) -> Func:
    return apply(func, parse_steps(TILED))


@pytest.mark.parametrize(("queries", "keys", "n"), [(5, 13, 0), (SYMBOL, SYMBOL, 7), (SYMBOL, SYMBOL, 1)])
@pytest.mark.parametrize("hidden", [0, 6, 7, 99])
@pytest.mark.parametrize("blind", [False, True])
def test_any_scores(queries: Size, keys: Size, n: int, hidden: int, blind: bool) -> None:
    """Large scores come late. -inf may hide a tile and more, or a whole row, which gives NaN, or 0 if
    `blind`."""
    func = kernel(queries, keys, blind)
    after = apply(tiled(func), parse_steps(ONLINE))
    verify_func(after)
    sizes = {"n": n} if n else {}
    given = random_inputs(func.inputs, sizes, hidden)
    given["mask"] += np.arange(len(given["mask"]), dtype=np.float32) * 40
    given["mask"][:hidden] = -np.inf
    shape = (1, 1, n or 5, 4)
    found = []
    for f in (func, after):
        out = np.full(shape, 7, np.float32)
        run_func(f, {**given, "out": out}, sizes)
        found.append(out)
    np.testing.assert_allclose(found[1], found[0], rtol=2e-5, atol=2e-5)
    nothing = hidden >= len(given["mask"])
    assert np.isnan(found[1]).all() == (nothing and not blind)
    assert (found[1] == 0).all() == (nothing and blind)


def test_misuse() -> None:
    func = tiled(kernel(5, 13))
    with pytest.raises(ScheduleError, match="no tile of four loops"):
        apply(func, parse_steps("online((fi2o, fi3o, fk0o), (ai2o, ai2o))"))
    with pytest.raises(ScheduleError, match="isn't a product, a softmax"):
        apply(naive("matmul"), parse_steps("online((i0, i1, k0), (i0, i1))"))
