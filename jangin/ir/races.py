"""Race detection in thread loops. A race means that two iterations may write one element, or that one may
read an element which the other writes.

Each access is followed by its place: the index tuple, evaluated for every thread and every iteration of the
inner loops. Values that are the same for all threads (a block's number, the round of a serial loop) cancel
out. An unknown value is left out together with everything that it can change: of `7*n + x` with unknown `n`,
`x` modulo 7 is known. A loop that is reported free of races therefore is."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from jangin.ir.arithmetic import apply
from jangin.ir.expr import Binary, Buffer, Call, Cast, Const, Expr, Select, Var, call, const
from jangin.ir.flat import postorder
from jangin.ir.graph import Array
from jangin.ir.loop import Alloc, For, If, Let, Stmt, Store, expressions, loop_range, sub_statements
from jangin.ir.records import dataclass
from jangin.ir.simplify import Monomial, Range, interval, prove, simplify, terms
from jangin.ir.traversal import buffers_loaded, children, conjuncts, free_vars, loads, substitute

POINTS = 1 << 18
"""At most this many iterations of all threads are evaluated. Their indices take 2 MiB of i64. Indices of
loops with more count as unknown."""
PERIODS = (2, 3, 4)
"""Periods that are tried for variables of loops around a thread loop. Buffers that are used alternately have
these periods."""
ROUNDS = 64
"""At most this many iterations of the outer loops are distinguished. Each one is a proof of its own, so more
would make compiling slow."""

Index = tuple[Expr, ...]
Ranges = Mapping[Var, Range]
Parts = Mapping[str, Expr]


@dataclass(frozen=True)
class Access:
    """An element that a thread accesses, under conditions, in the loops inside the thread loop."""

    buffer: Buffer
    index: Index
    stored: bool
    guards: tuple[Expr, ...]
    loops: tuple[For, ...]


def race(loop: For, ranges: Ranges) -> str | None:
    """Return a description of a race between two iterations of a thread loop, or None if there is no race.
    `ranges` has those of the symbols and of the outer loops' variables, outermost first."""
    every_access = list(dict.fromkeys(accesses(loop.body)))
    known: dict[Var, Range] = {**ranges, loop.var: loop_range(loop)}
    parts = [(a, _parts(a, known, loop.var)) for a in every_access]
    for store, known_of_store in parts:
        for other, known_of_other in parts if store.stored else ():
            if other.buffer.name != store.buffer.name:
                continue
            inside = {s.var for x in (store, other) for s in x.loops}
            if _same_thread(known_of_store, known_of_other, loop.var, inside):
                continue
            if _may_meet(store, other, loop, known):
                place = f"{store.buffer.name}[{', '.join(map(str, store.index))}]"
                if other.stored:
                    return f"two threads of loop {loop.var} may write one place: {place}"
                at = f"{other.buffer.name}[{', '.join(map(str, other.index))}]"
                return f"a thread of loop {loop.var} may read {at} while another writes {place}"
    return None


def accesses(s: Stmt) -> Iterator[Access]:
    """Yield the accesses of memory that exists longer than the statement, in program order. Names that are
    bound inside are replaced by their values."""
    return _accesses(s, {}, (), (), frozenset())


def _accesses(
    s: Stmt,
    values: Mapping[Var, Expr],
    guards: tuple[Expr, ...],
    loops: tuple[For, ...],
    own: frozenset[str],
) -> Iterator[Access]:
    for e in expressions(s):
        for n in loads(e):
            if n.buffer.name not in own and n.buffer.memory != "register":
                yield Access(n.buffer, _put_in(n.index, values), False, guards, loops)
    if isinstance(s, Store) and s.buffer.name not in own and s.buffer.memory != "register":
        yield Access(s.buffer, _put_in(s.index, values), True, guards, loops)
    elif isinstance(s, If):
        cond = substitute(s.cond, values)
        yield from _accesses(s.then, values, (*guards, cond), loops, own)
        if s.orelse is not None:
            yield from _accesses(s.orelse, values, (*guards, call("not", cond)), loops, own)
        return
    elif isinstance(s, Let):
        values = {**values, s.var: substitute(s.value, values)}
    elif isinstance(s, Alloc):
        own = own | {s.buffer.name}
    elif isinstance(s, For):
        loops = (*loops, s)
    for sub in sub_statements(s):
        yield from _accesses(sub, values, guards, loops, own)


def _put_in(index: Index, values: Mapping[Var, Expr]) -> Index:
    return tuple(substitute(i, values) for i in index)


# --- two accesses


