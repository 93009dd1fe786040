"""BLAS's definitions on dense matrices in extended precision, and bounds of their rounding errors.

A matrix is dense here, whatever way a routine stores it. `places` tells where its elements lie. A bound is
the error that the sum of the magnitudes of all terms allows, element by element. Solutions are judged by
what is left of their equations, so that ill-conditioned systems count too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jangin.blas.routine import Routine

Array = Any
STORED = {"sy": "whole", "he": "whole", "tr": "whole", "sb": "band", "hb": "band", "tb": "band",
          "sp": "packed", "hp": "packed", "tp": "packed"}  # fmt: skip
"""How the triangle of a matrix lies, by the first letters of a routine's name."""


def kind_of(routine: Routine, name: str) -> str:
    """Return the kind of a routine's matrix: "ge", "gb", or the two letters of a triangle."""
    start = routine.name[:2]
    if name in ("a", "ap") and start in STORED and routine.name[2:] not in ("rk", "r2k"):
        return start
    if name == "c" and routine.of_a_triangle:
        return "he" if start == "he" else "sy"
    return "gb" if routine.name == "gbmv" and name == "a" else "ge"


@dataclass(frozen=True)
class Places:
    """The elements of a dense matrix (`i`, `j`) that a routine reads or writes, and where each is stored. The
    stored operand has this `shape`, of one or two axes."""

    i: Array
    j: Array
    at: tuple[Array, ...]
    shape: tuple[int, ...]

    def stored(self, dense: Array, fill: complex) -> Array:
        """Return the stored operand. Elements that no routine may read are `fill`."""
        whole = np.full(self.shape, fill, dense.dtype)
        whole[self.at] = dense[self.i, self.j]
        return whole


