"""Large triangular systems by blocks: nearly all of the work becomes general products.

A triangle is halved. Its two smaller triangles are treated likewise, and the square between them is a product
(`gemm`). Small triangles are left to the routine's own kernel. All of it works on parts of the operands."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jangin.blas.compiled import run
from jangin.blas.routine import Routine
from jangin.ir.graph import Array

SMALLEST, SMALLEST_COMPLEX = 512, 128
"""The order of a triangle that is no longer halved. A part of it for all right sides in a panel stays in the
L2 cache. The kernel of complex numbers takes one right side at a time, so products pay for smaller parts."""
MULTIPLE = 32
"""Halves have a multiple of so many rows, for whole register tiles. Tiles have 4 or 8 columns, and both
divide it."""


def is_large(routine: Routine, options: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
    """Return whether a call is worth doing by blocks."""
    return routine.name == "trsm" and sizes["m" if options["side"] == "L" else "n"] > smallest(routine)


def smallest(routine: Routine) -> int:
    """Return the order of a routine's triangle that isn't halved."""
    return SMALLEST_COMPLEX if routine.types == "cz" else SMALLEST


class Blocked:
    """A system that is solved by blocks, by the kernels of `trsm` and `gemm`."""

    def __init__(
        self, routine: Routine, gemm: Routine, letter: str, options: Mapping[str, str], target: str | None
    ) -> None:
        self.routine, self.gemm, self.letter, self.options = routine, gemm, letter, options
        self.target = target
        self.left = options["side"] == "L"

    def solve(self, alpha: Array, a: Array, b: Array) -> None:
        """Write the solution for a triangle `a` and right sides `b` over b."""
        n = len(a)
        if n <= smallest(self.routine):
            self._run(self.routine, self.options, {"alpha": alpha, "a": a, "b": b})
            return
        half = -(-n // 2 // MULTIPLE) * MULTIPLE
        lower = self.options["uplo"] == "L"
        between = a[half:, :half] if lower else a[:half, half:]
        parts = (b[:half], b[half:]) if self.left else (b[:, :half], b[:, half:])
        corners = a[:half, :half], a[half:, half:]
        forward = (lower != (self.options["transa"] != "N")) == self.left
        first, last = (0, 1) if forward else (1, 0)
        one = np.ones_like(alpha)
        self.solve(alpha, corners[first], parts[first])
        self._less(between, parts[first], alpha, parts[last])
        self.solve(one, corners[last], parts[last])

    def _less(self, a: Array, known: Array, alpha: Array, b: Array) -> None:
        """Multiply right sides by alpha, and subtract what known unknowns contribute."""
        trans = self.options["transa"]
        operands = {"a": a, "b": known} if self.left else {"a": known, "b": a}
        options = {"transa": trans, "transb": "N"} if self.left else {"transa": "N", "transb": trans}
        factors = {"alpha": np.asarray(-np.ones_like(alpha)), "beta": alpha}
        self._run(self.gemm, options, {**operands, **factors, "c": b}, known.shape[0 if self.left else 1])

    def _run(
        self, routine: Routine, options: Mapping[str, str], operands: Mapping[str, Array], depth: int = 0
    ) -> None:
        m, n = operands[routine.written[0]].shape
        sizes = {"m": m, "n": n, "k": depth}
        for name in routine.matrices:
            a = operands[name]
            sizes[f"ld{name}"] = max(a.strides[1] // a.itemsize, len(a), 1)
        run(routine, self.letter, options, operands, sizes, self.target)
