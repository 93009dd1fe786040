"""Imported nodes to core ones: each through its operator's own lowering.

Afterwards every node is of `ops.core.CORE`, every value has a dtype and a shape, and constants
and shape arithmetic are folded.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jangin.frontends import control
from jangin.frontends.control import Env
from jangin.frontends.onnx import functions as onnx_functions
from jangin.frontends.onnx.importer import split_op
from jangin.frontends.onnx.operators import OPERATORS
from jangin.frontends.onnx.operators.strings import MEASURING, MOVING, is_text, moved
from jangin.frontends.onnx.qdq import fuse_quantized
from jangin.frontends.onnx.registry import find
from jangin.frontends.onnx.schema import check_types
from jangin.ir.graph import CompileError, Graph, Node, Value
from jangin.ops.builder import Builder, Tensor
from jangin.ops.nontensor import Item, NonTensor, constant, host, real, type_of
from jangin.passes.constraints import constraints
from jangin.passes.partition import STEPS, prune, renamed

Outputs = Sequence[Item | None]
CONTROL = {"onnx.If": control.branch, "onnx.Loop": control.loop, "onnx.Scan": control.scan}
"""Operators whose attributes are sub-graphs."""
_IGNORED = frozenset({"opset", "consumed_inputs"})
"""Not the operators' own attributes; `consumed_inputs` is a hint that opset 1 gave about memory."""


Custom = Mapping[tuple[str, str], Callable[..., Any]]


def lower(graph: Graph, custom: Custom | None = None) -> Graph:
    """The imported graph in core operators. CompileError lists every unsupported node at once,
    before any work; or names the node that can't be lowered, its inputs and why."""
    graph = fuse_quantized(graph)
    b = Builder(graph.name, graph.symbols)
    b.custom = dict(custom or {})
    _refuse(graph.nodes, b.custom)
    env: Env = {n: _input(b, graph.value(n)) for n in graph.inputs}
    for name in graph.outputs:
        if name not in env:  # so that no other value takes the name of a result
            b.values[name] = Value(name, None, None)
    env |= {n: constant(b, a, n) for n, a in graph.constants.items()}
    results = _evaluate(b, graph.nodes, env, graph.outputs, "the model")
    given = (env[n] for n in graph.inputs)
    if any(n.op in STEPS for n in b.nodes) or any(isinstance(v, NonTensor) for v in (*given, *results)):
        return replace(_program(b, results, graph.outputs), bound=graph.bound)
    lowered = b.graph([r for r in results if isinstance(r, Tensor)], graph.outputs)
    return replace(lowered, constraints=constraints(prune(lowered)), bound=graph.bound)


def _program(b: Builder, results: Sequence[Item], names: Sequence[str]) -> Graph:
    """The finished graph of what needs steps: what nodes make for an output gets its name; inputs and
    constants are copied."""
    found = [real(b, r) for r in results]
    made = {o for n in b.nodes for o in n.outputs}
    called: dict[str, str] = {}
    for value, result, name in zip(found, results, names, strict=True):
        if value in made and value not in called:
            called[value] = name
        elif value != name:
            (copy,) = host(b, "Identity", [result], [type_of(result)])
            called[copy.name] = name
    for name in called.values():
        b.values.pop(name, None)
    outputs = tuple(names)
    whole = Graph(b.name, tuple(b.inputs), outputs, tuple(b.nodes), b.constants, b.values, b.symbols)
    return prune(renamed(whole, called))


def _input(b: Builder, value: Value) -> Item:
    b.inputs.append(value.name)
    b.values[value.name] = value
    if value.type is not None:
        return NonTensor(value.name, value.type)
    assert value.dtype is not None and value.shape is not None
    return Tensor(value.name, value.dtype, value.shape)


def _refuse(nodes: Iterable[Node], custom: Custom) -> None:
    """CompileError naming every node that has no lowering."""
    missing = list(_unsupported(nodes, custom))
    if missing:
        many = f"{len(missing)} nodes are" if len(missing) > 1 else "1 node is"
        raise CompileError(
            f"{many} not supported:\n" + "\n".join(f"  {n.source}: {_remedy(n)}" for n in missing)
        )


def _remedy(node: Node) -> str:
    """Why there is no such operator, and the nearest way round."""
    domain, name = split_op(node.op)
    known = {n for d, n in OPERATORS if d == domain}
    if name in known:
        since = min(o.since for o in OPERATORS[domain, name])
        return f"it came with opset {since}: export the model for that one or a later one"
    elsewhere = [d or "ai.onnx" for d, n in OPERATORS if n == name]
    if elsewhere:
        return f"'{domain or 'ai.onnx'}' has no such operator, but {' and '.join(elsewhere)} have"
    close = difflib.get_close_matches(name, known, 1, 0.8)
    if close:
        return f"there is no such operator; {close[0]} is called alike"
    return "there is no such operator: give your own with operators=[...] (see jangin.custom)"


def _unsupported(nodes: Iterable[Node], custom: Custom) -> Iterable[Node]:
    for node in nodes:
        if node.op == "function":
            yield from _unsupported(node.attrs["body"].nodes, custom)
        elif node.op not in CONTROL and split_op(node.op) not in custom and not _supported(node):
            yield node
        for value in node.attrs.values():
            if isinstance(value, Graph) and node.op in CONTROL:
                yield from _unsupported(value.nodes, custom)


