"""Readers of the three IRs' text forms (grammar in `ir.text`), by recursive descent.

Saved plans are read with this when a program starts, so it is quick and imports nothing of the
compiler (only a `stage` attribute of a graph needs tensor expressions).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.ir.dtype import DTYPES, DType
from jangin.ir.expr import Buffer, Const, Expr, Var
from jangin.ir.graph import Array, Graph, Node, Value
from jangin.ir.loop import FOR_KINDS, MEMORY, Alloc, For, Func, If, Let, Prefetch, Stmt, Store, block
from jangin.ir.plan import ONE, ZERO, Launch, Plan, PlanBuffer
from jangin.ir.reader import Reader

if TYPE_CHECKING:
    from jangin.ir.te import Axis, Stage

BUFFER_KINDS = ("input", "output", "constant", "arena", "alias")


def parse_expr(text: str, variables: Iterable[Var] = (), buffers: Iterable[Buffer] = ()) -> Expr:
    """An expression; names that aren't given are i64 variables."""
    reader = Reader(text)
    reader.variables.update((v.name, v) for v in variables)
    reader.buffers.update((b.name, b) for b in buffers)
    return reader.whole(reader.expr)


def parse_func(text: str) -> Func:
    """A loop nest."""
    reader = _Loops(text)
    return reader.whole(reader.func)


def parse_graph(text: str, arrays: Mapping[str, Array] | None = None) -> Graph:
    """A graph; `arrays` holds by digest the large constants (`ir.text.graph_arrays`)."""
    reader = GraphReader(text, arrays or {})
    return reader.whole(reader.graph)


def parse_plan(text: str, constants: Mapping[str, Array] | None = None) -> Plan:
    """A plan, given its constants' data by buffer name."""
    reader = _Plans(text)
    return reader.whole(lambda: reader.plan(constants or {}))


class _Loops(Reader):
    def func(self) -> Func:
        self.need("func")
        name = self.name()
        outputs: list[bool] = []

        def param() -> Buffer:
            buffer, is_output = self.declaration()
            outputs.append(is_output)
            if outputs != sorted(outputs):
                raise self.error("outputs must be the last parameters")
            return buffer

        params = tuple(self.items(param))
        self.buffers.update((b.name, b) for b in params)
        symbols = self.ranges()
        return Func(name, params, sum(outputs), symbols, self.braces())

    def declaration(self) -> tuple[Buffer, bool]:
        name = self.name()
        self.need(":")
        is_output = self.take("out")
        return self.buffer(name), is_output

    def braces(self) -> Stmt:
        """Statements in braces; what they declare is known in them only."""
        outer = dict(self.variables), dict(self.buffers)
        self.need("{")
        body = self.rest()
        self.need("}")
        self.variables, self.buffers = outer
        return body

    def rest(self) -> Stmt:
        """Statements up to the closing brace; an alloc or let takes those after it as its body."""
        found: list[Stmt] = []
        while self.tokens[self.at] not in ("}", ""):
            if self.take("alloc"):
                found.append(self.alloc())
            elif self.take("let"):
                found.append(self.let())
            else:
                found.append(self.stmt())
        return block(*found)

    def alloc(self) -> Stmt:
        memory = self.choice(MEMORY, "scratch or register")
        name = self.name()
        self.need(":")
        dtype = self.dtype()
        self.buffers[name] = buffer = Buffer(name, dtype, self.dims(), memory)
        return Alloc(buffer, self.rest())

    def let(self) -> Stmt:
        name = self.name()
        self.need("=")
        value = self.expr()
        self.variables[name] = var = Var(name, value.dtype)
        return Let(var, value, self.rest())

    def stmt(self) -> Stmt:
        token = self.tokens[self.at]
        if token == "{":
            return self.braces()
        if token in FOR_KINDS:
            self.at += 1
            var = Var(self.name())
            self.need("in")
            extent = self.expr()
            outer = dict(self.variables)
            self.variables[var.name] = var
            body = self.braces()
            self.variables = outer
            return For(var, extent, body, token)
        if self.take("if"):
            cond, then = self.expr(), self.braces()
            return If(cond, then, self.braces() if self.take("else") else None)
        hint = self.take("prefetch")
        start = self.at
        buffer = self.known(self.name(), start)
        index = self.index(buffer)
        if hint:
            return Prefetch(buffer, index)
        self.need("=")
        return Store(buffer, index, self.expr())


