"""Split a graph of `torch.compile` that can't be compiled as a whole. PyTorch runs the refused nodes, and the
parts between them are compiled."""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Graph, GraphModule, Node
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.utils import _pytree as pytree

from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.element_types import element_type
from jangin.frontends.torch.sizes import Sizes
from jangin.frontends.torch.trace import traced_graph
from jangin.frontends.torch.training import DRAWING, is_mask
from jangin.frontends.torch.views import part_views
from jangin.ir import graph as ir
from jangin.ir.errors import CompileError

Compiler = Callable[[GraphModule, Mapping[int, str], set[int]], Callable[[list[Any]], Sequence[Any]]]
"""A function that compiles a part of a graph and returns a function that runs it. Its arguments are the part,
the names of some of the part's inputs by position, and the places of its results that are hidden."""
CHECK = torch.ops.aten._assert_scalar.default


def copied(module: GraphModule) -> GraphModule:
    """Return a copy of a module that shares its tensors and has a copy of its graph."""
    graph = Graph()
    copies: dict[Node, Node] = {}
    output: Any = graph.graph_copy(module.graph, copies)
    graph.output(output)
    return GraphModule(module, graph)


def unknown(module: GraphModule) -> dict[Node, Exception]:
    """Return the nodes that can't be compiled whatever their sizes are, each with its error. Their operators
    are unknown, or kernels don't have a type in them."""
    errors: dict[Node, Exception] = {n: CompileError("PyTorch checks it") for n in _checks(module)}
    for node in _computing(module):
        try:
            if is_mask(node) or node.target in DRAWING:
                raise CompileError("PyTorch draws random numbers")
            _check_types(node)
            if isinstance(node.target, torch._ops.OpOverload) and ATEN.lowering(_bare(node)) is None:
                raise CompileError(ATEN.remedy(_bare(node)))
        except CompileError as error:
            errors[node] = error
    return errors


def refused(module: GraphModule, held: Mapping[str, Tensor], env: Any) -> dict[Node, Exception]:
    """Return the nodes that can't be compiled even as a graph of one node, each with its error. `held` has
    the constant inputs by name, and `env` is PyTorch's shape environment."""
    errors: dict[Node, Exception] = {}
    for node in _computing(module):
        try:
            _lower_alone(module, node, held, env)
        except Exception as error:  # PyTorch can run the node, whatever the error is
            errors[node] = error
    return errors


def is_said(node: Node) -> bool:
    """Tell if a user should know that PyTorch runs a node. It draws masks and checks sizes in any case."""
    return not is_mask(node) and node.target is not CHECK


def _checks(module: GraphModule) -> list[Node]:
    """Return the checks of numbers that depend on data, such as those of `torch._check`. A size is never
    negative."""
    return [n for n in module.graph.nodes if n.target is CHECK and not _always_holds(n.args[0])]


def _always_holds(condition: Any) -> bool:
    if not isinstance(condition, Node):
        return bool(condition)
    size, least = [*condition.args, None, None][:2]
    is_size = isinstance(size, Node) and size.target is torch.ops.aten.sym_size.int
    return condition.target is operator.ge and is_size and least == 0


def _computing(module: GraphModule) -> list[Node]:
    """Return the nodes that compute tensors."""
    calls = (n for n in module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem)
    return [n for n in calls if _tensors(n)]


def _bare(node: Node) -> ir.Node:
    """Return a call as a node without arguments, for a look-up in the dialect."""
    return ir.Node(node.name, (), (), ir.ImportedAttributes(str(node.target)))


def _check_types(node: Node) -> None:
    """Raise CompileError if kernels don't have the type of the node or of one of its inputs."""
    for tensor in (t for n in (node, *node.all_input_nodes) for t in _tensors(n)):
        element_type(tensor.dtype)


def _lower_alone(module: GraphModule, node: Node, held: Mapping[str, Tensor], env: Any) -> None:
    """Lower a graph that has only this node. Raises the exceptions of the lowering."""
    _check_types(node)
    graph = Graph()
    inputs: dict[Node, Node] = {}
    for source in node.all_input_nodes:
        if source.op == "get_attr":
            inputs[source] = graph.node_copy(source)
            continue
        inputs[source] = graph.placeholder(source.name)
        inputs[source].meta = dict(source.meta)
    copy = graph.node_copy(node, inputs.__getitem__)
    results = [copy]
    if not isinstance(node.meta["val"], Tensor):
        results = []
        for i, value in enumerate(node.meta["val"]):
            if isinstance(value, Tensor):
                results.append(graph.call_function(operator.getitem, (copy, i)))
                results[-1].meta["val"] = value
    graph.output(results)
    alone = GraphModule(module, graph)
    part_views(alone)
    if not next(iter(reversed(alone.graph.nodes))).args[0]:
        return  # PyTorch makes a view of an input; inside a part the view is lowered
    constants = {n: t for n, t in held.items() if any(p.name == n for p in alone.graph.nodes)}
    traced = traced_graph(alone.graph, constants, Sizes({}, {}, env))
    lower(Imported(traced.model.bound({}), ATEN, {}))


def _tensors(node: Node) -> list[Tensor]:
    return [t for t in pytree.tree_leaves(node.meta.get("val")) if isinstance(t, Tensor)]


class _Compiles(OperatorSupportBase):  # type: ignore[misc]
    """The choice of nodes that go into compiled parts: nodes whose results are tensors and that aren't
    refused."""

    def __init__(self, without: Mapping[Node, Exception]) -> None:
        self._without = without

    def is_node_supported(self, submodules: Mapping[str, torch.nn.Module], node: Node) -> bool:
        source = node
        while source.target is operator.getitem:
            source = source.args[0]
        right = node.op == source.op == "call_function" and source not in self._without
        return right and bool(_tensors(node)) and bool(_tensors(source))


def split(
    module: GraphModule, without: Mapping[Node, Exception], compiled: Compiler, hidden: Collection[int]
) -> GraphModule:
    """Return the module with its parts replaced by compiled ones. A backward graph alone reads the module's
    results at the places `hidden`.

    `compiled` compiles a part. It is given the names of the part's inputs that are inputs or constants of the
    whole module, by position. PyTorch also runs a node that is alone between two refused ones."""
    partitioned = CapabilityBasedPartitioner(module, _Compiles(without)).partition_and_fuse()
    results = next(iter(reversed(partitioned.graph.nodes))).args[0]
    shown = {n for i, n in enumerate(results) if i not in hidden}
    for call in [n for n in partitioned.graph.nodes if n.op == "call_module"]:
        part = partitioned.get_submodule(call.target)
        end = next(iter(reversed(part.graph.nodes)))
        alone = isinstance(end.args[0], Node)
        if alone:
            end.args = ((end.args[0],),)
        places = {i: n.name for i, n in enumerate(call.args) if n.op in ("placeholder", "get_attr")}
        own = {0: call} if alone else {n.args[1]: n for n in call.users}
        kept = {i for i, n in own.items() if n not in shown and all(u.op == "output" for u in n.users)}
        setattr(partitioned, call.target, Part(compiled(part, places, kept), alone))
    return partitioned


class Part(torch.nn.Module):  # type: ignore[misc]
    """A compiled part in place of its module. A result that is `alone` is returned without a tuple."""

    def __init__(self, run: Any, alone: bool) -> None:
        super().__init__()
        self._run, self._alone = run, alone

    def forward(self, *args: Any) -> Any:
        outputs: Sequence[Any] = self._run([*args])
        return outputs[0] if self._alone else tuple(outputs)