def _may_meet(a: Access, b: Access, loop: For, known: Ranges) -> bool:
    if _apart(a, b, set(known) - {loop.var}, known):
        return False
    if not _meet(_places(a, loop, known), _places(b, loop, known)):
        return False
    a, b, rounds = _told_apart(a, b, known, loop.var)
    return rounds is None or any(
        _meet(_places(x, loop, known), _places(y, loop, known))
        for x, y in ((_at(a, r), _at(b, r)) for r in rounds)
    )


def _apart(a: Access, b: Access, same: set[Var], known: Ranges) -> bool:
    """Return whether two accesses can never be of the same element in the same run. Values that are the same
    for all threads must show this, in the indices or in the conditions."""

    def shared(found: Sequence[Expr]) -> list[Expr | None]:
        return [e if free_vars(e) <= same and not buffers_loaded(e) else None for e in found]

    def conditions(of: Access, holds: Callable[[Expr], Expr]) -> set[Expr]:
        return {simplify(holds(g), known) for g in shared(of.guards) if g is not None}

    for x, y in ((a, b), (b, a)):
        if conditions(x, lambda g: g) & conditions(y, lambda g: call("not", g)):
            return True
    known = _narrowed(known, [g for g in shared((*a.guards, *b.guards)) if g is not None])
    pairs = zip(shared(a.index), shared(b.index), strict=True)
    return any(
        x is not None and y is not None and (_below(x - y, known) or _below(y - x, known)) for x, y in pairs
    )


def _narrowed(known: Ranges, guards: Sequence[Expr]) -> Ranges:
    """Return the ranges with the lower bounds of variables that guards give: not (v < 1)."""
    narrow = dict(known)
    for g in guards:
        inner = g.args[0] if isinstance(g, Call) and g.fn == "not" else None
        if isinstance(inner, Binary) and inner.op == "lt" and isinstance(inner.a, Var):
            low, high = narrow.get(inner.a, (const(0), None))
            if isinstance(inner.b, Const) and isinstance(low, Const) and low.value < inner.b.value:
                narrow[inner.a] = inner.b, high
    return narrow


def _below(difference: Expr, known: Ranges) -> bool:
    """Return whether a difference is less than 0 for sure. A quotient e // c lies between (e - c + 1) / c and
    e / c."""
    if prove(difference < 0, known):
        return True
    sums = terms(simplify(difference, known))
    found = [(c, m[0]) for c, m in sums if len(m) == 1 and _quotient_by(m[0]) > 0]
    if len(found) != 1:
        return False
    (factor, quotient), by = found[0], _quotient_by(found[0][1])
    assert isinstance(quotient, Binary)
    bound = quotient.a if factor > 0 else quotient.a - (by - 1)
    return prove((difference - quotient * factor) * by + bound * factor < 0, known)


def _quotient_by(e: Expr) -> int:
    """Return the positive number by which an expression divides, or 0 for any other expression."""
    if isinstance(e, Binary) and e.op == "floordiv" and isinstance(e.b, Const):
        return max(0, int(e.b.value))
    return 0


def _same_thread(a: Parts, b: Parts, thread: Var, inside: set[Var]) -> bool:
    """Return whether some part of both indices is the thread's number plus values that are the same for all
    threads. `inside` has the variables of loops inside the thread loop."""
    return any(
        b.get(axes) is e and _only_adds(e, thread) and inside.isdisjoint(free_vars(e))
        for axes, e in a.items()
    )


def _only_adds(e: Expr, var: Var) -> bool:
    """Return whether e = var + terms without `var` and without loads."""
    sums = terms(simplify(e))
    others = [atom for _, atoms in sums if atoms != (var,) for atom in atoms]
    return (1, (var,)) in sums and not any(var in free_vars(n) or buffers_loaded(n) for n in others)


def _at(a: Access, values: Mapping[Var, Expr]) -> Access:
    guards = tuple(substitute(g, values) for g in a.guards)
    return Access(a.buffer, _put_in(a.index, values), a.stored, guards, a.loops)


