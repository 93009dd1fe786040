"""The reference: runs the IRs plainly in NumPy. (Graphs are run by `ops.interpret`, which knows the
operators.)

`evaluate_stage` computes a tensor expression over whole index grids. `run_func` steps through a loop nest one
element at a time and checks every access. `run_plan` runs a plan's nests in order. Division by zero and
overflow give the hardware's results, without warnings."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np

from jangin.ir.arithmetic import apply, convert, reduce
from jangin.ir.checks import IN_RANGE, Check, failure
from jangin.ir.dtype import F32, F64, I64
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Load, Select, Var
from jangin.ir.graph import Array, CompileError
from jangin.ir.integers import INTEGER_OPS
from jangin.ir.loop import Alloc, Block, For, Func, If, Let, Prefetch, Stmt, Store
from jangin.ir.plan import Launch, Plan, PlanBuffer
from jangin.ir.simplify import Range
from jangin.ir.te import Axis, Stage, identity
from jangin.ir.traversal import children
from jangin.ir.words import COMPARE, INFIX

GRID_LIMIT = 1 << 22
"""`evaluate_stage` computes at most this many grid points at once. Each intermediate array then has at most
32 MiB of i64."""

Env = dict[str, Any]
Code = Callable[[Env], Any]
Arrays = Mapping[str, Array]


def size(e: Expr, symbols: Mapping[str, int]) -> int:
    """Return the integer value of a dimension, given the symbols' values by name. Raises CompileError if one
    is missing."""
    if isinstance(e, Const):
        return int(e.value)
    try:
        return int(_scalar(e, {})(dict(symbols)))
    except KeyError as missing:
        raise CompileError(
            f"the size {e} needs a value of the symbol {missing}: give it with shapes="
        ) from None


def bind_symbols(
    shapes: Sequence[tuple[str, Sequence[Expr], Sequence[int]]], ranges: Mapping[Var, Range]
) -> dict[str, int]:
    """Return symbol values by name, from triples (name, declared shape, actual shape). Every dimension and
    range is checked. Raises CompileError if one doesn't fit."""
    sizes: dict[str, int] = {}
    for name, declared, actual in shapes:
        if len(declared) != len(actual):
            raise CompileError(f"{name}: expected rank {len(declared)}, got shape {tuple(actual)}")
        for d, n in zip(declared, actual, strict=True):
            if isinstance(d, Var):
                sizes.setdefault(d.name, n)
    for name, declared, actual in shapes:
        for d, n in zip(declared, actual, strict=True):
            if size(d, sizes) != n:
                want = ", ".join(map(str, declared))
                raise CompileError(f"{name}: expected shape [{want}], got {tuple(actual)}")
    for var, (lo, hi) in ranges.items():
        value = sizes.get(var.name)
        if value is None:
            raise CompileError(f"symbol {var}: no input has it as a dimension")
        if (lo is not None and value < size(lo, sizes)) or (hi is not None and value > size(hi, sizes)):
            raise CompileError(f"symbol {var} = {value} is outside its range {lo}..{hi}")
    return sizes


# --- whole grids -----------------------------------------------------------------------------


def evaluate_stage(stage: Stage, arrays: Arrays, symbols: Mapping[str, int]) -> Array:
    """Return the stage's output. `arrays` has every loaded buffer by name. An index outside its array is
    clipped: only a lazy Select may contain such a load, and it drops the loaded value."""
    extents = [size(a.extent, symbols) for a in (*stage.axes, *stage.reduce_axes)]
    out = np.empty(extents[: len(stage.axes)], stage.out.dtype.numpy)
    whole = _transposed(stage, arrays, extents)
    if whole is not None:
        np.copyto(out, whole, casting="no")
    elif out.size:
        with np.errstate(all="ignore"):
            _fill(stage, arrays, symbols, [(0, n) for n in extents], out)
    return out


def _transposed(stage: Stage, arrays: Arrays, extents: Sequence[int]) -> Array | None:
    """Return a transposed array if the stage only transposes, else None. Large weights are computed quickly
    this way."""
    body, axes = stage.body, [a.var for a in stage.axes]
    if stage.reduce_axes or not isinstance(body, Load) or body.dtype is not stage.out.dtype:
        return None
    if len(body.index) != len(axes) or {*body.index} != {*axes}:
        return None
    turned = arrays[body.buffer.name].transpose([body.index.index(v) for v in axes])
    return turned if turned.shape == (*extents,) else None


