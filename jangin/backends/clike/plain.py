"""Plain functions as C11 (see `backends.functions`)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from jangin.backends.functions import NULL, FunctionWriter, Signature, Value

_TYPES = {"ptr": "void *", "i64": "int64_t ", "i32": "int32_t ", "i8": "uint8_t ", "bool": "int "}
_OPS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "rem": "%", "and": "&", "or": "|", "xor": "^"}
_ORDERS = {"lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==", "ne": "!="}
_UNUSED = "__attribute__((unused)) "
_LINKAGE = {"exported": "", "internal": f"{_UNUSED}static ", "weak": "__attribute__((weak)) "}

HELPERS = "\n".join(
    [
        f"{_UNUSED}static inline {kind}load_{name}(const void *base, int64_t index) {{\n"
        f"  {kind}value;\n"
        "  memcpy(&value, (const char *)base + index * (int64_t)sizeof value, sizeof value);\n"
        "  return value;\n}\n"
        f"{_UNUSED}static inline void store_{name}(void *base, int64_t index, {kind}value) {{\n"
        "  memcpy((char *)base + index * (int64_t)sizeof value, &value, sizeof value);\n}"
        for name, kind in _TYPES.items()
        if name != "bool"
    ]
)
"""Accesses to arrays' elements, whatever their declared type. By `memcpy` they break none of C's aliasing
rules."""


class CFunctions(FunctionWriter):
    """Writes one C file, without its `#include` lines. Without `atomics`, `fetch_add` is a plain addition,
    because there is one thread."""

    def __init__(self, atomics: bool = True) -> None:
        super().__init__()
        self.atomics = atomics
        self.head: list[str] = []
        self.bodies: list[str] = []
        self.lines: list[str] = []
        self.count = 0
        self.depth = 1

    def text(self) -> str:
        return "\n".join([*self.head, HELPERS, *self.bodies, ""])

    def _put(self, text: str) -> None:
        self.lines.append("  " * self.depth + text)

    def _line(self, text: str, type: str) -> Value:
        self.count += 1
        const = "" if type == "ptr" else "const "
        self._put(f"{const}{_TYPES[type]}v{self.count} = {text};")
        return Value(f"v{self.count}", type)

    def _text(self, v: Value) -> str:
        if v is NULL:
            return "NULL"
        if v.type == "i64" and v.text.lstrip("-").isdigit() and abs(int(v.text)) >= 1 << 31:
            return f"INT64_C({v.text})" if int(v.text) > -(1 << 63) else "INT64_MIN"
        return v.text

    @contextmanager
    def define(self, signature: Signature, linkage: str = "exported") -> Iterator[dict[str, Value]]:
        self.lines, self.count, self.names, self.overflows = [], 0, {}, []
        self.result = signature.result
        for _, name in signature.params:
            self._put(f"(void){name};")
        yield {n: Value(n, t) for t, n in signature.params}
        lines = _used(self.lines)
        self.bodies.append("\n".join([f"{_LINKAGE[linkage]}{signature.text} {{", *lines, "}"]))

    def declare(self, signature: Signature) -> None:
        """Write nothing: the file's head includes the header that declares the function."""

    def strings(self, name: str, items: Sequence[str]) -> Value:
        self.head.append(f"static const char *const {name}[] = {{{', '.join(map(c_string, items))}}};")
        return Value(name, "ptr")

    def numbers(self, name: str, items: Sequence[int]) -> Value:
        self.head.append(f"static const int32_t {name}[] = {{{', '.join(map(str, items))}}};")
        return Value(f"(void *)(uintptr_t){name}", "ptr")

    def bytes_elsewhere(self, name: str) -> Value:
        self.head.append(f"extern const unsigned char {name}[];")
        return Value(f"(void *)(uintptr_t){name}", "ptr")

    def variable(self, name: str) -> Value:
        self.head.append(f"static void *{name};")
        return Value(f"&{name}", "ptr")

    def address(self, signature: Signature) -> Value:
        return Value(signature.name, "ptr")

    def local(self, type: str, count: int) -> Value:
        self.count += 1
        self.lines.insert(0, f"  {_TYPES[type]}v{self.count}[{count}];")
        return Value(f"v{self.count}", "ptr")

    def load(self, type: str, base: Value, index: Value) -> Value:
        return self._line(f"load_{type}({base.text}, {self._text(index)})", type)

    def store(self, base: Value, index: Value, value: Value) -> None:
        cast = "(void *)" if value.type == "ptr" else ""
        arguments = f"{self._text(base)}, {self._text(index)}, {cast}{self._text(value)}"
        self._put(f"store_{value.type}({arguments});")

    def at(self, base: Value, offset: Value) -> Value:
        return (
            base if offset.text == "0" else self._line(f"(char *){base.text} + {self._text(offset)}", "ptr")
        )

    def number_of(self, pointer: Value) -> Value:
        return self._line(f"(int64_t)(uintptr_t){pointer.text}", "i64")

    def convert(self, type: str, value: Value) -> Value:
        if value.type == type or value.text.lstrip("-").isdigit():
            return Value(value.text, type)
        return self._line(f"({_TYPES[type].strip()}){value.text}", type)

    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        return self._line(f"{self._text(a)} {_OPS[op]} {self._text(b)}", a.type)

    def checked(self, op: str, a: Value, b: Value) -> tuple[Value, Value]:
        self.count += 1
        number = Value(f"v{self.count}", "i64")
        self._put(f"int64_t {number.text};")
        operands = f"(int64_t){self._text(a)}, (int64_t){self._text(b)}"
        return number, self._line(f"__builtin_{op}_overflow({operands}, &{number.text})", "bool")

    def compare(self, op: str, a: Value, b: Value) -> Value:
        return self._line(f"{self._text(a)} {_ORDERS[op]} {self._text(b)}", "bool")

    def select(self, cond: Value, a: Value, b: Value) -> Value:
        return self._line(f"{self._text(cond)} ? {self._text(a)} : {self._text(b)}", a.type)

    def fetch_add(self, at: Value, by: int) -> Value:
        if not self.atomics:
            place = f"*(int32_t *){at.text}"
            return self._line(f"({place} += {by}) - {by}", "i32")
        return self._line(f"__atomic_fetch_add((int32_t *){at.text}, {by}, __ATOMIC_RELAXED)", "i32")

    def copy(self, to: Value, source: Value, count: Value) -> None:
        self._put(f"memcpy({to.text}, {source.text}, (size_t){self._text(count)});")

    def call(self, signature: Signature, *given: Value, at: Value | None = None) -> Value:
        callee = signature.name
        if at is not None:
            pointer = signature.text.replace(f" {callee}(", f" (*{callee}_type)(")
            self.head += [] if f"typedef {pointer};" in self.head else [f"typedef {pointer};"]
            callee = f"(({callee}_type){at.text})"
        text = f"{callee}({', '.join(map(self._text, given))})"
        if signature.result == "void":
            self._put(f"{text};")
            return NULL
        return self._line(text, signature.result)

    def ret(self, value: Value | None = None) -> None:
        self._put("return;" if value is None else f"return {self._text(value)};")

    def _branch(self, cond: Value) -> None:
        self._put(f"if ({cond.text}) {{")
        self.depth += 1

    def _end_branch(self) -> None:
        self.depth -= 1
        self._put("}")

    def _loop(self) -> None:
        self._put("for (;;) {")
        self.depth += 1

    def _end_loop(self) -> None:
        self._end_branch()


def _used(lines: Sequence[str]) -> list[str]:
    """Return the lines without unused values, about which compilers would warn."""
    kept: list[str] = []
    names: set[str] = set()
    for line in reversed(lines):
        match = re.match(r" *(?:const \w+ |void \*)(v\d+) = (.*)", line)
        if match and match[1] not in names and not re.search(r"\w\(", re.sub(r"load_\w+", "", match[2])):
            continue
        names.update(re.findall(r"\bv\d+\b", match[2] if match else line))
        kept.append(line)
    return kept[::-1]


def c_string(text: str) -> str:
    """Return a text as a C literal. Bytes that aren't ASCII, or could form a trigraph, are escaped."""
    plain = (chr(b) if 32 <= b < 127 and b not in b'"\\?' else f"\\{b:03o}" for b in text.encode())
    return f'"{"".join(plain)}"'


def comment(text: str) -> str:
    """Return a text with the parts escaped that would end a comment."""
    return json.dumps(text, ensure_ascii=True)[1:-1].replace("*/", "* /")
