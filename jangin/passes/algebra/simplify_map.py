"""Simplification of maps: their operands and their scalar bodies."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from math import frexp, isfinite

import numpy as np

from jangin.ir.arithmetic import apply, convert
from jangin.ir.core import Expand, Map, Reshape, Transpose
from jangin.ir.dtype import BF16, BOOL, F16, F32, F64, I32, I64, DType
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Var, binary, call, cast, const, is_const
from jangin.ir.graph import Array, Node, Shape
from jangin.ir.traversal import children, free_vars, rewrite, substitute
from jangin.ops.operands import broadcast
from jangin.passes.algebra.rules import State

Result = Node | str | None

LARGEST = 100
"""Most expression nodes of a map into which two maps are merged. Fusion handles longer ones, and cuts
them."""


def _operands(s: State, node: Node) -> Result:
    """Turn constants of one element into parts of the body, leave expansions to broadcasting, and drop unused
    and repeated operands."""
    body = node.of(Map).body
    used = {v.name for v in free_vars(body)}
    values: dict[Var, Expr] = {}
    inputs: list[str] = []
    for i, name in enumerate(node.inputs):
        var, name = Var(f"x{i}", s.dtype(name)), _unexpanded(s, name)
        array = s.constants.get(name)
        if var.name not in used:
            continue
        if array is not None and array.size == 1:
            values[var] = immediate(array, var.dtype)
            continue
        if name not in inputs:
            inputs.append(name)
        values[var] = Var(f"x{inputs.index(name)}", var.dtype)
    if tuple(inputs) == node.inputs:
        return None
    return _rebuilt(s, node, inputs, substitute(body, values))


def _rebuilt(s: State, node: Node, inputs: list[str], body: Expr) -> Result:
    """Return the map with other operands, expanded if these no longer span the result."""
    shape = s.shape(node.outputs[0])
    spanned = broadcast(*(s.shape(n) for n in inputs))
    if spanned == shape:
        return replace(node, inputs=tuple(inputs), attrs=Map(body))
    narrow = s.add(Map(body), inputs, node.name, node.source)
    return replace(node, inputs=(narrow,), attrs=Expand(shape))


def _unexpanded(s: State, name: str) -> str:
    expand = s.producer(name, Expand)
    return name if expand is None else expand.inputs[0]


def immediate(array: Array, dtype: DType) -> Const:
    """Return the only element of a constant tensor, as a constant expression."""
    value = array.reshape(-1)[0]
    if dtype.is_float:
        return const(float(value), dtype)
    return const(bool(value) if dtype is BOOL else int(value), dtype)


def _identity(s: State, node: Node) -> Result:
    """Remove a map that returns its only operand."""
    if len(node.inputs) != 1 or node.of(Map).body != Var("x0", s.dtype(node.inputs[0])):
        return None
    (x,), shape = node.inputs, s.shape(node.outputs[0])
    return x if s.shape(x) == shape else replace(node, attrs=Expand(shape))


def _simpler(s: State, node: Node) -> Result:
    """Return the same map with a simpler body."""
    fixed = {f"x{i}" for i, n in enumerate(node.inputs) if n in s.constants}
    body = simplify_body(node.of(Map).body, fixed)
    return None if body == node.of(Map).body else replace(node, attrs=Map(body))


def _precomputed(s: State, node: Node) -> Result:
    """Compute parts of the body that only read constants, if the results are no larger than their operands.

    An int32 isn't widened to int64 in memory. A product of two widened int32 takes one instruction, which is
    lost for int64 operands in memory.
    """
    operands = {f"x{i}": n for i, n in enumerate(node.inputs)}
    constant_part: Expr | None = None
    for part in _parts(node.of(Map).body):
        names = {v.name for v in free_vars(part)}
        if isinstance(part, Cast) and part.dtype is I64 and part.a.dtype is I32:
            continue
        if children(part) and names and all(operands.get(n) in s.constants for n in names):
            arrays = [s.constants[operands[n]] for n in names]
            spanned = np.broadcast_shapes(*(a.shape for a in arrays))
            if np.prod(spanned, dtype=float) <= max(a.size for a in arrays):
                constant_part = part
                break
    if constant_part is None:
        return None
    value = evaluate(
        constant_part, {n: s.constants[operands[n]] for n in {v.name for v in free_vars(constant_part)}}
    )
    name = s.constant(np.asarray(value), f"{node.name}.const")
    var = Var(f"x{len(node.inputs)}", constant_part.dtype)
    body = rewrite(node.of(Map).body, lambda n: var if n == constant_part else None)
    return replace(node, inputs=(*node.inputs, name), attrs=Map(body))


def _parts(e: Expr) -> list[Expr]:
    """Return all sub-expressions, larger ones first."""
    seen: dict[Expr, None] = {}
    stack = [e]
    while stack:
        n = stack.pop()
        if n not in seen:
            seen[n] = None
            stack.extend(children(n))
    return list(seen)


def _composed(s: State, node: Node) -> Result:
    """Merge consecutive maps of integer arithmetic with constants, and a cast of a cast.

    The maps aren't merged if other nodes read the intermediate value too, unless it is a lossless cast.
    Fusion handles all other consecutive maps; floats are rounded between them.
    """
    body = node.of(Map).body
    for i, name in enumerate(node.inputs):
        inner = s.producer(name, Map)
        if inner is None or s.shape(name) != s.shape(node.outputs[0]):
            continue
        var = Var(f"x{i}", s.dtype(name))
        others = [n for k, n in enumerate(node.inputs) if k != i]
        chain = s.single_use(name) and _scales(s, inner) and _scales(s, node) and _all_constant(s, others)
        first = inner.of(Map).body
        widens = isinstance(first, Cast) and isinstance(first.a, Var) and is_exact(first.a.dtype, first.dtype)
        alone = s.single_use(name) or widens
        casts = len(inner.inputs) == 1 and isinstance(first, Cast) and alone and _is_cast_of(body, var)
        if not chain and not casts:
            continue
        count = len(node.inputs)
        shifted: dict[Var, Expr] = {
            Var(f"x{k}", s.dtype(n)): Var(f"x{count + k}", s.dtype(n)) for k, n in enumerate(inner.inputs)
        }
        whole = substitute(body, {var: substitute(inner.of(Map).body, shifted)})
        if whole.size > LARGEST:
            continue
        return replace(node, inputs=(*node.inputs, *inner.inputs), attrs=Map(whole))
    return None


def _of_moved(s: State, node: Node) -> Result:
    """Move a map before a transpose and reshape of its operand. The reshape then comes last, and the map is
    computed as the elements move.

    The other operands must span only axes that the reshape left alone.
    """
    for i, name in enumerate(node.inputs):
        shaped = s.producer(name, Reshape)
        if not shaped or not s.single_use(name) or s.shape(name) != s.shape(node.outputs[0]):
            continue
        if not _is_moved(s, shaped.inputs[0]):
            continue
        before, after = s.shape(shaped.inputs[0]), s.shape(name)
        alike = [a == b for a, b in zip(reversed(before), reversed(after), strict=False)]
        same = alike.index(False) if False in alike else len(alike)
        spans = [_spanned(s, n) for n in node.inputs]
        if any(len(own) > same for k, own in enumerate(spans) if k != i):
            continue
        inputs = [
            shaped.inputs[0] if k == i else s.reshaped(n, spans[k], node) for k, n in enumerate(node.inputs)
        ]
        inner = s.add(node.of(Map), inputs, f"{node.name}.moved", node.source)
        return replace(node, inputs=(inner,), attrs=Reshape(after))
    return None


def _is_moved(s: State, name: str) -> bool:
    """Return whether a value with a single reader is a transpose, or maps of one."""
    inner = s.producer(name, Map)
    if not s.single_use(name) or inner is None:
        return s.single_use(name) and s.producer(name, Transpose) is not None
    return any(_is_moved(s, n) for n in inner.inputs if s.shape(n) == s.shape(name))


def _spanned(s: State, name: str) -> Shape:
    """Return a shape without the leading axes of size 1."""
    shape = s.shape(name)
    return shape[next((d for d, n in enumerate(shape) if not is_const(n, 1)), len(shape)) :]


def _scales(s: State, node: Node) -> bool:
    """Return whether a map only adds, subtracts, multiplies or divides integers by constants."""
    varying = [n for n in node.inputs if n not in s.constants]
    arithmetic = all(
        e.dtype.is_int
        and (isinstance(e, (Var, Const)) or (isinstance(e, Binary) and e.op in ("add", "sub", "mul", "div")))
        for e in _parts(node.of(Map).body)
    )
    return len(varying) == 1 and arithmetic


def _all_constant(s: State, names: Collection[str]) -> bool:
    return all(n in s.constants for n in names)


def _is_cast_of(body: Expr, var: Var) -> bool:
    return isinstance(body, Cast) and body.a == var and isinstance(body.a, Var)


MAP_RULES: tuple[Callable[[State, Node], Result], ...] = (
    _operands,
    _simpler,
    _identity,
    _composed,
    _precomputed,
    _of_moved,
)


# --- scalar bodies ---------------------------------------------------------------------------


def evaluate(e: Expr, values: Mapping[str, Array]) -> Array:
    """Return the value of a body for its operands' arrays, which broadcast."""
    with np.errstate(all="ignore"):
        return _evaluate(e, values)


