"""Random ONNX models through `jangin.compile`, against ONNX's ReferenceEvaluator in double precision.

A model may refuse sizes for which it wasn't made, with an error that says so. A wrong result is never
allowed. `pytest -m slow tests/properties` runs 2,100 more.
"""

from __future__ import annotations

import numpy as np
import pytest
from onnx_nets import Array, Item, Net
from onnx_operators import random_net
from repeatable import repeated_by

import jangin

LENGTHS = (1, 1, 1, 2, 2, 2, 2, 3, 3, 4, 6, 12)
REFUSED = ("do not meet", "but may be")
"""Parts of errors that refuse a size for which the model wasn't compiled."""


def difference(name: str, got: Array, want: Item) -> str:
    """Return the fault of a result, or "" if it is right."""
    if str(got.dtype) != want.dtype or got.shape != want.shape:
        return f"{name} is {got.dtype}{list(got.shape)}, not {want.dtype}{list(want.shape)}"
    if not want.is_float:
        wrong = int((got != want.exact).sum())
        return f"{name}: {wrong} of {got.size} differ" if wrong else ""
    off = float(np.abs(got.astype(np.float64) - want.exact).max(initial=0))
    return "" if off <= want.tolerance else f"{name} is off by {off:.3g}, allowed are {want.tolerance:.3g}"


def workloads(net: Net, threads: int, target: str | None = None) -> list[str]:
    """Compile a model, run it at several sizes of its symbol, and return its faults."""
    symbolic = any("n" in shape for shape in net.symbolic.values())
    exe = jangin.compile(net.model(), target, threads, {"n": (0, 64)} if symbolic else None, cache=False)
    found: list[str] = []
    for size in (net.size, 1, 5, 0) if symbolic else (net.size,):
        feeds = net.feeds if size == net.size else net.resized(size)
        wanted = None if feeds is None else net.results(feeds)
        if feeds is None or wanted is None:
            continue
        try:
            results = exe.run(feeds)
        except ValueError as error:
            if not any(text in str(error) for text in REFUSED):
                found.append(f"n = {size}: {error}")
            continue
        found += [f"n = {size}: {d}" for n, y in results.items() if (d := difference(n, y, wanted[n]))]
    return found


def check(seed: int, length: int, target: str | None = None) -> None:
    net = random_net(seed, length)
    if net.steps:
        with repeated_by(f"check({seed}, {length}, {target!r})"):
            found = workloads(net, 1 + seed % 3, target)
        operators = ", ".join(s.node.op_type for s in net.steps)
        assert not found, f"random_net({seed}, {length}), opset {net.opset}: {operators}: {'; '.join(found)}"


@pytest.mark.sampled(4)
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_random_models(first: int) -> None:
    for seed in range(first, first + 20):
        check(seed, LENGTHS[seed % len(LENGTHS)])


@pytest.mark.slow
@pytest.mark.parametrize("first", [100, 150, *range(1000, 3000, 50)])
def test_many_random_models(first: int) -> None:
    for seed in range(first, first + 50):
        check(seed, 1 + seed * 7919 % 12)


def test_they_are_varied() -> None:
    nets = [random_net(seed, LENGTHS[seed % len(LENGTHS)]) for seed in range(200)]
    operators = {s.node.op_type for net in nets for s in net.steps}
    dtypes = {d for net in nets for s in net.steps for d in s.dtypes}
    shapes = [shape for net in nets for shape in net.symbolic.values()]
    assert len(operators) > 80 and len(dtypes) > 10
    assert sum("n" in s for s in shapes) > 50 and any(0 in s for s in shapes) and any(1 in s for s in shapes)


@pytest.mark.sampled(2)
def test_most_of_them_are_compared() -> None:
    """A model is compared at the size it was drawn for. It is also compared at other sizes often enough,
    though the reference may refuse some."""
    nets = [net for seed in range(200) if (net := random_net(seed, LENGTHS[seed % len(LENGTHS)])).steps]
    assert len(nets) >= 190 and all(net.results(net.feeds) is not None for net in nets)
    symbolic = [net for net in nets if any("n" in shape for shape in net.symbolic.values())]
    others = [(net, net.resized(size)) for net in symbolic for size in (1, 5, 0)]
    compared = [net for net, feeds in others if feeds is not None and net.results(feeds) is not None]
    assert len(compared) >= len(others) / 2
