"""The base of the writers of all formats, which write lowered graphs in a format's own operations.

A writer has a method for each core operator (`write_conv`), and writes an expression operation by operation,
by its `words`. Everything that the format can't express is listed in one error, by the names of the model's
author."""

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
    """A tensor's name in the file. The type tells names from other arguments."""


@dataclass(frozen=True)
class Words:
    """The format's `operation` that computes an expression from its `parts`, with its `attributes`. If
    `operation` is empty, the expression equals its only part."""

    operation: str
    parts: tuple[Expr, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Pattern = tuple[Expr, str, tuple[str, ...]]
"""An expression, the operation that computes it, and the variables that must be constants. Constants become
attributes of the same name. The operand is x0."""
Offer = tuple[Any, Callable[..., Any]]
"""A description of an operation from which a node may have been lowered, and a function that lowers the
operation, given a builder and tensors."""


class Writer(ABC):
    """A writer exports one lowered graph in the operations of a model format. Subclasses supply the format's
    operations and limits."""

    format: str
    """The format's name in messages."""
    patterns: Sequence[Pattern] = ()
    """Expressions of several parts that are one operation. The first match counts."""
    reserved: Collection[str] = ()

    def __init__(self, graph: Graph) -> None:
        self.graph = outputs_named(with_plain_softmax(graph))
        self.names: dict[str, Name] = {}
        self.taken: set[str] = set(self.reserved)

    # -- the properties of a format --------------------------------------------------------------

    def plain(self, name: str) -> str:
        """Return the name changed as little as the format's rules for names need."""
        return name

    @abstractmethod
    def check(self, value: str) -> None:
        """Raise CompileError if the format lacks a value's type or shape."""

    @abstractmethod
    def constant(self, name: str) -> None:
        """Write a constant of the graph."""

    @abstractmethod
    def number(self, e: Const) -> Any:
        """Return a number in the form in which operations take it as an argument."""

    @abstractmethod
    def words(self, e: Expr) -> Words | None:
        """Return the operation that computes an expression elementwise, or None if the format has none."""

    @abstractmethod
    def emit(self, operation: str, *inputs: Any, result: str = "", hint: str = "", **given: Any) -> Name:
        """Add an operation and return its result's name.

        If `result` is a value of the graph, its name is used. Otherwise the name resembles `hint`."""

    # -- the graph ------------------------------------------------------------------------------

    def body(self) -> None:
        """Write all constants and nodes. Raises CompileError, which names all of them that the format can't
        express."""
        for name in (*self.graph.inputs, *self.graph.outputs):  # first, so that they keep their names
            self.named(name)
        wrong: list[str] = []
        for value in self.graph.constants:
            self._tried(f"constant '{value}'", wrong, self.constant, value)
        for node in self.graph.nodes:
            self._tried(str(node.source or node.name), wrong, self._node, node)
        if wrong:
            lines = dict.fromkeys(wrong)
            many = f"{len(lines)} parts" if len(lines) > 1 else "1 part"
            raise CompileError(f"{self.format} can't express {many}:\n" + "\n".join(lines))

    def _tried(self, what: str, wrong: list[str], write: Callable[[Any], None], given: Any) -> None:
        try:
            write(given)
        except CompileError as error:
            wrong.append(f"  {what}: {error}")

    def _node(self, node: Node) -> None:
        for name in filter(None, (*node.inputs, *node.outputs)):
            self.check(name)
        if isinstance(node.attrs, core.IndexCheck):
            return  # the operator that takes the indices checks them
        write: Callable[[Node, Any], None] = getattr(self, f"write_{node.op}", self.other)
        write(node, node.attrs)

    def other(self, node: Node, attrs: Any) -> None:
        """Raise CompileError for a core operator that the writer has no method for. A format may override
        this method."""
        what = (
            "an expression of several elements" if node.op == "compute" else f"a {node.op.replace('_', ' ')}"
        )
        raise CompileError(f"{self.format} can't express {what}")

    # -- names ----------------------------------------------------------------------------------

    def named(self, name: str) -> Name:
        """Return the name of a graph's value in the file."""
        if name not in self.names:
            self.names[name] = self.fresh(name)
        return self.names[name]

    def fresh(self, hint: str) -> Name:
        """Return a name that no tensor has yet, similar to `hint`."""
        plain = self.plain(hint)
        name, count = plain, 1
        while name in self.taken:
            name, count = f"{plain}_{count}", count + 1
        self.taken.add(name)
        return Name(name)

    # -- sizes ----------------------------------------------------------------------------------

    def sizes(self, name: str) -> tuple[int, ...]:
        """Return a value's sizes. Raises CompileError if they aren't fixed."""
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
        """The end of an error's text, which tells the sizes of inputs that must be fixed."""
        shapes = (self.graph.shape(n) for n in self.graph.inputs)
        sizes = sorted({v.name for shape in shapes for d in shape for v in free_vars(d)})
        return f": give {', '.join(f'{s!r}' for s in sizes)} by shapes=" if sizes else ""

    # -- expressions ----------------------------------------------------------------------------

    def expression(self, body: Expr, operands: Mapping[Expr, Name], result: str = "", hint: str = "") -> Any:
        """Write the operations that compute an expression, given the names of its variables. Equal parts are
        written once.

        Return `result`, or a new name, or a number if the expression is constant."""
        names: dict[Expr, Any] = dict(operands)
        waiting = [body]
        while waiting:
            e = waiting[-1]
            if e in names:
                waiting.pop()
                continue
            if isinstance(e, Const):
                names[e] = self.number(e)
                continue
            said = self._said(e)
            missing = [p for p in said.parts if p not in names]
            waiting += missing
            if missing:
                continue
            parts = [names[p] for p in said.parts]
            last = result if e is body else ""
            if said.operation or last:
                names[e] = self.emit(
                    said.operation or self.copy, *parts, result=last, hint=hint, **said.attributes
                )
            else:
                names[e] = parts[0]
        if result and (body in operands or isinstance(body, Const)):
            return self.emit(self.copy, names[body], result=result)
        return names[body]

    copy = ""
    """The format's operation that copies its operand."""

    def _said(self, e: Expr) -> Words:
        for pattern, operation, attributes in self.patterns:
            bindings: dict[str, Expr] = {}
            if unified(pattern, e, bindings) and all(isinstance(bindings[a], Const) for a in attributes):
                attrs = {a: self.attribute(bindings[a]) for a in attributes}
                return Words(operation, (bindings["x0"],), attrs)
        said = self.words(e)
        if said is None:
            what = getattr(e, "op", "") or getattr(e, "fn", "") or type(e).__name__.lower()
            raise CompileError(f"{self.format} has no operation '{what}' of {e.dtype}")
        return said

    def attribute(self, e: Expr) -> Any:
        assert isinstance(e, Const)
        return e.value

    # -- operators that were lowered ------------------------------------------------------------

    def matched(self, node: Node, offers: Iterable[Offer]) -> Any:
        """Return the first description in `offers` whose lowering makes exactly this node from its operands.
        Return None if there is none. Checks of indices are ignored."""
        for offer, lower in offers:
            b = Builder("offer", self.graph.symbols)
            inputs = [self._operand(b, n) for n in node.inputs]
            try:
                lower(b, *inputs)
            except (CompileError, IndexError):
                continue
            nodes = [n for n in b.nodes if not isinstance(n.attrs, core.IndexCheck)]
            if len(nodes) == 1 and nodes[0].attrs == node.attrs:
                return offer
        return None

    def _operand(self, b: Builder, name: str) -> Tensor:
        return b.input(name, self.graph.dtype(name), self.graph.shape(name))


def with_plain_softmax(graph: Graph) -> Graph:
    """Return the graph with each blind softmax replaced by a plain one. A blind softmax gives 0 for rows of
    -inf. Therefore such rows are set to 0 before and after the plain one."""
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
    """Return the graph without the copies that only give an output its name. The copied values get the
    outputs' names instead."""
    produced = {o for n in graph.nodes for o in n.outputs}
    if any(isinstance(v, Graph) for n in graph.nodes for v in n.attrs.named().values()):
        return graph  # a body may read a value that would be renamed
    called: dict[str, str] = {}
    nodes = []
    for node in graph.nodes:
        if isinstance(node.attrs, core.Reshape):
            (source,), (result,) = node.inputs, node.outputs
            alike = str(graph.values[source]) == str(graph.values[result])
            if alike and result in graph.outputs and source in produced - called.keys() - {*graph.outputs}:
                called[source] = result
                continue
        nodes.append(node)
    values = {n: v for n, v in graph.values.items() if n not in called.values()}
    return renamed(replace(graph, nodes=tuple(nodes), values=values), called)


def unified(pattern: Expr, e: Expr, found: dict[str, Expr]) -> bool:
    """Tell if an expression equals a pattern whose variables are replaced by expressions. These expressions
    are stored in `found`, by the variables' names."""
    if isinstance(pattern, Var):
        return pattern.dtype is e.dtype and found.setdefault(pattern.name, e) is e
    if type(pattern) is not type(e) or isinstance(pattern, Const):
        return pattern is e
    mine, its = children(pattern), children(e)
    alike = len(mine) == len(its) and rebuild(pattern, its) is e
    return alike and all(unified(p, k, found) for p, k in zip(mine, its, strict=True))


def identifier(name: str) -> str:
    """Return a name changed to letters, digits and underscores."""
    word = re.sub(r"\W", "_", name, flags=re.ASCII)
    return word if word[:1].isalpha() else f"t_{word}"