class GraphReader(_Loops):
    def __init__(self, text: str, arrays: Mapping[str, Array]) -> None:
        super().__init__(text)
        self.arrays = arrays

    def graph(self) -> Graph:
        self.need("graph")
        name = self.name()
        values: dict[str, Value] = {}
        inputs = tuple(self.items(lambda: self.typed_name(values)))
        self.need("->")
        outputs = tuple(self.items(self.name))
        symbols, bound = dict(self.ranges()), self.bound()
        constants: dict[str, Array] = {}
        constraints: list[Expr] = []
        nodes: list[Node] = []
        self.need("{")
        while not self.take("}"):
            if self.take("const"):
                self.constant(values, constants)
            elif self.take("outer"):
                self.typed_name(values)
            elif self.take("require"):
                constraints.append(self.expr())
            else:
                nodes.append(self.node(values))
        return Graph(
            name, inputs, outputs, tuple(nodes), constants, values, symbols, tuple(constraints), bound
        )

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

    def stored(self) -> Array:
        start = self.at
        key = self.name().removeprefix("sha256.")
        if key not in self.arrays:
            raise self.error(f"the data of array sha256.{key} isn't given", start)
        return self.arrays[key]

    def inline(self, dtype: DType, shape: tuple[int, ...]) -> Array:
        start = self.at
        items = self.items(self.value, "{", "}")
        if len(items) != int(np.prod(shape)):
            raise self.error(f"{len(items)} numbers for shape {list(shape)}", start)
        return np.array(items, np.float64 if dtype.is_float else None).astype(dtype.numpy).reshape(shape)

    def node(self, values: dict[str, Value]) -> Node:
        outputs: list[str] = []
        while not self.take("="):
            outputs.append(self.typed_name(values))
            if not self.take(","):
                self.need("=")
                break
        op = self.name()
        name = "" if self.tokens[self.at] == "(" else self.name()
        inputs = tuple(self.items(self.name))
        attrs = dict(self.items(self.attr, "{", "}")) if self.tokens[self.at] == "{" else {}
        return Node(op, name, inputs, tuple(outputs), attrs, self.string() if self.take("from") else "")

    def attr(self) -> tuple[str, Any]:
        name = self.name()
        self.need("=")
        return name, self.value()

    def value(self) -> Any:
        number = self.number()
        if number is not None:
            return number
        token = self.tokens[self.at]
        if token == "(":
            return tuple(self.items(self.value))
        if token == "[":
            return self.items(self.value, "[", "]")
        if token == "graph":
            return self.graph()
        if token.startswith('"'):
            return self.string()
        self.at += 1
        if token in ("none", "true", "false"):
            return None if token == "none" else token == "true"
        if token in DTYPES:
            return DTYPES[token]
        if token == "array":
            return self.array()
        if token in ("fn", "nest", "stage"):
            return self.scoped(token)
        self.at -= 1
        raise self.expected("a value")

    def array(self) -> Array:
        dtype = DTYPES.get(self.name())
        shape = tuple(self.items(self.integer, "[", "]"))
        self.need("=")
        return self.stored() if dtype is None or self.tokens[self.at] != "{" else self.inline(dtype, shape)

    def scoped(self, kind: str) -> Expr | Stmt | Stage:
        """An expression, statement or stage with its own declarations."""
        outer = self.variables, self.buffers
        self.variables, self.buffers = {}, {}
        self.items(self.free)
        part = self.expr() if kind == "fn" else self.braces() if kind == "nest" else self.stage()
        self.variables, self.buffers = outer
        return part

    def free(self) -> None:
        name = self.name()
        self.need(":")
        if self.tokens[self.at] in DTYPES and self.tokens[self.at + 1] != "[":
            self.variables[name] = Var(name, self.dtype())
        else:
            self.take("out")
            self.buffers[name] = self.buffer(name)

    def stage(self) -> Stage:
        from jangin.ir.te import Stage

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
        from jangin.ir.te import Axis

        def axis() -> Axis:
            var = Var(self.name())
            self.need("in")
            return Axis(var, self.expr())

        return tuple(self.items(axis, "[", "]"))


class _Plans(Reader):
    def plan(self, constants: Mapping[str, Array]) -> Plan:
        self.need("plan")
        name = self.name()
        self.need("target")
        target, symbols, bound = self.string(), self.ranges(), self.bound()
        self.need("{")
        self.need("inputs")
        inputs = tuple(self.items(self.name))
        self.need("outputs")
        outputs = tuple(self.items(self.name))
        constraints: list[Expr] = []
        buffers: list[PlanBuffer] = []
        launches: list[Launch] = []
        while not self.take("}"):
            if self.take("launch"):
                launches.append(self.launch())
            elif self.take("require"):
                constraints.append(self.expr())
            else:
                buffers.append(self.plan_buffer())
        held = {b.name: constants[b.name] for b in buffers if b.name in constants}
        return Plan(
            name, target, inputs, outputs, symbols, tuple(constraints), tuple(buffers), tuple(launches), held,
            bound=bound,
        )  # fmt: skip

    def plan_buffer(self) -> PlanBuffer:
        kind = self.choice(BUFFER_KINDS, "a buffer, launch or require")
        name = self.name()
        self.need(":")
        dtype, shape = self.dtype(), self.dims()
        base = self.name() if self.take("of") else ""
        offset = self.integer() if self.take("at") else None
        live = (0, 0)
        if self.take("live"):
            first = self.integer()
            self.need("..")
            live = (first, self.integer())
        return PlanBuffer(name, dtype, shape, kind, live, offset, base)

    def launch(self) -> Launch:
        kernel, args = self.name(), tuple(self.items(self.name))
        symbols = tuple(self.items(self.expr)) if self.take("symbols") else ()
        rounds = self.expr() if self.take("rounds") else ONE
        self.need("tasks")
        tasks = self.expr()
        self.need("grain")
        grain = self.integer()
        self.need("scratch")
        scratch = self.expr()
        library = self.name() if self.take("calls") else ""
        template, flops, moved = "", ZERO, ZERO
        if self.take("by"):
            template = self.string()
            self.need("flops")
            flops = self.expr()
            self.need("bytes")
            moved = self.expr()
        sources = tuple(self.items(self.string)) if self.take("from") else ()
        return Launch(
            kernel, args, symbols, tasks, grain, scratch, sources, template, flops, moved, library, rounds
        )
