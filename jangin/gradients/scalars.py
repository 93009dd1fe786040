"""Compute adjoints of scalar expressions. The adjoint of a subexpression is the derivative of the loss with
respect to its value.

The adjoint of a select is a select. It stays outermost, so that the branch that isn't taken adds 0, even if
its slope is infinite. At points with two slopes (corners), the slopes are PyTorch's. `corner` names an
operator's convention for corners (see `ir.core.Map`)."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping

from jangin.ir.dtype import BOOL, DType
from jangin.ir.expr import (
    Binary,
    Call,
    Cast,
    Const,
    Expr,
    Select,
    call,
    cast,
    const,
    eq,
    is_const,
    land,
    lor,
    ne,
    select,
)
from jangin.ir.expr import binary as operation
from jangin.ir.flat import postorder
from jangin.ir.graph import CompileError
from jangin.ir.traversal import buffers_loaded, children, free_vars

Slope = Callable[[Expr, Expr], Expr]
"""A function that returns the derivative of another, given the argument and the other's value."""
FUNCTIONS: Mapping[str, Slope] = {
    "neg": lambda x, y: const(-1, x.dtype),
    "abs": lambda x, y: call("sign", x),
    "exp": lambda x, y: y,
    "exp2": lambda x, y: y * math.log(2),
    "expm1": lambda x, y: y + 1.0,
    "log": lambda x, y: 1.0 / x,
    "log2": lambda x, y: 1.0 / (x * math.log(2)),
    "log1p": lambda x, y: 1.0 / (x + 1.0),
    "sqrt": lambda x, y: 0.5 / y,
    "rsqrt": lambda x, y: y * y * y * -0.5,
    "sin": lambda x, y: call("cos", x),
    "cos": lambda x, y: -call("sin", x),
    "tan": lambda x, y: y * y + 1.0,
    "asin": lambda x, y: 1.0 / call("sqrt", 1.0 - x * x),
    "acos": lambda x, y: -1.0 / call("sqrt", 1.0 - x * x),
    "atan": lambda x, y: 1.0 / (x * x + 1.0),
    "sinh": lambda x, y: call("cosh", x),
    "cosh": lambda x, y: call("sinh", x),
    "tanh": lambda x, y: 1.0 - y * y,
    "asinh": lambda x, y: 1.0 / call("sqrt", x * x + 1.0),
    "acosh": lambda x, y: 1.0 / call("sqrt", x * x - 1.0),
    "atanh": lambda x, y: 1.0 / (1.0 - x * x),
    "sigmoid": lambda x, y: y * (1.0 - y),
    "erf": lambda x, y: call("exp", -(x * x)) * (2 / math.sqrt(math.pi)),
    "rounded": lambda x, y: const(1, x.dtype),
}
FLAT = frozenset({"sign", "floor", "ceil", "round", "trunc"})
"""Functions whose derivative is 0 wherever it exists."""
Parts = Iterator[tuple[Expr, Expr]]
_TRUE, _FALSE = const(True, BOOL), const(False, BOOL)


def adjoints(e: Expr, seed: Expr, leaves: Collection[Expr], corner: str | None = None) -> dict[Expr, Expr]:
    """Return the adjoints of the `leaves` (variables or loads) on which `e` depends differentiably. `seed` is
    the adjoint of `e`. Raises CompileError for an operation without a known derivative."""
    order = postorder(e)
    smooth: set[Expr] = set()
    for node in order:
        below = not smooth.isdisjoint(children(node)) and not _is_flat(node)
        if node.dtype.is_float and (node in leaves or below):
            smooth.add(node)
    adjoints = {e: seed} if e in smooth else {}
    for node in reversed(order):
        if node in adjoints and node not in leaves:
            for kid, part in _parts(node, adjoints[node], corner):
                if kid in smooth:
                    adjoints[kid] = added(adjoints[kid], part) if kid in adjoints else part
    return {leaf: adjoints[leaf] for leaf in leaves if leaf in adjoints}


def through(adjoint: Expr, fn: Callable[[Expr], Expr]) -> Expr:
    """Return `fn` of an adjoint, applied inside its selects. `fn` keeps the type. An adjoint of 0 stays 0."""
    if isinstance(adjoint, Select):
        return select(adjoint.cond, through(adjoint.a, fn), through(adjoint.b, fn))
    return adjoint if is_const(adjoint, 0) else fn(adjoint)


def converted(adjoint: Expr, dtype: DType) -> Expr:
    """Return an adjoint in another type, an adjoint of 0 too."""
    if is_const(adjoint, 0):
        return const(0, dtype)
    if isinstance(adjoint, Select):
        return select(adjoint.cond, converted(adjoint.a, dtype), converted(adjoint.b, dtype))
    return cast(dtype, adjoint)


def scaled(adjoint: Expr, slope: Expr) -> Expr:
    """Return an adjoint times a slope. The selects of both stay outermost."""
    return through(slope, lambda s: through(adjoint, lambda g: g if is_const(s, 1) else g * s))


def added(a: Expr, b: Expr) -> Expr:
    """Return the sum of two adjoints. Two selects with the same condition are added branch by branch."""
    if is_const(a, 0):
        return b
    if is_const(b, 0):
        return a
    if isinstance(a, Select) and isinstance(b, Select) and a.cond == b.cond:
        return select(a.cond, added(a.a, b.a), added(a.b, b.b))
    return a + b


def _is_flat(node: Expr) -> bool:
    return isinstance(node, Call) and node.fn in FLAT


