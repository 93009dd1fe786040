"""Winograd's minimal filtering F(m x m, 3 x 3): the transforms as expressions and as matrices.

Winograd, "Arithmetic Complexity of Computations" (1980); Lavin & Gray, "Fast Algorithms for
Convolutional Neural Networks" (2015). With points in pairs +q, -q, the even and the odd powers of
a pair's rows are shared: about half the additions of the matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from jangin.ir.dtype import I32
from jangin.ir.expr import Expr, binary, call, const
from jangin.ir.graph import Array
from jangin.ir.records import dataclass

TAPS = 3
"""Rows, and columns, of the weights."""
AT_ONCE = 1 << 9
"""Weights of a tap transformed at once: their products stay in the L2 cache, and the matrix library
(OpenBLAS, from 2^18 multiplications on) shares no product so small among threads, which would wait for one
another longer than they compute."""


@dataclass(frozen=True)
class Transform:
    """The points 0, +q and -q for each q of `pairs`, and infinity, in that order. `tile`: outputs
    along an axis; `size`: inputs, and products, along an axis."""

    pairs: tuple[float, ...]

    @property
    def tile(self) -> int:
        return 2 * len(self.pairs)

    @property
    def size(self) -> int:
        return self.tile + TAPS - 1

    @property
    def products(self) -> int:
        return self.size**2

    def inputs(self, d: Sequence[Expr]) -> list[Expr]:
        """B^T d: `size` values of `size` inputs."""
        whole = _coefficients(self.pairs)
        out = [_dot(whole, d[0:-1:2])]
        for q in self.pairs:
            rest = _coefficients([o for o in self.pairs if o != q])
            even, odd = _dot(rest, d[2::2]), _dot(rest, d[1:-1:2])
            out += [even + _scaled(q, odd), even + _scaled(-q, odd)]
        return [*out, _dot(whole, d[1::2])]

    def outputs(self, m: Sequence[Expr]) -> list[Expr]:
        """A^T m: `tile` outputs of `size` products."""
        pairs = [(m[1 + 2 * i], m[2 + 2 * i]) for i in range(len(self.pairs))]
        sums, differences = [a + b for a, b in pairs], [a - b for a, b in pairs]
        out = []
        for power in range(self.tile):
            terms = differences if power % 2 else sums
            value = _dot([q**power for q in self.pairs], terms)
            out.append(m[0] + value if power == 0 else value)
        out[-1] = m[-1] + out[-1]
        return out

    def restored(self, e: Expr) -> Expr:
        """A result, of what `outputs` gives."""
        return e

    def weights(self, g: Array) -> Array:
        """G g G^T of weights [O, C, 3, 3] as [products, C, O], computed in float64, rounded to f32."""
        rows = [np.array([1.0, 0, 0]) / math.prod(-q * q for q in self.pairs)]
        for q in self.pairs:
            norm = 2 * q * q * math.prod(q * q - o * o for o in self.pairs if o != q)
            rows += [np.array([1, s, s * s]) / norm for s in (q, -q)]
        matrix = np.stack([*rows, np.array([0.0, 0, 1])])
        both = np.kron(matrix, matrix)
        outputs, channels = g.shape[:2]
        products = np.empty((self.products, channels, outputs), np.float32)
        step = max(1, AT_ONCE // outputs)
        for first in range(0, outputs, AT_ONCE):
            some = slice(first, first + AT_ONCE)
            for at in range(0, channels, step):
                taps = g[some, at : at + step].transpose(2, 3, 1, 0).astype(np.float64)
                made = both @ taps.reshape(TAPS * TAPS, -1)
                products[:, at : at + step, some] = made.reshape(self.products, *taps.shape[2:])
        return products


def _coefficients(pairs: Sequence[float]) -> list[float]:
    """Of the product of (y - q^2), lowest power first."""
    out = [1.0]
    for q in pairs:
        out = [low - q * q * high for low, high in zip([0.0, *out], [*out, 0.0], strict=True)]
    return out


def _scaled(factor: float, e: Expr) -> Expr:
    return e * const(factor, e.dtype)


def _dot(factors: Sequence[float], values: Sequence[Expr]) -> Expr:
    """The sum of products; the last first, whose factor is often 1."""
    pairs = list(zip(factors, values, strict=True))[::-1]
    total = _scaled(*pairs[0])
    for factor, value in pairs[1:]:
        total = total + _scaled(factor, value)
    return total


@dataclass(frozen=True)
class PairTransform(Transform):
    """F(2x2) of pairs of int16 as words, which is exact: the weights are four times as large as G g G^T, and
    what comes out is divided by 4. Inputs of 9 bits become sums of at most 11."""

    def inputs(self, d: Sequence[Expr]) -> list[Expr]:
        pairs = ("sub2", 2, 0), ("add2", 2, 1), ("sub2", 2, 1), ("sub2", 3, 1)
        return [call(name, d[a], d[b]) for name, a, b in pairs]

    def restored(self, e: Expr) -> Expr:
        return binary("shr", e, const(2, I32))

    def weights(self, g: Array) -> Array:
        """Of words [O, C / 2, 3, 3], as words [products, C / 2, O]."""
        matrix = np.array([[-2, 0, 0], [1, 1, 1], [1, -1, 1], [0, 0, 2]], np.int32)
        outputs, channels = g.shape[:2]
        pairs = np.ascontiguousarray(g.transpose(2, 3, 1, 0)).view(np.int16).astype(np.int32)
        made = np.kron(matrix, matrix) @ pairs.reshape(TAPS * TAPS, -1)
        return made.astype(np.int16).view(np.int32).reshape(self.products, channels, outputs)

    def exact(self, g: Array) -> bool:
        """Whether words [O, C / 2, 3, 3] and inputs of 9 bits leave room for both factors of 4."""
        pairs = np.abs(np.ascontiguousarray(g).view(np.int16).astype(np.int64))
        largest = pairs.reshape(len(g), -1).sum(1).max(initial=0)
        return bool(pairs.max(initial=0) <= 256 and 4 * 256 * largest < 1 << 31)


F2 = Transform((1.0,))
PAIRED = PairTransform((1.0,))
F4 = Transform((math.sqrt(0.5), math.sqrt(2.0)))
