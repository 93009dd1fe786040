"""Large triangles by blocks: nearly all of the work becomes general products.

A triangle is halved. Its two smaller triangles are treated likewise, and the square between them is a product
(`gemm`). Small triangles are left to the routine's own kernel. All of it works on views of one copy."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jangin.blas.compiled import run
from jangin.blas.routine import Routine
from jangin.ir.graph import Array

SMALLEST: Mapping[str, int] = {"trmm": 64, "trsm": 64, "syrk": 128, "syr2k": 128}
"""The order of a triangle that is no longer halved. Its own kernel is slower than a product's."""
MULTIPLE = 32
"""Halves have a multiple of so many rows, for whole register tiles."""


def is_large(routine: Routine, options: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
    """Return whether a call is worth doing by blocks."""
    return routine.name in SMALLEST and sizes[_order(options)] > SMALLEST[routine.name]


def _order(options: Mapping[str, str]) -> str:
    return "m" if options.get("side") == "L" else "n"


class Blocked:
    """A call by blocks. `find(name)` returns a routine by its name."""

    def __init__(
        self, routine: Routine, letter: str, options: Mapping[str, str], find: Callable[[str], Routine]
    ) -> None:
        self.routine, self.letter, self.options = routine, letter, dict(options)
        self.gemm = find("gemm")

    def result(self, operands: Mapping[str, Array], sizes: Mapping[str, int]) -> Array:
        """Return the written matrix, transposed, as the kernel does."""
        order = sizes[_order(self.options)]
        alpha = operands["alpha"]
        if "side" in self.options:
            b = np.array(operands["b"][: sizes["m"], : sizes["n"]], order="F")
            self._triangle(alpha, operands["a"][:order, :order], b)
            return b.T
        c = np.array(operands["c"][:order, :order], order="F")
        self._update(alpha, [operands[n] for n in ("a", "b") if n in operands], operands["beta"], c)
        return c.T

    # --- b := alpha op(a) b, its solution, and the same from the right

    def _triangle(self, alpha: Array, a: Array, b: Array) -> None:
        n = len(a)
        if n <= SMALLEST[self.routine.name]:
            self._leaf({"alpha": alpha, "a": a, "b": b}, b, {"m": b.shape[0], "n": b.shape[1]})
            return
        half = _half(n)
        left, solves = self.options["side"] == "L", self.routine.name == "trsm"
        lower, transposed = self.options["uplo"] == "L", self.options["transa"] == "T"
        between = a[half:, :half] if lower else a[:half, half:]
        parts = (b[:half], b[half:]) if left else (b[:, :half], b[:, half:])
        corners = a[:half, :half], a[half:, half:]
        second_needs_first = (lower != transposed) == left  # in the product op(a) b
        first, last = (0, 1) if second_needs_first == solves else (1, 0)
        target, source = (1, 0) if second_needs_first else (0, 1)
        one = np.ones_like(alpha)
        if solves:
            self._triangle(alpha, corners[first], parts[first])
            self._product(np.asarray(-one), between, parts[source], alpha, parts[target])
            self._triangle(one, corners[last], parts[last])
        else:
            self._triangle(alpha, corners[first], parts[first])
            self._product(alpha, between, parts[source], one, parts[target])
            self._triangle(alpha, corners[last], parts[last])

    def _product(self, alpha: Array, a: Array, b: Array, beta: Array, c: Array) -> None:
        """c := alpha op(a) b + beta c, or alpha b op(a) + beta c."""
        trans = self.options["transa"]
        if self.options["side"] == "L":
            self._gemm(alpha, (a, trans), (b, "N"), beta, c)
        else:
            self._gemm(alpha, (b, "N"), (a, trans), beta, c)

    # --- the triangle of c := alpha op(a) op(b)' + ... + beta c

    def _update(self, alpha: Array, given: list[Array], beta: Array, c: Array) -> None:
        n, transposed = len(c), self.options["trans"] == "T"
        if n <= SMALLEST[self.routine.name]:
            operands = dict(zip("ab", given, strict=False)) | {"alpha": alpha, "beta": beta, "c": c}
            self._leaf(operands, c, {"n": n, "k": given[0].shape[0 if transposed else 1]})
            return
        half = _half(n)
        tops = [x[:, :half] if transposed else x[:half] for x in given]
        ends = [x[:, half:] if transposed else x[half:] for x in given]
        self._update(alpha, tops, beta, c[:half, :half])
        self._update(alpha, ends, beta, c[half:, half:])
        lower = self.options["uplo"] == "L"
        rows, columns = (ends, tops) if lower else (tops, ends)
        between = c[half:, :half] if lower else c[:half, half:]
        ours, theirs = ("T", "N") if transposed else ("N", "T")
        for x, y in zip(rows, reversed(columns), strict=True):
            self._gemm(alpha, (x, ours), (y, theirs), beta, between)
            beta = np.ones_like(beta)

    # --- kernels

    def _gemm(self, alpha: Array, a: tuple[Array, str], b: tuple[Array, str], beta: Array, c: Array) -> None:
        depth = a[0].shape[1 if a[1] == "N" else 0]
        operands = {"alpha": alpha, "a": a[0], "b": b[0], "beta": beta, "c": c}
        sizes = {"m": c.shape[0], "n": c.shape[1], "k": depth}
        c[...] = self._run(self.gemm, {"transa": a[1], "transb": b[1]}, operands, sizes).T

    def _leaf(self, operands: Mapping[str, Array], out: Array, sizes: dict[str, int]) -> None:
        out[...] = self._run(self.routine, self.options, operands, sizes).T

    def _run(
        self,
        routine: Routine,
        options: Mapping[str, str],
        operands: Mapping[str, Array],
        sizes: dict[str, int],
    ) -> Array:
        for name in routine.matrices:
            a = operands[name]
            sizes[f"ld{name}"] = max(a.strides[1] // a.itemsize, len(a), 1)
        return run(routine, self.letter, options, operands, sizes)[0]


def _half(n: int) -> int:
    return -(-n // 2 // MULTIPLE) * MULTIPLE
