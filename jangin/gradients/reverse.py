"""Compute gradients of one value of a graph with respect to others, by more nodes of the graph."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jangin.gradients.core import RULES
from jangin.gradients.step import Step
from jangin.ir.expr import is_const
from jangin.ir.graph import CompileError, Graph, Node
from jangin.ir.sources import Sources
from jangin.ops.builder import Builder
from jangin.ops.operands import typed
from jangin.ops.values import OwnGradient, Tensor
from jangin.passes.partition import prune


def differentiate(graph: Graph, loss: str, wrt: Sequence[str]) -> Graph:
    """Return the lowered graph with additional outputs: the gradients of the sum of `loss` with respect to
    each value in `wrt`. An output's name is "d" and the value's name.

    Nodes that the gradients need are kept. Raises CompileError, which names a node, if a gradient would go
    through this node and the node has none."""
    b = builder_of(graph)
    tensors = [Tensor(n, *typed(graph.value(n))) for n in (loss, *wrt)]
    grads = gradients(b, tensors[0], tensors[1:])
    kept = [Tensor(n, *typed(graph.value(n))) for n in graph.outputs]
    names = [b.fresh(f"d{n}") for n in wrt]
    b.source, b.prefix = Sources.of("gradient"), "d"
    extended = b.graph([*kept, *grads], [*graph.outputs, *names])
    rest = replace(extended, constraints=graph.constraints, bound=graph.bound, joined=graph.joined)
    return prune(rest)


def builder_of(graph: Graph) -> Builder:
    """Return a builder that adds to a lowered graph."""
    b = Builder(graph.name, graph.symbols)
    b.inputs, b.nodes = list(graph.inputs), list(graph.nodes)
    b.values, b.constants = dict(graph.values), dict(graph.constants)
    return b


def gradients(b: Builder, y: Tensor, xs: Sequence[Tensor], g: Tensor | None = None) -> list[Tensor]:
    """Return the gradient d sum(y g) / d x for each x in `xs`. Without `g`, it is d sum(y) / d x. The
    gradient is zeros if y doesn't depend on x."""
    if not y.dtype.is_float or any(not x.dtype.is_float for x in xs):
        raise CompileError(f"gradients of {y} by {', '.join(map(str, xs))}: all must be floats")
    around = b.prefix, b.source
    reverse = _Reverse(b, [x.name for x in xs])
    reverse.run(y, g or b.expand(b.scalar(1, y.dtype), y.shape))
    b.prefix, b.source = around
    zeros = (b.expand(b.scalar(0, x.dtype), x.shape) for x in xs)
    return [reverse.found.get(x.name) or zero for x, zero in zip(xs, zeros, strict=True)]


class _Reverse:
    """Goes through a graph backwards, and adds up each value's gradient. `wanted` has the values that depend
    on those in `names`."""

    def __init__(self, b: Builder, names: Sequence[str]) -> None:
        self.b = b
        self.found: dict[str, Tensor] = {}
        self.wanted = set(names)
        self.nodes = [n for n in b.nodes if self.wanted.isdisjoint(n.outputs)]
        self._own = self._last_nodes(b.own_gradients)
        for node in self.nodes:
            if not self.wanted.isdisjoint(node.inputs):
                self.wanted.update(n for n in node.outputs if self._is_float(n))
            for own in self._own.get(node.outputs[0], ()):
                if any(x is not None and x.name in self.wanted for x in own.inputs):
                    self.wanted.update(y.name for y in own.outputs if self._is_float(y.name))

    def _last_nodes(self, uses: Sequence[OwnGradient]) -> dict[str, list[OwnGradient]]:
        """Return the uses of operators with gradients of their own, by the last node that makes one of their
        results. All nodes that read a result come behind this node."""
        at = {name: n for n, node in enumerate(self.nodes) for name in node.outputs}
        last_uses: dict[str, list[OwnGradient]] = {}
        for use in uses:
            places = [at[y.name] for y in use.outputs if y.name in at]
            if places:
                last_uses.setdefault(self.nodes[max(places)].outputs[0], []).append(use)
        return last_uses

    def _is_float(self, name: str) -> bool:
        dtype = self.b.values[name].dtype
        return dtype is not None and dtype.is_float

    def wants(self, t: Tensor) -> bool:
        return t.name in self.wanted and t.dtype.is_float

    def add(self, to: Tensor, part: Tensor) -> None:
        if not self.wants(to):
            return
        b, extra = self.b, part.rank - to.rank
        axes = [
            i for i, d in enumerate(part.shape)
            if i < extra or (is_const(to.shape[i - extra], 1) and not is_const(d, 1))
        ]  # fmt: skip
        part = b.reshape(b.reduce("sum", part, axes, keepdims=True), to.shape) if axes else part
        part = b.cast(part, to.dtype)
        known = self.found.get(to.name)
        self.found[to.name] = part if known is None else b.map(lambda v, w: v + w, known, part)

    def run(self, y: Tensor, g: Tensor) -> None:
        self.add(y, g)
        for node in reversed(self.nodes):
            for own in reversed(self._own.get(node.outputs[0], ())):
                self._by_own(own, node)
            asked = [n for n in node.outputs if n in self.found and n in self.wanted]
            if asked and not self.wanted.isdisjoint(node.inputs):
                self._node(node, asked[0])

    def _by_own(self, use: OwnGradient, node: Node) -> None:
        """Add the gradients that an operator's own function gives, in place of those of its nodes."""
        if not any(y.name in self.found for y in use.outputs):
            return
        b, what = self.b, str(node.source or node.name)
        b.prefix, b.source = f"d{node.name}", Sources.of("gradient", what)
        known = [self.found.pop(y.name, None) for y in use.outputs]
        pairs = zip(known, use.outputs, strict=True)
        gs = tuple(b.expand(b.scalar(0, y.dtype), y.shape) if g is None else g for g, y in pairs)
        grads = use.function(b, use.inputs, use.outputs, gs)
        parts = grads if isinstance(grads, tuple) else (grads,)
        if len(parts) != len(use.inputs):
            raise CompileError(
                f"{what}: its own gradient returns {len(parts)} tensors, "
                f"and must return one for each of {len(use.inputs)} inputs"
            )
        for x, part in zip(use.inputs, parts, strict=True):
            if x is not None and part is not None and self.wants(x):
                if part.shape != x.shape:
                    raise CompileError(
                        f"{what}: its own gradient of the input {x} is {part}, "
                        "and must have the input's shape"
                    )
                self.add(x, part)

    def _node(self, node: Node, out: str) -> None:
        b = self.b
        what = str(node.source or node.name)
        b.prefix, b.source = f"d{node.name}", Sources.of("gradient", what)
        rule = RULES.get(type(node.attrs))
        if rule is None:
            raise CompileError(f"{what}: there is no gradient of {node.op}, {_remedy(node)}")
        ins = [Tensor(n, *typed(b.values[n])) for n in node.inputs]
        step = Step(self, node, ins, Tensor(out, *typed(b.values[out])), self.found[out])
        try:
            rule(step, node.attrs)
        except CompileError as error:
            raise CompileError(f"{what}: its gradient can't be made: {error}") from error


def _remedy(node: Node) -> str:
    if node.op in ("if", "loop"):
        return "a step that depends on data: unroll it in the model, or stop gradients before it"
    return "a step that Python runs: leave it out of what is differentiated"
