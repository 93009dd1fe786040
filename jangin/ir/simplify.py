"""Normal form and bounds of integer (i64) expressions.

An index is a polynomial with integer coefficients over atoms: variables, and quotients, remainders, minima...
that don't simplify further. `Ranges` gives each variable's inclusive bounds, outermost variable first. A
bound may itself be an expression of outer variables.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache, reduce
from math import gcd

from jangin.ir.dtype import BOOL, I64
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select, Var, binary, const, select
from jangin.ir.flat import SMALL, postorder
from jangin.ir.traversal import children, free_vars, rebuild
from jangin.ir.words import COMPARE

Range = tuple[Expr | None, Expr | None]
Ranges = Mapping[Var, Range]
Monomial = tuple[Expr, ...]
Poly = dict[Monomial, int]
_TRUE, _FALSE = const(True, BOOL), const(False, BOOL)

CONTEXTS = 128
"""The number of sets of ranges whose simplified expressions are remembered. A kernel has about one set for
each loop, so several kernels' sets are kept."""
MOST_TERMS, HIGHEST_DEGREE = 1000, 64
"""A product is multiplied out if it has at most this many terms and this degree. A larger product becomes an
atom."""
REMEMBERED = 20_000
"""The most expressions that are remembered for one set of ranges, so that a long compilation doesn't fill the
memory. If there are more, all are forgotten."""


def simplify(e: Expr, ranges: Ranges | None = None) -> Expr:
    """Return an equal expression in normal form. Conditions that the ranges decide become constants."""
    if not children(e) and (not ranges or e not in ranges):
        return e
    return _simplifier(ranges).run(e)


def simplifier(ranges: Ranges) -> Callable[[Expr], Expr]:
    """Return a function that simplifies as `simplify` does under these ranges, for many expressions."""
    return _simplifier(ranges).run


def prove(cond: Expr, ranges: Ranges | None = None) -> bool:
    """Return whether the ranges imply `cond`. Return False also if it can't be decided."""
    return simplify(cond, ranges) is _TRUE


def interval(e: Expr, ranges: Ranges | None = None) -> tuple[int | None, int | None]:
    """Return the least and the greatest value of an i64 expression, as (least, greatest). A bound that isn't
    known is None."""
    s = _simplifier(ranges)
    p = s.poly(s.run(e))
    return s.bound(p, upper=False), s.bound(p, upper=True)


def filled(ranges: Ranges) -> dict[Var, Range]:
    """Return the ranges with a lower bound of 1 for symbols without one. They are for estimates, because the
    speed of an empty computation doesn't matter."""
    none, one = const(0), const(1)
    return {v: (one if low is none else low, high) for v, (low, high) in ranges.items()}


def linear(e: Expr, var: Var) -> tuple[Expr, Expr] | None:
    """Return (coefficient, rest) with e = coefficient*var + rest, both free of `var`. Return None if e isn't
    linear in `var`."""
    s = _simplifier()
    coef: Poly = {}
    rest: Poly = {}
    for mono, c in s.poly(s.run(e)).items():
        n = mono.count(var)
        others = tuple(a for a in mono if a is not var)
        if n > 1 or any(var in free_vars(a) for a in others):
            return None
        target = coef if n else rest
        target[others] = target.get(others, 0) + c
    return from_poly(coef), from_poly(rest)


def terms(e: Expr) -> list[tuple[int, Monomial]]:
    """Return the monomials of a simplified expression, as (coefficient, atoms), in a fixed order."""
    return [(c, m) for m, c in _ordered(_simplifier().poly(e))]


def _ordered(p: Poly) -> Iterable[tuple[Monomial, int]]:
    return sorted(p.items(), key=_order) if len(p) > 1 else p.items()


def _order(item: tuple[Monomial, int]) -> tuple[int, str]:
    return (-len(item[0]), "*".join(map(str, item[0])))


def from_poly(p: Poly) -> Expr:
    """Return the expression of a polynomial. Terms are in a fixed order, the constant last."""
    total: Expr | None = None
    for mono, c in _ordered(p):
        if c == 0:
            continue
        sign, size = ("sub", -c) if c < 0 and total is not None else ("add", c)
        term: Expr = reduce(_product, mono) if mono else const(size)
        if mono and size != 1:
            term = binary("mul", term, const(size))
        total = term if total is None else binary(sign, total, term)
    return const(0) if total is None else total


def _product(a: Expr, b: Expr) -> Expr:
    return binary("mul", a, b)


