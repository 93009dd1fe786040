"""Addresses: subscripts flattened to polynomials once an access, then specialised cheaply.

Unrolled loop variables stay symbolic in the polynomial and get their numbers at each copy, so
the costly simplification is done once however often a body is copied out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from jangin.ir.expr import Buffer, Const, Expr, Load, Var, binary, const, free_vars, substitute
from jangin.ir.simplify import Range, interval, prove, simplify, terms

Term = tuple[int, tuple[Expr, ...]]
"""An integer coefficient and the atoms that it multiplies."""


@dataclass(frozen=True)
class Linear:
    """offset + the sum of uniform terms + what depends on the lane: `step`*lane where that is
    linear with a constant step, else `varying` terms (then step is None)."""

    offset: int
    uniform: tuple[Term, ...]
    step: int | None
    varying: tuple[Term, ...] = ()


@dataclass
class Indexer:
    """What is known of the variables in scope, and the polynomials made so far. `lane` counts the
    lanes of the vector loop; `varying` has it and the names bound to values that depend on it."""

    ranges: dict[Var, Range] = field(default_factory=dict)
    numbers: dict[Var, int] = field(default_factory=dict)
    depth: dict[Var, int] = field(default_factory=dict)
    lane: Var | None = None
    varying: set[Var] = field(default_factory=set)
    _last: dict[Var, tuple[Range, int]] = field(default_factory=dict)
    _terms: dict[object, list[Term]] = field(default_factory=dict)
    _exact: dict[object, list[Term]] = field(default_factory=dict)
    _facts: dict[object, object] = field(default_factory=dict)
    _free: dict[Expr, frozenset[Var]] = field(default_factory=dict)

    @contextmanager
    def bound(self, var: Var, known: Range, depth: int) -> Iterator[None]:
        """`var` in scope with a range; what was derived under another range is forgotten."""
        if self._last.get(var, (known, depth)) != (known, depth):
            for memo in (self._terms, self._exact, self._facts):
                memo.clear()
        self._last[var] = (known, depth)
        before = self.ranges.pop(var, None)
        self.ranges[var], self.depth[var] = known, depth
        yield
        del self.ranges[var]
        if before is not None:
            self.ranges[var] = before

    def free(self, e: Expr) -> frozenset[Var]:
        found = self._free.get(e)
        if found is None:
            found = self._free[e] = frozenset(free_vars(e))
        return found

    def varies(self, e: Expr) -> bool:
        """Whether lanes of the vector loop may disagree on a value."""
        return bool(self.varying) and not self.free(e).isdisjoint(self.varying)

    def flat(self, buffer: Buffer, index: tuple[Expr, ...]) -> Linear:
        """The row-major element number of an access."""
        key = (buffer.shape, index)
        found = self._terms.get(key)
        if found is None:
            total: Expr = const(0)
            for extent, i in zip(buffer.shape, index, strict=True):
                total = binary("add", binary("mul", total, extent), i)
            found = self._terms[key] = terms(simplify(total, self.ranges))
        return self._split(key, found)

    def difference(self, a: Expr, b: Expr) -> Linear:
        """a - b."""
        key = (a, b)
        found = self._terms.get(key)
        if found is None:
            found = self._terms[key] = terms(simplify(a - b, self.ranges))
        return self._split(key, found)

    def _split(self, key: object, polynomial: list[Term]) -> Linear:
        offset, uniform, varying, step = 0, [], [], 0
        for c, atoms in self._numbered(key, polynomial):
            if not atoms:
                offset += c
            elif not any(self.varies(a) for a in atoms):
                uniform.append((c, atoms))
            else:
                varying.append((c, atoms))
                step += c
        if all(atoms == (self.lane,) for _, atoms in varying):
            return Linear(offset, tuple(uniform), step)
        return Linear(offset, tuple(uniform), None, tuple(varying))

    def _numbered(self, key: object, polynomial: list[Term]) -> list[Term]:
        """The polynomial with the numbers of unrolled variables put in."""
        if not self.numbers:
            return polynomial
        total: dict[tuple[Expr, ...], int] = {}
        for c, atoms in polynomial:
            rest: list[Expr] = []
            for atom in atoms:
                number = self.numbers.get(atom) if isinstance(atom, Var) else None
                if number is not None:
                    c *= number
                elif not isinstance(atom, Var) and not self.free(atom).isdisjoint(self.numbers):
                    return self._resimplified(key, polynomial)
                else:
                    rest.append(atom)
            if c:
                total[tuple(rest)] = total.get(tuple(rest), 0) + c
        return [(c, atoms) for atoms, c in total.items() if c]

    def _resimplified(self, key: object, polynomial: list[Term]) -> list[Term]:
        """As `_numbered`, where a quotient or the like mentions an unrolled variable."""
        used = {v for _, atoms in polynomial for a in atoms for v in self.free(a) if v in self.numbers}
        full = (key, tuple((v, self.numbers[v]) for v in sorted(used, key=str)))
        found = self._exact.get(full)
        if found is None:
            values: dict[Var, Expr] = {v: const(self.numbers[v]) for v in used}
            total: Expr = const(0)
            for c, atoms in polynomial:
                product: Expr = const(c)
                for atom in atoms:
                    product = binary("mul", product, substitute(atom, values))
                total = binary("add", total, product)
            found = self._exact[full] = terms(simplify(total, self.ranges))
        return found

    def level(self, atoms: tuple[Expr, ...]) -> int:
        """The depth of the innermost loop whose variable is mentioned."""
        return max((self.depth.get(v, 0) for a in atoms for v in self.free(a)), default=0)

    def condition(self, e: Expr) -> Expr:
        """A condition with what the ranges decide, and the unrolled variables' numbers, put in."""
        used = {v: const(self.numbers[v]) for v in self.free(e) if v in self.numbers}
        key = ("condition", e, tuple(sorted((v.name, n.value) for v, n in used.items())))
        found = self._facts.get(key)
        if found is None:
            values: Mapping[Var, Expr] = dict(used)
            found = self._facts[key] = simplify(substitute(e, values), self.ranges)
        assert isinstance(found, Expr)
        return found

    def nonnegative(self, e: Expr) -> bool:
        key = ("nonnegative", e)
        if key not in self._facts:
            low = interval(e, self.ranges)[0]
            self._facts[key] = low is not None and low >= 0
        return bool(self._facts[key])

    def inside(self, access: Load) -> bool:
        """Whether every subscript is known to lie in the buffer's shape."""
        key = ("inside", access.buffer.shape, access.index)
        if key not in self._facts:
            self._facts[key] = all(
                prove(binary("ge", i, const(0)), self.ranges) and prove(binary("lt", i, n), self.ranges)
                for i, n in zip(access.index, access.buffer.shape, strict=True)
            )
        return bool(self._facts[key])


def constant_shape(buffer: Buffer) -> tuple[int, ...] | None:
    """The shape in numbers; None where it is symbolic."""
    if not all(isinstance(d, Const) for d in buffer.shape):
        return None
    return tuple(int(d.value) for d in buffer.shape if isinstance(d, Const))
