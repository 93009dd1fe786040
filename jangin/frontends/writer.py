"""Lowered graphs in a format's own words: what the writers of all formats share.

A writer says each core operator by a method of its own (`write_conv`), and an expression operation by
operation, as its `words` say. What it has no words for is listed at once, by the names of the model's author.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes

from jangin.ir import core
from jangin.ir.expr import Const, Expr, Var, const, select
from jangin.ir.graph import CompileError, Graph, Node, static_shape
from jangin.ir.traversal import children, free_vars, rebuild
from jangin.ops.builder import Builder
from jangin.ops.editor import Editor
from jangin.ops.values import Tensor
from jangin.passes.partition import renamed


class Name(str):
    """What a tensor is called in the file, among arguments that are none."""


@dataclass(frozen=True)
class Words:
    """How an expression is said: an `operation` of `parts` with `attributes`; "": it is its only part."""

    operation: str
    parts: tuple[Expr, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Pattern = tuple[Expr, str, tuple[str, ...]]
"""An expression, the operation that it is, and which of its variables are constants: attributes of that name.
The operand is x0."""
Offer = tuple[Any, Callable[..., Any]]
"""What says an operation that a node may have been lowered from, and its lowering: a builder and tensors."""


class Writer(ABC):
    """One lowered graph being written."""

    format: str
    """As messages call it."""
    patterns: Sequence[Pattern] = ()
    """Expressions of several parts that are one operation; the first that fits counts."""
    reserved: Collection[str] = ()

    def __init__(self, graph: Graph) -> None:
        self.graph = outputs_named(with_plain_softmax(graph))
        self.names: dict[str, Name] = {}
        self.taken: set[str] = set(self.reserved)

    # -- what a format says ---------------------------------------------------------------------

    def plain(self, name: str) -> str:
        """The nearest name that the format allows."""
        return name

    @abstractmethod
    def check(self, value: str) -> None:
        """CompileError where a value of the graph is of a type or shape that the format doesn't have."""

    @abstractmethod
    def constant(self, name: str) -> None:
        """Write a constant of the graph."""

    @abstractmethod
    def number(self, e: Const) -> Any:
        """A number among an operation's arguments."""

    @abstractmethod
    def words(self, e: Expr) -> Words | None:
        """How an operation on elements is said; None where it can't be."""

    @abstractmethod
    def emit(self, operation: str, *inputs: Any, result: str = "", hint: str = "", **given: Any) -> Name:
        """Add an operation, and give what its result is called: `result`'s name, where that is a value of the
        graph, else one like `hint`."""

    # -- the graph ------------------------------------------------------------------------------

    def body(self) -> None:
        """Write constants and nodes. CompileError naming all of them that can't be said."""
        for name in (*self.graph.inputs, *self.graph.outputs):  # first, so that they keep their names
            self.named(name)
        wrong: list[str] = []
        for value in self.graph.constants:
            self._tried(f"constant '{value}'", wrong, self.constant, value)
        for node in self.graph.nodes:
            self._tried(str(node.source or node.name), wrong, self._node, node)
        if wrong:
            lines = dict.fromkeys(wrong)
            many = f"{len(lines)} parts have" if len(lines) > 1 else "1 part has"
            raise CompileError(f"{many} no words in {self.format}:\n" + "\n".join(lines))

    def _tried(self, what: str, wrong: list[str], write: Callable[[Any], None], given: Any) -> None:
        try:
            write(given)
        except CompileError as error:
            wrong.append(f"  {what}: {error}")

    def _node(self, node: Node) -> None:
        for name in filter(None, (*node.inputs, *node.outputs)):
            self.check(name)
        if isinstance(node.attrs, core.IndexCheck):
            return  # what takes the indices checks them
        write: Callable[[Node, Any], None] = getattr(self, f"write_{node.op}", self.other)
        write(node, node.attrs)

    def other(self, node: Node, attrs: Any) -> None:
        """What there is no method for."""
        what = (
            "an expression of several elements" if node.op == "compute" else f"a {node.op.replace('_', ' ')}"
        )
        raise CompileError(f"{what} can't be said in {self.format}")

    # -- names ----------------------------------------------------------------------------------

    def named(self, name: str) -> Name:
        """What a value of the graph is called in the file."""
        if name not in self.names:
            self.names[name] = self.fresh(name)
        return self.names[name]

    def fresh(self, hint: str) -> Name:
        """A name that nothing else has."""
        plain = self.plain(hint)
        found, count = plain, 1
        while found in self.taken:
            found, count = f"{plain}_{count}", count + 1
        self.taken.add(found)
        return Name(found)

    # -- sizes ----------------------------------------------------------------------------------

    def sizes(self, name: str) -> tuple[int, ...]:
        """A value's sizes, for formats that have them fixed."""
        shape = static_shape(self.graph.shape(name))
        if shape is None:
            sizes = ", ".join(map(str, self.graph.shape(name)))
            raise CompileError(
                f"'{name}' is of shape [{sizes}], and {self.format} has fixed sizes{self._remedy}"
            )
        if 0 in shape:
            raise CompileError(
                f"'{name}' is of shape {list(shape)}; {self.format} has no tensors without elements"
            )
        return shape

    @property
    def _remedy(self) -> str:
        """Which of the inputs' sizes are to be fixed."""
        shapes = (self.graph.shape(n) for n in self.graph.inputs)
        sizes = sorted({v.name for shape in shapes for d in shape for v in free_vars(d)})
        return f": give {', '.join(f'{s!r}' for s in sizes)} by shapes=" if sizes else ""

    # -- expressions ----------------------------------------------------------------------------

    def expression(self, body: Expr, operands: Mapping[Expr, Name], result: str = "", hint: str = "") -> Any:
        """A tensor of the body's values, given what its variables are called; each part is said once. It is
        `result`, or else maybe a number."""
        made: dict[Expr, Any] = dict(operands)
        waiting = [body]
        while waiting:
            e = waiting[-1]
            if e in made:
                waiting.pop()
                continue
            if isinstance(e, Const):
                made[e] = self.number(e)
                continue
            said = self._said(e)
            missing = [p for p in said.parts if p not in made]
            waiting += missing
            if missing:
                continue
            parts = [made[p] for p in said.parts]
            last = result if e is body else ""
            if said.operation or last:
                made[e] = self.emit(
                    said.operation or self.copy, *parts, result=last, hint=hint, **said.attributes
                )
            else:
                made[e] = parts[0]
        if result and (body in operands or isinstance(body, Const)):
            return self.emit(self.copy, made[body], result=result)
        return made[body]

    copy = ""
    """The operation that gives its operand."""

    def _said(self, e: Expr) -> Words:
        for pattern, operation, attributes in self.patterns:
            found: dict[str, Expr] = {}
            if unified(pattern, e, found) and all(isinstance(found[a], Const) for a in attributes):
                given = {a: self.attribute(found[a]) for a in attributes}
                return Words(operation, (found["x0"],), given)
        said = self.words(e)
        if said is None:
            what = getattr(e, "op", "") or getattr(e, "fn", "") or type(e).__name__.lower()
            raise CompileError(f"'{what}' of {e.dtype} is no operation of {self.format}")
        return said

    def attribute(self, e: Expr) -> Any:
        assert isinstance(e, Const)
        return e.value

    # -- operators that were lowered ------------------------------------------------------------

    def matched(self, node: Node, offers: Iterable[Offer]) -> Any:
        """What says the first of some operations, on the node's operands, that lowers to just this node,
        but for checks of indices."""
        for given, lower in offers:
            b = Builder("offer", self.graph.symbols)
            inputs = [self._operand(b, n) for n in node.inputs]
            try:
                lower(b, *inputs)
            except (CompileError, IndexError):
                continue
            made = [n for n in b.nodes if not isinstance(n.attrs, core.IndexCheck)]
            if len(made) == 1 and made[0].attrs == node.attrs:
                return given
        return None

    def _operand(self, b: Builder, name: str) -> Tensor:
        return b.input(name, self.graph.dtype(name), self.graph.shape(name))


