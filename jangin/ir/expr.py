"""The single expression language: dimensions, indices, scalar bodies of operators, conditions.

There are seven immutable node types. Each expression exists once (`ir.interned`): equal expressions are the
same object, so comparing and hashing cost nothing. Values derived from a node are kept with it. Other files
should use only the constructor functions below (`add`, `floordiv`, `select`, ...), which fold constants and
drop neutral elements. `ir.simplify` brings integer index arithmetic to a normal form; `ir.traversal` walks
expressions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import copysign
from typing import Any, TypeVar, Union

from jangin.ir.dtype import BOOL, F32, F64, I64, DType
from jangin.ir.flat import KEPT_TEXT, SMALL, listed, packed, unpacked, written
from jangin.ir.integers import INTEGER_OPS
from jangin.ir.interned import Known, absent, keep
from jangin.ir.products import PRODUCTS, Product
from jangin.ir.words import COMPARE, DIVISIONS, INFIX, RESULT, quote

Scalar = int | float | bool
ExprLike = Union["Expr", int, float, bool]
E = TypeVar("E", bound="Expr")

_set = object.__setattr__


def _operator(op: str) -> Callable[[Expr, ExprLike], Expr]:
    """Return the method of Python's operator for the operation `op`."""
    return lambda self, other: binary(op, self, other)


def _reflected(op: str) -> Callable[[Expr, ExprLike], Expr]:
    """Return the method of Python's operator for the operation `op`, whose first operand is a number."""
    return lambda self, other: binary(op, other, self)


class Expr:
    """Base of all expression nodes. `size` is the number of nodes in the printed text, where a shared node
    counts at each mention."""

    __slots__ = ("__weakref__", "_free", "_kids", "_loaded", "_text", "dtype", "size")
    __match_args__: tuple[str, ...] = ()
    dtype: DType
    size: int
    _kids: tuple[Expr, ...]
    _free: frozenset[Var]
    _loaded: frozenset[str]
    _text: str | None

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"expressions are immutable: {name} of {self}")

    def __reduce__(self) -> tuple[Callable[..., Expr], tuple[Any, ...]]:
        if self.size > SMALL:
            return unpacked, (packed(self),)
        return type(self), tuple([getattr(self, name) for name in self.__match_args__])

    def __str__(self) -> str:
        text = self._text
        if text is None:
            text = written(self)
            if self.size <= SMALL or len(text) <= KEPT_TEXT:
                _set(self, "_text", text)
        return text

    __repr__ = __str__

    def _pieces(self) -> list[str | Expr]:
        """Return the pieces of the expression's text, in which children are left as expressions."""
        raise NotImplementedError

    __add__, __radd__ = _operator("add"), _reflected("add")
    __sub__, __rsub__ = _operator("sub"), _reflected("sub")
    __mul__, __rmul__ = _operator("mul"), _reflected("mul")
    __truediv__, __rtruediv__ = _operator("div"), _reflected("div")
    __floordiv__, __mod__ = _operator("floordiv"), _operator("mod")
    __lt__, __le__, __gt__, __ge__ = _operator("lt"), _operator("le"), _operator("gt"), _operator("ge")

    def __neg__(self) -> Expr:
        return call("neg", self)

    def __bool__(self) -> bool:
        raise TypeError(f"the truth of {self!r} is known only at run time")


def _node(cls: type[E], dtype: DType, kids: tuple[Expr, ...]) -> E:
    """Make a node of a class, with its derived values but without the class's own fields."""
    node = object.__new__(cls)
    size, free, loaded = 1, _NONE, _NO_NAMES
    for k in kids:
        size += k.size
        if not k._free <= free:
            free = k._free if free <= k._free else free | k._free
        if not k._loaded <= loaded:
            loaded = k._loaded if loaded <= k._loaded else loaded | k._loaded
    _set(node, "dtype", dtype)
    _set(node, "size", size)
    _set(node, "_kids", kids)
    _set(node, "_free", free)
    _set(node, "_loaded", loaded)
    _set(node, "_text", None)
    return node


