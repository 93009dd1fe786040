"""The oracle for graphs: executes their operators' tensor expressions and loop nests in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from jangin.ir.checks import Check
from jangin.ir.core import IndexCheck, Kernel, LoopNest, Reshape
from jangin.ir.expr import Buffer
from jangin.ir.graph import Array, Graph, Node
from jangin.ir.interpret import Arrays, bind_symbols, check_indices, evaluate_stage, run_func, size, undefined
from jangin.ir.loop import Func, Stmt
from jangin.ir.sources import Sources
from jangin.ir.te import Stage
from jangin.ops.core import core_op

Evaluate = Callable[[Stage, Arrays, Mapping[str, int]], Array]
"""A function that returns the output of a stage, such as `evaluate_stage`."""


def run_graph(graph: Graph, feeds: Arrays, symbols: Mapping[str, int] | None = None) -> dict[str, Array]:
    """Return the outputs of a graph of core operators and kernels, by name. `symbols` default to those that
    follow from the shapes of `feeds`. Raises IndexOutOfRange."""
    values: Mapping[str, Array] = {**graph.constants, **{n: np.asarray(feeds[n]) for n in graph.inputs}}
    for _, latest in run_nodes(graph, feeds, symbols):
        values = latest
    return {n: values[n] for n in graph.outputs}


def run_nodes(
    graph: Graph, feeds: Arrays, symbols: Mapping[str, int] | None = None
) -> Iterator[tuple[Node, Mapping[str, Array]]]:
    """Yield each node after it has run, with all values until then (see `run_graph`)."""
    if symbols is None:
        shapes = [(n, graph.shape(n), feeds[n].shape) for n in graph.inputs]
        symbols = bind_symbols(shapes, graph.symbols)
    values: dict[str, Array] = {**graph.constants, **{n: np.asarray(feeds[n]) for n in graph.inputs}}
    for node in graph.nodes:
        values.update(run_node(graph, node, values, symbols))
        yield node, values


def stages_of(graph: Graph, node: Node) -> Sequence[Stage]:
    """Return the tensor expressions of a core node."""
    out, *inputs = (Buffer(n, graph.dtype(n), graph.shape(n)) for n in (node.outputs[0], *node.inputs))
    return core_op(node).te(tuple(inputs), out, node.attrs)


def run_node(
    graph: Graph,
    node: Node,
    values: Arrays,
    symbols: Mapping[str, int],
    evaluate: Evaluate = evaluate_stage,
    stages: Callable[[Graph, Node], Sequence[Stage]] = stages_of,
) -> dict[str, Array]:
    """Return the results of a node by name, given the values of its inputs. `evaluate` computes a stage, by
    default as the reference does. Raises IndexOutOfRange."""
    outputs = _made(graph, node, values, symbols, evaluate, stages)
    if isinstance(node.attrs, IndexCheck):
        check = Check(
            node.outputs[0], node.attrs.sizes, node.attrs.from_end, node.source or Sources.of(node.name)
        )
        check_indices(check, outputs[check.buffer], symbols)
    return outputs


def _made(
    graph: Graph, node: Node, values: Arrays, symbols: Mapping[str, int], evaluate: Evaluate,
    stages: Callable[[Graph, Node], Sequence[Stage]],
) -> dict[str, Array]:  # fmt: skip
    if isinstance(node.attrs, Kernel):
        body = node.attrs.body
        feeds = {inner: values[outer] for inner, outer in zip(body.inputs, node.inputs, strict=True)}
        results = run_graph(body, feeds, symbols)
        return {outer: results[n] for outer, n in zip(node.outputs, body.outputs, strict=True)}
    if isinstance(node.attrs, Reshape):
        shape = [size(d, symbols) for d in graph.shape(node.outputs[0])]
        elements = np.ascontiguousarray(values[node.inputs[0]])
        kept = elements.reshape(-1).view(graph.dtype(node.outputs[0]).numpy)
        return {node.outputs[0]: kept.reshape(shape)}
    name = node.outputs[0]
    if isinstance(node.attrs, LoopNest):
        out = Buffer("out", graph.dtype(name), graph.shape(name))
        return {name: _run_nest(graph, node, node.attrs.body, out, values, symbols)}
    local = dict(values)
    for stage in stages(graph, node):
        local[stage.out.name] = evaluate(stage, local, symbols)
    return {name: local[name]}


def _run_nest(
    graph: Graph, node: Node, body: Stmt, out: Buffer, values: Arrays, symbols: Mapping[str, int]
) -> Array:
    """Run a `loop_nest` node, whose body names the inputs x0, x1, ... and the result `out`. Return the
    result."""
    inputs = [Buffer(f"x{i}", graph.dtype(n), graph.shape(n)) for i, n in enumerate(node.inputs)]
    arrays = {b.name: values[n] for b, n in zip(inputs, node.inputs, strict=True)}
    arrays[out.name] = undefined(tuple(size(d, symbols) for d in out.shape), out.dtype.numpy)
    sizes = tuple(graph.symbols.items())
    run_func(Func(node.name, (*inputs, out), 1, sizes, body), arrays, symbols)
    return arrays[out.name]
