"""Lower the sub-graphs of IF and WHILE to the general forms of `frontends.control`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from jangin.frontends import control
from jangin.frontends.dialect import Bodies, Inputs, Lowering
from jangin.ir.expr import select
from jangin.ir.graph import FUNCTION, CompileError, Graph, ImportedAttributes, Node
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item
from jangin.ops.values import Tensor


def calls(
    body: Graph, name: str, inputs: Sequence[str], outputs: Sequence[str], source: Sources = NO_SOURCE
) -> Node:
    """Return a node that computes a sub-graph. The sub-graph's names have no relation to the caller's. Raises
    CompileError if the numbers of inputs or outputs differ."""
    if len(body.inputs) != len(inputs) or len(body.outputs) != len(outputs):
        raise CompileError(
            f"sub-graph '{body.name}' takes {len(body.inputs)} values and gives {len(body.outputs)}, "
            f"not {len(inputs)} and {len(outputs)}"
        )
    attrs = ImportedAttributes(FUNCTION, {"body": body})
    return Node(name, tuple(inputs), tuple(outputs), attrs, source or Sources.of(name))


def _of(nodes: Sequence[Node], inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
    return Graph("", tuple(inputs), tuple(outputs), tuple(nodes), {}, {})


def _results(prefix: str, count: int) -> list[str]:
    return [f"{prefix}.{i}" for i in range(count)]


def branch(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Lower IF: compute the sub-graph `then` if the first input is true, else the sub-graph `else`. Both are
    given the other inputs."""
    condition = control.scalar(b, inputs[0])
    assert condition is not None
    branches = []
    for key in ("then", "else"):
        names = _results(f"{node.name}.{key}", len(node.outputs))
        body = node.of(ImportedAttributes)[key]
        branches.append(_of([calls(body, names[0] if names else key, node.inputs[1:], names)], (), names))
    return control.branch(b, bodies.run, condition, (branches[0], branches[1]), b.scope)


def loop(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Lower WHILE: compute the sub-graph `body` of the carried values as long as the sub-graph `cond` of
    these values is true."""
    attrs, count = node.of(ImportedAttributes), len(node.inputs)
    going = f"{node.name}.going"
    start = _of([calls(attrs["cond"], going, node.inputs, [going])], (), [going])
    (first,) = bodies.run(b, start, b.scope)
    carried, results = _results(f"{node.name}.carried", count), _results(f"{node.name}.next", count)
    again = f"{node.name}.again"
    step = calls(attrs["body"], f"{node.name}.body", carried, results)
    body = _of(
        [step, calls(attrs["cond"], again, results, [again]), _flat(again, f"{again}.flat")],
        [f"{node.name}.step", f"{node.name}.on", *carried], [f"{again}.flat", *results],
    )  # fmt: skip
    operands = [v for v in inputs if v is not None]
    holds = control.scalar(b, first)
    iteration = control.Iteration(body, None, holds, operands, [], (), (), True)
    return control.iterate(b, bodies.run, iteration, b.scope)


def _flat(name: str, result: str) -> Node:
    """Return a node that reshapes a condition, which may have axes of size 1, to a tensor without axes."""
    return Node(result, (name,), (result,), ImportedAttributes("tflite.condition"), Sources.of(result))


def condition(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    truth = control.scalar(b, inputs[0])
    assert truth is not None
    return [truth]


def held(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    """Return a variable's value. If there are three inputs, it is the second one if the first one is true,
    else the third one."""
    tensors = [t for t in inputs if isinstance(t, Tensor)]
    return [tensors[0] if len(tensors) == 1 else b.map(select, *tensors)]


def true(b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> list[Item]:
    return [b.const(np.array(True))]


CONTROL: Mapping[str, Lowering] = {
    "tflite.IF": branch, "tflite.WHILE": loop, "tflite.condition": condition, "tflite.held": held,
    "tflite.true": true,
}  # fmt: skip
"""Lowerings of IF and WHILE, and of the operators that the importer adds for conditions and variables."""