def _parts(node: Expr, g: Expr, corner: str | None) -> Parts:
    """Yield each child of a node with its part of the node's adjoint."""
    if isinstance(node, Select):
        zero = const(0, g.dtype)
        yield node.a, select(node.cond, g, zero)
        yield node.b, select(node.cond, zero, g)
    elif isinstance(node, Cast):
        yield node.a, converted(g, node.a.dtype)
    elif isinstance(node, Binary):
        yield from _of_binary(node, g, corner)
    elif isinstance(node, Call):
        yield from _of_call(node, g, corner)
    else:
        raise CompileError(f"there is no rule for the derivative of {node}")


def _of_call(node: Call, g: Expr, corner: str | None) -> Parts:
    if node.fn == "fma":
        a, b, c = node.args
        yield a, scaled(g, b)
        yield b, scaled(g, a)
        yield c, g
    elif node.fn == "atan2":
        y, x = node.args
        square, zero = x * x + y * y, const(0, g.dtype)
        for of, part in ((y, x), (x, -y)):
            yield of, scaled(g, select(eq(square, zero), zero, part / square))
    elif node.fn == "sqrt" and corner == "flat":
        zero = const(0, g.dtype)
        yield node.args[0], select(eq(node, zero), zero, through(g, lambda v: v * 0.5 / node))
    elif node.fn in FUNCTIONS:
        yield node.args[0], scaled(g, FUNCTIONS[node.fn](node.args[0], node))
    else:
        raise CompileError(f"there is no rule for the derivative of {node.fn}")


def _of_binary(node: Binary, g: Expr, corner: str | None) -> Parts:
    a, b = node.a, node.b
    if node.op in ("add", "sub"):
        yield a, g
        yield b, g if node.op == "add" else through(g, lambda v: -v)
    elif node.op == "mul":
        yield a, scaled(g, b)
        yield b, scaled(g, a)
    elif node.op == "div":
        yield a, through(g, lambda v: v / b)
        yield b, through(g, lambda v: -v * node / b)
    elif node.op in ("min", "max"):
        yield from _of_extreme(node, g, corner)
    elif node.op == "pow":
        yield from _of_power(node, g, corner)
    elif node.op in ("mod", "rem"):
        turns = call("floor" if node.op == "mod" else "trunc", a / b)
        yield a, g
        yield b, through(g, lambda v: -v * turns)
    else:
        raise CompileError(f"there is no rule for the derivative of {node.op}")


def _of_extreme(node: Binary, g: Expr, corner: str | None) -> Parts:
    """Yield the operands of a min or max with their parts of its adjoint.

    The operand that is the extreme has the whole adjoint. If both are equal, the parts depend on `corner`:

    - With "inside", the first operand has the adjoint, because a clamp's bounds are second operands.
    - With "shared", each operand has half.
    - By default two tensors have half each. If one operand is constant, the other has none, so that relu is
      flat at 0."""
    a, b, zero = node.a, node.b, const(0, g.dtype)
    beyond = operation("gt" if node.op == "max" else "lt", a, b)
    shared = corner == "shared" or not (is_number(a) or is_number(b))
    if corner == "inside":
        held = operation("lt" if node.op == "max" else "gt", a, b)
        yield a, select(held, zero, g)
        yield b, select(held, g, zero)
    elif shared:
        half = through(g, lambda v: v * 0.5)
        less = operation("lt" if node.op == "max" else "gt", a, b)
        yield a, select(beyond, g, select(less, zero, half))
        yield b, select(less, g, select(beyond, zero, half))
    elif is_number(b):
        yield a, select(operation("le" if node.op == "max" else "ge", node, b), zero, g)
    else:
        yield b, select(operation("le" if node.op == "max" else "ge", node, a), zero, g)


def is_number(e: Expr) -> bool:
    """Tell if an expression depends only on sizes and positions."""
    return not buffers_loaded(e) and not any(v.dtype.is_float for v in free_vars(e))


def _of_power(node: Binary, g: Expr, corner: str | None) -> Parts:
    """Yield the operands of a power with their parts of its adjoint.

    The derivative of x ** 0 with respect to x is 0. The derivative of 0 ** y with respect to y is 0 if y
    isn't negative. With "flat", the derivative with respect to a base of 0 is 0 too."""
    a, b, zero, none = node.a, node.b, const(0, node.dtype), const(0, g.dtype)
    slope = through(g, lambda v: v * (b * operation("pow", a, b - 1.0)))
    slope = select(eq(a, zero), none, slope) if corner == "flat" else slope
    if isinstance(b, Const):
        yield a, none if is_const(b, 0) else slope
        return
    yield a, select(eq(b, zero), none, slope)
    growing = lor(ne(a, zero), b < zero)
    yield b, select(growing, through(g, lambda v: v * (node * call("log", a))), none)


def reached(e: Expr, leaf: Expr) -> Expr:
    """Return the condition under which an expression's value needs a leaf, given the expression's selects."""
    met: dict[Expr, Expr] = {}
    for node in postorder(e):
        if node == leaf:
            met[node] = _TRUE
        elif isinstance(node, Select):
            cond, a, b = (met[k] for k in (node.cond, node.a, node.b))
            met[node] = lor(cond, lor(land(node.cond, a), land(call("not", node.cond), b)))
        else:
            total: Expr = _FALSE
            for kid in children(node):
                total = lor(total, met[kid])
            met[node] = total
    return met[e]
