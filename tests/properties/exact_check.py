"""Runs one exact model on one target, and says how it ended."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator

import onnx
from exact_nets import ExactNet, exact_net
from exact_runs import Case, Run, Skipped, differs
from exact_ways import Way, ways

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import CompileError
from jangin.ops.interpret import run_graph

LENGTHS = (1, 1, 2, 2, 3, 3, 4, 5, 7, 10)
OTHER_SIZES = (1, 5, 0, 33)
SHOWN = 16
"""The most numbers of a constant that are printed."""


def net_of(seed: int) -> ExactNet:
    return exact_net(seed, LENGTHS[seed * 7919 % len(LENGTHS)])


def case_of(seed: int, net: ExactNet) -> Case:
    symbolic = any("n" in shape for shape in net.symbolic.values())
    return Case(seed, net.model(), symbolic, [*_runs(net, OTHER_SIZES if symbolic else ())])


def _runs(net: ExactNet, others: tuple[int, ...]) -> Iterator[Run]:
    """Yield runs for the size that the model was drawn for, and for others that its reference allows."""
    for size in dict.fromkeys((net.size, *others)):
        feeds = net.feeds if size == net.size else net.resized(size)
        wanted = None if feeds is None else net.results(feeds)
        if feeds is not None and wanted is not None:
            yield Run(size, feeds, wanted, size == net.size)


def outcome(seed: int, target: str) -> str:
    """Return "fine", "skipped", or "WRONG" and the fault."""
    warnings.simplefilter("ignore")
    net = net_of(seed)
    if not net.steps:
        return "skipped"
    case = case_of(seed, net)
    try:
        found = faults(case, ways()[target])
    except Skipped:
        return "skipped"
    if not found:
        return "fine"
    operators = ", ".join(s.node.op_type for s in net.steps)
    said = " | ".join(" ".join(f.split())[:300] for f in found[:4])
    return f"WRONG {operators}: {said} ({blamed(case)})"


def faults(case: Case, way: Way) -> list[str]:
    """Run a model one way, and return its faults. Raises Skipped."""
    try:
        return way(case)
    except Skipped:
        raise
    except CompileError as error:
        return [f"it isn't compiled: {error}"]
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def blamed(case: Case) -> str:
    """Say whether a wrong result comes from before or after lowering."""
    (run, *_) = case.runs
    try:
        results = run_graph(lower(load(case.model)), run.feeds)
    except Exception as error:  # the interpreter lacks the steps of programs
        return f"not interpreted: {type(error).__name__}"
    right = not any(differs(n, y, run.wanted[n]) for n, y in results.items())
    return "what it is lowered to is right" if right else "what it is lowered to is wrong"


def text(model: onnx.ModelProto) -> str:
    """Return the model as ONNX's text. Large constants have only their types and shapes in it."""
    small = onnx.ModelProto()
    small.CopyFrom(model)
    long = [t for t in small.graph.initializer if math.prod(t.dims) > SHOWN]
    for tensor in long:
        small.graph.initializer.remove(tensor)
    named = (f"   # {t.name}: {onnx.TensorProto.DataType.Name(t.data_type)}{list(t.dims)}" for t in long)
    return "\n".join([onnx.printer.to_text(small), *named])


def smallest(seed: int, target: str) -> Case:
    """Return the smallest part of a seed's model that is wrong. It is the model's beginning."""
    net, way = net_of(seed), ways()[target]
    whole = case_of(seed, net)
    steps = net.steps
    for count in range(1, len(steps)):
        net.steps = steps[:count]
        begun = case_of(seed, net)
        try:
            if faults(begun, way):
                return begun
        except Skipped:
            continue
    return whole
