"""Parse protobuf's text format without a schema, so that the fields of all Caffe forks are read."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NoReturn

from jangin.ir.graph import CompileError

Scalar = str | int | float | bool
DEPTH = 32
"""Messages may be nested at most this deep. Caffe's own messages are nested 5 deep."""
TOKEN = re.compile(
    r"""(?P<space>[\s,;]+|\#[^\n]*)|(?P<text>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')"""
    r"""|(?P<mark>[{}<>\[\]:])|(?P<word>[^\s,;\#"'{}<>\[\]:]+)"""
)
NUMBER = re.compile(r"[+-]?(0[xX][0-9a-fA-F]+|(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?f?|inf|nan)")


@dataclass
class Message:
    """A message that begins in line `line`. `fields` has each field's values in order."""

    line: int
    fields: dict[str, list[Scalar | Message]] = field(default_factory=dict)

    def messages(self, name: str) -> list[Message]:
        """Return the messages in a field. Raises CompileError if one of its values is no message."""
        values = self.fields.get(name, [])
        wrong = [v for v in values if not isinstance(v, Message)]
        if wrong:
            raise CompileError(f"{name} in line {self.line} or below is {wrong[0]!r}, not a {{ message }}")
        return [v for v in values if isinstance(v, Message)]

    def scalars(self, name: str) -> list[Scalar]:
        """Return the values of a field. Raises CompileError if one of them is a message."""
        values = self.fields.get(name, [])
        wrong = next((v for v in values if isinstance(v, Message)), None)
        if wrong is not None:
            raise CompileError(f"{name} in line {wrong.line} is a message, and should be a value")
        return [v for v in values if not isinstance(v, Message)]

    def words(self, name: str) -> list[str]:
        return [str(v) for v in self.scalars(name)]

    def word(self, name: str, default: str = "") -> str:
        """Return a field's last value as text, or the default. protobuf, too, takes the last if a field is
        repeated wrongly."""
        return (self.words(name) or [default])[-1]

    def flat(self, prefix: str = "") -> Iterator[tuple[str, tuple[Scalar, ...]]]:
        """Yield all values of this message and its inner messages, by the path of their names
        ("convolution_param.pad"). Values of repeated messages are joined."""
        for name, values in self.fields.items():
            plain = tuple(v for v in values if not isinstance(v, Message))
            if plain:
                yield prefix + name, plain
            inner: dict[str, tuple[Scalar, ...]] = {}
            for value in values:
                if isinstance(value, Message):
                    for path, scalars in value.flat(f"{prefix}{name}."):
                        inner[path] = (*inner.get(path, ()), *scalars)
            yield from inner.items()


def parse(text: str) -> Message:
    """Parse a whole message. Raises CompileError with the line that isn't understood."""
    return _Parser(text).whole()


class _Parser:
    def __init__(self, text: str) -> None:
        self.tokens = list(self._split(text))
        self.at = 0

    def _split(self, text: str) -> Iterator[tuple[str, str, int]]:
        """Yield the kind, text and line of each token, and an empty token at the end."""
        at, line = 0, 1
        while at < len(text):
            match = TOKEN.match(text, at)
            if match is None:
                raise CompileError(f"line {line} of the prototxt: {text[at : at + 20]!r} is not understood")
            kind = match.lastgroup or ""
            if kind != "space":
                yield kind, match[0], line
            line += match[0].count("\n")
            at = match.end()
        yield "end", "", line

    def whole(self) -> Message:
        message = Message(1)
        self._fill(message, "", 0)
        return message

    def _fill(self, message: Message, closing: str, depth: int) -> None:
        if depth > DEPTH:
            self._refuse(f"messages may lie {DEPTH} deep")
        while True:
            kind, name, _ = self._next()
            if name == closing:
                return
            if kind != "word":
                self._refuse(f"a field's name should stand here, not {name or 'the end'!r}")
            values = message.fields.setdefault(name, [])
            if self._peek() == ":":
                self._next()
            if self._peek() == "[":
                self._next()
                while self._peek() != "]":
                    values.append(self._value(depth))
                self._next()
            else:
                values.append(self._value(depth))

    def _value(self, depth: int) -> Scalar | Message:
        kind, text, line = self._next()
        if text in ("{", "<"):
            inner = Message(line)
            self._fill(inner, "}" if text == "{" else ">", depth + 1)
            return inner
        if kind == "text":
            parts = [text[1:-1]]
            while self.tokens[self.at][0] == "text":
                parts.append(self._next()[1][1:-1])
            return re.sub(r"\\(.)", r"\1", "".join(parts))
        if kind != "word":
            self._refuse(f"a value should stand here, not {text or 'the end'!r}")
        if text in ("true", "false"):
            return text == "true"
        if NUMBER.fullmatch(text):
            return _number(text)
        return text

    def _peek(self) -> str:
        return self.tokens[self.at][1]

    def _next(self) -> tuple[str, str, int]:
        token = self.tokens[self.at]
        self.at = min(self.at + 1, len(self.tokens) - 1)
        return token

    def _refuse(self, reason: str) -> NoReturn:
        line = self.tokens[max(self.at - 1, 0)][2]
        raise CompileError(f"line {line} of the prototxt: {reason}")


def _number(text: str) -> int | float:
    if text.lower().lstrip("+-").startswith("0x"):
        return int(text, 16)
    try:
        return int(text)
    except ValueError:
        return float(text.rstrip("f") if "inf" not in text else text)
