"""Gradients of PyTorch's operators over its own OpInfo database, against autograd in float64."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from random import Random

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo database needs expecttest")

from opinfo import Call, calls, modules, operators

from jangin.ir.graph import CompileError
from jangin.ops.interpret import run_graph

EXPLAINED = {
    r"(linalg\.)?cholesky.*": "PyTorch halves the gradient between both halves; one half alone is read",
    r"as_strided_scatter": "PyTorch gives what is overwritten a gradient too, which no result needs",
    r"native_layer_norm": "PyTorch takes the mean and deviation that it also gives for constants",
    r"_?native_batch_norm.*": "PyTorch takes the mean and deviation that it also gives for constants",
    r"nn\.functional\.max_unpool.*": "of several elements at one place all have PyTorch's gradient, though "
    "the last alone is kept",
    r"torch\.ops\.aten\._safe_softmax.*": "PyTorch takes it apart before it is read, into what gives NaN",
    r"nn\.functional\.hardsigmoid": "PyTorch rounds a sixth to float32",
    r"linalg\.norm\.subgradients_at_zero": "singular values are found by steps that have no slope at 0",
}
"""Gradients that differ from PyTorch's, and why."""


def outcome(call: Call) -> str:
    """How a call's gradients compare with PyTorch's."""
    try:
        wanted = call.wanted()
    except (RuntimeError, NotImplementedError, ValueError, TypeError):
        return "PyTorch has none"
    try:
        graph, traced = call.lowered()
    except Exception:  # PyTorch's tracer raises anything; the front end's own tests count what it reads
        return "not read"
    if any(n in ("bind", "host", "if", "loop") for n in (node.op for node in graph.nodes)):
        return "not read"
    try:
        made, feeds, names = call.differentiated()
    except CompileError:
        return "refused"
    if sum(f.size for f in feeds.values()) > 3000:
        return "large"
    found = run_graph(made, feeds)
    value, forward = float(found[made.outputs[0]]), call.value()
    if not np.isclose(value, forward, 1e-9, 1e-9, equal_nan=True):
        return "another result"
    for (name, t), w in zip(call.inputs(traced.inputs), wanted, strict=True):
        if name in names:
            expected = np.zeros(t.shape) if w is None else w.detach().resolve_neg().numpy(force=True)
            if not np.allclose(found[names[name]], expected, 1e-10, 1e-10, equal_nan=True):
                return "wrong"
    return "right"


def counted(given: Iterable[Call]) -> tuple[Counter[str], list[str]]:
    counts: Counter[str] = Counter()
    wrong = []
    for call in given:
        how = outcome(call)
        if how == "wrong" and any(re.fullmatch(name, call.name) for name in EXPLAINED):
            how = "explained"
        if how in ("wrong", "another result"):
            wrong.append(f"{call}: {how}")
        counts[how] += 1
    return counts, wrong


def test_a_sample_of_gradients() -> None:
    seed = 2
    counts, wrong = counted(calls(Random(seed).sample(operators(), 10), 1))
    assert not wrong, (seed, wrong)
    assert not counts["refused"] and counts["right"] > 4, counts


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