_NONE, _NO_NAMES = frozenset["Var"](), frozenset[str]()


class Const(Expr):
    __slots__ = __match_args__ = ("value", "dtype")
    value: Scalar

    def __new__(cls, value: Scalar, dtype: DType) -> Const:
        key = dtype, value if type(value) is int else repr(value)  # 0.0 == -0.0, and NaN doesn't equal itself
        if (known := _CONSTS.get(key, absent)()) is not None:
            return known
        node = _node(cls, dtype, ())
        _set(node, "value", value)
        return keep(_CONSTS, key, node)

    def _pieces(self) -> list[str | Expr]:
        if self.dtype is BOOL:
            return ["true" if self.value else "false"]
        return [str(self.value) if self.dtype is I64 else f"{self.dtype}({self.value!r})"]


class Var(Expr):
    """A loop variable, a bound name, a size symbol, or (in scalar bodies) an operand."""

    __slots__ = __match_args__ = ("name", "dtype")
    name: str

    def __new__(cls, name: str, dtype: DType = I64) -> Var:
        key = name, dtype
        if (known := _VARS.get(key, absent)()) is not None:
            return known
        node = _node(cls, dtype, ())
        _set(node, "name", name)
        _set(node, "_free", frozenset((node,)))
        return keep(_VARS, key, node)

    def _pieces(self) -> list[str | Expr]:
        return [quote(self.name)]


@dataclass(frozen=True, eq=False, init=False, slots=True, weakref_slot=True)
class Buffer:
    """A tensor in memory, row-major over `shape` (i64 expressions). Like expressions, each exists once.

    `memory`: global (a kernel parameter), scratch (of a worker), register (promoted to SSA), shared or tile
    (see `ir.loop.Alloc`).
    """

    name: str
    dtype: DType
    shape: tuple[Expr, ...]
    memory: str

    def __new__(cls, name: str, dtype: DType, shape: tuple[Expr, ...], memory: str = "global") -> Buffer:
        key = name, dtype, shape, memory
        if (known := _BUFFERS.get(key, absent)()) is not None:
            return known
        buffer = object.__new__(cls)
        for field, value in zip(("name", "dtype", "shape", "memory"), key, strict=True):
            _set(buffer, field, value)
        return keep(_BUFFERS, key, buffer)

    def __reduce__(self) -> tuple[type[Buffer], tuple[Any, ...]]:
        return Buffer, (self.name, self.dtype, self.shape, self.memory)

    def __getitem__(self, index: ExprLike | tuple[ExprLike, ...]) -> Expr:
        idx = index if isinstance(index, tuple) else (index,)
        return Load(self, tuple(wrap(i) for i in idx))


class Load(Expr):
    __slots__ = __match_args__ = ("buffer", "index")
    buffer: Buffer
    index: tuple[Expr, ...]

    def __new__(cls, buffer: Buffer, index: tuple[Expr, ...]) -> Load:
        key = buffer, index
        if (known := _LOADS.get(key, absent)()) is not None:
            return known
        node = _node(cls, buffer.dtype, index)
        _set(node, "buffer", buffer)
        _set(node, "index", index)
        _set(node, "_loaded", node._loaded | {buffer.name})
        return keep(_LOADS, key, node)

    def _pieces(self) -> list[str | Expr]:
        return listed(f"{quote(self.buffer.name)}[", self.index, "]")


class Binary(Expr):
    """`op` is one of BINARY. Operands have one dtype; comparisons give bool."""

    __slots__ = __match_args__ = ("op", "a", "b")
    op: str
    a: Expr
    b: Expr

    def __new__(cls, op: str, a: Expr, b: Expr) -> Binary:
        key = op, a, b
        if (known := _BINARIES.get(key, absent)()) is not None:
            return known
        node = _node(cls, BOOL if op in COMPARE else a.dtype, (a, b))
        _set(node, "op", op)
        _set(node, "a", a)
        _set(node, "b", b)
        return keep(_BINARIES, key, node)

    def _pieces(self) -> list[str | Expr]:
        sign = INFIX.get(self.op)
        return ["(", self.a, f" {sign} ", self.b, ")"] if sign else listed(f"{self.op}(", self._kids, ")")


