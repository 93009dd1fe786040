"""Large triangular systems by blocks: nearly all of the work becomes general products.

A triangle is halved. Its two smaller triangles are treated likewise. The square between them is a product:
`gemm`, or `gemv` for one right side. Small triangles are left to the routine's own kernel. All of it works
on parts of the operands."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from jangin.blas.compiled import run, set_to
from jangin.blas.routine import Routine
from jangin.ir.graph import Array
from jangin.runtime.threads import counted

SMALLEST, SMALLEST_COMPLEX = 512, 128
"""The order of a triangle that is no longer halved. A part of it for all right sides in a panel stays in the
L2 cache. The kernel of complex numbers takes one right side at a time, so products pay for smaller parts."""
SMALLEST_VECTOR = 512
"""The order of a triangle that isn't halved for one right side. Its kernel runs on one thread, so that
smaller parts leave more to products. Each part costs two calls of 10 us."""
MULTIPLE = 32
"""Halves have a multiple of so many rows, for whole register tiles. Tiles have 4 or 8 columns, and both
divide it."""


def is_large(routine: Routine, options: Mapping[str, str], sizes: Mapping[str, int]) -> bool:
    """Return whether a call is worth doing by blocks. For one right side, it is if there are several
    threads."""
    if routine.name == "trsv":
        return sizes["n"] > 2 * SMALLEST_VECTOR and counted(set_to()) > 1
    return routine.name == "trsm" and sizes["m" if options["side"] == "L" else "n"] > smallest(routine)


def smallest(routine: Routine) -> int:
    """Return the order of a routine's triangle that isn't halved."""
    return SMALLEST_COMPLEX if routine.types == "cz" else SMALLEST


class BlockedVector:
    """A system with one right side that is solved by blocks, by the kernels of `trsv` and `gemv`."""

    def __init__(self, routine: Routine, gemv: Routine, letter: str, options: Mapping[str, str]) -> None:
        self.routine, self.gemv, self.letter, self.options = routine, gemv, letter, options
        self.lower, self.turned = options["uplo"] == "L", options["trans"] != "N"

    def solve(self, a: Array, x: Array) -> None:
        """Write the solution for a triangle `a` and a right side x over x."""
        n = len(x)
        if n <= SMALLEST_VECTOR:
            x[:] = self._run(self.routine, self.options, {"a": a, "x": x}, {"n": n})
            return
        half = -(-n // 2 // MULTIPLE) * MULTIPLE
        between = a[half:, :half] if self.lower else a[:half, half:]
        parts, corners = (x[:half], x[half:]), (a[:half, :half], a[half:, half:])
        first, last = (0, 1) if self.lower != self.turned else (1, 0)
        self.solve(corners[first], parts[first])
        self._less(between, parts[first], parts[last])
        self.solve(corners[last], parts[last])

    def _less(self, a: Array, known: Array, rest: Array) -> None:
        """Subtract what known unknowns contribute. As in the reference, an unknown of 0 leaves its column out
        if the system isn't transposed, even if that has NaN."""
        if not self.turned and not known.all():
            a, known = np.asfortranarray(a[:, known != 0]), known[known != 0]
        if not known.size:
            return
        alpha, beta = np.full((), -1, known.dtype), np.ones((), known.dtype)
        operands = {"alpha": alpha, "a": a, "x": known, "beta": beta, "y": rest}
        m, n = a.shape
        rest[:] = self._run(self.gemv, {"trans": self.options["trans"]}, operands, {"m": m, "n": n})

    def _run(
        self,
        routine: Routine,
        options: Mapping[str, str],
        operands: Mapping[str, Array],
        sizes: Mapping[str, int],
    ) -> Array:
        a = operands["a"]
        stride = max(a.strides[1] // a.itemsize, len(a), 1)
        (written,) = run(routine, self.letter, options, operands, {**sizes, "lda": stride})
        return written


class Blocked:
    """A system that is solved by blocks, by the kernels of `trsm` and `gemm`."""

    def __init__(self, routine: Routine, gemm: Routine, letter: str, options: Mapping[str, str]) -> None:
        self.routine, self.gemm, self.letter, self.options = routine, gemm, letter, options
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
        run(routine, self.letter, options, operands, sizes)