def _told_apart(
    a: Access, b: Access, ranges: Ranges, thread: Var
) -> tuple[Access, Access, list[dict[Var, Expr]] | None]:
    """Return the accesses, and the values of the outer loops' variables for which they must be compared. The
    values are None if there are too many.

    If only a variable's remainder by its period matters, conditions on the variable itself are dropped."""
    inside = {s.var for x in (a, b) for s in x.loops} | {thread}
    used = {v for x in (a, b) for e in (*x.index, *x.guards) for v in free_vars(e)} - inside
    choices: list[list[tuple[Var, int]]] = []
    for v in sorted(used & set(ranges), key=str):
        high = ranges[v][1]
        count = int(high.value) + 1 if isinstance(high, Const) else ROUNDS + 1
        step = _period(v, (*a.index, *b.index))
        if step is not None and step < count:
            a, b = (replace(x, guards=tuple(g for g in x.guards if _repeats(g, v, step))) for x in (a, b))
            count = step
        if count <= ROUNDS:
            choices.append([(v, n) for n in range(count)])
    if not choices or math.prod(map(len, choices)) > ROUNDS:
        return a, b, None
    return a, b, [{v: const(n) for v, n in picked} for picked in product(*choices)]


def _period(v: Var, used: Sequence[Expr]) -> int | None:
    """Return the number of steps of a variable after which all expressions repeat, or None if there is
    none."""
    return next((step for step in PERIODS if all(_repeats(e, v, step) for e in used)), None)


def _repeats(e: Expr, v: Var, step: int) -> bool:
    return simplify(substitute(e, {v: v + step})) is simplify(e)


# --- places


@dataclass(frozen=True)
class _Part:
    """A part of an access's index. `numbers` has one for each point, modulo `modulus` unless that is 0.
    `common` has the terms that are the same for all threads."""

    numbers: Array
    common: frozenset[tuple[int, Monomial]]
    modulus: int


@dataclass(frozen=True)
class _Places:
    """The elements of an access. `threads` is the thread of each point. `parts` are the known parts of the
    index, named as in `_parts`."""

    threads: Array
    parts: Mapping[str, _Part]


def _places(a: Access, loop: For, ranges: Ranges) -> _Places:
    inner = dict(ranges)
    for s in a.loops:
        inner[s.var] = loop_range(s)
    counts: dict[Var, int] = {loop.var: interval(loop.extent, inner)[1] or 1}
    for s in sorted(a.loops, key=lambda s: interval(s.extent, inner)[1] or POINTS):
        most = interval(s.extent, inner)[1]
        if most is not None and math.prod(counts.values()) * most <= POINTS:
            counts[s.var] = max(most, 1)
    grid = np.indices(tuple(counts.values())).reshape(len(counts), -1)
    values = dict(zip(counts, grid.astype(np.int64), strict=True))
    on = np.ones(grid.shape[1], np.bool_)
    for guard in a.guards:
        for part in conjuncts(simplify(guard, inner)):
            if free_vars(part) <= set(values) and not buffers_loaded(part):
                on &= evaluated(part, values)
    values = {v: n[on] for v, n in values.items()}
    same = set(ranges) - {loop.var}
    parts = {axes: _part(e, values, same) for axes, e in _parts(a, ranges, loop.var).items()}
    return _Places(values[loop.var], parts)


def _part(e: Expr, values: Mapping[Var, Array], same: set[Var]) -> _Part:
    numbers = np.zeros(len(next(iter(values.values()))), np.int64)
    common: list[tuple[int, Monomial]] = []
    modulus = _modulus(e)
    for c, atoms in terms(_whole(e)):
        used = {v for atom in atoms for v in free_vars(atom)}
        reads = any(buffers_loaded(atom) for atom in atoms)
        if used <= set(values) and not reads:
            term = np.full_like(numbers, c)
            for atom in atoms:
                term = term * evaluated(atom, values)
            numbers = numbers + term
        elif used <= same and not reads:
            common.append((c, atoms))
        else:
            modulus = math.gcd(modulus, c)
    return _Part(numbers, frozenset(common), modulus)


def _meet(first: _Places, second: _Places) -> bool:
    """Return whether two different threads may access the same element."""
    if not len(first.threads) or not len(second.threads):
        return False
    cut = len(first.threads)
    place = np.zeros(cut + len(second.threads), np.int64)
    for axes in set(first.parts) & set(second.parts):
        x, y = first.parts[axes], second.parts[axes]
        modulus = math.gcd(x.modulus, y.modulus)
        for c, _ in x.common ^ y.common:
            modulus = math.gcd(modulus, c)
        numbers = np.concatenate([x.numbers, y.numbers])
        numbers = numbers % modulus if modulus else numbers - numbers.min()
        place = np.unique(place * (numbers.max() + 1) + numbers, return_inverse=True)[1].reshape(-1)
    count = int(place.max()) + 1
    spans = [_span(place[:cut], first.threads, count), _span(place[cut:], second.threads, count)]
    both = (spans[0][1] >= 0) & (spans[1][1] >= 0)
    low = np.minimum(spans[0][0], spans[1][0])
    high = np.maximum(spans[0][1], spans[1][1])
    return bool(np.any(both & (low != high)))


