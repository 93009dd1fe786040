"""The one expression language: dimensions, indices, scalar bodies of operators, conditions.

Seven immutable node types. Equality and hashing are structural (hashes are cached). The
functions below (`add`, `floordiv`, `select`, ...) are the only constructors that other files
should use: they fold constants and drop neutral elements. Integer index arithmetic is brought
to a normal form by `ir.simplify`.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, Union

from jangin.ir.dtype import BOOL, F32, F64, I64, DType
from jangin.ir.words import COMPARE, INFIX, RESULT, quote

Scalar = int | float | bool
ExprLike = Union["Expr", int, float, bool]


class Expr:
    """Base of all expression nodes."""

    dtype: DType

    _hash: int

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if type(self) is not type(other) or hash(self) != hash(other):
            return False
        return _key(self) == _key(other)

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            made = hash((type(self).__name__, _key(self)))
            object.__setattr__(self, "_hash", made)
            return made

    def __reduce__(self) -> tuple[Any, ...]:
        """Without what is cached."""
        return type(self), tuple(getattr(self, f.name) for f in fields(self))  # type: ignore[arg-type]

    def __repr__(self) -> str:
        return str(self)

    def __str__(self) -> str:
        text: str | None = self.__dict__.get("_text")
        if text is None:
            text = _show(self)
            object.__setattr__(self, "_text", text)
        return text

    def __add__(self, other: ExprLike) -> Expr:
        return add(self, other)

    def __radd__(self, other: ExprLike) -> Expr:
        return add(other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return sub(self, other)

    def __rsub__(self, other: ExprLike) -> Expr:
        return sub(other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return mul(self, other)

    def __rmul__(self, other: ExprLike) -> Expr:
        return mul(other, self)

    def __truediv__(self, other: ExprLike) -> Expr:
        return div(self, other)

    def __rtruediv__(self, other: ExprLike) -> Expr:
        return div(other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return floordiv(self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return mod(self, other)

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __lt__(self, other: ExprLike) -> Expr:
        return binary("lt", self, other)

    def __le__(self, other: ExprLike) -> Expr:
        return binary("le", self, other)

    def __gt__(self, other: ExprLike) -> Expr:
        return binary("gt", self, other)

    def __ge__(self, other: ExprLike) -> Expr:
        return binary("ge", self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} is known only at run time")


def _key(e: Expr) -> tuple[Any, ...]:
    if isinstance(e, Binary):
        return (e.op, e.a, e.b)
    if isinstance(e, Const):  # 1, 1.0 and True are equal in Python, and 0.0 == -0.0
        return (e.dtype, repr(e.value))
    if isinstance(e, Var):
        return (e.name, e.dtype)
    return tuple(getattr(e, f.name) for f in fields(e))  # type: ignore[arg-type]


@dataclass(frozen=True, eq=False, repr=False)
class Const(Expr):
    value: Scalar
    dtype: DType


@dataclass(frozen=True, eq=False, repr=False)
class Var(Expr):
    """A loop variable, a bound name, a size symbol, or (in scalar bodies) an operand."""

    name: str
    dtype: DType = I64


@dataclass(frozen=True)
class Buffer:
    """A tensor in memory, row-major over `shape` (i64 expressions).

    `memory`: global (a kernel parameter), scratch (per worker), register (promoted to SSA).
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    memory: str = "global"

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Expr:
        idx = index if isinstance(index, tuple) else (index,)
        return Load(self, tuple(wrap(i) for i in idx))

    def __hash__(self) -> int:
        return hash((self.name, self.dtype, self.memory, len(self.shape)))


@dataclass(frozen=True, eq=False, repr=False)
class Load(Expr):
    buffer: Buffer
    index: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.buffer.dtype


@dataclass(frozen=True, eq=False, repr=False)
class Binary(Expr):
    """`op` is one of BINARY. Operands have one dtype; comparisons give bool."""

    op: str
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return BOOL if self.op in COMPARE else self.a.dtype


@dataclass(frozen=True, eq=False, repr=False)
class Call(Expr):
    """An intrinsic of INTRINSICS applied to arguments; its dtype is the first argument's,
    except for the predicates isnan and isinf (bool) and the bit casts."""

    fn: str
    args: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return RESULT.get(self.fn) or self.args[0].dtype


@dataclass(frozen=True, eq=False, repr=False)
class Select(Expr):
    """Lazy: only the chosen arm is evaluated, so a guard may protect a load."""

    cond: Expr
    a: Expr
    b: Expr

    @property
    def dtype(self) -> DType:  # type: ignore[override]
        return self.a.dtype


@dataclass(frozen=True, eq=False, repr=False)
class Cast(Expr):
    """Value conversion as C does it; float to int truncates, and to bool is `!= 0`."""

    dtype: DType
    a: Expr


