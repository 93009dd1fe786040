"""Lower imported nodes to core nodes, each by its operator's own lowering.

The result has only nodes of `ops.core.CORE`. Every value has a dtype and a shape. Constants and shape
arithmetic are folded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from jangin.frontends import control
from jangin.frontends.dialect import FIXED, OWN, Dialect, Imported, Inputs, Scope
from jangin.ir import limits
from jangin.ir.expr import Var, const, ne
from jangin.ir.graph import FUNCTION, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.own_names import own_text
from jangin.ir.sources import NO_SOURCE
from jangin.ir.traversal import free_vars
from jangin.ops.builder import Builder
from jangin.ops.nontensor import Item, NonTensor, constant, host, real, type_of
from jangin.ops.register_tiles import ANY_MACHINE, RegisterTile
from jangin.ops.values import OwnGradient, Tensor
from jangin.passes.constraints import broadcast_sizes, constraints
from jangin.passes.partition import has_steps, prune, renamed

REMEDIES = dict.fromkeys(("must be known", "needs known sizes"), FIXED) | {"not supported": OWN}
"""Remedies for a node's error, by the end of its reason."""
Env = dict[str, Item | None]
Custom = Mapping[tuple[str, str], Callable[..., Any]]
"""A caller's own operators by domain and name."""


def lower(
    imported: Imported,
    custom: Custom | None = None,
    tile: RegisterTile = ANY_MACHINE,
    unchecked: bool = False,
    whole: bool = False,
    trained: bool = False,
    own_gradients: list[OwnGradient] | None = None,
    layers: bool = False,
) -> Graph:
    """Return the imported graph in core operators.

    `custom` has a caller's own operators. An `unchecked` model runs without checks of indices. A `whole`
    graph is written to a file, not run. If the graph is `trained`, operators such as dropout draw random
    numbers (see `Builder`). With `layers`, recurrent layers are calls of the functions of `ops.layers`. The
    uses of operators with gradients of their own are added to `own_gradients`.

    Raises CompileError, which lists all unsupported nodes, before any other work. A node that can't be
    lowered raises CompileError, which names the node, its inputs and the reason."""
    graph = imported.dialect.rewrite(imported.graph)
    b = Builder(graph.name, graph.symbols, tile, unchecked, whole, trained, layers)
    _, results = _found(imported.dialect, graph, b, custom or {})
    uses = [] if own_gradients is None else b.own_gradients
    if own_gradients is not None:
        own_gradients += uses
    items = [b.materialize(r) if isinstance(r, Tensor) else r for r in results]
    tensors = [r for r in items if isinstance(r, Tensor)]
    built = _whole(b, [t.name for t in tensors])
    if len(tensors) < len(items) or (has_steps(built) and has_steps(prune(built))):
        for v in b.not_one:  # a program has no constraints of its own
            b.symbols[v] = const(2), b.symbols[v][1]
        return replace(_program(b, items, graph.outputs), bound=graph.bound, joined=graph.joined)
    read = [t.name for use in uses for t in use.needed]
    lowered = prune(b.graph(tensors, graph.outputs), also=read)
    held = {n: b.constants[n] for n in read if n in b.constants}
    values = {**{n: b.values[n] for n in held if n in b.values}, **lowered.values}
    lowered = replace(lowered, constants={**held, **lowered.constants}, values=values)
    needs = {ne(v, 1): source for v, source in b.not_one.items()}
    needs |= broadcast_sizes(built) | constraints(lowered)
    return replace(lowered, constraints=needs, bound=graph.bound, joined=graph.joined)


def typed(imported: Imported) -> Graph:
    """Return the imported graph with the types and shapes of its values, which are found by lowering it.
    Raises the errors of `lower`."""
    graph = imported.dialect.rewrite(imported.graph)
    env, _ = _found(imported.dialect, graph, Builder(graph.name, graph.symbols), {})
    known = {n: Value(n, t.dtype, t.shape) for n, t in env.items() if isinstance(t, Tensor)}
    known |= {n: Value(n, None, None, t.type) for n, t in env.items() if isinstance(t, NonTensor)}
    return replace(imported.graph, values={n: known.get(n, v) for n, v in imported.graph.values.items()})


def _found(dialect: Dialect, graph: Graph, b: Builder, custom: Custom) -> tuple[Env, list[Item]]:
    """Lower an imported graph into a builder. Return its values by name, and its results."""
    own = {f"{domain or dialect.domain}.{name}": fn for (domain, name), fn in custom.items()}
    lowering = _Lowering(dialect, own)
    lowering.refuse(graph.nodes)
    env: Env = {n: _input(b, graph.value(n)) for n in graph.inputs}
    for name in graph.outputs:
        if name not in env:  # so that no other value takes the name of a result
            b.values[name] = Value(name, None, None)
    env |= {n: constant(b, a, n) for n, a in graph.constants.items()}
    return env, lowering.results(b, graph, env, "the model")