def _accumulate(p: Poly, q: Poly, scale: int = 1) -> Poly:
    for mono, c in q.items():
        total = p.get(mono, 0) + scale * c
        if total:
            p[mono] = total
        elif mono in p:
            del p[mono]
    return p


def _times(p: Poly, q: Poly) -> Poly:
    out: Poly = {}
    for m1, c1 in p.items():
        for m2, c2 in q.items():
            mono = tuple(sorted(m1 + m2, key=str)) if m1 and m2 else m1 or m2
            _accumulate(out, {mono: c1 * c2})
    return out


def _is_short(p: Poly, q: Poly) -> bool:
    """Return whether the product of two polynomials is small enough to be multiplied out."""
    if len(p) == 1 and len(q) == 1 and () in (*p, *q):
        return True
    degree = sum(max(map(len, f), default=0) for f in (p, q))
    return len(p) * len(q) <= MOST_TERMS and degree <= HIGHEST_DEGREE


class _Simplifier:
    """Simplifies under one set of ranges, and remembers results; see `_simplifier`."""

    def __init__(self, ranges: Ranges) -> None:
        self.ranges = ranges
        self.variables = list(ranges)
        self.order = {var: n for n, var in enumerate(ranges)}
        self.plain = {v for v, r in ranges.items() if all(e is None or isinstance(e, Const) for e in r)}
        self.forget()

    def forget(self) -> None:
        """Forget all results. Another thread may go on to use the old tables."""
        self.memo: dict[Expr, Expr] = {}
        self.polys: dict[Expr, Poly] = {}
        self.intervals: dict[Expr, tuple[int | None, int | None]] = {}

    def run(self, e: Expr) -> Expr:
        memo = self.memo
        waiting = [] if e in memo else [e]
        while waiting:
            node = waiting[-1]
            new = [k for k in children(node) if k not in memo]
            if new:
                waiting.extend(new)
            else:
                waiting.pop()
                memo[node] = self._run(node, tuple([memo[k] for k in children(node)]))
        return memo[e]

    def _run(self, e: Expr, kids: tuple[Expr, ...]) -> Expr:
        if not kids:
            lo, hi = self.ranges.get(e, (None, None)) if isinstance(e, Var) else (None, None)
            return e if lo is None or lo is not hi else lo
        if isinstance(e, Select):
            return select(*kids)
        e = e if kids == children(e) else rebuild(e, kids)
        if isinstance(e, Binary) and e.a.dtype is I64:
            if e.op in COMPARE:
                return self._compare(e)
            if e.op in ("min", "max"):
                return self._extreme(e)
            return from_poly(self._merge_divmod(self.poly(e)))
        return e

    def poly(self, e: Expr) -> Poly:
        """Return the polynomial of an expression whose children are simplified. The result must not be
        changed."""
        done = self.polys.get(e)
        if done is None:
            if e.size > SMALL:
                for part in postorder(e):
                    if part.dtype is I64 and part not in self.polys:
                        self.polys[part] = self._poly(part)
            done = self.polys[e] = self._poly(e)
        return done

    def _poly(self, e: Expr) -> Poly:
        if isinstance(e, Const):
            return {(): int(e.value)} if e.value else {}
        if isinstance(e, Call) and e.fn == "neg":
            return _accumulate({}, self.poly(e.args[0]), -1)
        if isinstance(e, Binary):
            if e.op in ("add", "sub"):
                out = dict(self.poly(e.a))
                return _accumulate(out, self.poly(e.b), 1 if e.op == "add" else -1)
            if e.op == "mul":
                a, b = self.poly(e.a), self.poly(e.b)
                return _times(a, b) if _is_short(a, b) else {(e,): 1}
            if e.op in ("floordiv", "mod"):
                return self._divide(e)
        return {(e,): 1}

    def _divide(self, e: Binary) -> Poly:
        """Return the polynomial of a floordiv or mod. With x = d*q + r, floordiv gives q + r//d, and mod
        gives r%d. If 0 <= r < d, they are exactly q and r.

        A divisor of 0 may give anything."""
        x, d = self.poly(e.a), e.b
        quotient: Poly = {}
        rest: Poly = {}
        for mono, c in x.items():
            if isinstance(d, Const) and int(d.value) > 0 and c % int(d.value) == 0:
                quotient[mono] = c // int(d.value)
            elif d in mono:
                others = list(mono)
                others.remove(d)
                quotient[tuple(others)] = quotient.get(tuple(others), 0) + c
            elif isinstance(d, Const) and int(d.value) > 0 and not mono:
                q, r = divmod(c, int(d.value))
                if q:
                    quotient[()] = quotient.get((), 0) + q
                if r:
                    rest[()] = r
            else:
                rest[mono] = c
        if (not rest and not isinstance(d, Const)) or self._within(rest, d):
            return quotient if e.op == "floordiv" else rest
        if isinstance(d, Const) and int(d.value) > 0:
            shorter = self._shortened(e.op, rest, int(d.value))
            if shorter is not None:
                return _accumulate(quotient if e.op == "floordiv" else {}, shorter)
        left = from_poly(rest)
        if isinstance(d, Const) and d.value > 0 and isinstance(left, Binary) and isinstance(left.b, Const):
            nested = self._nested(e.op, left, d, quotient)
            if nested is not None:
                return nested
        atom = Binary(e.op, left, d)
        return _accumulate(quotient if e.op == "floordiv" else {}, {(atom,): 1})

    def _shortened(self, op: str, rest: Poly, d: int) -> Poly | None:
        """Return a quotient or remainder by `d` with a smaller divisor, or None if there is none.

        If g divides d and 0 <= r < g, then `(g*x + r) // d = x // (d/g)`. Under the same conditions, `(g*x +
        r) % d = g*(x % (d/g)) + r`."""
        for g in sorted({gcd(c, d) for c in rest.values()} - {1}, reverse=True):
            low = {m: c for m, c in rest.items() if c % g}
            if low and self._within(low, const(g)):
                x = from_poly({m: c // g for m, c in rest.items() if c % g == 0})
                short = self.poly(self.run(binary(op, x, const(d // g))))
                return dict(short) if op == "floordiv" else _accumulate(dict(low), short, g)
        return None

    def _nested(self, op: str, left: Binary, d: Const, quotient: Poly) -> Poly | None:
        """Return the polynomial of (x // a) // d, which is x // (a*d) for positive constants. Return None for
        any other expression."""
        assert isinstance(left.b, Const)
        if op == "floordiv" and left.op == "floordiv" and int(left.b.value) > 0:
            inner = binary("floordiv", left.a, const(int(left.b.value) * int(d.value)))
            return _accumulate(dict(quotient), self.poly(self.run(inner)))
        return None

    def _within(self, rest: Poly, d: Expr) -> bool:
        low = self.bound(rest, upper=False)
        if low is None or low < 0:
            return False
        gap = _accumulate(dict(rest), self.poly(d), -1)
        high = self.bound(gap, upper=True)
        return high is not None and high < 0

    def _merge_divmod(self, p: Poly) -> Poly:
        """Return the polynomial with c*d*(x//d) + c*(x%d) replaced by c*x."""
        for mono, c in list(p.items()):
            for atom in mono:
                if not (isinstance(atom, Binary) and atom.op == "mod") or p.get(mono) != c:
                    continue
                others = list(mono)
                others.remove(atom)
                quotient = self.poly(self.run(binary("floordiv", atom.a, atom.b)))
                partner = _times(_times({tuple(others): c}, quotient), self.poly(atom.b))
                if all(p.get(m) == k for m, k in partner.items()):
                    out = _accumulate(dict(p), partner, -1)
                    _accumulate(out, {mono: -c})
                    _accumulate(out, _times({tuple(others): c}, self.poly(atom.a)))
                    return self._merge_divmod(out)
        return p

    def _compare(self, e: Binary) -> Expr:
        gap = _accumulate(dict(self.poly(e.a)), self.poly(e.b), -1)
        low, high = self.bound(gap, upper=False), self.bound(gap, upper=True)
        always = {
            "lt": high is not None and high < 0,
            "le": high is not None and high <= 0,
            "gt": low is not None and low > 0,
            "ge": low is not None and low >= 0,
            "eq": low == 0 and high == 0,
            "ne": (low is not None and low > 0) or (high is not None and high < 0),
        }
        opposite = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
        if always[e.op]:
            return _TRUE
        return _FALSE if always[opposite[e.op]] else e

    def _extreme(self, e: Binary) -> Expr:
        gap = _accumulate(dict(self.poly(e.a)), self.poly(e.b), -1)
        low, high = self.bound(gap, upper=False), self.bound(gap, upper=True)
        if low is not None and low >= 0:
            return e.a if e.op == "max" else e.b
        if high is not None and high <= 0:
            return e.b if e.op == "max" else e.a
        return e

    def bound(self, p: Poly, *, upper: bool) -> int | None:
        """Return a constant that p never exceeds (`upper`) or never falls below. Return None if none is
        known."""
        last = len(self.order)
        while True:  # innermost variables first, and each once: a bound mentions only outer variables
            bounds = [
                n for m in p for a in m
                if isinstance(a, Var) and (n := self.order.get(a, last)) < last
                and (len(m) > 1 or a not in self.plain)  # a variable that is only added cancels nothing
            ]  # fmt: skip
            if not bounds:
                break
            last = max(bounds)
            p = self._eliminate(p, self.variables[last], upper)
        total = 0
        for mono, c in p.items():
            low, high = self._product_interval(mono)
            end = high if (c > 0) == upper else low
            if end is None:
                return None
            total += c * end
        return total

    def _eliminate(self, p: Poly, var: Var, upper: bool) -> Poly:
        lo, hi = self.ranges[var]
        out: Poly = {}
        for mono, c in p.items():
            if mono.count(var) != 1:
                _accumulate(out, {mono: c})
                continue
            others = tuple(a for a in mono if a != var)
            low, _ = self._product_interval(others)
            end = hi if (c > 0) == upper else lo
            if low is None or low < 0 or end is None:
                _accumulate(out, {mono: c})
            else:
                _accumulate(out, _times({others: c}, self.poly(end)))
        return out

    def _product_interval(self, mono: Monomial) -> tuple[int | None, int | None]:
        low, high = 1, 1
        unbounded = False
        for i, atom in enumerate(mono):
            lo, hi = self._atom_interval(atom)
            if lo is None or (lo < 0 and len(mono) > 1):
                return None, None
            if i == 0:
                low, high = lo, hi if hi is not None else 0
            else:
                low, high = low * lo, high * (hi or 0)
            unbounded = unbounded or hi is None
        return low, None if unbounded else high

    def _atom_interval(self, atom: Expr) -> tuple[int | None, int | None]:
        interval = self.intervals.get(atom)
        if interval is None:
            interval = self.intervals[atom] = self._find_interval(atom)
        return interval

    def _find_interval(self, atom: Expr) -> tuple[int | None, int | None]:
        if isinstance(atom, Var):
            lo, hi = self.ranges.get(atom, (None, None))
            low = None if lo is None else self.bound(self.poly(lo), upper=False)
            return low, None if hi is None else self.bound(self.poly(hi), upper=True)
        if isinstance(atom, Binary) and atom.a.dtype == I64:
            return self._binary_interval(atom)
        if isinstance(atom, Select):
            return self._hull(atom.a, atom.b)
        if isinstance(atom, Cast) and atom.a.dtype.is_int and atom.a.dtype.bits < 64:
            return atom.a.dtype.limits
        return None, None

    def _binary_interval(self, atom: Binary) -> tuple[int | None, int | None]:
        if atom.op in ("mod", "floordiv"):
            least = self.bound(self.poly(atom.b), upper=False)
            if least is None or least <= 0:
                return None, None
            if atom.op == "mod":
                most = self.bound(self.poly(atom.b), upper=True)
                return 0, None if most is None else most - 1
            low, high = (self.bound(self.poly(atom.a), upper=end) for end in (False, True))
            if not isinstance(atom.b, Const):  # a large divisor brings the quotient to 0, or to -1
                low = None if low is None else min(low, 0)
                high = None if high is None else max(high, -1)
            return None if low is None else low // least, None if high is None else high // least
        if atom.op in ("min", "max"):
            lows = [self.bound(self.poly(k), upper=False) for k in (atom.a, atom.b)]
            highs = [self.bound(self.poly(k), upper=True) for k in (atom.a, atom.b)]
            pick = min if atom.op == "min" else max
            some_low = [v for v in lows if v is not None]
            some_high = [v for v in highs if v is not None]
            if atom.op == "min":
                return (min(some_low) if len(some_low) == 2 else None), pick(some_high, default=None)
            return pick(some_low, default=None), (max(some_high) if len(some_high) == 2 else None)
        return None, None

    def _hull(self, a: Expr, b: Expr) -> tuple[int | None, int | None]:
        pa, pb = self.poly(a), self.poly(b)
        lows = [self.bound(p, upper=False) for p in (pa, pb)]
        highs = [self.bound(p, upper=True) for p in (pa, pb)]
        low = None if None in lows else min(v for v in lows if v is not None)
        return low, None if None in highs else max(v for v in highs if v is not None)


@lru_cache(CONTEXTS)
def _context(ranges: tuple[tuple[Var, Range], ...]) -> _Simplifier:
    return _Simplifier(dict(ranges))


def _simplifier(ranges: Ranges | None = None) -> _Simplifier:
    """Return the simplifier for these ranges, with its remembered results."""
    simplifier = _context(tuple(ranges.items()) if ranges else ())
    if len(simplifier.memo) > REMEMBERED:
        simplifier.forget()
    return simplifier