def _evaluate(e: Expr, values: Mapping[str, Array]) -> Array:
    if isinstance(e, Const):
        return np.asarray(convert(e.value, e.dtype))
    if isinstance(e, Var):
        return values[e.name]
    kids = tuple(_evaluate(k, values) for k in children(e))
    if isinstance(e, Cast):
        return np.asarray(convert(kids[0], e.dtype))
    if isinstance(e, (Binary, Call)):
        return np.asarray(apply(e.op if isinstance(e, Binary) else e.fn, kids, e.dtype))
    return np.where(*kids)


def simplify_body(body: Expr, fixed: Collection[str] = ()) -> Expr:
    """Return an equal scalar expression with constants folded.

    Constant factors and terms of integers are gathered, and powers and casts simplified. `fixed` names the
    operands that are constants.
    """

    def step(e: Expr) -> Expr | None:
        if children(e) and all(isinstance(k, Const) for k in children(e)):
            return immediate(evaluate(e, {}), e.dtype)
        if isinstance(e, Cast):
            return _cast(e)
        return _binary(e, fixed) if isinstance(e, Binary) else None

    return rewrite(body, step)


def _binary(e: Binary, fixed: Collection[str]) -> Expr | None:
    if e.op in ("add", "mul"):
        turned = _is_fixed(e.a, fixed) and not _is_fixed(e.b, fixed)
        plain = binary(e.op, e.b, e.a) if turned else e
        return plain if e.dtype.is_float else _gathered(plain, fixed)
    if not isinstance(e.b, Const) or not e.dtype.is_float:
        return None
    power = float(e.b.value)
    if e.op == "div" and isfinite(power) and abs(frexp(power)[0]) == 0.5 and 2**-60 < abs(power) < 2**60:
        return binary("mul", e.a, const(1.0 / power, e.dtype)) if e.dtype in (F32, F64) else None
    if e.op == "pow" and power in (1.0, 2.0, 3.0):
        square = binary("mul", e.a, e.a)
        return e.a if power == 1 else square if power == 2 else binary("mul", square, e.a)
    return None