def _program(b: Builder, results: Sequence[Item], names: Sequence[str]) -> Graph:
    """Return the finished graph of a model that needs steps. The value of an output gets the output's name.
    An output that is an input or a constant becomes a copy of it."""
    values = [real(b, r) for r in results]
    produced = {o for n in b.nodes for o in n.outputs}
    called: dict[str, str] = {}
    for value, result, name in zip(values, results, names, strict=True):
        if value in produced and value not in called:
            called[value] = name
        elif value != name:
            (copy,) = host(b, "Identity", [result], [type_of(result)])
            called[copy.name] = name
    for name in called.values():
        b.values.pop(name, None)
    return prune(renamed(_whole(b, names), called))


def _whole(b: Builder, outputs: Sequence[str]) -> Graph:
    """Return everything that was built, as a graph."""
    return Graph(b.name, tuple(b.inputs), tuple(outputs), tuple(b.nodes), b.constants, b.values, b.symbols)


def _input(b: Builder, value: Value) -> Item:
    b.inputs.append(value.name)
    b.values[value.name] = value
    if value.type is not None:
        return NonTensor(value.name, value.type)
    assert value.dtype is not None and value.shape is not None
    return Tensor(value.name, value.dtype, value.shape)


class _Lowering:
    """The lowering of one model. It is also the `Bodies` that its nodes' lowerings use.

    `custom` has a caller's own operators by the nodes' `op`. `owner` is the model's node, while the nodes
    that replace it are lowered. `splits` is the number of enclosing branches that have absorbed the nodes
    after them."""

    def __init__(self, dialect: Dialect, custom: Mapping[str, Callable[..., Any]]) -> None:
        self.dialect, self.custom = dialect, custom
        self.owner = NO_SOURCE
        self.splits = 0

    def refuse(self, nodes: Iterable[Node]) -> None:
        """Raise CompileError if nodes have no lowering. It names all of them, including those in
        sub-graphs."""
        missing = list(self._unsupported(nodes))
        if missing:
            many = f"{len(missing)} nodes are" if len(missing) > 1 else "1 node is"
            lines = (f"  {n.source}: {self.dialect.remedy(n)}" for n in missing)
            raise CompileError(f"{many} not supported:\n" + "\n".join(lines))

    def _unsupported(self, nodes: Iterable[Node]) -> Iterator[Node]:
        for node in nodes:
            if node.op in self.custom:
                continue
            if node.op != FUNCTION and self.dialect.lowering(node) is None:
                yield node
            for value in node.attrs.named().values():
                if isinstance(value, Graph):
                    yield from self._unsupported(value.nodes)

    def run(self, b: Builder, graph: Graph, scope: Scope) -> list[Item]:
        """Lower a sub-graph, which may read outer values, and return its results."""
        env = {**scope, **{n: constant(b, a, n) for n, a in graph.constants.items()}}
        around = b.source, b.prefix, b.results, b.scope
        results = self.results(b, graph, env, "the sub-graph")
        b.source, b.prefix, b.results, b.scope = around
        return results

    def expand(self, b: Builder, graph: Graph, inputs: Inputs) -> Sequence[Item | None]:
        """Lower a graph that replaces the current node, and return its results. All its nodes get the current
        node's name."""
        self.refuse(graph.nodes)
        with self._set(owner=b.source):
            return self._function(b, graph, inputs)

    def results(self, b: Builder, graph: Graph, env: Env, where: str) -> list[Item]:
        """Lower a graph whose inputs and constants are in `env`, and return its results. `where` names the
        graph in errors."""
        self._nodes(b, graph.nodes, env, graph.outputs)
        results = []
        for name in graph.outputs:
            value = env.get(name)
            if value is None:
                raise CompileError(f"output '{name}' of {where} is not computed")
            results.append(value)
        return results

    def _nodes(self, b: Builder, nodes: Sequence[Node], env: Env, outputs: Sequence[str]) -> None:
        """Lower the nodes that `outputs` need, and add their values to `env`.

        If a branch's bodies give tensors of different rank, the nodes after the branch are lowered in both
        bodies, where the rank is known."""
        for i, node in enumerate(nodes):
            rest: Sequence[Node] = ()
            try:
                values, names = self._node(b, node, env), node.outputs
            except control.RanksDiffer as split:
                rest = nodes[i + 1 :] if self.splits < control.SPLITS else ()
                values, names = self._in_both(b, node, split, rest, env, outputs)
            for n, name in enumerate(names):
                if name:
                    env[name] = values[n] if n < len(values) else None
            if rest:
                return

    def _in_both(
        self, b: Builder, node: Node, split: control.RanksDiffer, rest: Sequence[Node], env: Env,
        outputs: Sequence[str],
    ) -> tuple[Sequence[Item], tuple[str, ...]]:  # fmt: skip
        """Lower a branch into whose bodies the nodes after it, `rest`, are moved. Return its results and
        their names."""
        names, branches = node.outputs, split.branches
        if rest:
            names, branches = control.continued(node, branches, rest, outputs)
        b.source, b.prefix = self.owner or node.source, node.name
        with self._set(splits=self.splits + bool(rest)):
            return control.branch(b, self.run, split.condition, branches, env, any_rank=True), names

    def _node(self, b: Builder, node: Node, env: Env) -> Sequence[Item | None]:
        inputs = [env[n] if n else None for n in node.inputs]
        limits.at(node.source)
        limits.spend()
        try:
            return self._lowered(b, node, inputs, env)
        except (control.RanksDiffer, MemoryError, RecursionError):
            raise
        except CompileError as error:
            reason = str(error)
            if node.op not in self.custom:
                reason += next((f": {r}" for end, r in REMEDIES.items() if reason.endswith(end)), "")
            raise _explained(node, inputs, reason, error.symbols) from error
        except Exception as error:  # a lowering met what its operator does not define
            other = next((t for t in inputs if isinstance(t, NonTensor)), None)
            how = "so" if other is None else f"for a {other}"
            reason = f"it is malformed, or not supported {how}: {type(error).__name__}: {error}"
            raise _explained(node, inputs, reason) from error

    def _lowered(self, b: Builder, node: Node, inputs: Inputs, env: Env) -> Sequence[Item | None]:
        for item, name in zip(inputs, node.inputs, strict=True):
            if name and item is None:
                raise CompileError(f"its input '{name}' is an output that is not supported")
        if node.op == FUNCTION:
            return self._function(b, node.of(ImportedAttributes)["body"], inputs)
        b.source = self.owner or node.source
        b.prefix, b.results = node.name, len(node.outputs)
        b.scope = env
        if (own := self.custom.get(node.op)) is not None:
            result = own(b, *inputs, **self.dialect.attributes(node))
        else:
            lowering = self.dialect.lowering(node)
            if lowering is None:
                raise CompileError(self.dialect.remedy(node))
            result = lowering(b, node, inputs, self)
        return result if isinstance(result, (tuple, list)) else (result,)

    def _function(self, b: Builder, body: Graph, inputs: Inputs) -> Sequence[Item | None]:
        """Lower a graph that has its own names, and return its results. A result that is an absent input is
        None."""
        if len(inputs) > len(body.inputs):
            raise CompileError(f"{len(inputs)} inputs given, '{body.name}' takes {len(body.inputs)}")
        env: Env = dict.fromkeys(body.inputs)
        env.update(zip(body.inputs, inputs, strict=False))
        env |= {n: constant(b, a) for n, a in body.constants.items()}
        absent = {n for n, t in env.items() if t is None}  # the nodes that take them see them as absent too
        nodes = [
            replace(node, inputs=tuple("" if n in absent else n for n in node.inputs)) for node in body.nodes
        ]
        self._nodes(b, nodes, env, tuple(n for n in body.outputs if n not in absent))
        return [env.get(n) for n in body.outputs]

    @contextmanager
    def _set(self, **state: Any) -> Iterator[None]:
        """Inside this context, give attributes such as `owner` or `splits` other values."""
        before = {name: getattr(self, name) for name in state}
        vars(self).update(state)
        try:
            yield
        finally:
            vars(self).update(before)


def _explained(node: Node, inputs: Inputs, reason: str, symbols: Iterable[Var] = ()) -> CompileError:
    """Return a node's error with the node, its inputs, and the symbols that would have to be fixed. If the
    error names no symbols, all sizes of the inputs count."""
    operands = ", ".join(f"{n}: {t}" for n, t in zip(node.inputs, inputs, strict=True) if t is not None)
    shapes = [d for t in inputs if isinstance(t, Tensor) for d in t.shape]
    known = {v for e in (*shapes, *symbols) for v in free_vars(e)}
    text = own_text(f"{node.source}, inputs ({operands}): {reason}", known)
    return CompileError(text, symbols or shapes)