def _span(place: Array, threads: Array, count: int) -> tuple[Array, Array]:
    """Return the least and the greatest thread at each element. The greatest is -1 for an element without
    threads."""
    low, high = np.full(count, np.iinfo(np.int64).max), np.full(count, -1)
    np.minimum.at(low, place, threads)
    np.maximum.at(high, place, threads)
    return low, high


def _parts(a: Access, ranges: Ranges, thread: Var) -> Parts:
    """Return the parts that determine an index. The name of each tells how it follows from the axes.

    An axis `c * n + r` with `0 <= r < c` has the parts n and r. A quotient and a remainder of one number are
    joined to this number. If only the quotient's remainder is known, they are joined to the number's
    remainder by a larger divisor.

    An index may have an offset that is the same for all threads, as in a part of a larger buffer. It then
    also has the parts of the index without the offset."""
    inner = dict(ranges)
    for s in a.loops:
        inner[s.var] = loop_range(s)
    parts: dict[str, Expr] = {}
    for n, i in enumerate(a.index):
        index = simplify(i, inner)
        _digits(f"{n}", index, inner, parts)
        start = [v for v in free_vars(index) & set(ranges) if v is not thread and (1, (v,)) in terms(index)]
        start.sort(key=str)
        if start and free_vars(index) - set(start):
            _digits(f"({n}-{start})", simplify(index - sum(start, const(0)), inner), inner, parts)
    while True:
        for axes, e in parts.items():
            if isinstance(e, Binary) and e.op == "mod":
                quotient = simplify(e.a // e.b, inner)
                partner = next((k for k, q in parts.items() if k != axes and q is quotient), None)
                known = e.a
                if partner is None and _modulus(e):
                    partner = next((k for k, q in parts.items() if k != axes and _whole(q) is quotient), None)
                    known = e.a % (e.b * _modulus(parts[partner])) if partner is not None else e.a
                if partner is not None:
                    del parts[axes], parts[partner]
                    _digits(f"({partner}*{e.b}+{axes})", known, inner, parts)
                    break
        else:
            return parts


def _modulus(e: Expr) -> int:
    """Return the positive divisor of an expression that is a remainder, or 0 for any other expression."""
    if isinstance(e, Binary) and e.op == "mod" and isinstance(e.b, Const):
        return max(0, int(e.b.value))
    return 0


def _whole(e: Expr) -> Expr:
    """Return the dividend of an expression that is a remainder, or any other expression itself."""
    return e.a if isinstance(e, Binary) and _modulus(e) else e


def _digits(axes: str, e: Expr, ranges: Ranges, parts: dict[str, Expr]) -> None:
    """Split a number into a quotient and a remainder by a factor of its terms, as often as `ranges` prove
    that this is possible. Enter the parts in `parts`, by names that begin with `axes`. A number that can't be
    split is the only part."""
    sums = terms(e)
    for c in sorted({abs(c) for c, atoms in sums if atoms and abs(c) > 1}, reverse=True):
        rest = simplify(sum((_term(n, atoms) for n, atoms in sums if n % c), const(0)), ranges)
        if prove(rest >= 0, ranges) and prove(rest < c, ranges):
            whole = sum((_term(n // c, atoms) for n, atoms in sums if not n % c), const(0))
            _digits(f"{axes}/{c}", simplify(whole, ranges), ranges, parts)
            if free_vars(rest):
                _digits(f"{axes}%{c}", rest, ranges, parts)
            return
    parts[axes] = e


def _term(c: int, atoms: Monomial) -> Expr:
    product: Expr = const(c)
    for atom in atoms:
        product = product * atom
    return product


def evaluated(e: Expr, values: Mapping[Var, Array]) -> Array:
    """Return the values of an integer expression at every point."""
    memo: dict[Expr, Array] = {}
    for n in postorder(e):
        kids = tuple(memo[k] for k in children(n))
        if isinstance(n, Const):
            memo[n] = np.asarray(n.value, n.dtype.numpy)
        elif isinstance(n, Var):
            memo[n] = values[n]
        elif isinstance(n, Select):
            memo[n] = np.where(*kids)
        elif isinstance(n, Cast):
            memo[n] = kids[0].astype(n.dtype.numpy)
        else:
            assert isinstance(n, (Binary, Call))
            memo[n] = apply(n.op if isinstance(n, Binary) else n.fn, kids, n.dtype)
    return memo[e]
