"""Plain functions, written statement by statement: the code that runs a plan, and a model's C API.

`backends.launches` and `ahead.api` decide once what the functions do. They call a `FunctionWriter` with
machine operations: a load, a comparison, a call. One writer makes C, another LLVM IR.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from typing import NamedTuple

from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select
from jangin.ir.records import dataclass
from jangin.ir.traversal import children
from jangin.once import once
from jangin.runtime.functions import Function


class Value(NamedTuple):
    """The value of a name, a parameter or a literal. `type`: ptr, i64, i32, i8 (unsigned) or bool."""

    text: str
    type: str


NULL = Value("null", "ptr")


@dataclass(frozen=True)
class Signature:
    """A function by its declaration in C, such as "int32_t f(const char *name, int32_t n)"."""

    text: str

    @once
    def _parts(self) -> tuple[str, str, list[tuple[str, str]]]:
        result, name, params = re.fullmatch(r"(.*?)(\w+)\((.*)\)", self.text).groups()  # type: ignore[union-attr]
        listed = [] if params == "void" else params.split(", ")
        pairs = [re.fullmatch(r"(.*?)(\w+)", p).groups() for p in listed]  # type: ignore[union-attr]
        return _kind(result), name, [(_kind(t), n) for t, n in pairs]

    @property
    def result(self) -> str:
        return self._parts[0]

    @property
    def name(self) -> str:
        return self._parts[1]

    @property
    def params(self) -> list[tuple[str, str]]:
        """The type and the name of each parameter."""
        return self._parts[2]


@lru_cache(1024)
def signature(function: Function, name: str = "") -> Signature:
    """Return the signature of a function that compiled code exports, optionally under another name."""
    types = {"void": "void ", "i32": "int32_t ", "i64": "int64_t ", "ptr": "void *"}
    pairs = zip(function.types, function.names, strict=True)
    params = ", ".join(f"{types[t]}{n.replace('.', '_')}" for t, n in pairs)
    return Signature(f"{types[function.result]}{name or function.name}({params})")


def _kind(written: str) -> str:
    """Return the type of a value with this C declaration. Names that aren't C's own are pointers to
    functions."""
    plain = {"void": "void", "int32_t": "i32", "int64_t": "i64"}
    return plain.get(written.strip(), "ptr")


_COMPARE = {"lt", "le", "gt", "ge", "eq", "ne"}
_WRAPPING = {"add", "sub", "mul"}


class FunctionWriter(ABC):
    """Writes functions one after another.

    `names`: the values of the known sizes; the caller adds symbols to it. With `checking`, 64-bit overflows
    of sums and products are noticed (`overflowed`). `result`: the result type of the current function.
    `translator`: the compiler of the text, with its version; empty if it isn't part of Jangin's build.
    """

    translator = ""

    def __init__(self) -> None:
        self.names: dict[Expr, Value] = {}
        self.checking = False
        self.result = "void"
        self.overflows: list[Value] = []

    # --- operations that each language writes

    @abstractmethod
    def text(self) -> str:
        """Return the whole text written so far."""

    @abstractmethod
    @contextmanager
    def define(self, signature: Signature, linkage: str = "exported") -> Iterator[dict[str, Value]]:
        """Define a function, whose body is written inside the context, up to a `ret` or a `forever`.

        The context yields the parameters by name. `linkage`: exported, internal, or weak (exported, unless
        another file has it).
        """

    @abstractmethod
    def declare(self, signature: Signature) -> None:
        """Declare a function that another file of the same program has."""

    @abstractmethod
    def strings(self, name: str, items: Sequence[str]) -> Value:
        """Define a table of constant texts, and return its address."""

    @abstractmethod
    def numbers(self, name: str, items: Sequence[int]) -> Value:
        """Define a table of constant i32, and return its address."""

    @abstractmethod
    def bytes_elsewhere(self, name: str) -> Value:
        """Return the address of constant bytes that another file of the same program has."""

    @abstractmethod
    def variable(self, name: str) -> Value:
        """Define a pointer variable that outlives calls and starts as null, and return its address."""

    @abstractmethod
    def address(self, signature: Signature) -> Value:
        """Return the address of a function."""

    @abstractmethod
    def local(self, type: str, count: int) -> Value:
        """Return the address of a new local array of the function."""

    @abstractmethod
    def load(self, type: str, base: Value, index: Value) -> Value:
        """Return an element of an array of this type."""

    @abstractmethod
    def store(self, base: Value, index: Value, value: Value) -> None: ...

    @abstractmethod
    def at(self, base: Value, offset: Value) -> Value:
        """Return the address `offset` bytes after `base`."""

    @abstractmethod
    def number_of(self, pointer: Value) -> Value:
        """Return an address as i64."""

    @abstractmethod
    def convert(self, type: str, value: Value) -> Value:
        """Return a number converted to i32 or i64."""

    @abstractmethod
    def arithmetic(self, op: str, a: Value, b: Value) -> Value:
        """Return the result of an operation of i64 (add, sub, mul, div and rem (towards zero), and, or, xor)
        or of bool (and, or, xor)."""

    @abstractmethod
    def checked(self, op: str, a: Value, b: Value) -> tuple[Value, Value]:
        """Return the sum, difference or product of two i64, and whether it overflowed."""

    @abstractmethod
    def compare(self, op: str, a: Value, b: Value) -> Value:
        """Return whether a comparison of numbers holds, as a bool: lt, le, gt, ge, eq, ne. For pointers there
        are only eq and ne."""

    @abstractmethod
    def select(self, cond: Value, a: Value, b: Value) -> Value: ...

    @abstractmethod
    def fetch_add(self, at: Value, by: int) -> Value:
        """Add to the i32 at an address atomically, and return the old value."""

    @abstractmethod
    def copy(self, to: Value, source: Value, count: Value) -> None:
        """Copy `count` bytes between addresses whose ranges don't overlap."""

    @abstractmethod
    def call(self, signature: Signature, *given: Value, at: Value | None = None) -> Value:
        """Write a call of a function, or of the function of this signature at the address `at`. Return its
        result."""

    @abstractmethod
    def ret(self, value: Value | None = None) -> None: ...

    @abstractmethod
    def _branch(self, cond: Value) -> None:
        """Begin code that runs only if a condition holds."""

    @abstractmethod
    def _end_branch(self) -> None: ...

    @abstractmethod
    def _loop(self) -> None:
        """Begin code that repeats until it returns."""

    @abstractmethod
    def _end_loop(self) -> None: ...

    # --- operations made of these

    @contextmanager
    def when(self, cond: Value) -> Iterator[None]:
        """Write, inside the context, code that runs only if a condition holds; it ends with `ret`. Values
        computed inside aren't known after it."""
        known, wrong = dict(self.names), list(self.overflows)
        self._branch(cond)
        yield
        self._end_branch()
        self.names, self.overflows = known, wrong

    @contextmanager
    def forever(self) -> Iterator[None]:
        """Write, inside the context, code that repeats until it returns; it is the end of a function."""
        self._loop()
        yield
        self._end_loop()

    def refuse(self, cond: Value, code: int) -> None:
        """Write code that returns the number `code` if a condition holds."""
        with self.when(cond):
            self.ret(Value(str(code), self.result))

    def element(self, base: Value, index: int, type: str = "ptr") -> Value:
        return self.load(type, base, i64(index))

    def any_of(self, conds: Sequence[Value]) -> Value:
        union = conds[0]
        for cond in conds[1:]:
            union = self.arithmetic("or", union, cond)
        return union

    def overflowed(self) -> Value | None:
        """Return whether a number computed with `checking` overflowed, as a value of the code. Return None if
        none can."""
        return self.any_of(self.overflows) if self.overflows else None

    def value(self, e: Expr) -> Value:
        """Return the value of an expression of sizes: i64, or bool for a condition. Raises ValueError for an
        expression without scalar code."""
        if isinstance(e, Const):
            return Value(str(int(e.value)), "i64" if e.dtype.is_int else "bool")
        if e not in self.names:
            self.names[e] = self._computed(e)
        return self.names[e]

    def _computed(self, e: Expr) -> Value:
        kids = [self.value(k) for k in children(e)]
        if isinstance(e, Binary):
            return self._binary(e, *kids)
        if isinstance(e, Select):
            return self.select(*kids)
        if isinstance(e, Cast) and e.dtype.name == "i64":
            return self.convert("i64", kids[0])
        if isinstance(e, Call) and e.fn == "neg":
            return self._plain("sub", i64(0), kids[0])
        if isinstance(e, Call) and e.fn == "abs":
            return self.select(
                self.compare("lt", kids[0], i64(0)), self._plain("sub", i64(0), kids[0]), kids[0]
            )
        if isinstance(e, Call) and e.fn == "not":
            return self.arithmetic("xor", kids[0], Value("1", "bool"))
        raise ValueError(f"the size {e} can't be computed at run time: fix it with shapes=")

    def _binary(self, e: Binary, a: Value, b: Value) -> Value:
        if e.op in _COMPARE:
            return self.compare(e.op, a, b)
        if e.op in ("min", "max"):
            return self.select(self.compare("lt" if e.op == "min" else "gt", a, b), a, b)
        if e.op in ("and", "or", "xor"):
            return self.arithmetic(e.op, a, b)
        if e.op in _WRAPPING:
            return self._plain(e.op, a, b)
        if e.op not in ("div", "rem", "floordiv", "mod"):
            raise ValueError(f"the size {e} can't be computed at run time: fix it with shapes=")
        return self._divided(e.op, a, b, known=isinstance(e.b, Const) and e.b.value != 0)

    def _plain(self, op: str, a: Value, b: Value) -> Value:
        if not self.checking:
            return self.arithmetic(op, a, b)
        result, wrong = self.checked(op, a, b)
        self.overflows.append(wrong)
        return result

    def _divided(self, op: str, a: Value, b: Value, *, known: bool) -> Value:
        if not known:  # an unused arm of a choice may divide by zero
            b = self.select(self.compare("eq", b, i64(0)), i64(1), b)
        quotient = self.arithmetic("div", a, b)
        if op == "div":
            return quotient
        rest = self.arithmetic("rem", a, b)
        if op == "rem":
            return rest
        opposite = self.compare("lt", self.arithmetic("xor", rest, b), i64(0))
        correct = self.arithmetic("and", opposite, self.compare("ne", rest, i64(0)))
        if op == "mod":
            return self.select(correct, self.arithmetic("add", rest, b), rest)
        return self.arithmetic("sub", quotient, self.convert("i64", correct))


def i64(number: int) -> Value:
    return Value(str(number), "i64")


def i32(number: int) -> Value:
    return Value(str(number), "i32")
