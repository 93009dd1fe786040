"""The text form of graphs (grammar in `ir.text`): parse_graph(print_graph(g), graph_arrays(g)) == g.

It is separate from the other text forms because a program that runs a saved plan needs only the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np

from jangin.ir.core import LOWERED, CoreAttributes
from jangin.ir.expr import Const, Expr, Var
from jangin.ir.graph import FUNCTION, Array, Attributes, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.parse import ValueReader
from jangin.ir.products import PRODUCTS, Product
from jangin.ir.sources import Sources
from jangin.ir.te import Axis, Stage
from jangin.ir.text import (
    bare,
    declare,
    digest,
    indent,
    is_inline,
    print_attribute,
    print_data,
    print_free,
    print_known,
    print_names,
    print_source,
    print_type,
    print_updates,
)
from jangin.ir.words import quote

WIDTH = 100
"""In a node with more characters than this, each attribute has its own line. Lines of the text then fit most
editors."""
_PRODUCT = "Product | None"
"""The annotation of attributes that name a product."""


def print_graph(graph: Graph) -> str:
    """Return the text of a graph. Large constants appear as digests, and `graph_arrays` returns their
    data."""
    return "\n".join(_graph(graph)) + "\n"


def parse_graph(text: str, arrays: Mapping[str, Array] | None = None) -> Graph:
    """Return the graph of a text. `arrays` has the large constants by digest (see `graph_arrays`)."""
    reader = GraphReader(text, arrays or {})
    return reader.whole(reader.graph)


def graph_arrays(graph: Graph) -> dict[str, Array]:
    """Return the arrays that `print_graph` replaces by digests, by digest. `parse_graph` needs them beside
    the text."""
    arrays: dict[str, Array] = {}

    def visit(value: Any) -> None:
        if isinstance(value, np.ndarray):
            if not is_inline(value):
                arrays[digest(value)] = value
        elif isinstance(value, Graph):
            for array in value.constants.values():
                visit(array)
            for node in value.nodes:
                visit(tuple(node.attrs.named().values()))
        elif isinstance(value, (tuple, list)):
            for item in value:
                visit(item)

    visit(graph)
    return arrays


# --- printing --------------------------------------------------------------------------------


def _graph(g: Graph) -> list[str]:
    inputs = ", ".join(f"{quote(n)}{_annotation(g, n)}" for n in g.inputs)
    known = print_known(g.symbols.items(), g)
    lines = [
        f"graph {quote(g.name)}({inputs}) -> {print_names(g.outputs)}{known}{print_updates(g.updates)} {{"
    ]
    lines += [f"  require {bare(c)}{print_source(source)}" for c, source in g.constraints.items()]
    for name, array in g.constants.items():
        lines.append(f"  const {quote(name)}{_annotation(g, name)} = {print_data(array)}")
    defined = {*g.inputs, *g.constants, *(o for node in g.nodes for o in node.outputs)}
    lines += [f"  outer {quote(n)}{_annotation(g, n)}" for n in g.values if n not in defined]
    for node in g.nodes:
        lines += indent(_node(g, node))
    return [*lines, "}"]


def _annotation(g: Graph, name: str) -> str:
    value: Value | None = g.values.get(name)
    return "" if value is None else f": {print_type(value.dtype, value.shape)}"


def _node(g: Graph, node: Node) -> list[str]:
    results = ", ".join(f"{quote(n)}{_annotation(g, n)}" for n in node.outputs)
    called = f" {quote(node.name)}" if node.name else ""
    text = f"{results} = {quote(node.op)}{called}{print_names(node.inputs)}"
    source = print_source(node.source)
    attrs = [f"{quote(k)} = {attribute_text(v)}" for k, v in sorted(_given(node.attrs).items())]
    if sum(map(len, attrs)) + len(text) > WIDTH or any("\n" in a for a in attrs):
        lines = [line for a in attrs for line in f"{a},".split("\n")]
        return [f"{text} {{", *indent(lines), f"}}{source}"]
    return [text + (f" {{{', '.join(attrs)}}}" if attrs else "") + source]


def _given(attrs: Attributes) -> dict[str, Any]:
    """Return the attributes to print by name. Attributes with a default of None or () are left out if they
    have this value. A Product is given by its name, and None in place of a Product by ""."""
    if not isinstance(attrs, CoreAttributes):
        return attrs.named()
    attributes: dict[str, Any] = {}
    for f in fields(attrs):
        value = getattr(attrs, f.name)
        if f.type == _PRODUCT:
            attributes[f.name] = value.name if value else ""
        elif f.default not in (None, ()) or value not in (None, ()):
            attributes[f.name] = value
    return attributes


def attribute_text(v: Any) -> str:
    """Return an attribute's value in the text form."""
    if isinstance(v, Graph):
        return "\n".join(_graph(v))
    return _stage(v) if isinstance(v, Stage) else print_attribute(v, attribute_text)