def _is_fixed(e: Expr, fixed: Collection[str]) -> bool:
    return all(v.name in fixed for v in free_vars(e))


def _gathered(e: Expr, fixed: Collection[str]) -> Expr:
    """Return (x op k) op c as x op (k op c) for constants k and c, and other expressions unchanged.

    Both are equal for integers, which wrap around; floats would be rounded once instead of twice.
    """
    if not isinstance(e, Binary):
        return e
    inner = e.a
    if not (isinstance(inner, Binary) and inner.op == e.op and _is_fixed(e.b, fixed)):
        return e
    if not _is_fixed(inner.b, fixed) or _is_fixed(inner.a, fixed):
        return e
    joint = simplify_body(binary(e.op, inner.b, e.b), fixed)
    return _gathered(binary(e.op, inner.a, joint), fixed)


def _cast(e: Cast) -> Expr | None:
    """Simplify a lossless cast of a cast, and ignore the sign of 0 in a cast to integers. Return None if
    there is nothing to simplify."""
    inner = e.a
    if isinstance(inner, Cast) and is_exact(inner.a.dtype, inner.dtype):
        return cast(e.dtype, inner.a)
    plain = _unsigned(inner) if e.dtype.is_int else inner
    return None if plain is inner else cast(e.dtype, plain)


def _unsigned(e: Expr) -> Expr:
    """Return a float expression without additions of 0, for a use that ignores the sign of 0. Adding 0 only
    turns -0 into 0."""
    if isinstance(e, Call) and e.fn in ("round", "floor", "ceil", "trunc"):
        return call(e.fn, _unsigned(e.args[0]))
    if not (isinstance(e, Binary) and isinstance(e.b, Const)):
        return e
    if e.op == "add" and e.b.value == 0:
        return _unsigned(e.a)
    counts = e.op not in ("add", "sub", "mul", "div", "min", "max") or (e.op == "div" and e.b.value == 0)
    return e if counts else binary(e.op, _unsigned(e.a), e.b)


_SIGNIFICANT: Mapping[DType, int] = {F64: 53, F32: 24, F16: 11, BF16: 8}


def is_exact(source: DType, target: DType) -> bool:
    """Return whether every value of `source` is a value of `target`."""
    if source == target or source is BOOL:
        return True
    if target is BOOL:
        return False
    if source.is_float:
        wider = target.is_float and _SIGNIFICANT.get(target, 0) >= _SIGNIFICANT.get(source, 8)
        return wider and target is not F16  # f16 has a smaller range than bf16 and e8m0
    if target.is_float:
        return _SIGNIFICANT.get(target, 0) >= source.bits
    signed = source.kind == "i"
    if target.kind == "u" and signed:
        return False
    return target.bits > source.bits or (target.bits == source.bits and target.kind == source.kind)