def _supported(node: Node) -> bool:
    domain, name = split_op(node.op)
    opset = node.attrs["opset"]
    return find(OPERATORS, domain, name, opset) is not None or onnx_functions.has_body(node.op, opset)


def _result(env: Mapping[str, Item | None], name: str, where: str) -> Item:
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
            except control.RanksDiffer:
                raise
            except CompileError as error:
                raise CompileError(_explain(node, inputs, str(error))) from error
            except Exception as error:  # a lowering met what its operator does not define
                other = next((t for t in inputs if isinstance(t, NonTensor)), None)
                how = "so" if other is None else f"for a {other}"
                reason = f"it is malformed, or not supported {how}: {type(error).__name__}: {error}"
                raise CompileError(_explain(node, inputs, reason)) from error
            for name, value in zip(node.outputs, outputs, strict=False):
                if name:
                    env[name] = value
            for name in node.outputs[len(outputs) :]:
                if name:
                    env[name] = None

    def _node(self, node: Node, inputs: Sequence[Item | None], env: Env) -> Outputs:
        for given, name in zip(inputs, node.inputs, strict=True):
            if name and given is None:
                raise CompileError(f"its input '{name}' is an output that is not supported")
        if node.op == "function":
            return self._body(node.attrs["body"], inputs)
        self.b.source = self.b.owner or node.source
        self.b.prefix, self.b.results = node.name, len(node.outputs)
        self.b.scope = env
        attrs = {k: v for k, v in node.attrs.items() if k not in _IGNORED}
        opset: int = node.attrs["opset"]
        if node.op in CONTROL:
            lowering = control.scan_8 if node.op == "onnx.Scan" and opset < 9 else CONTROL[node.op]
            return lowering(self.b, _sub_graph, inputs, attrs, env)
        domain, name = split_op(node.op)
        if (own := self.b.custom.get((domain, name))) is not None:
            result = own(self.b, *inputs, **attrs)
            return result if isinstance(result, (tuple, list)) else (result,)
        operator = find(OPERATORS, domain, name, opset)
        check_types(domain, name, opset, [None if t is None else type_of(t) for t in inputs])
        if operator is not None and name in MOVING | MEASURING and any(map(is_text, inputs)):
            return moved(self.b, name, operator.lower, inputs, attrs)
        if operator is not None:
            result = operator.lower(self.b, *inputs, **attrs)
            return result if isinstance(result, (tuple, list)) else (result,)
        types = [None if t is None else type_of(t) for t in inputs]
        body = onnx_functions.body(node, types)
        if body is None:
            raise CompileError("the standard has no body of this operator for these inputs")
        owner, self.b.owner = self.b.owner, self.b.source
        outputs = self._body(body, inputs)
        self.b.owner = owner
        return outputs

    def _body(self, body: Graph, inputs: Sequence[Item | None]) -> Outputs:
        """A function's body, on its own names."""
        _refuse(body.nodes, self.b.custom)
        if len(inputs) > len(body.inputs):
            raise CompileError(f"{len(inputs)} inputs given, '{body.name}' takes {len(body.inputs)}")
        env: Env = dict.fromkeys(body.inputs)
        env.update(zip(body.inputs, inputs, strict=False))
        env |= {n: constant(self.b, a) for n, a in body.constants.items()}
        absent = {n for n, t in env.items() if t is None}  # so they are for the nodes that take them
        nodes = [
            replace(node, inputs=tuple("" if n in absent else n for n in node.inputs)) for node in body.nodes
        ]
        _run_all(self.b, nodes, env, tuple(n for n in body.outputs if n not in absent))
        return [env.get(n) for n in body.outputs]


def _sub_graph(b: Builder, graph: Graph, env: Env) -> list[Item]:
    """The results of a sub-graph, which sees the values around it."""
    _refuse(graph.nodes, b.custom)
    local = env | {n: constant(b, a, n) for n, a in graph.constants.items()}
    source, prefix, results = b.source, b.prefix, b.results
    found = _evaluate(b, graph.nodes, local, graph.outputs, "the sub-graph")
    b.source, b.prefix, b.results = source, prefix, results
    return found


def _evaluate(b: Builder, nodes: Sequence[Node], env: Env, outputs: Sequence[str], where: str) -> list[Item]:
    _run_all(b, nodes, env, outputs)
    return [_result(env, n, where) for n in outputs]


def _run_all(b: Builder, nodes: Sequence[Node], env: Env, outputs: Sequence[str]) -> None:
    """Lower the nodes that give `outputs`. Where an If gives tensors of another rank on either side, what
    follows it is lowered in both of its branches, as the rank is known there."""
    lowering = _Lowering(b)
    for i, node in enumerate(nodes):
        try:
            lowering.run([node], env)
        except control.RanksDiffer:
            rest = nodes[i + 1 :] if b.splits < control.SPLITS else ()
            joined = control.continued(node, rest, outputs) if rest else node
            b.splits += bool(rest)
            b.source, b.prefix = node.source, node.name
            found = control.branch(b, _sub_graph, [env[node.inputs[0]]], joined.attrs, env, any_rank=True)
            b.splits -= bool(rest)
            env.update(zip(joined.outputs, found, strict=True))
            if rest:
                return


def _explain(node: Node, inputs: Sequence[Item | None], reason: str) -> str:
    given = ", ".join(f"{n}: {t}" for n, t in zip(node.inputs, inputs, strict=True) if t is not None)
    return f"{node.source}, inputs ({given}): {reason}"