class Call(Expr):
    """An intrinsic of INTRINSICS applied to arguments. Its dtype is the first argument's, or is in RESULT."""

    __slots__ = __match_args__ = ("fn", "args")
    fn: str
    args: tuple[Expr, ...]

    def __new__(cls, fn: str, args: tuple[Expr, ...]) -> Call:
        key = fn, args
        if (known := _CALLS.get(key, absent)()) is not None:
            return known
        node = _node(cls, RESULT.get(fn) or args[0].dtype, args)
        _set(node, "fn", fn)
        _set(node, "args", args)
        return keep(_CALLS, key, node)

    @property
    def product(self) -> Product | None:
        """The Product that the function computes from words; None for any other function."""
        return PRODUCTS.get(self.fn)

    def _pieces(self) -> list[str | Expr]:
        return listed(f"{self.fn}(", self.args, ")")


def product_of(e: Expr) -> Product | None:
    """Return the Product that an expression computes from words, or None for any other expression."""
    return e.product if isinstance(e, Call) else None


class Select(Expr):
    """A lazy choice: only the chosen arm is evaluated, so a guard may protect a load."""

    __slots__ = __match_args__ = ("cond", "a", "b")
    cond: Expr
    a: Expr
    b: Expr

    def __new__(cls, cond: Expr, a: Expr, b: Expr) -> Select:
        key = cond, a, b
        if (known := _SELECTS.get(key, absent)()) is not None:
            return known
        node = _node(cls, a.dtype, key)
        _set(node, "cond", cond)
        _set(node, "a", a)
        _set(node, "b", b)
        return keep(_SELECTS, key, node)

    def _pieces(self) -> list[str | Expr]:
        return listed("select(", self._kids, ")")


class Cast(Expr):
    """Value conversion as in C. Float to int truncates; float to bool is `!= 0`. A number out of range
    converts as C compilers do on x86-64, and as ONNX Runtime does there (`ir.arithmetic`)."""

    __slots__ = ("a",)
    __match_args__ = ("dtype", "a")
    a: Expr

    def __new__(cls, dtype: DType, a: Expr) -> Cast:
        key = dtype, a
        if (known := _CASTS.get(key, absent)()) is not None:
            return known
        node = _node(cls, dtype, (a,))
        _set(node, "a", a)
        return keep(_CASTS, key, node)

    def _pieces(self) -> list[str | Expr]:
        return [f"{self.dtype}(", self.a, ")"]


_CONSTS: Known[Const] = {}
_VARS: Known[Var] = {}
_BUFFERS: Known[Buffer] = {}
_LOADS: Known[Load] = {}
_BINARIES: Known[Binary] = {}
_CALLS: Known[Call] = {}
_SELECTS: Known[Select] = {}
_CASTS: Known[Cast] = {}


def wrap(value: ExprLike, dtype: DType = I64) -> Expr:
    """Return a Python number as a Const of `dtype`, or an expression unchanged."""
    return value if isinstance(value, Expr) else const(value, dtype)


def const(value: Scalar, dtype: DType = I64) -> Const:
    """Return a constant. Integers wrap into their type as in C."""
    if dtype is I64 and type(value) is int and -(1 << 63) <= value < 1 << 63:
        return Const(value, I64)
    if dtype.is_float:
        return Const(float(value), dtype)
    if dtype is BOOL:
        return Const(bool(value), BOOL)
    low = dtype.limits[0]
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


