"""Parsers of the text forms of loops and plans (grammar in `ir.text`), by recursive descent.

A program reads saved plans with this module when it starts, so the module is quick and imports nothing of the
compiler. `ir.graph_text` reads graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np

from jangin.ir.checks import Check
from jangin.ir.dtype import DTYPES, DType
from jangin.ir.expr import Buffer, Expr, Var
from jangin.ir.graph import Array
from jangin.ir.loop import FOR_KINDS, MEMORY, Alloc, For, Func, If, Let, Prefetch, Stmt, Store, block
from jangin.ir.plan import ONE, ZERO, Launch, Plan, PlanBuffer
from jangin.ir.reader import Reader
from jangin.ir.sources import Sources

T = TypeVar("T")
BUFFER_KINDS = ("input", "output", "constant", "arena", "alias")
"""The kinds of a plan's buffer (see `ir.plan.PlanBuffer`)."""


def parse_expr(text: str, variables: Iterable[Var] = (), buffers: Iterable[Buffer] = ()) -> Expr:
    """Return the expression of a text. Names that aren't in `variables` are i64 variables."""
    reader = Reader(text)
    reader.variables.update((v.name, v) for v in variables)
    reader.buffers.update((b.name, b) for b in buffers)
    return reader.whole(reader.expr)


def parse_func(text: str) -> Func:
    """Return the loop nest of a text."""
    reader = _Loops(text)
    return reader.whole(reader.func)


def parse_plan(text: str, constants: Mapping[str, Array] | None = None) -> Plan:
    """Return the plan of a text. `constants` has the constants' data by buffer name."""
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
        """Parse statements in braces. Declarations inside are forgotten at the end."""
        outer = dict(self.variables), dict(self.buffers)
        self.need("{")
        body = self.rest()
        self.need("}")
        self.variables, self.buffers = outer
        return body

    def rest(self) -> Stmt:
        """Parse statements up to the closing brace. The body of an alloc or let is all that follows it."""
        statements: list[Stmt] = []
        while self.tokens[self.at] not in ("}", ""):
            if self.take("alloc"):
                statements.append(self.alloc())
            elif self.take("let"):
                statements.append(self.let())
            else:
                statements.append(self.stmt())
        return block(*statements)

    def alloc(self) -> Stmt:
        memory = self.choice(MEMORY, "scratch, register, shared or tile")
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


class ValueReader(_Loops):
    """A parser of attributes. `arrays` has their large arrays by digest."""

    def __init__(self, text: str, arrays: Mapping[str, Array]) -> None:
        super().__init__(text)
        self.arrays = arrays

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
        if token.startswith('"'):
            return self.string()
        self.at += 1
        if token in ("none", "true", "false"):
            return None if token == "none" else token == "true"
        if token in DTYPES:
            return DTYPES[token]
        if token == "array":
            return self.array()
        if token in ("fn", "nest"):
            return self.scoped(self.expr if token == "fn" else self.braces)
        self.at -= 1
        raise self.expected("a value")

    def array(self) -> Array:
        dtype = DTYPES.get(self.name())
        shape = tuple(self.items(self.integer, "[", "]"))
        self.need("=")
        return self.stored() if dtype is None or self.tokens[self.at] != "{" else self.inline(dtype, shape)

    def scoped(self, read: Callable[[], T]) -> T:
        """Parse an expression, statement or stage that has its own declarations."""
        outer = self.variables, self.buffers
        self.variables, self.buffers = {}, {}
        self.items(self.free)
        part = read()
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


class _Plans(Reader):
    def plan(self, constants: Mapping[str, Array]) -> Plan:
        self.need("plan")
        name = self.name()
        self.need("target")
        target, (symbols, bound, joined) = self.string(), self.sized()
        self.need("{")
        self.need("inputs")
        inputs = tuple(self.items(self.name))
        self.need("outputs")
        outputs, updates = tuple(self.items(self.name)), self.updates()
        constraints: dict[Expr, Sources] = {}
        buffers: list[PlanBuffer] = []
        launches: list[Launch] = []
        checks: list[Check] = []
        while not self.take("}"):
            if self.take("launch"):
                launches.append(self.launch())
            elif self.take("require"):
                condition = self.expr()
                constraints[condition] = self.source()
            elif self.take("check"):
                checks.append(self.check())
            else:
                buffers.append(self.plan_buffer())
        held = {b.name: constants[b.name] for b in buffers if b.name in constants}
        return Plan(
            name, target, inputs, outputs, symbols, constraints, tuple(buffers), tuple(launches), held,
            bound=bound, joined=joined, checks=tuple(checks), updates=updates,
        )  # fmt: skip

    def plan_buffer(self) -> PlanBuffer:
        kind = self.choice(BUFFER_KINDS, "a buffer, launch, check or require")
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

    def check(self) -> Check:
        buffer, signed = self.name(), self.take("signed")
        self.need("within")
        sizes = tuple(self.items(self.expr))
        return Check(buffer, sizes, signed, self.source())

    def launch(self) -> Launch:
        kernel = self.name()
        function = self.name() if self.take("as") else ""
        args = tuple(self.items(self.name))
        symbols = tuple(self.items(self.expr)) if self.take("symbols") else ()
        rounds = self.expr() if self.take("rounds") else ONE
        self.need("tasks")
        tasks = self.expr()
        local = tuple(self.items(self.integer)) if self.take("local") else ()
        self.need("grain")
        grain = self.expr()
        self.need("scratch")
        scratch = self.expr()
        common = self.expr() if self.take("common") else ZERO
        library = self.name() if self.take("calls") else ""
        template, flops, moved = "", ZERO, ZERO
        if self.take("by"):
            template = self.string()
            self.need("flops")
            flops = self.expr()
            self.need("bytes")
            moved = self.expr()
        sources = self.source()
        return Launch(
            kernel, args, symbols, tasks, grain, scratch, sources, template, flops, moved, library, rounds,
            function, local, common,
        )  # fmt: skip
