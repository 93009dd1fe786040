"""Buffers that a kernel reads and updates in place. Each element must be read before it is written.

The proof is by program order. Two accesses of one element are of the same iteration of the same loops, the
load first. Every loop's variable follows from the store's index. Loops around only one of the accesses don't
count if the element tells the variables of all loops around both. Other accesses are never of one element. A
kernel that is reported free of clashes therefore is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from jangin.ir.expr import Binary, Const, Expr, Var, const
from jangin.ir.loop import For, Func, loop_range
from jangin.ir.races import Access, Ranges, accesses
from jangin.ir.simplify import Range, prove, simplify, terms
from jangin.ir.traversal import buffers_loaded, free_vars, row_major, substitute


def clash(func: Func, name: str) -> str | None:
    """Return a description of an element of the buffer `name` that may be read after it was written. Return
    None if there is none."""
    places = [_Place(a, dict(func.symbols)) for a in accesses(func.body) if a.buffer.name == name]
    for at, store in enumerate(places):
        for n, load in enumerate(places) if store.access.stored else ():
            if load.access.stored or _apart(load, store):
                continue
            same = _same_iteration(load, store) and store.tells_iteration
            if n > at or not (same or _shared(load, store) <= _equal(load, store)):
                return f"{load} may be read after {store} was written"
    return None


class _Place:
    """The element of an access: its number in the buffer, `digits` of the number, and the ranges of its
    variables."""

    def __init__(self, access: Access, symbols: Ranges) -> None:
        self.access, self.loops = access, access.loops
        self.ranges: dict[Var, Range] = {**symbols, **{s.var: loop_range(s) for s in access.loops}}
        self.number = simplify(row_major(access.index, access.buffer.shape), self.ranges)
        self.digits = dict(_digits("", self.number, self.ranges))
        for axis, i in enumerate(access.index):
            self.digits |= _digits(f"axis {axis}: ", simplify(i, self.ranges), self.ranges)
        self.tells_iteration = self._tells_iteration()

    def __str__(self) -> str:
        return f"{self.access.buffer.name}[{', '.join(map(str, self.access.index))}]"

    def _tells_iteration(self) -> bool:
        """Return whether the variables of all loops around the access follow from its element."""
        known = [e for e in self.digits.values() if not buffers_loaded(e)]
        unknown = {s.var for s in self.loops if not _is_single(s, self.ranges)}
        parts = {part for e in known if (part := _part(e)) is not None}
        unknown -= {p.a for p in parts if isinstance(p.a, Var) and {p.a // p.b, p.a % p.b} <= parts}
        while unknown:
            told = {v for e in known if (v := _only(e, unknown)) is not None}
            if not told:
                return False
            unknown -= told
        return True


def _digits(name: str, e: Expr, ranges: Ranges) -> Iterator[tuple[str, Expr]]:
    """Yield a number, and the quotient and remainder by each factor of its terms for which `ranges` prove
    what they are."""
    yield name, e
    sums = terms(e)
    for c in sorted({abs(c) for c, atoms in sums if atoms and abs(c) > 1}, reverse=True):
        rest = simplify(e - _multiples(e, c), ranges)
        if prove(rest >= 0, ranges) and prove(rest < c, ranges):
            yield f"{name}/{c}", simplify(_multiples(e, c) // c, ranges)
            yield from _digits(f"{name}%{c}", rest, ranges)
            return


def _multiples(e: Expr, c: int) -> Expr:
    """Return the sum of a number's terms that are multiples of `c`."""
    total: Expr = const(0)
    for n, atoms in terms(e):
        if n % c == 0:
            product: Expr = const(n)
            for atom in atoms:
                product = product * atom
            total = total + product
    return total


def _is_single(loop: For, known: Ranges) -> bool:
    extent = loop.extent
    return extent.value <= 1 if isinstance(extent, Const) else prove(extent <= 1, known)


def _only(e: Expr, unknown: set[Var]) -> Var | None:
    """Return a number's only unknown variable, if a multiple of it is a term and no other term depends on
    it."""
    free = free_vars(e) & unknown
    if len(free) != 1:
        return None
    (v,) = free
    depend = [atoms for _, atoms in terms(e) if any(v in free_vars(atom) for atom in atoms)]
    return v if depend == [(v,)] else None


def _part(e: Expr) -> Binary | None:
    """Return a number that is the quotient or the remainder of a variable by a constant. Both together tell
    the variable."""
    if isinstance(e, Binary) and e.op in ("floordiv", "mod") and isinstance(e.b, Const):
        return e if isinstance(e.a, Var) else None
    return None


def _common(a: _Place, b: _Place) -> int:
    """Return the number of loops around both accesses."""
    pairs = enumerate(zip(a.loops, b.loops, strict=False))
    return next((n for n, (s, t) in pairs if s is not t), min(len(a.loops), len(b.loops)))


def _same_iteration(load: _Place, store: _Place) -> bool:
    """Return whether a load is of the element that the store writes in the same iteration."""
    common = _common(load, store)
    own, other = load.loops[common:], store.loops[common:]
    if len(own) != len(other):
        return False
    names: Mapping[Var, Expr] = {a.var: b.var for a, b in zip(own, other, strict=True)}
    if any(substitute(a.extent, names) is not b.extent for a, b in zip(own, other, strict=True)):
        return False
    return simplify(substitute(load.number, names), store.ranges) is store.number


def _shared(a: _Place, b: _Place) -> set[Var]:
    """Return the variables of the loops around both accesses."""
    return {s.var for s in a.loops[: _common(a, b)]}


def _equal(a: _Place, b: _Place) -> set[Var]:
    """Return the variables of loops around both accesses that are equal if the accesses are of one
    element."""
    shared, equal = _shared(a, b), set[Var]()
    names = [n for n in a.digits if n in b.digits and not buffers_loaded(a.digits[n])]
    for _ in range(len(shared)):
        unknown = {s.var for s in (*a.loops, *b.loops)} - equal
        solved = [_only(a.digits[n], unknown) for n in names if a.digits[n] is b.digits[n]]
        equal |= {v for v in solved if v in shared}
    return equal


def _apart(a: _Place, b: _Place) -> bool:
    """Return whether two accesses never have the same element. If they had, the variables of some loops
    around both would be equal. All others are told apart by a mark."""
    names, equal = [n for n in a.digits if n in b.digits], _equal(a, b)
    marks = {s.var: Var(f"{s.var.name}'") for s in b.loops if s.var not in equal}
    others: dict[Var, Expr] = {**marks}
    ranges = {**b.ranges, **a.ranges}
    for v, mark in marks.items():
        low, high = (None if e is None else substitute(e, others) for e in b.ranges[v])
        ranges[mark] = low, high
    pairs = [(a.digits[n], substitute(b.digits[n], others)) for n in names]
    return any(prove(x < y, ranges) or prove(y < x, ranges) for x, y in pairs)
