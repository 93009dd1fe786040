"""Some exact models on this machine's targets. `.ci/run` runs ten minutes of them (see `exact`)."""

from __future__ import annotations

import exact_check
import numpy as np
import pytest
from exact import outcomes
from exact_check import net_of, outcome, smallest
from exact_nets import fraction
from exact_runs import Case, differs
from exact_ways import native_targets, ways
from onnx_nets import Item

WAYS = ways()
NATIVE = native_targets()
FEW, MANY = 3, 10


def repeated(target: str, seed: int, ended: str) -> str:
    """Return an error's text, with the command that makes the model again."""
    return f"python -m tests.properties.exact --target {target} --seed {seed} --count 1: {ended}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", NATIVE)
def test_some_models(target: str) -> None:
    first = 10 * NATIVE.index(target)
    for seed in range(first, first + FEW):
        ended = outcome(seed, target)
        assert not ended.startswith("WRONG"), repeated(target, seed, ended)


@pytest.mark.slow
@pytest.mark.parametrize("target", WAYS)
def test_more_models(target: str) -> None:
    """Models run in separate processes, because an access beyond a buffer may crash."""
    first = 1000 * [*WAYS].index(target)
    ends = dict(outcomes(target, first, first + MANY))
    assert not [repeated(target, s, e) for s, e in ends.items() if e.startswith("WRONG")]
    assert len(ends) == MANY


@pytest.mark.sampled(2)
def test_buffers_end_where_memory_does() -> None:
    ((seed, ended),) = outcomes(NATIVE[0], 3, 4)
    assert ended == "fine", repeated(NATIVE[0], seed, ended)


@pytest.mark.sampled(2)
def test_a_process_that_ends_is_told_by_its_seed() -> None:
    ((seed, ended),) = outcomes("no such target", 7, 9)
    assert seed == 7 and ended.startswith("WRONG the process ended with 1: ")


def test_they_are_varied() -> None:
    nets = [net_of(seed) for seed in range(150)]
    operators = {s.node.op_type for net in nets for s in net.steps}
    dtypes = {d for net in nets for s in net.steps for d in s.dtypes}
    last = {x.shape[-1] for net in nets for x in net.pool if x.rank}
    assert len(operators) > 60 and {"If", "Loop", "QuantizeLinear", "Conv", "MatMul"} <= operators
    assert len(dtypes) == 13
    assert {1, 7, 15, 16, 17, 31, 33, 63, 65} <= last
    assert sum(any("n" in shape for shape in net.symbolic.values()) for net in nets) > 20


def test_what_is_wrong_is_found_and_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A way to run models that can't multiply is found out, and the smallest wrong model ends with the
    product."""

    def way(case: Case) -> list[str]:
        return ["it can't"] if any(n.op_type == "MatMul" for n in case.model.graph.node) else []

    seed = next(s for s in range(100) if any(x.node.op_type == "MatMul" for x in net_of(s).steps[1:-1]))
    monkeypatch.setattr(exact_check, "ways", lambda: {"one": way})
    assert outcome(seed, "one").startswith("WRONG ") and "it can't" in outcome(seed, "one")
    assert smallest(seed, "one").model.graph.node[-1].op_type == "MatMul"


def test_differences_are_told() -> None:
    want = Item("y", "float16", np.array([0.0, 2.0]), np.zeros(2))
    assert differs("y", np.array([-0.0, 2], np.float16), want) == ""
    assert "1 of 2 differ, at [1]" in differs("y", np.array([0, 2.002], np.float16), want)
    assert "is float32[2]" in differs("y", np.array([0, 2], np.float32), want)
    assert "is float16[1]" in differs("y", np.array([2], np.float16), want)
    assert "1 of 2 differ" in differs("y", np.array([0, np.nan], np.float16), want)


def test_digits_behind_the_point() -> None:
    for numbers, digits in (((3, 4, 0), 0), ((0.5, 8), 1), ((-0.75,), 2), ((), 0), ((1e6 + 2.0**-9,), 9)):
        assert fraction(np.array(numbers)) == digits
