"""How gradients of PyTorch's operators and modules compare with autograd's."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import torch
from opinfo import Call
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from jangin.compiler.pipeline import build_plan
from jangin.ir.graph import CompileError, Graph
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.load import executable

Run = Callable[[Graph, dict[str, Any]], Mapping[str, Any]]
"""A function that gives a graph's outputs by name."""

EXPLAINED = {
    r"(linalg\.)?cholesky.*": "PyTorch halves the gradient between both halves; one half alone is read",
    r"as_strided_scatter": "PyTorch gives what is overwritten a gradient too, which no result needs",
    r"native_layer_norm": "PyTorch takes the mean and deviation that it also gives for constants",
    r"_?native_batch_norm.*": "PyTorch takes the mean and deviation that it also gives for constants",
    r"nn\.functional\.max_unpool.*": "of several elements at one place all have PyTorch's gradient, though "
    "the last alone is kept",
    r"torch\.ops\.aten\._safe_softmax.*": "PyTorch takes it apart before it is read, into what gives NaN",
    r"nn\.functional\.hardsigmoid": "PyTorch rounds a sixth to float32",
    r"digamma": "PyTorch's function for its slope is right to 1e-9; ours is compared with mpmath's",
    r"linalg\.norm\.subgradients_at_zero": "singular values are found by steps that have no slope at 0",
}
"""Gradients that differ from PyTorch's, and why."""
UNREAD = (
    CompileError,
    DataDependentOutputException,
    DynamicOutputShapeException,
    GuardOnDataDependentSymNode,
)
"""Errors of calls that aren't read: the front end's own, and those of PyTorch's tracer if data decide about
sizes. Any other error is a fault."""
UNTRACED = {
    "sparse.sampled_addmm": "PyTorch can't trace sums over sparse results",
    "tensor_split": "PyTorch can't trace places of cuts that are a tensor",
}
"""Operators whose tracing ends with a RuntimeError, and why."""
LARGE = 3000
"""Elements of all operands. The interpreter takes too long for more, so they are compiled."""


def compiled(graph: Graph, feeds: dict[str, Any]) -> Mapping[str, Any]:
    """Run a graph by machine code."""
    made: Any = executable(build_plan(graph, Options()), 1)
    found: Mapping[str, Any] = made.run(feeds)
    return found


def outcome(call: Call, run: Run = run_graph) -> tuple[str, str]:
    """How a call's gradients compare with PyTorch's in float64, and details in words."""
    try:
        wanted = call.wanted()
    except (RuntimeError, NotImplementedError, ValueError, TypeError) as e:
        return "PyTorch has none", _line(e)
    try:
        graph, traced = call.lowered()
    except UNREAD as e:  # the front end's own tests count what it reads
        return "not read", _line(e)
    except Exception as e:
        known = isinstance(e, RuntimeError) and call.name in UNTRACED
        return "not read" if known else "failed", _line(e)
    if steps := [n.op for n in graph.nodes if n.op in ("bind", "host", "if", "loop")]:
        return "not read", f"a step: {steps[0]}"
    try:
        made, feeds, names = call.differentiated()
    except CompileError as e:
        return "refused", _line(e)
    if sum(f.size for f in feeds.values()) > LARGE:
        run = compiled
    found = run(made, feeds)
    close = 1e-9 if call.dtype == torch.float64 else 1e-5
    value, forward = float(found[made.outputs[0]]), call.value()
    if not np.isclose(value, forward, close, close, equal_nan=True) and not _near(call, value, forward):
        return "another result", f"{value} instead of {forward}"
    for place, (name, t) in enumerate(call.inputs(traced.inputs)):
        if name in names:
            w = wanted[place]
            expected = np.zeros(t.shape) if w is None else w.detach().resolve_neg().numpy(force=True)
            if not _same(call, place, np.asarray(found[names[name]]), expected):
                return "wrong", f"operand {place}: {_difference(found[names[name]], expected)}"
    return "right", ""


def _same(call: Call, place: int, found: Any, expected: Any) -> bool:
    """Return whether a gradient is right: within 1e-10 in float64. In float32, its error is at most 1e-5 of
    the largest element, or four times the error of PyTorch's own gradient in float32."""
    if call.dtype == torch.float64:
        return np.allclose(found, expected, 1e-10, 1e-10, equal_nan=True)
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)):
        theirs = call.wanted_here()[place]
        if theirs is None:
            return False
        return np.array_equal(np.isfinite(found), np.isfinite(theirs.numpy(force=True)))
    errors, most = _errors(found, expected)
    if errors <= 1e-5 * max(most, 1.0):
        return True
    theirs = call.wanted_here()[place]
    return theirs is not None and errors <= 4 * _errors(theirs.resolve_neg().numpy(force=True), expected)[0]


def _near(call: Call, value: float, forward: float) -> bool:
    """Return whether a result in float32 is nearly as good as PyTorch's own."""
    return call.dtype != torch.float64 and abs(value - forward) <= 4 * abs(call.value_here() - forward)


def _errors(found: Any, expected: Any) -> tuple[float, float]:
    """Return the largest difference of finite elements, and the largest of them."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.asarray(found, np.float64) - expected)
    finite = np.isfinite(expected)
    return float(apart[finite].max(initial=0.0)), float(np.abs(expected[finite]).max(initial=0.0))


def _difference(found: Any, expected: Any) -> str:
    errors, most = _errors(found, expected)
    odd = int((np.isfinite(found) != np.isfinite(expected)).sum())
    return f"{errors:.2g} apart, where {most:.2g} is the largest; {odd} differ in being finite"


def _line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def explained(call: Call) -> bool:
    return any(re.fullmatch(name, call.name) for name in EXPLAINED)


def counted(given: Iterable[Call]) -> tuple[Counter[str], list[str]]:
    """Return how many calls have each outcome, and the wrong ones in words."""
    counts: Counter[str] = Counter()
    wrong = []
    for call in given:
        how, words = outcome(call)
        if how == "wrong" and explained(call):
            how = "explained"
        if how in ("wrong", "another result", "failed"):
            wrong.append(f"{call}: {how}, {words}")
        counts[how] += 1
    return counts, wrong