def binary(op: str, a: ExprLike, b: ExprLike) -> Expr:
    """Build `op(a, b)`, and return a simpler equal expression if there is one. Constants of i64 and bool are
    folded, but not those of floats. Raises TypeError if the dtypes differ."""
    x, y = _pair(a, b)
    if x.dtype is not y.dtype:
        raise TypeError(f"{op} of {x.dtype} and {y.dtype}: {x!r}, {y!r}")
    if not isinstance(x, Const):
        if x is not y and not isinstance(y, Const):
            return Binary(op, x, y)
    elif isinstance(y, Const) and x.dtype in (I64, BOOL) and op in INTEGER_OPS:
        zero = y.value == 0 and op in DIVISIONS
        if not zero:
            return const(INTEGER_OPS[op](x.value, y.value), BOOL if op in COMPARE else x.dtype)
    neutral = _neutral(op, x, y)
    return Binary(op, x, y) if neutral is None else neutral


def _neutral(op: str, x: Expr, y: Expr) -> Expr | None:
    """Return a simpler expression that equals op(x, y), exactly for floats too, or None if there is none."""
    exact = x.dtype.is_int
    if op == "add":
        return y if _is_zero(x, -1) else x if _is_zero(y, -1) else None
    if op == "sub":
        if _is_zero(y, 1):
            return x
        if x.dtype is F32 and isinstance(y, Const):
            return _unshifted(x, float(y.value))
        return const(0) if exact and x.dtype == I64 and x == y else None
    if op == "mul":
        if exact and (is_const(x, 0) or is_const(y, 0)):
            return const(0, x.dtype)
        return y if is_const(x, 1) else x if is_const(y, 1) else None
    if op == "div" or (op == "floordiv" and exact):
        return x if is_const(y, 1) else None
    if op == "mod" and exact:
        return const(0, x.dtype) if is_const(y, 1) else None
    if op in ("min", "max"):
        return x if x == y or (isinstance(y, Const) and _is_held(op, x, y.value)) else None
    if op in ("and", "or") and x.dtype == BOOL:
        absorbing, keep = (False, True) if op == "and" else (True, False)
        for p, q in ((x, y), (y, x)):
            if isinstance(p, Const):
                return q if p.value == keep else const(absorbing, BOOL)
        return x if x == y else None
    if op in ("eq", "le", "ge") and exact and x == y:
        return const(True, BOOL)
    return const(False, BOOL) if op in ("ne", "lt", "gt") and exact and x == y else None


def _is_zero(e: Expr, sign: int) -> bool:
    """Return whether an expression is the constant 0. A float must be the 0 of this sign: adding 0 turns -0
    into 0, adding -0 changes nothing."""
    return isinstance(e, Const) and e.value == 0 and (e.dtype.is_int or copysign(1, e.value) == sign)


def _is_held(op: str, x: Expr, end: Scalar) -> bool:
    """Return whether a further min or max (`op`) with `end` changes nothing, because `x` is clamped."""
    if not (isinstance(x, Binary) and x.op == "min" and isinstance(x.b, Const)):
        return False
    if op == "min":
        return x.b.value <= end
    inner = x.a
    if not (isinstance(inner, Binary) and inner.op == "max" and isinstance(inner.b, Const)):
        return False
    return end <= min(inner.b.value, x.b.value)


def _unshifted(x: Expr, zero: float) -> Expr | None:
    """Return `x - zero` as a clamp without the zero point, if `x` is round(v) + zero, clamped, else None.

    This is exact because f32 represents all sums between the bounds. A difference is never -0, so 0.0 is
    added."""
    held = x.a if isinstance(x, Binary) and x.op == "min" and _is_whole(x.b) else None
    shifted = held.a if isinstance(held, Binary) and held.op == "max" and _is_whole(held.b) else None
    if not (isinstance(x, Binary) and isinstance(held, Binary) and isinstance(shifted, Binary)):
        return None
    whole, (low, high) = shifted.a, (n.value - zero for n in (held.b, x.b) if isinstance(n, Const))
    same = shifted.op == "add" and is_const(shifted.b, zero) and _is_whole(shifted.b)
    exact = max(abs(zero), abs(low), abs(high)) < 1 << 22
    if not (same and exact and isinstance(whole, Call) and whole.fn == "round"):
        return None
    return add(Binary("min", Binary("max", whole, const(low, F32)), const(high, F32)), 0.0)


