"""The base of the parsers of all text forms (grammar in `ir.text`): tokens, types, expressions.

Errors are `ParseError`s with line, column, the expected and the found text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import TypeVar

from jangin.ir.dtype import BOOL, DTYPES, F32, I64, DType
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Var, const
from jangin.ir.graph import CompileError, Shape
from jangin.ir.loop import MEMORY
from jangin.ir.simplify import Range
from jangin.ir.sources import NO_SOURCE, Source, Sources
from jangin.ir.words import ARITY, BINARY, IDENTIFIER, INFIX, INTRINSICS

T = TypeVar("T")
_TOKEN = re.compile(
    rf'"(?:[^"\\\n]|\\.)*"|{IDENTIFIER.pattern}|\d+(?:\.\d+)?(?:[eE][+-]?\d+)?'
    r"|->|\.\.|//|<<|>>|[<>=!]=|#[^\n]*|\S",
    re.ASCII,
)
"""A token: a string, a name, a number, a sign of several characters, a comment, or any one character."""
_OPERATORS = {sign: op for op, sign in INFIX.items()}
"""Operations by their infix signs."""
_LEVELS = ("|", "^", "&", "< <= == != > >=", "<< >>", "+ -", "* / // %")
"""The infix signs, loosest first."""
_PRECEDENCE = {sign: level for level, signs in enumerate(_LEVELS) for sign in signs.split()}
"""The binding strength of an infix sign."""
_ATOM_ENDS = frozenset(",]);")
"""Tokens that end an expression. A number before one is a whole expression."""


class ParseError(CompileError):
    """Text isn't valid IR. The message has the line and column, the expected and the found text."""