def _stage(s: Stage) -> str:
    def axes(group: Sequence[Axis]) -> str:
        return f"[{', '.join(f'{a.var} in {a.extent}' for a in group)}]"

    held = [s.body, *s.out.shape, *(a.extent for a in (*s.axes, *s.reduce_axes))]
    held += [] if s.epilogue is None else [s.epilogue]
    bound = {a.var for a in (*s.axes, *s.reduce_axes)} | {s.acc}
    text = f"stage({print_free(held, bound)}) {declare(s.out)} {axes(s.axes)} = "
    if s.reduce_axes:
        text += f"reduce {quote(s.combiner)} {axes(s.reduce_axes)} "
    return text + str(s.body) + ("" if s.epilogue is None else f" then {s.epilogue}")


# --- reading ---------------------------------------------------------------------------------


class GraphReader(ValueReader):
    def graph(self) -> Graph:
        self.need("graph")
        name = self.name()
        values: dict[str, Value] = {}
        inputs = tuple(self.items(lambda: self.typed_name(values)))
        self.need("->")
        outputs = tuple(self.items(self.name))
        symbols, bound, joined = self.sized()
        updates = self.updates()
        constants: dict[str, Array] = {}
        constraints: dict[Expr, Sources] = {}
        nodes: list[Node] = []
        self.need("{")
        while not self.take("}"):
            if self.take("const"):
                self.constant(values, constants)
            elif self.take("outer"):
                self.typed_name(values)
            elif self.take("require"):
                condition = self.expr()
                constraints[condition] = self.source()
            else:
                nodes.append(self.node(values))
        return Graph(
            name, inputs, outputs, tuple(nodes), constants, values, dict(symbols), constraints, bound, joined,
            updates,
        )  # fmt: skip

    def typed_name(self, values: dict[str, Value]) -> str:
        name = self.name()
        if self.take(":"):
            dtype = None if self.take("?") else self.dtype()
            unknown = self.tokens[self.at : self.at + 3] == ["[", "?", "]"]
            self.at += 3 if unknown else 0
            values[name] = Value(name, dtype, None if unknown else self.dims())
        return name

    def constant(self, values: dict[str, Value], constants: dict[str, Array]) -> None:
        start = self.at
        name = self.typed_name(values)
        self.need("=")
        value = values.get(name)
        if self.tokens[self.at] != "{":
            constants[name] = self.stored()
        elif value is None or value.dtype is None or value.shape is None:
            raise self.error(f"the type of {name} is needed to read its data", start)
        else:
            constants[name] = self.inline(value.dtype, tuple(self.static(d) for d in value.shape))

    def static(self, d: Expr) -> int:
        if not isinstance(d, Const):
            raise self.error(f"a constant's size can't be {d}")
        return int(d.value)

    def node(self, values: dict[str, Value]) -> Node:
        outputs: list[str] = []
        while not self.take("="):
            outputs.append(self.typed_name(values))
            if not self.take(","):
                self.need("=")
                break
        start, op = self.at, self.name()
        name = "" if self.tokens[self.at] == "(" else self.name()
        inputs = tuple(self.items(self.name))
        written = dict(self.items(self.attr, "{", "}")) if self.tokens[self.at] == "{" else {}
        attrs = self.attributes(op, written, start)
        return Node(name, inputs, tuple(outputs), attrs, self.source())

    def attributes(self, op: str, given: dict[str, Any], start: int) -> Attributes:
        """Return the attributes of a core operator, kernel or step. An operator whose name contains a dot,
        and `FUNCTION`, are imported operators. Raises ParseError for other attributes than the operator
        has."""
        kind = LOWERED.get(op)
        if kind is None:
            if "." in op or op == FUNCTION:
                return ImportedAttributes(op, given)
            raise self.error(f"there is no core operator {op}; there are {', '.join(LOWERED)}", start)
        known = {f.name: f.default is MISSING for f in fields(kind)}
        for name in given:
            if name not in known:
                raise self.error(f"{op} has no attribute {name}; it has {', '.join(known)}", start)
        for name, required in known.items():
            if required and name not in given:
                raise self.error(f"{op} needs the attribute {name}", start)
        for f in fields(kind):
            if f.type == _PRODUCT and f.name in given:
                given[f.name] = self.product(given[f.name], start)
        try:
            return kind(**given)
        except CompileError as error:
            raise self.error(str(error), start) from None

    def product(self, name: Any, start: int) -> Product | None:
        if name != "" and name not in PRODUCTS:
            raise self.error(f"there is no product {name!r}; there are {', '.join(PRODUCTS)}", start)
        return PRODUCTS[name] if name else None

    def value(self) -> Any:
        if self.tokens[self.at] == "graph":
            return self.graph()
        return self.scoped(self.stage) if self.take("stage") else super().value()

    def stage(self) -> Stage:
        name = self.name()
        self.need(":")
        out, axes = self.buffer(name), self.axes()
        self.need("=")
        reduces = self.take("reduce")
        combiner = self.name() if reduces else ""
        reduce_axes = self.axes() if reduces else ()
        body = self.expr()
        self.variables["acc"] = Var("acc", body.dtype)
        return Stage(out, axes, body, reduce_axes, combiner, self.expr() if self.take("then") else None)

    def axes(self) -> tuple[Axis, ...]:
        def axis() -> Axis:
            var = Var(self.name())
            self.need("in")
            return Axis(var, self.expr())

        return tuple(self.items(axis, "[", "]"))