def _show(e: Expr) -> str:
    """The text form (grammar in `ir.text`); `ir.parse.parse_expr` reads it back."""
    if isinstance(e, Const):
        if e.dtype == I64:
            return str(e.value)
        if e.dtype == BOOL:
            return "true" if e.value else "false"
        return f"{e.dtype}({e.value!r})"
    if isinstance(e, Var):
        return quote(e.name)
    if isinstance(e, Binary):
        if e.op in INFIX:
            return f"({e.a} {INFIX[e.op]} {e.b})"
        return f"{e.op}({e.a}, {e.b})"
    if isinstance(e, Load):
        return f"{quote(e.buffer.name)}[{', '.join(map(str, e.index))}]"
    if isinstance(e, Cast):
        return f"{e.dtype}({e.a})"
    if isinstance(e, Select):
        return f"select({e.cond}, {e.a}, {e.b})"
    assert isinstance(e, Call)
    return f"{e.fn}({', '.join(map(str, e.args))})"


def wrap(value: ExprLike, dtype: DType = I64) -> Expr:
    """A Python number as a Const of `dtype`; expressions pass through."""
    return value if isinstance(value, Expr) else const(value, dtype)


def const(value: Scalar, dtype: DType = I64) -> Const:
    """A constant; integers wrap into their type as C's do."""
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype == BOOL:
        return Const(bool(value), BOOL)
    low = -(1 << (dtype.bits - 1)) if dtype.kind == "i" else 0
    return Const((int(value) - low) % (1 << dtype.bits) + low, dtype)


def is_const(e: ExprLike, value: Scalar | None = None) -> bool:
    if not isinstance(e, Expr):
        return value is None or e == value
    return isinstance(e, Const) and (value is None or e.value == value)


def _pair(a: ExprLike, b: ExprLike) -> tuple[Expr, Expr]:
    if isinstance(a, Expr):
        return a, wrap(b, a.dtype)
    if isinstance(b, Expr):
        return wrap(a, b.dtype), b
    dtype = F32 if isinstance(a, float) or isinstance(b, float) else I64
    return wrap(a, dtype), wrap(b, dtype)


def _trunc_div(a: int, b: int) -> int:
    q = abs(a) // abs(b)
    return q if (a >= 0) == (b >= 0) else -q


INTEGER_OPS: dict[str, Callable[[Any, Any], Any]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": _trunc_div,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "rem": lambda a, b: a - _trunc_div(a, b) * b,
    "min": min,
    "max": max,
    "lt": lambda a, b: a < b,
    "le": lambda a, b: a <= b,
    "eq": lambda a, b: a == b,
    "ne": lambda a, b: a != b,
    "gt": lambda a, b: a > b,
    "ge": lambda a, b: a >= b,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
}
"""What binary operations give for integers and truth values."""


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """Build `op(a, b)`, folding i64 and bool constants (floats are left to the hardware)."""
    x, y = _pair(a, b)
    if x.dtype != y.dtype:
        raise TypeError(f"{op} of {x.dtype} and {y.dtype}: {x!r}, {y!r}")
    if isinstance(x, Const) and isinstance(y, Const) and x.dtype in (I64, BOOL) and op in INTEGER_OPS:
        zero = y.value == 0 and op in ("div", "floordiv", "mod", "rem")
        if not zero:
            return const(INTEGER_OPS[op](x.value, y.value), BOOL if op in COMPARE else x.dtype)
    neutral = _neutral(op, x, y)
    return Binary(op, x, y) if neutral is None else neutral


def _neutral(op: str, x: Expr, y: Expr) -> Expr | None:
    """The simpler equal of op(x, y), exact for floats too; None where there is none."""
    exact = x.dtype.is_int
    if op == "add" and exact:
        return y if is_const(x, 0) else x if is_const(y, 0) else None
    if op == "sub":
        return x if is_const(y, 0) else const(0) if exact and x.dtype == I64 and x == y else None
    if op == "mul":
        if exact and (is_const(x, 0) or is_const(y, 0)):
            return const(0, x.dtype)
        return y if is_const(x, 1) else x if is_const(y, 1) else None
    if op in ("div", "floordiv"):
        return x if is_const(y, 1) else None
    if op == "mod" and exact:
        return const(0, x.dtype) if is_const(y, 1) else None
    if op in ("min", "max"):
        return x if x == y else None
    if op in ("and", "or") and x.dtype == BOOL:
        absorbing, keep = (False, True) if op == "and" else (True, False)
        for p, q in ((x, y), (y, x)):
            if isinstance(p, Const):
                return q if p.value == keep else const(absorbing, BOOL)
        return x if x == y else None
    if op in ("eq", "le", "ge") and exact and x == y:
        return const(True, BOOL)
    return const(False, BOOL) if op in ("ne", "lt", "gt") and exact and x == y else None


def add(a: ExprLike, b: ExprLike) -> Expr:
    return binary("add", a, b)


def sub(a: ExprLike, b: ExprLike) -> Expr:
    return binary("sub", a, b)


def mul(a: ExprLike, b: ExprLike) -> Expr:
    return binary("mul", a, b)


def div(a: ExprLike, b: ExprLike) -> Expr:
    return binary("div", a, b)


def floordiv(a: ExprLike, b: ExprLike) -> Expr:
    return binary("floordiv", a, b)