def _fill(
    stage: Stage, arrays: Arrays, symbols: Mapping[str, int], ranges: list[tuple[int, int]], out: Array
) -> None:
    """Compute the part of `out` that `ranges` covers. An output axis is halved while the part has too many
    points."""
    outer = len(stage.axes)
    points = int(np.prod([float(hi - lo) for lo, hi in ranges]))
    longest = max(range(outer), key=lambda d: ranges[d][1] - ranges[d][0], default=-1)
    if points > GRID_LIMIT and longest >= 0 and ranges[longest][1] - ranges[longest][0] > 1:
        lo, hi = ranges[longest]
        for part in ((lo, (lo + hi) // 2), ((lo + hi) // 2, hi)):
            _fill(stage, arrays, symbols, [*ranges[:longest], part, *ranges[longest + 1 :]], out)
        return
    shape = tuple(hi - lo for lo, hi in ranges)
    value: Any = None
    if points:
        value = _on_grid(stage.body, (*stage.axes, *stage.reduce_axes), ranges, arrays, symbols)
    if stage.reduce_axes:
        initial = identity(stage.combiner, stage.body.dtype).value
        acc = np.full(shape[:outer], initial, stage.body.dtype.numpy)  # the result for no terms
        if points:
            full = np.broadcast_to(value, shape)
            acc = reduce(stage.combiner, full, tuple(range(outer, len(shape))), initial, stage.body.dtype)
        extra = {stage.acc.name: acc}
        value = _on_grid(stage.result, stage.axes, ranges[:outer], arrays, symbols, extra)
    out[tuple(slice(lo, hi) for lo, hi in ranges[:outer])] = convert(value, stage.out.dtype)


def _on_grid(
    e: Expr,
    axes: Sequence[Axis],
    ranges: Sequence[tuple[int, int]],
    arrays: Arrays,
    symbols: Mapping[str, int],
    extra: Mapping[str, Any] | None = None,
) -> Any:
    """Return the value of `e` at every point of a grid, in a shape that broadcasts to it. Axis d of the grid
    is `axes[d]`, and `extra` has the values of more names."""
    env: Env = {k: np.int64(v) for k, v in symbols.items()} | dict(extra or {})
    for d, (axis, (lo, hi)) in enumerate(zip(axes, ranges, strict=True)):
        env[axis.var.name] = np.arange(lo, hi).reshape([-1 if k == d else 1 for k in range(len(axes))])
    memo: dict[Expr, Any] = {}
    grid = {axis.var: (d, lo, hi) for d, (axis, (lo, hi)) in enumerate(zip(axes, ranges, strict=True))}

    def go(n: Expr) -> Any:
        if n not in memo:
            memo[n] = step(n)
        return memo[n]

    def step(n: Expr) -> Any:
        if isinstance(n, Const):
            return convert(n.value, n.dtype)
        if isinstance(n, Var):
            return env[n.name]
        if isinstance(n, Load) and (part := _part(n, arrays[n.buffer.name], grid)) is not None:
            return part
        kids = tuple(go(k) for k in children(n))
        if isinstance(n, Load):
            return _gather(arrays[n.buffer.name], kids)
        if isinstance(n, Select):
            return np.where(*kids)
        if isinstance(n, Cast):
            return convert(kids[0], n.dtype)
        assert isinstance(n, (Binary, Call))
        return apply(n.op if isinstance(n, Binary) else n.fn, kids, n.dtype)

    return go(e)


def _part(load: Load, array: Array, grid: Mapping[Var, tuple[int, int, int]]) -> Array | None:
    """Return the loaded elements as a view of the array. Its axes must be a grid's, in the same order, or be
    read at 0. Return None for any other load. `grid` has the number, first and last index of each axis."""
    shape, at, last = [1] * len(grid), [], -1
    for index, extent in zip(load.index, array.shape, strict=True):
        d, lo, hi = grid.get(index, (-1, 0, 1)) if isinstance(index, Var) else (-1, 0, 1)
        if d > last and hi <= extent:
            shape[d], last = hi - lo, d
        elif extent < 1 or not (isinstance(index, Const) and index.value == 0):
            return None
        at.append(slice(lo, hi))
    return array[tuple(at)].reshape(shape)


def _gather(array: Array, index: tuple[Any, ...]) -> Any:
    if not index:
        return array
    if array.size == 0:
        return np.zeros(np.broadcast_shapes(*(np.shape(i) for i in index)), array.dtype)
    return array[tuple(np.clip(i, 0, n - 1) for i, n in zip(index, array.shape, strict=True))]


# --- loop nests ------------------------------------------------------------------------------


def run_func(func: Func, arrays: dict[str, Array], symbols: Mapping[str, int]) -> None:
    """Run a kernel, one element at a time, and store its results in the arrays of its outputs. Scratch and
    register buffers start as NaN (integers as a conspicuous pattern).

    Raises IndexError, which names the buffer and the index, for an access outside its buffer."""
    sizes = dict(symbols)
    for p in func.params:
        want = tuple(size(d, sizes) for d in p.shape)
        array = arrays[p.name]
        if array.shape != want or array.dtype != p.dtype.numpy:
            raise CompileError(
                f"{func.name}: {p.name} must be {p.dtype}{list(want)}, got {array.dtype}{list(array.shape)}"
            )
    local = dict(arrays)
    with np.errstate(all="ignore"):
        _statement(func.body, local)(dict(sizes))


def _statement(s: Stmt, arrays: dict[str, Array]) -> Code:
    if isinstance(s, Block):
        parts = [_statement(k, arrays) for k in s.body]

        def sequence(env: Env) -> None:
            for part in parts:
                part(env)

        return sequence
    if isinstance(s, For):
        return _loop(s, arrays)
    if isinstance(s, Store):
        return _store(s, arrays)
    if isinstance(s, Prefetch):
        return lambda env: None
    if isinstance(s, Alloc):
        return _alloc(s, arrays)
    if isinstance(s, If):
        cond, then = _scalar(s.cond, arrays), _statement(s.then, arrays)
        orelse = _statement(s.orelse, arrays) if s.orelse is not None else lambda env: None
        return lambda env: then(env) if cond(env) else orelse(env)
    assert isinstance(s, Let)
    name, value, body = s.var.name, _scalar(s.value, arrays), _statement(s.body, arrays)

    def let(env: Env) -> None:
        env[name] = value(env)
        body(env)

    return let


def _loop(s: For, arrays: dict[str, Array]) -> Code:
    name, extent, body = s.var.name, _scalar(s.extent, arrays), _statement(s.body, arrays)

    def loop(env: Env) -> None:
        for i in range(extent(env)):
            env[name] = i
            body(env)

    return loop


def _store(s: Store, arrays: dict[str, Array]) -> Code:
    at, value, name = _checked_index(s.buffer, s.index, arrays), _scalar(s.value, arrays), s.buffer.name

    def store(env: Env) -> None:
        arrays[name][at(env)] = value(env)

    return store


def _alloc(s: Alloc, arrays: dict[str, Array]) -> Code:
    buffer, body = s.buffer, _statement(s.body, arrays)
    shape = [_scalar(d, arrays) for d in buffer.shape]

    def alloc(env: Env) -> None:
        arrays[buffer.name] = undefined(tuple(d(env) for d in shape), buffer.dtype.numpy)
        body(env)

    return alloc


def undefined(shape: tuple[int, ...], dtype: Any) -> Array:
    """Return an array filled with NaN, or with a conspicuous pattern, like memory before it is written."""
    count = int(np.prod(shape)) * dtype.itemsize
    fill = 0 if dtype == np.bool_ else 0xFF if dtype.kind not in "iu" else 0x6B
    undefined: Array = np.full(count, fill, np.uint8).view(dtype).reshape(shape)
    return undefined


def _checked_index(buffer: Buffer, index: tuple[Expr, ...], arrays: dict[str, Array]) -> Code:
    """Return code that computes the index tuple of an access and checks it."""
    name = buffer.name
    indices = _tuple(index, arrays)

    def checked(env: Env) -> tuple[int, ...]:
        at = indices(env)
        shape = arrays[name].shape
        inside = len(at) == len(shape)
        for i, n in zip(at, shape, strict=False):
            inside = inside and 0 <= i < n
        if not inside:
            raise IndexError(f"{name}[{', '.join(map(str, at))}] is outside its shape {shape}")
        return at

    return checked


def _tuple(index: tuple[Expr, ...], arrays: dict[str, Array]) -> Callable[[Env], tuple[int, ...]]:
    if all(map(_is_index, index)):
        return _python(f"({''.join(f'{_text(i)}, ' for i in index)})")
    parts = [_scalar(i, arrays) for i in index]
    return lambda env: tuple([p(env) for p in parts])


def _is_index(e: Expr, depth: int = 50) -> bool:
    """Return whether `_text` can write the expression. `depth` limits parentheses, as Python does."""
    if isinstance(e, Binary):
        known = depth > 0 and e.a.dtype == I64 and e.op in _PYTHON
        return known and _is_index(e.a, depth - 1) and _is_index(e.b, depth - 1)
    return e.dtype == I64 and isinstance(e, (Const, Var))


def _text(e: Expr, *, wraps: bool = True) -> str:
    """Return the expression as Python text. Without `wraps` its value is right modulo 2^64."""
    if isinstance(e, Const):
        return f"({int(e.value)})"
    if isinstance(e, Var):
        return f"env[{e.name!r}]"
    assert isinstance(e, Binary)
    if e.op in ("add", "sub", "mul"):
        text = f"({_text(e.a, wraps=False)} {INFIX[e.op]} {_text(e.b, wraps=False)})"
        return f"wrap{text}" if wraps else text
    if e.op in ("floordiv", "mod") and isinstance(e.b, Const) and int(e.b.value) > 0:
        return f"({_text(e.a)} {INFIX[e.op]} {_text(e.b)})"
    return f"{e.op}({_text(e.a)}, {_text(e.b)})"


@lru_cache(1 << 12)
def _python(text: str) -> Code:
    """Return a Python function of `env` that evaluates the text. A whole index tuple is one function, because
    a loop nest calls it millions of times."""
    code: Code = eval(f"lambda env: {text}", {**_PYTHON, "wrap": _wrap64})
    return code


def _scalar(e: Expr, arrays: dict[str, Array]) -> Code:
    """Return code for one value. The value is a Python integer for i64, else a NumPy scalar."""
    if isinstance(e, Binary) and _is_index(e):
        return _python(_text(e))
    if isinstance(e, Const):
        value = int(e.value) if e.dtype == I64 else convert(e.value, e.dtype)[()]
        return lambda env: value
    if isinstance(e, Var):
        name = e.name
        return lambda env: env[name]
    if isinstance(e, Load):
        at, buffer = _checked_index(e.buffer, e.index, arrays), e.buffer.name
        if e.dtype == I64:
            return lambda env: int(arrays[buffer][at(env)])
        return lambda env: arrays[buffer][at(env)]
    kids = [_scalar(k, arrays) for k in children(e)]
    dtype = e.dtype
    if isinstance(e, Select):
        cond, a, b = kids
        return lambda env: a(env) if cond(env) else b(env)
    if isinstance(e, Cast):
        only = kids[0]
        if dtype == I64:
            return lambda env: int(convert(only(env), I64))
        return lambda env: convert(only(env), dtype)[()]
    assert isinstance(e, (Binary, Call))
    quick = _quick(e)
    if quick is not None:
        a, b = kids
        return lambda env: quick(a(env), b(env))
    fn = e.op if isinstance(e, Binary) else e.fn
    if children(e)[0].dtype == I64:
        kids = [_boxed(k) for k in kids]

    def result(env: Env) -> Any:
        return apply(fn, tuple([k(env) for k in kids]), dtype)[()]

    return (lambda env: int(result(env))) if dtype == I64 else result


def _quick(e: Expr) -> Callable[[Any, Any], Any] | None:
    """Return a quick function for an operation that Python's or NumPy's numbers compute directly. Return None
    for any other operation."""
    if not isinstance(e, Binary):
        return None
    if e.a.dtype == I64:
        return _PYTHON.get(e.op)
    return _FLOAT.get(e.op) if e.a.dtype in (F32, F64) else None


def _boxed(code: Code) -> Code:
    """Return code that converts a Python integer to NumPy's i64, which wraps and has bit operations."""
    return lambda env: np.int64(code(env))


def _wrap64(n: int) -> int:
    return n if -(1 << 63) <= n < 1 << 63 else (n + (1 << 63)) % (1 << 64) - (1 << 63)


_PYTHON: Mapping[str, Callable[[int, int], Any]] = {
    "add": lambda a, b: _wrap64(a + b),
    "sub": lambda a, b: _wrap64(a - b),
    "mul": lambda a, b: _wrap64(a * b),
    "floordiv": lambda a, b: _wrap64(a // b) if b else 0,
    "mod": lambda a, b: a % b if b else 0,
    **{name: INTEGER_OPS[name] for name in ("min", "max", *COMPARE)},
}
"""i64 arithmetic on Python integers. Index expressions are most of a loop nest's work."""
_FLOAT: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
}
"""f32 and f64 arithmetic that NumPy's scalars compute directly."""


# --- plans -----------------------------------------------------------------------------------


def run_plan(plan: Plan, feeds: Arrays) -> dict[str, Array]:
    """Run a plan's kernels as loop nests, and return its outputs by name. Arena buffers with offsets share
    one block of memory, so that a planner's mistake shows.

    `feeds` aren't written. Raises IndexOutOfRange if a check fails."""
    inputs = [plan.buffer(n) for n in plan.inputs]
    symbols = bind_symbols([(b.name, b.shape, feeds[b.name].shape) for b in inputs], dict(plan.symbols))
    for rule in plan.constraints:
        if not size(rule, symbols):
            raise CompileError(f"{plan.name}: {rule} does not hold for {symbols}")
    arrays = _memory(plan, feeds, symbols)

    def launch(part: Sequence[Launch]) -> None:
        for one in part:
            func = plan.kernels[one.kernel]
            args = {p.name: arrays[a] for p, a in zip(func.params, one.args, strict=True)}
            values = [size(e, symbols) for e in one.symbols]
            run_func(func, args, {v.name: n for (v, _), n in zip(func.symbols, values, strict=True)})

    launch(plan.launches[: plan.tested])
    for check in plan.checks:
        check_indices(check, arrays[check.buffer], symbols)
    launch(plan.launches[plan.tested :])
    return {n: arrays[n].copy() for n in plan.outputs}


def check_indices(check: Check, found: Array, symbols: Mapping[str, int]) -> None:
    """Raise IndexOutOfRange if the check found an index out of range. `found` is the value of its buffer."""
    if int(found) != IN_RANGE:
        raise failure(check, int(found), lambda e: size(e, symbols))


def _memory(plan: Plan, feeds: Arrays, symbols: Mapping[str, int]) -> dict[str, Array]:
    shapes = {b.name: tuple(size(d, symbols) for d in b.shape) for b in plan.buffers}

    def count(b: PlanBuffer) -> int:
        return int(np.prod(shapes[b.name])) * b.dtype.numpy.itemsize

    placed = [b for b in plan.buffers if b.offset is not None]
    arena = np.full(
        max((b.offset + count(b) for b in placed if b.offset is not None), default=0), 0xFF, np.uint8
    )
    raw: dict[str, Array] = {}
    for b in plan.buffers:
        if b.kind in ("input", "constant"):
            source = feeds[b.name] if b.kind == "input" else plan.constants[b.name]
            raw[b.name] = np.frombuffer(bytearray(np.ascontiguousarray(source).tobytes()), np.uint8)
        elif b.offset is not None:
            raw[b.name] = arena[b.offset : b.offset + count(b)]
        elif b.kind != "alias":
            raw[b.name] = np.full(count(b), 0xFF, np.uint8)
    typed = {}
    for b in plan.buffers:
        memory = raw[b.base if b.kind == "alias" else b.name]
        typed[b.name] = memory[: count(b)].view(b.dtype.numpy).reshape(shapes[b.name])
    return typed