def with_plain_softmax(graph: Graph) -> Graph:
    """The graph with no softmax that knows of rows of -inf: those are 0 before it, and 0 behind it."""
    if not any(isinstance(n.attrs, core.Softmax) and n.attrs.blind for n in graph.nodes):
        return graph
    run = Editor(graph.symbols, graph.values, graph.constants)
    for node in graph.nodes:
        attrs = node.attrs
        if not (isinstance(attrs, core.Softmax) and attrs.blind):
            run.emit(node)
            continue
        (x,), (y,) = node.inputs, node.outputs
        own, top = (Var(n, run.dtype(x)) for n in ("x0", "x1"))
        lowest = const(float(ml_dtypes.finfo(own.dtype.numpy).min), own.dtype)
        seen = core.Map(select(top < lowest, const(0, own.dtype), own))
        peak = run.add(core.Reduce("max", (attrs.axis,), True), [x], f"{y}.peak", node.source)
        known = run.add(seen, [x, peak], f"{y}.seen", node.source)
        weights = run.add(replace(attrs, blind=False), [known], f"{y}.weights", node.source)
        run.emit(Node(node.name, (weights, peak), (y,), seen, node.source))
    return run.rewritten(graph)


def outputs_named(graph: Graph) -> Graph:
    """The graph with what a node makes called as the output that lowering has a copy for."""
    made = {o for n in graph.nodes for o in n.outputs}
    if any(isinstance(v, Graph) for n in graph.nodes for v in n.attrs.named().values()):
        return graph  # which may read what would be renamed
    called: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        if isinstance(node.attrs, core.Reshape):
            (source,), (result,) = node.inputs, node.outputs
            alike = str(graph.values[source]) == str(graph.values[result])
            if alike and result in graph.outputs and source in made - called.keys() - {*graph.outputs}:
                called[source] = result
                continue
        nodes.append(node)
    values = {n: v for n, v in graph.values.items() if n not in called.values()}
    return renamed(replace(graph, nodes=tuple(nodes), values=values), called)


def unified(pattern: Expr, e: Expr, found: dict[str, Expr]) -> bool:
    """Whether an expression is a pattern with other expressions for its variables, which go into `found`."""
    if isinstance(pattern, Var):
        return pattern.dtype is e.dtype and found.setdefault(pattern.name, e) is e
    if type(pattern) is not type(e) or isinstance(pattern, Const):
        return pattern is e
    mine, its = children(pattern), children(e)
    alike = len(mine) == len(its) and rebuild(pattern, its) is e
    return alike and all(unified(p, k, found) for p, k in zip(mine, its, strict=True))


def identifier(name: str) -> str:
    """A name of letters, digits and underscores."""
    found = re.sub(r"\W", "_", name, flags=re.ASCII)
    return found if found[:1].isalpha() else f"t_{found}"