add = partial(binary, "add")
sub = partial(binary, "sub")
mul = partial(binary, "mul")
div = partial(binary, "div")
floordiv = partial(binary, "floordiv")
mod = partial(binary, "mod")
minimum = partial(binary, "min")
maximum = partial(binary, "max")
eq = partial(binary, "eq")
ne = partial(binary, "ne")


def land(a: ExprLike, b: ExprLike) -> Expr:
    return binary("and", wrap(a, BOOL), wrap(b, BOOL))


def lor(a: ExprLike, b: ExprLike) -> Expr:
    return binary("or", wrap(a, BOOL), wrap(b, BOOL))


def call(fn: str, *args: ExprLike) -> Expr:
    """Build the call of an intrinsic. Numbers after the first argument take the first argument's dtype."""
    first = wrap(args[0], F32)
    rest = tuple(wrap(a, first.dtype) for a in args[1:])
    if fn == "neg" and isinstance(first, Const) and first.dtype in (I64, F32, F64):
        return const(-first.value, first.dtype)
    if fn == "not" and isinstance(first, Const) and first.dtype is BOOL:
        return const(not first.value, BOOL)
    if fn in ("abs", "sign") and isinstance(first, Const) and first.dtype is I64:
        return const(abs(int(first.value)) if fn == "abs" else (first.value > 0) - (first.value < 0))
    return Call(fn, (first, *rest))


def select(cond: ExprLike, a: ExprLike, b: ExprLike) -> Expr:
    """Return the expression that is `a` if `cond` holds, else `b`. Only the chosen one is evaluated. Raises
    TypeError if the dtypes differ."""
    c = wrap(cond, BOOL)
    x, y = _pair(a, b)
    if x.dtype is not y.dtype:
        raise TypeError(f"select of {x.dtype} and {y.dtype}: {x!r}, {y!r}")
    if isinstance(c, Const):
        return x if c.value else y
    return x if x == y else Select(c, x, y)


def cast(dtype: DType, a: ExprLike) -> Expr:
    x = wrap(a)
    if x.dtype == dtype:
        return x
    if isinstance(x, Const) and not x.dtype.is_float:
        return const(x.value, dtype)
    if isinstance(x, Cast) and x.dtype.is_int and x.a.dtype in (F32, F64) and dtype not in (BOOL, I64):
        # A whole float that both types represent skips the first type. Indices don't skip it, because NaN
        # must not become an index.
        limits = _whole_limits(x.a)
        if limits and all(t.has_whole(n) for n in limits for t in (x.dtype, dtype)):
            return cast(dtype, _positive(x.a) if dtype.is_float else x.a)
    return Cast(dtype, x)


def _whole_limits(e: Expr) -> tuple[Scalar, Scalar] | None:
    """Return the bounds of a whole float that is clamped, or None for any other expression."""
    if not (isinstance(e, Binary) and e.op == "min" and isinstance(e.b, Const)):
        return None
    held = e.a
    if not (isinstance(held, Binary) and held.op == "max" and isinstance(held.b, Const)):
        return None
    whole = held.a
    while isinstance(whole, Binary) and whole.op in ("add", "sub") and _is_whole(whole.b):
        whole = whole.a
    rounded = isinstance(whole, Call) and whole.fn in ("round", "floor", "ceil", "trunc")
    return (held.b.value, e.b.value) if rounded and _is_whole(e.b) and _is_whole(held.b) else None


def _positive(e: Expr) -> Expr:
    """Return a clamped whole float with -0 replaced by 0, because integers have no -0. A sum with a constant
    is never -0, and is returned as it is."""
    held = e.a.a if isinstance(e, Binary) and isinstance(e.a, Binary) else e
    return e if isinstance(held, Binary) else add(e, 0.0)


def _is_whole(e: Expr) -> bool:
    return isinstance(e, Const) and float(e.value).is_integer()