def places(
    kind: str, shape: tuple[int, int], options: Mapping[str, str], bands: tuple[int, int], rows: bool = False
) -> Places:
    """Return where the elements of a matrix lie, in columns or in `rows`. `bands` are the diagonals below and
    above the main one."""
    m, n = shape
    i, j = np.indices(shape)
    lower = options.get("uplo") == "L"
    below, above = bands
    inside = np.ones(shape, bool)
    if kind in STORED:
        inside = i >= j if lower else i <= j
        below, above = (above, 0) if lower else (0, above)
        if kind[0] == "t" and options["diag"] == "U":
            inside &= i != j
    how = "band" if kind == "gb" else STORED.get(kind, "whole")
    if how == "band":
        inside &= (i - j <= below) & (j - i <= above)
        i, j = i[inside], j[inside]
        width = below + above + 1
        return (
            Places(i, j, (i, below + j - i), (m, width))
            if rows
            else Places(i, j, (above + i - j, j), (width, n))
        )
    i, j = i[inside], j[inside]
    if how == "packed":
        first, second, upwards = (j, i, lower) if rows else (i, j, not lower)
        at = first + second * (second + 1) // 2 if upwards else first + second * (2 * n - second - 1) // 2
        return Places(i, j, (at,), (n * (n + 1) // 2,))
    return Places(i, j, (i, j), shape)


def wide(a: Array) -> Array:
    """Return numbers in extended precision."""
    return np.asarray(a).astype(np.clongdouble if np.iscomplexobj(a) else np.longdouble)


def applied(a: Array, option: str) -> Array:
    return {"N": a, "T": a.T, "C": a.conj().T}[option]


class Oracle:
    """A call's definition. `values` has dense operands by name, of which matrices have all their elements: a
    symmetric matrix both triangles, a triangle zeros beside it."""

    def __init__(self, routine: Routine, options: Mapping[str, str], values: Mapping[str, Array]) -> None:
        self.routine, self.options = routine, options
        self.narrow, self.values = values, {n: wide(v) for n, v in values.items()}

    def __getitem__(self, name: str) -> Array:
        return self.values[name]

    def trans(self, option: str = "trans") -> str:
        return self.options.get(option, "N")

    def results(self) -> dict[str, tuple[Array, Array]]:
        """Return each written operand but a solution's, with the magnitudes of its terms."""
        name = self.routine.name
        if self.routine.level == 1:
            return self._of_vectors()
        if name.endswith("mv"):
            return self._mv()
        if name.endswith("mm") or name == "gemmtr":
            return self._mm()
        return self._rk() if name.endswith("k") else self._r()

    def _sum(self, name: str, *terms: tuple[Array, Array, Array]) -> dict[str, tuple[Array, Array]]:
        """Return the sum of products `factor left right`, and beta times what was there."""
        before = self[name]
        beta = self.values.get("beta", wide(1.0 if self.routine.level == 2 else 0.0))
        nothing = np.zeros(before.shape, np.result_type(before, beta))
        total = nothing if beta == 0 else beta * before
        size = np.abs(total)
        for factor, left, right in terms:
            if factor != 0:
                total = total + factor * (left @ right)
                size = size + np.abs(factor) * (np.abs(left) @ np.abs(right))
        return {name: (total, size)}

    def _matrix(self) -> Array:
        return self["ap" if "ap" in self.values else "a"]

    def _mv(self) -> dict[str, tuple[Array, Array]]:
        a = applied(self._matrix(), self.trans())
        if self.routine.name[0] == "t":
            return {"x": (a @ self["x"], np.abs(a) @ np.abs(self["x"]))}
        return self._sum("y", (self["alpha"], a, self["x"]))

    def _r(self) -> dict[str, tuple[Array, Array]]:
        name = "ap" if "ap" in self.values else "a"
        x, y = self["x"], self.values.get("y", self["x"])
        real = self.routine.name in ("geru", "syr", "spr", "syr2", "spr2", "ger")
        other = (lambda v: v) if real else np.conj
        terms = [(self["alpha"], x[:, None], other(y)[None])]
        if self.routine.name[-1] == "2":
            terms.append((other(self["alpha"]), y[:, None], other(x)[None]))
        return self._sum(name, *terms)

    def _mm(self) -> dict[str, tuple[Array, Array]]:
        name, a, b = self.routine.name, self["a"], self["b"]
        if name[:4] == "gemm":
            left, right = applied(a, self.trans("transa")), applied(b, self.trans("transb"))
            return self._sum("c", (self["alpha"], left, right))
        a = applied(a, self.trans("transa"))
        left, right = (b, a) if self.options["side"] == "R" else (a, b)
        return self._sum("b" if name == "trmm" else "c", (self["alpha"], left, right))

    def _rk(self) -> dict[str, tuple[Array, Array]]:
        hermitian = self.routine.name[:2] == "he"
        other = (lambda v: v.conj().T) if hermitian else (lambda v: v.T)
        a, b = self["a"], self.values.get("b", self["a"])
        if self.trans() != "N":
            a, b = other(a), other(b)
        terms = [(self["alpha"], a, other(b))]
        if self.routine.name.endswith("2k"):
            terms.append((np.conj(self["alpha"]) if hermitian else self["alpha"], b, other(a)))
        return self._sum("c", *terms)

    # --- systems

    def rest(self, solution: Array) -> tuple[Array, Array]:
        """Return what is left of the equations of a system, and the magnitudes of its terms."""
        x = wide(solution)
        a = applied(self._matrix(), self.trans("transa" if "transa" in self.options else "trans"))
        given = self["alpha"] * self["b"] if "b" in self.values else self["x"]
        left, right = (x, a) if self.options.get("side") == "R" else (a, x)
        return left @ right - given, np.abs(left) @ np.abs(right) + np.abs(given)

    # --- level 1

    def _of_vectors(self) -> dict[str, tuple[Array, Array]]:
        name, v = self.routine.name, self.values
        x, y = v["x"], v.get("y")
        zero = np.zeros_like(x)

        def sized(*terms: Array) -> tuple[Array, Array]:
            return sum(terms[1:], terms[0]), sum((np.abs(t) for t in terms[1:]), np.abs(terms[0]))

        def dotted(x: Array, y: Array, *more: Array) -> tuple[Array, Array]:
            return (x * y).sum() + sum(more), np.abs(x * y).sum() + sum(map(abs, more))

        if name == "axpby":
            parts = [zero if f == 0 else f * w for f, w in ((v["alpha"], x), (v["beta"], y))]
            return {"y": sized(*parts)}
        if name == "iamax":
            own = self.narrow["x"]
            sizes = np.abs(own.real) + np.abs(own.imag)
            return {"result": (wide(np.argmax(sizes)) if len(x) else wide(0), wide(0))}
        if name in ("asum", "nrm2"):
            sizes = np.concatenate([np.abs(x.real), np.abs(x.imag)])
            total = sizes.sum() if name == "asum" else np.sqrt((sizes**2).sum())
            return {"result": (total, total)}
        one: Mapping[str, Any] = {
            "axpy": lambda: {"y": sized(y, v["a"] * x)},
            "scal": lambda: {"x": sized(v["a"] * x)},
            "scal_real": lambda: {"x": sized(v["a"] * x)},
            "copy": lambda: {"y": (x, zero)},
            "swap": lambda: {"x": (y, zero), "y": (x, zero)},
            "dot": lambda: {"result": dotted(x, y)},
            "dotu": lambda: {"result": dotted(x, y)},
            "dotc": lambda: {"result": dotted(x.conj(), y)},
            "dsdot": lambda: {"result": dotted(x, y)},
            "sdsdot": lambda: {"result": dotted(x, y, v["b"])},
            "rot": lambda: {"x": sized(v["c"] * x, v["s"] * y), "y": sized(v["c"] * y, -v["s"] * x)},
            "rotm": self._rotm,
        }
        return dict(one[name]())

    def _rotm(self) -> dict[str, tuple[Array, Array]]:
        x, y, (flag, h11, h21, h12, h22) = self["x"], self["y"], self["param"]
        matrix = {
            -2.0: (1, 0, 0, 1), -1.0: (h11, h21, h12, h22), 0.0: (1, h21, h12, 1), 1.0: (h11, -1, 1, h22),
        }[float(flag)]  # fmt: skip
        h11, h21, h12, h22 = map(wide, matrix)
        size = np.abs(x), np.abs(y)
        return {
            "x": (h11 * x + h12 * y, abs(h11) * size[0] + abs(h12) * size[1]),
            "y": (h21 * x + h22 * y, abs(h21) * size[0] + abs(h22) * size[1]),
        }
