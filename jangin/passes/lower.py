"""Imported nodes to core ones: each through its operator's own lowering.

Afterwards every node is of `ops.core.CORE`, every value has a dtype and a shape, and constants
and shape arithmetic are folded.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jangin.frontends import onnx_functions
from jangin.frontends.onnx import split_op
from jangin.frontends.onnx_schema import check_types
from jangin.ir.graph import CompileError, Graph, Node, Value
from jangin.ops import OPERATORS
from jangin.ops.builder import Builder, Tensor
from jangin.ops.registry import find

Env = dict[str, Tensor | None]
Outputs = Sequence[Tensor | None]
BRANCH = "onnx.If"
"""The one operator with sub-graphs that is supported, where its condition is known."""
_IGNORED = frozenset({"opset", "consumed_inputs"})
"""Not the operators' own attributes; `consumed_inputs` is a hint that opset 1 gave about memory."""


def lower(graph: Graph) -> Graph:
    """The imported graph in core operators. CompileError lists every unsupported node at once,
    before any work; or names the node that can't be lowered, its inputs and why."""
    _refuse(graph.nodes)
    b = Builder(graph.name, graph.symbols)
    env: Env = {n: b.input(n, graph.dtype(n), graph.shape(n)) for n in graph.inputs}
    for name in graph.outputs:
        if name not in env:  # so that no other value takes the name of a result
            b.values[name] = Value(name, None, None)
    env |= {n: b.const(a, n) for n, a in graph.constants.items()}
    _Lowering(b).run(graph.nodes, env)
    results = [_result(env, n, "the model") for n in graph.outputs]
    return b.graph(results, graph.outputs)


def _refuse(nodes: Iterable[Node]) -> None:
    """CompileError naming every node that has no lowering."""
    missing = list(_unsupported(nodes))
    if missing:
        many = f"{len(missing)} nodes are" if len(missing) > 1 else "1 node is"
        raise CompileError(f"{many} not supported:\n" + "\n".join(f"  {n.source}" for n in missing))


def _unsupported(nodes: Iterable[Node]) -> Iterable[Node]:
    for node in nodes:
        if node.op == "function":
            yield from _unsupported(node.attrs["body"].nodes)
        elif node.op != BRANCH and not _supported(node):
            yield node


def _supported(node: Node) -> bool:
    domain, name = split_op(node.op)
    opset = node.attrs["opset"]
    return find(OPERATORS, domain, name, opset) is not None or onnx_functions.has_body(node.op, opset)


def _result(env: Mapping[str, Tensor | None], name: str, where: str) -> Tensor:
    found = env.get(name)
    if found is None:
        raise CompileError(f"output '{name}' of {where} is not computed")
    return found


class _Lowering:
    def __init__(self, b: Builder) -> None:
        self.b = b

    def run(self, nodes: Iterable[Node], env: Env) -> None:
        """Lower the nodes; `env` gets each one's outputs."""
        for node in nodes:
            inputs = [env[n] if n else None for n in node.inputs]
            try:
                outputs = self._node(node, inputs, env)
            except CompileError as error:
                raise CompileError(_explain(node, inputs, str(error))) from error
            except Exception as error:  # a lowering met what its operator does not define
                reason = f"it is malformed, or not supported so: {type(error).__name__}: {error}"
                raise CompileError(_explain(node, inputs, reason)) from error
            for name, value in zip(node.outputs, outputs, strict=False):
                if name:
                    env[name] = value
            for name in node.outputs[len(outputs) :]:
                if name:
                    env[name] = None

    def _node(self, node: Node, inputs: Sequence[Tensor | None], env: Env) -> Outputs:
        for given, name in zip(inputs, node.inputs, strict=True):
            if name and given is None:
                raise CompileError(f"its input '{name}' is an output that is not supported")
        if node.op == "function":
            return self._body(node.attrs["body"], inputs)
        self.b.source, self.b.prefix, self.b.results = node.source, node.name, len(node.outputs)
        attrs = {k: v for k, v in node.attrs.items() if k not in _IGNORED}
        if node.op == BRANCH:
            return self._branch(inputs, attrs, env)
        domain, name = split_op(node.op)
        operator = find(OPERATORS, domain, name, node.attrs["opset"])
        check_types(domain, name, node.attrs["opset"], [None if t is None else t.dtype for t in inputs])
        if operator is not None:
            result = operator.lower(self.b, *inputs, **attrs)
            return result if isinstance(result, (tuple, list)) else (result,)
        types = [None if t is None else (t.dtype, t.shape) for t in inputs]
        body = onnx_functions.body(node, types)
        if body is None:
            raise CompileError("the standard has no body of this operator for these inputs")
        return self._body(body, inputs)

    def _body(self, body: Graph, inputs: Sequence[Tensor | None]) -> Outputs:
        """A function's body, on its own names."""
        _refuse(body.nodes)
        if len(inputs) > len(body.inputs):
            raise CompileError(f"{len(inputs)} inputs given, '{body.name}' takes {len(body.inputs)}")
        env: Env = dict.fromkeys(body.inputs)
        env.update(zip(body.inputs, inputs, strict=False))
        env |= {n: self.b.const(a) for n, a in body.constants.items()}
        self._absent(body, env)
        return [env.get(n) for n in body.outputs]

    def _absent(self, body: Graph, env: Env) -> None:
        """Run a body; an optional input that was not given is absent for the nodes that take it."""
        absent = {n for n, t in env.items() if t is None}
        nodes = [
            replace(node, inputs=tuple("" if n in absent else n for n in node.inputs)) for node in body.nodes
        ]
        self.run(nodes, env)

    def _branch(self, inputs: Sequence[Tensor | None], attrs: Mapping[str, Any], env: Env) -> Outputs:
        """`If` with a known condition: the chosen branch, which sees the values around it."""
        condition = self.b.constant_value(inputs[0])
        if condition is None:
            raise CompileError(
                "the condition is computed at run time: only an If whose condition is known when "
                "compiling is supported; fix the sizes it depends on with shapes="
            )
        chosen: Graph = attrs["then_branch" if bool(condition.reshape(-1)[0]) else "else_branch"]
        _refuse(chosen.nodes)
        local = env | {n: self.b.const(a, n) for n, a in chosen.constants.items()}
        self.run(chosen.nodes, local)
        return [_result(local, n, "the branch") for n in chosen.outputs]


def _explain(node: Node, inputs: Sequence[Tensor | None], reason: str) -> str:
    given = ", ".join(f"{n}: {t}" for n, t in zip(node.inputs, inputs, strict=True) if t is not None)
    return f"{node.source}, inputs ({given}): {reason}"