def mod(a: ExprLike, b: ExprLike) -> Expr:
    return binary("mod", a, b)


def minimum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("min", a, b)


def maximum(a: ExprLike, b: ExprLike) -> Expr:
    return binary("max", a, b)


def eq(a: ExprLike, b: ExprLike) -> Expr:
    return binary("eq", a, b)


def ne(a: ExprLike, b: ExprLike) -> Expr:
    return binary("ne", a, b)


def land(a: ExprLike, b: ExprLike) -> Expr:
    return binary("and", wrap(a, BOOL), wrap(b, BOOL))


def lor(a: ExprLike, b: ExprLike) -> Expr:
    return binary("or", wrap(a, BOOL), wrap(b, BOOL))


def call(fn: str, *args: ExprLike) -> Expr:
    """Build an intrinsic call; every argument after the first takes its dtype if a number."""
    first = wrap(args[0], F32)
    rest = tuple(wrap(a, first.dtype) for a in args[1:])
    if fn == "neg" and isinstance(first, Const) and first.dtype in (I64, F32, F64):
        return const(-first.value, first.dtype)
    if fn == "not" and isinstance(first, Const) and first.dtype is BOOL:
        return const(not first.value, BOOL)
    return Call(fn, (first, *rest))


def select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """`a` where `cond` holds, else `b`; lazy in both arms."""
    c = wrap(cond, BOOL)
    x, y = _pair(a, b)
    if isinstance(c, Const):
        return x if c.value else y
    return x if x == y else Select(c, x, y)


def cast(dtype: DType, a: ExprLike) -> Expr:
    x = wrap(a)
    if x.dtype == dtype:
        return x
    if isinstance(x, Const) and not x.dtype.is_float:
        return const(x.value, dtype)
    return Cast(dtype, x)


def children(e: Expr) -> tuple[Expr, ...]:
    return _CHILDREN[type(e)](e)


_CHILDREN: dict[type[Expr], Callable[[Any], tuple[Expr, ...]]] = {
    Const: lambda e: (),
    Var: lambda e: (),
    Binary: lambda e: (e.a, e.b),
    Load: lambda e: e.index,
    Call: lambda e: e.args,
    Select: lambda e: (e.cond, e.a, e.b),
    Cast: lambda e: (e.a,),
}


def rebuild(e: Expr, kids: tuple[Expr, ...]) -> Expr:
    """`e` with other children, through the folding constructors."""
    if isinstance(e, Binary):
        return binary(e.op, *kids)
    if isinstance(e, Load):
        return Load(e.buffer, kids)
    if isinstance(e, Call):
        return call(e.fn, *kids)
    if isinstance(e, Select):
        return select(*kids)
    return cast(e.dtype, kids[0]) if isinstance(e, Cast) else e


def walk(e: Expr) -> Iterator[Expr]:
    """Every node of `e`, parents first."""
    stack = [e]
    while stack:
        node = stack.pop()
        yield node
        stack.extend(reversed(children(node)))


def rewrite(e: Expr, fn: Callable[[Expr], Expr | None]) -> Expr:
    """Bottom-up: `fn(node)` gives a replacement or None to keep; shared parts are done once."""
    memo: dict[int, Expr] = {}

    def go(node: Expr) -> Expr:
        done = memo.get(id(node))
        if done is None:
            kids = children(node)
            new = tuple([go(k) for k in kids])
            done = node if all(map(operator.is_, kids, new)) else rebuild(node, new)
            if not any(done is k for k in new):  # else it has been given to fn already
                replaced = fn(done)
                done = done if replaced is None else replaced
            memo[id(node)] = done
        return done

    return go(e)


def substitute(e: Expr, values: Mapping[Var, Expr]) -> Expr:
    """`e` with variables replaced."""
    if not values:
        return e
    memo: dict[int, Expr] = {}

    def go(node: Expr) -> Expr:
        if isinstance(node, Var):
            return values.get(node, node)
        if free_vars(node).isdisjoint(values):
            return node
        done = memo.get(id(node))
        if done is None:
            done = memo[id(node)] = rebuild(node, tuple([go(k) for k in children(node)]))
        return done

    return go(e)


def free_vars(e: Expr) -> frozenset[Var]:
    """The variables an expression mentions (remembered with it)."""
    found: frozenset[Var] | None = e.__dict__.get("_free")
    if found is None:
        kids = children(e)
        found = frozenset((e,)) if isinstance(e, Var) else frozenset().union(*map(free_vars, kids))
        object.__setattr__(e, "_free", found)
    return found


def buffers_loaded(e: Expr) -> frozenset[str]:
    """The names of the buffers an expression loads (remembered with it)."""
    found: frozenset[str] | None = e.__dict__.get("_loaded")
    if found is None:
        own = frozenset((e.buffer.name,)) if isinstance(e, Load) else frozenset[str]()
        found = own.union(*map(buffers_loaded, children(e)))
        object.__setattr__(e, "_loaded", found)
    return found


def loads(e: Expr) -> list[Load]:
    return [n for n in walk(e) if isinstance(n, Load)]
