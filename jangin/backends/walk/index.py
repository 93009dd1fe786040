"""Addresses: each access's subscript is flattened to a polynomial once, and then specialised cheaply.

Unrolled loop variables stay symbolic in the polynomial and get their numbers at each copy. The costly
simplification is thus done once for all copies of a body. The parts that don't change between copies are also
separated once (`_Form`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

from jangin.ir.expr import Buffer, Const, Expr, Load, Var, binary, const
from jangin.ir.simplify import Range, interval, prove, simplify, terms
from jangin.ir.traversal import buffers_loaded, free_vars, row_major, substitute

Term = tuple[int, tuple[Expr, ...]]
"""An integer coefficient and the atoms that it multiplies."""


class Uniform:
    """Terms that are the same for all lanes. `levels`: the terms grouped by the loop whose iterations change
    them, the outermost first. `loads`: whether they read memory that may change."""

    def __init__(self, levels: Sequence[Sequence[Term]]) -> None:
        self.levels = levels
        self.loads = any(buffers_loaded(a) for group in levels for _, atoms in group for a in atoms)

    @property
    def terms(self) -> list[Term]:
        return [term for group in self.levels for term in group]


class Linear(NamedTuple):
    """The sum of an offset, uniform terms, and a part that depends on the lane. The last part is `step`*lane
    if it is linear with a constant step. Otherwise it is the `varying` terms, and step is None."""

    offset: int
    uniform: Uniform
    step: int | None
    varying: Sequence[Term] = ()


@dataclass(frozen=True, slots=True)
class _Form:
    """A polynomial whose terms are settled, except for `numeric` terms, products of unrolled variables alone.
    If a product mixes unrolled and other variables, nothing is settled, and `linear` is None."""

    polynomial: list[Term]
    linear: Linear | None
    numeric: Sequence[tuple[int, Sequence[Var]]] = ()


@dataclass
class Indexer:
    """The known facts about the variables in scope, and the polynomials made so far.

    `numbers`: unrolled variables at this copy. `lane`: the variable that counts the `lanes` of the vector
    loop. `varying`: it, and the names bound to values that depend on it. `bindings` changes whenever a name
    gets a new value.
    """

    ranges: dict[Var, Range] = field(default_factory=dict)
    numbers: dict[Var, int] = field(default_factory=dict)
    depth: dict[Var, int] = field(default_factory=dict)
    lane: Var | None = None
    lanes: int = 1
    varying: frozenset[Var] = frozenset()
    bindings: int = 0
    _names: frozenset[Var] = frozenset()
    _last: dict[Var, tuple[Range, int]] = field(default_factory=dict)
    _terms: dict[object, list[Term]] = field(default_factory=dict)
    _exact: dict[object, list[Term]] = field(default_factory=dict)
    _facts: dict[object, object] = field(default_factory=dict)
    _forms: dict[object, dict[object, _Form]] = field(default_factory=dict)
    _form: dict[object, _Form] | None = None

    # --- variables in scope

    @contextmanager
    def bound(self, var: Var, known: Range, depth: int) -> Iterator[None]:
        """Put `var` in scope with a range, inside the context. Facts derived under another range are
        forgotten."""
        if self._last.get(var, (known, depth)) != (known, depth):
            for memo in (self._terms, self._exact, self._facts):
                memo.clear()
            for forms in self._forms.values():
                forms.clear()
        self._last[var] = (known, depth)
        before = self.ranges.pop(var, None)
        self.ranges[var], self.depth[var] = known, depth
        yield
        del self.ranges[var]
        if before is not None:
            self.ranges[var] = before

    @contextmanager
    def numbered(self, var: Var, first: int) -> Iterator[None]:
        """Make `var` a number inside the context, at first `first`."""
        before, names, form = self.numbers.get(var), self._names, self._form
        self.numbers[var], self._names, self._form = first, names | {var}, None
        yield
        del self.numbers[var]
        if before is not None:
            self.numbers[var] = before
        self._names, self._form = names, form

    @contextmanager
    def by_lane(self, var: Var, lanes: int = 0) -> Iterator[None]:
        """Make `var` differ by lane inside the context. If `lanes` is given, `var` counts the lanes."""
        before = self.lane, self.lanes, self.varying, self._form
        if lanes:
            self.lane, self.lanes = var, lanes
        self.varying, self._form = self.varying | {var}, None
        yield
        self.lane, self.lanes, self.varying, self._form = before

    def varies(self, e: Expr) -> bool:
        """Return whether lanes of the vector loop may disagree on a value."""
        return bool(self.varying) and not self.varying.isdisjoint(free_vars(e))

    def level(self, atoms: Sequence[Expr]) -> int:
        """Return the depth of the innermost loop whose variable is mentioned, or 0."""
        depth = self.depth
        return max([depth.get(v, 0) for a in atoms for v in free_vars(a)], default=0)

    # --- subscripts

    def flat(self, buffer: Buffer, index: tuple[Expr, ...]) -> Linear:
        """Return the row-major element number of an access, as a linear form in the lane."""
        key = (buffer.shape, index)
        form = self._known_form(key)
        if form is None:
            form = self._new_form(key, lambda: row_major(index, buffer.shape))
        return self._at_this_copy(key, form)

    def difference(self, a: Expr, b: Expr) -> Linear:
        """Return a - b, as a linear form in the lane."""
        key = (a, b)
        form = self._known_form(key) or self._new_form(key, lambda: a - b)
        return self._at_this_copy(key, form)

    def _known_form(self, key: object) -> _Form | None:
        if self._form is None:
            scope = self._names, self.lane, self.varying
            self._form = self._forms.setdefault(scope, {})
        return self._form.get(key)

    def _new_form(self, key: object, subscript: Callable[[], Expr]) -> _Form:
        polynomial = self._terms.get(key)
        if polynomial is None:
            polynomial = self._terms[key] = terms(simplify(subscript(), self.ranges))
        assert self._form is not None
        form = self._form[key] = self._settled(polynomial)
        return form

    def _settled(self, polynomial: list[Term]) -> _Form:
        fixed: list[Term] = []
        numeric: list[tuple[int, Sequence[Var]]] = []
        for c, atoms in polynomial:
            numbers = [a for a in atoms if isinstance(a, Var) and a in self.numbers]
            if atoms and len(numbers) == len(atoms):
                numeric.append((c, numbers))
            elif any(not free_vars(a).isdisjoint(self.numbers) for a in atoms):
                return _Form(polynomial, None)
            else:
                fixed.append((c, atoms))
        return _Form(polynomial, self._split(fixed), numeric)

    def _at_this_copy(self, key: object, form: _Form) -> Linear:
        if form.linear is None:
            return self._split(self._numbered(key, form.polynomial))
        if not form.numeric:
            return form.linear
        offset, uniform, step, varying = form.linear
        for c, variables in form.numeric:
            for v in variables:
                c *= self.numbers[v]
            offset += c
        return Linear(offset, uniform, step, varying)

    def _split(self, polynomial: list[Term]) -> Linear:
        offset, step = 0, 0
        uniform, varying = list[Term](), list[Term]()
        for c, atoms in polynomial:
            if not atoms:
                offset += c
            elif not any(self.varies(a) for a in atoms):
                uniform.append((c, atoms))
            else:
                varying.append((c, atoms))
                step += c
        levels = Uniform(
            [list(group) for _, group in groupby(self.ordered(uniform), lambda t: self.level(t[1]))]
        )
        if all(atoms == (self.lane,) for _, atoms in varying):
            return Linear(offset, levels, step)
        return Linear(offset, levels, None, self.ordered(varying))

    def ordered(self, polynomial: list[Term]) -> list[Term]:
        """Return terms and their factors, ordered by the loops that change them, outer loops first."""
        inner_first = [
            (c, tuple(sorted(atoms, key=lambda a: self.level((a,)))) if len(atoms) > 1 else atoms)
            for c, atoms in polynomial
        ]
        return sorted(inner_first, key=lambda t: self.level(t[1]))

    def _numbered(self, key: object, polynomial: list[Term]) -> list[Term]:
        """Return the polynomial with the numbers of unrolled variables substituted."""
        total: dict[tuple[Expr, ...], int] = {}
        for c, atoms in polynomial:
            rest: list[Expr] = []
            for atom in atoms:
                number = self.numbers.get(atom) if isinstance(atom, Var) else None
                if number is not None:
                    c *= number
                elif not isinstance(atom, Var) and not free_vars(atom).isdisjoint(self.numbers):
                    return self._resimplified(key, polynomial)
                else:
                    rest.append(atom)
            if c:
                total[tuple(rest)] = total.get(tuple(rest), 0) + c
        return [(c, atoms) for atoms, c in total.items() if c]

    def _resimplified(self, key: object, polynomial: list[Term]) -> list[Term]:
        """Return `_numbered` of a polynomial in which a quotient, remainder or other operation mentions an
        unrolled variable."""
        used = {v for _, atoms in polynomial for a in atoms for v in free_vars(a) if v in self.numbers}
        full = (key, tuple((v, self.numbers[v]) for v in sorted(used, key=str)))
        sum_terms = self._exact.get(full)
        if sum_terms is None:
            values: dict[Var, Expr] = {v: const(self.numbers[v]) for v in used}
            total: Expr = const(0)
            for c, atoms in polynomial:
                product: Expr = const(c)
                for atom in atoms:
                    product = binary("mul", product, substitute(atom, values))
                total = binary("add", total, product)
            sum_terms = self._exact[full] = terms(simplify(total, self.ranges))
        return sum_terms

    # --- ranges

    def condition(self, e: Expr) -> Expr:
        """Return a condition simplified by the ranges and the unrolled variables' numbers."""
        used = {v: const(self.numbers[v]) for v in free_vars(e) if v in self.numbers}
        key = ("condition", e, tuple(sorted((v.name, n.value) for v, n in used.items())))
        fact = self._facts.get(key)
        if fact is None:
            values: Mapping[Var, Expr] = dict(used)
            fact = self._facts[key] = simplify(substitute(e, values), self.ranges)
        assert isinstance(fact, Expr)
        return fact

    def nonnegative(self, e: Expr) -> bool:
        key = ("nonnegative", e)
        if key not in self._facts:
            low = interval(e, self.ranges)[0]
            self._facts[key] = low is not None and low >= 0
        return bool(self._facts[key])

    def short(self, e: Expr) -> bool:
        """Return whether 32 bits hold a value that is known not to be negative."""
        key = ("short", e)
        if key not in self._facts:
            high = interval(e, self.ranges)[1]
            self._facts[key] = high is not None and high < 1 << 32
        return bool(self._facts[key])

    def signed_word(self, e: Expr) -> bool:
        """Return whether an i32 holds a value."""
        key = ("signed_word", e)
        if key not in self._facts:
            low, high = interval(e, self.ranges)
            self._facts[key] = low is not None and high is not None and low >= -(1 << 31) and high < 1 << 31
        return bool(self._facts[key])

    def inside(self, access: Load) -> bool:
        """Return whether every subscript is known to lie in the buffer's shape."""
        key = ("inside", access.buffer.shape, access.index)
        if key not in self._facts:
            self._facts[key] = all(
                prove(binary("ge", i, const(0)), self.ranges) and prove(binary("lt", i, n), self.ranges)
                for i, n in zip(access.index, access.buffer.shape, strict=True)
            )
        return bool(self._facts[key])


def constant_shape(buffer: Buffer) -> tuple[int, ...] | None:
    """Return the shape in numbers; None if it is symbolic."""
    if not all(isinstance(d, Const) for d in buffer.shape):
        return None
    return tuple(int(d.value) for d in buffer.shape if isinstance(d, Const))
