"""Solve index expressions for loop indices: find the iterations in which a load reads a given element."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jangin.ir.expr import Binary, Const, Expr, Var, const, eq
from jangin.ir.records import dataclass
from jangin.ir.simplify import interval, linear, simplify
from jangin.ir.te import Axis
from jangin.ir.traversal import buffers_loaded, free_vars, substitute

UNKNOWN = 1 << 20
"""The size that is assumed for an unknown size when costs are compared. It is large, so that a way whose cost
grows with an unknown size comes last."""


@dataclass(frozen=True)
class Readers:
    """The iterations in which a load reads the element at `place`.

    - `left` are the axes that run over all their values. An iteration reads the element if the `guards` hold.
    - `solved` has the values of the other axes.
    - `tried` is how many values of axes are tried for each element, because an index can't be solved for
      them. It is 1 if all indices can be solved."""

    place: tuple[Var, ...]
    solved: dict[Var, Expr]
    guards: tuple[Expr, ...]
    left: tuple[Axis, ...]
    tried: int


def readers(index: Sequence[Expr], axes: Sequence[Axis]) -> Readers:
    """Solve the equations `index == place` for the axes."""
    return _Solver(index, axes).solve()


class _Solver:
    """Solves equations between indices and places. Once an equation is solved for an axis, the solution
    replaces the axis in all other equations."""

    def __init__(self, index: Sequence[Expr], axes: Sequence[Axis]) -> None:
        self.axes = {a.var: a.extent for a in axes}
        taken = {v.name for v in self.axes}.union(v.name for i in index for v in free_vars(i))
        self.place = tuple(Var(_unlike("j", d, taken)) for d in range(len(index)))
        self.taken = taken.union(v.name for v in self.place)
        self.open: list[tuple[Expr, Expr]] = [
            (simplify(i), j) for i, j in zip(index, self.place, strict=True)
        ]
        self.solved: dict[Var, Expr] = {}
        self.guards: list[Expr] = []

    def solve(self) -> Readers:
        while True:
            candidate = max(self._candidates(), key=lambda c: c[0], default=None)
            if candidate is not None:
                self._eliminate(*candidate[1:])
            elif not any(self._divided(n) for n in range(len(self.open))):
                break
        tried = 1
        for v in self._axes_of(*(e for e, _ in self.open)):
            tried *= size_of(self.axes[v])
        guards = [*self.guards, *(eq(e, place) for e, place in self.open)]
        left = tuple(Axis(v, extent) for v, extent in self.axes.items())
        return Readers(self.place, self.solved, tuple(dict.fromkeys(map(simplify, guards))), left, tried)

    def _axes_of(self, *found: Expr) -> list[Var]:
        return [v for v in self.axes if any(v in free_vars(e) for e in found)]

    def _candidates(self) -> Iterator[tuple[tuple[bool, int, bool], int, Var, int, Expr]]:
        """Yield each way to solve an equation for an axis: its rank, the equation's number, the axis, its
        coefficient, and the other terms.

        The longest axis has the highest rank. A solution that would bring a division into other equations has
        a low one."""
        for n, (e, _) in enumerate(self.open):
            for v in self._axes_of(e):
                parts = linear(e, v)
                if parts is None or not isinstance(parts[0], Const) or buffers_loaded(parts[1]):
                    continue
                unit = abs(int(parts[0].value)) == 1
                alone = sum(v in free_vars(other) for other, _ in self.open) == 1
                better = (unit or alone, size_of(self.axes[v]), unit)
                yield better, n, v, int(parts[0].value), parts[1]

    def _eliminate(self, n: int, v: Var, coefficient: int, rest: Expr) -> None:
        _, place = self.open.pop(n)
        number = place - rest if coefficient > 0 else rest - place
        step = abs(coefficient)
        if step != 1:
            self.guards.append(eq(number % step, 0))
        value, extent = simplify(number // step), self.axes.pop(v)
        known = {v: value}
        self.open = [(simplify(substitute(e, known)), substitute(p, known)) for e, p in self.open]
        self.guards = [substitute(g, known) for g in self.guards]
        self.solved = {w: simplify(substitute(e, known)) for w, e in self.solved.items()}
        self.solved[v] = value
        self.guards += [value >= 0, value < extent]

    def _divided(self, n: int) -> bool:
        """Replace a quotient or remainder in an equation by its dividend, and tell if this was possible. The
        part that isn't known, remainder or quotient, becomes a new axis."""
        e, place = self.open[n]
        if not (isinstance(e, Binary) and isinstance(e.b, Const) and e.op in ("floordiv", "mod")):
            return False
        step = e.b
        low, high = interval(e.a, {v: (const(0), simplify(d - 1)) for v, d in self.axes.items()})
        if e.op == "floordiv":
            more = self._axis(step)
            self.open[n] = simplify(e.a), place * step + more
        elif low is not None and high is not None and low >= 0:
            more = self._axis(const(high // int(step.value) + 1))
            self.open[n] = simplify(e.a), more * step + place
            self.guards.append(place < step)
        else:
            return False
        return True

    def _axis(self, extent: Expr) -> Var:
        more = Var(_unlike("r", len(self.taken), self.taken))
        self.taken = {*self.taken, more.name}
        self.axes[more] = extent
        return more


def _unlike(letter: str, number: int, taken: Collection[str]) -> str:
    """Return a variable's name that isn't taken. Stages that are gradients themselves already use names of
    this form."""
    while f"{letter}{number}" in taken:
        letter += letter[0]
    return f"{letter}{number}"


def size_of(extent: Expr) -> int:
    return int(extent.value) if isinstance(extent, Const) else UNKNOWN