class Reader:
    """A parser. Tokens are plain strings. A token's position in the text is computed only for an error."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.tokens: list[str] = [t for t in _TOKEN.findall(text) if t[0] != "#"]
        self.tokens.append("")
        self.at = 0
        self.variables: dict[str, Var] = {}
        self.buffers: dict[str, Buffer] = {}

    # --- tokens

    def error(self, message: str, at: int | None = None) -> ParseError:
        at = self.at if at is None else at
        starts = [m.start() for m in _TOKEN.finditer(self.text) if m[0][0] != "#"]
        offset = starts[at] if at < len(starts) else len(self.text.rstrip())
        line = self.text.count("\n", 0, offset) + 1
        column = offset - (self.text.rfind("\n", 0, offset) + 1) + 1
        return ParseError(f"line {line}, column {column}: {message}")

    def expected(self, what: str) -> ParseError:
        token = self.tokens[self.at]
        return self.error(f"expected {what}, found {token if token else 'the end'}")

    def whole(self, part: Callable[[], T]) -> T:
        try:
            result = part()
        except RecursionError:
            raise self.error("nested too deeply") from None
        if self.tokens[self.at]:
            raise self.expected("the end")
        return result

    def take(self, token: str) -> bool:
        if self.tokens[self.at] == token:
            self.at += 1
            return True
        return False

    def need(self, token: str) -> None:
        if self.tokens[self.at] != token:
            raise self.expected(token)
        self.at += 1

    def name(self) -> str:
        token = self.tokens[self.at]
        first = token[:1]
        if first == '"' and len(token) > 1:
            self.at += 1
            return self.unquote(token)
        if not (first.isalpha() or first == "_"):
            raise self.expected("a name")
        self.at += 1
        return token

    def unquote(self, token: str) -> str:
        try:
            return str(json.loads(token))
        except ValueError:
            raise self.error(f"{token} is no string: escapes are JSON's", self.at - 1) from None

    def string(self) -> str:
        if not self.tokens[self.at].startswith('"'):
            raise self.expected("a string in quotes")
        return self.name()

    def source(self) -> Sources:
        """Parse the sources. Each has an operator and, if known, name, domain, version and place. Files of
        older versions have one text instead."""
        if not self.take("from"):
            return NO_SOURCE
        if self.tokens[self.at] != "(":
            return Sources.of(self.string())
        return Sources(self.items(self.one_source))

    def one_source(self) -> Source:
        operator, more = self.name(), self._goes_on
        name = self.name() if more() else ""
        domain = self.name() if more() else ""
        version = self.integer() if more() else 0
        return Source(operator, name, domain, version, self.name() if more() else "")

    def _goes_on(self) -> bool:
        return self.tokens[self.at] not in (",", ")")

    def choice(self, options: Iterable[str], what: str) -> str:
        token = self.tokens[self.at]
        if token not in options:
            raise self.expected(what)
        self.at += 1
        return token

    def items(self, item: Callable[[], T], opening: str = "(", closing: str = ")") -> list[T]:
        """Parse `opening item, item, ... closing`, and return the items. A comma may follow the last item."""
        self.need(opening)
        elements: list[T] = []
        while not self.take(closing):
            elements.append(item())
            if not self.take(","):
                self.need(closing)
                break
        return elements

    def integer(self) -> int:
        sign = -1 if self.take("-") else 1
        if not self.tokens[self.at].isdecimal():
            raise self.expected("an integer")
        self.at += 1
        return sign * int(self.tokens[self.at - 1])

    def number(self) -> int | float | None:
        """Parse a number if one comes next, else return None. Floats have a point, an exponent, or are inf or
        nan."""
        negative = self.tokens[self.at] == "-"
        token = self.tokens[self.at + negative]
        if not (token[:1].isdecimal() or token in ("inf", "nan")):
            return None
        self.at += 1 + negative
        value = int(token) if token.isdecimal() else float(token)
        return -value if negative else value

    # --- types and expressions

    def dtype(self) -> DType:
        return DTYPES[self.choice(DTYPES, "a dtype")]

    def dims(self) -> Shape:
        return tuple(self.items(self.expr, "[", "]"))

    def buffer(self, name: str) -> Buffer:
        """Parse the rest of a buffer's declaration, after its name and colon."""
        memory = "global"
        if self.tokens[self.at] in MEMORY:
            memory = self.choice(MEMORY, "a memory")
        dtype = self.dtype()
        return Buffer(name, dtype, self.dims(), memory)

    def ranges(self) -> tuple[tuple[Var, Range], ...]:
        def one() -> tuple[Var, Range]:
            var = Var(self.name())
            self.need("in")
            low = None if self.tokens[self.at] == ".." else self.expr()
            self.need("..")
            high = None if self.tokens[self.at] in ",)" else self.expr()
            return var, (low, high)

        return tuple(self.items(one)) if self.take("symbols") else ()

    def sized(self) -> tuple[tuple[tuple[Var, Range], ...], dict[str, int], dict[str, Sources]]:
        """Parse the symbols, bound sizes and joined axes of a graph, a plan or a program."""
        return self.ranges(), self.bound(), self.joined()

    def bound(self) -> dict[str, int]:
        def one() -> tuple[str, int]:
            name = self.name()
            self.need("=")
            return name, self.integer()

        return dict(self.items(one)) if self.take("bound") else {}

    def joined(self) -> dict[str, Sources]:
        def one() -> tuple[str, Sources]:
            return self.name(), self.source()

        return dict(self.items(one)) if self.take("joined") else {}

    def updates(self) -> dict[str, str]:
        """Parse the outputs that are the next state of inputs, of a graph or a plan."""

        def one() -> tuple[str, str]:
            name = self.name()
            self.need("=")
            return name, self.name()

        return dict(self.items(one)) if self.take("updates") else {}

    def expr(self, level: int = 0) -> Expr:
        token = self.tokens[self.at]
        if token.isdecimal() and self.tokens[self.at + 1] in _ATOM_ENDS:
            self.at += 1
            return const(int(token))
        left = self.atom()
        while (sign := self.tokens[self.at]) in _PRECEDENCE and _PRECEDENCE[sign] >= level:
            start = self.at
            self.at += 1
            left = self.binary(_OPERATORS[sign], left, self.expr(_PRECEDENCE[sign] + 1), start)
        return left

    def binary(self, op: str, a: Expr, b: Expr, start: int) -> Expr:
        if a.dtype != b.dtype:
            raise self.error(f"{op} of {a.dtype} and {b.dtype}", start)
        return Binary(op, a, b)

    def atom(self) -> Expr:
        value = self.number()
        if value is not None:
            return const(value, F32 if isinstance(value, float) else I64)
        if self.take("("):
            inner = self.expr()
            self.need(")")
            return inner
        if self.tokens[self.at] == "-":
            self.at += 1
            return Call("neg", (self.atom(),))
        start = self.at
        if self.tokens[start] in ("true", "false"):
            self.at += 1
            return Const(self.tokens[start] == "true", BOOL)
        name = self.name()
        if self.tokens[self.at] == "(":
            return self.function(name, start)
        if self.tokens[self.at] == "[":
            buffer = self.known(name, start)
            return Load(buffer, self.index(buffer))
        return self.variables[name] if name in self.variables else Var(name)

    def known(self, name: str, start: int) -> Buffer:
        if name not in self.buffers:
            raise self.error(f"no buffer {name} is declared here", start)
        return self.buffers[name]

    def index(self, buffer: Buffer) -> tuple[Expr, ...]:
        start = self.at
        index = self.dims()
        if len(index) != len(buffer.shape):
            raise self.error(f"{buffer.name} has rank {len(buffer.shape)}, not {len(index)}", start)
        return index

    def function(self, name: str, start: int) -> Expr:
        if name in DTYPES:
            self.need("(")
            value = self.literal(DTYPES[name])
            e = value if value is not None else Cast(DTYPES[name], self.expr())
            self.need(")")
            return e
        args = self.items(self.expr)
        arity = ARITY.get(name, 1)
        if name not in BINARY and name not in INTRINSICS and name != "select":
            raise self.error(f"unknown function {name}", start)
        if len(args) != arity:
            raise self.error(f"{name} takes {arity} argument(s), not {len(args)}", start)
        if name in BINARY:
            return self.binary(name, args[0], args[1], start)
        if name == "select":
            if args[0].dtype != BOOL or args[1].dtype != args[2].dtype:
                types = ", ".join(str(a.dtype) for a in args)
                raise self.error(f"select takes a bool and two values of one type, not {types}", start)
            return Select(*args)
        return Call(name, tuple(args))

    def literal(self, dtype: DType) -> Const | None:
        """Parse a constant's number if it is all that comes before the closing parenthesis. Otherwise return
        None."""
        start = self.at
        value = self.number()
        if value is not None and self.tokens[self.at] == ")" and (dtype.is_float or isinstance(value, int)):
            return const(value, dtype)
        self.at = start
        return None
