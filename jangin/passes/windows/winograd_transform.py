"""Winograd's minimal filtering F(m x m, 3 x 3): the transforms as expressions and as matrices.

Sources: Winograd, "Arithmetic Complexity of Computations" (1980); Lavin & Gray, "Fast Algorithms for
Convolutional Neural Networks" (2015). The rows of a pair of points +q, -q share the even and the odd powers,
which halves the additions of the matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from operator import add

import numpy as np

from jangin.ir.dtype import I32
from jangin.ir.expr import Expr, binary, call, const
from jangin.ir.graph import Array
from jangin.ir.records import dataclass

TAPS = 3
"""Rows, and columns, of the weights. Winograd's transforms here are those of 3 x 3 windows."""
AT_ONCE = 1 << 9
"""Weights of a tap that are transformed at once. Their products stay in the L2 cache. The matrix library
(OpenBLAS, from 2^18 multiplications on) shares no product this small among threads, which would wait longer
than compute."""


@dataclass(frozen=True)
class Transform:
    """A transform at the points 0, +q and -q for each q of `pairs`, and infinity, in this order. `tile`:
    outputs along an axis. `size`: inputs, and products, along an axis."""

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

    def tiles(self, size: int, dilation: int) -> int:
        """Return the number of tiles along an axis of `size` outputs, of which every `dilation`-th belong to
        one image."""
        return min(size, dilation) * -(-size // (self.tile * dilation))

    @property
    def matrix(self) -> Array:
        """The matrix G of the weights' transform, of shape [size, 3]."""
        rows = [np.array([1.0, 0, 0]) / math.prod(-q * q for q in self.pairs)]
        for q in self.pairs:
            norm = 2 * q * q * math.prod(q * q - o * o for o in self.pairs if o != q)
            rows += [np.array([1, s, s * s]) / norm for s in (q, -q)]
        return np.stack([*rows, np.array([0.0, 0, 1])])

    def combined(self, g: Sequence[Expr]) -> list[Expr]:
        """Return G g: the `size` transformed values of three weights."""
        return [
            reduce(add, (_scaled(float(f), e) for f, e in zip(row, g, strict=True) if f))
            for row in self.matrix
        ]

    def inputs(self, d: Sequence[Expr]) -> list[Expr]:
        """Return B^T d: the `size` transformed values of `size` inputs."""
        whole = _coefficients(self.pairs)
        out = [_dot(whole, d[0:-1:2])]
        for q in self.pairs:
            rest = _coefficients([o for o in self.pairs if o != q])
            even, odd = _dot(rest, d[2::2]), _dot(rest, d[1:-1:2])
            out += [even + _scaled(q, odd), even + _scaled(-q, odd)]
        return [*out, _dot(whole, d[1::2])]

    def outputs(self, m: Sequence[Expr]) -> list[Expr]:
        """Return A^T m: the `tile` outputs of `size` products."""
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
        """Return a result, computed from a value that `outputs` returned."""
        return e

    def weights(self, g: Array) -> Array:
        """Return G g G^T of weights [O, C, 3, 3] as [products, C, O], computed in float64 and rounded to
        f32."""
        both = np.kron(self.matrix, self.matrix)
        outputs, channels = g.shape[:2]
        products = np.empty((self.products, channels, outputs), np.float32)
        step = max(1, AT_ONCE // outputs)
        for first in range(0, outputs, AT_ONCE):
            some = slice(first, first + AT_ONCE)
            for at in range(0, channels, step):
                taps = g[some, at : at + step].transpose(2, 3, 1, 0).astype(np.float64)
                transformed = both @ taps.reshape(TAPS * TAPS, -1)
                products[:, at : at + step, some] = transformed.reshape(self.products, *taps.shape[2:])
        return products


def _coefficients(pairs: Sequence[float]) -> list[float]:
    """Return the coefficients of the product of all (y - q^2), lowest power first."""
    out = [1.0]
    for q in pairs:
        out = [low - q * q * high for low, high in zip([0.0, *out], [*out, 0.0], strict=True)]
    return out


def _scaled(factor: float, e: Expr) -> Expr:
    return e * const(factor, e.dtype)


def _dot(factors: Sequence[float], values: Sequence[Expr]) -> Expr:
    """Return the dot product. The last term comes first, because its factor is often 1."""
    pairs = list(zip(factors, values, strict=True))[::-1]
    total = _scaled(*pairs[0])
    for factor, value in pairs[1:]:
        total = total + _scaled(factor, value)
    return total


@dataclass(frozen=True)
class PairTransform(Transform):
    """An exact transform of pairs of int16 as words.

    The rows of G are multiplied by `times`, which makes them whole numbers. Results are then times^2 as
    large, modulo 2^32. They are divided by the odd part by multiplying with its inverse, and by the power of
    2 by a shift. Inputs up to `MOST` become at most 10^2 as large, which fits int16.
    """

    times: int

    @property
    def matrix(self) -> Array:
        rows: Array = np.rint(super().matrix * self.times)
        rows[-1] /= self.last
        return rows

    @property
    def last(self) -> int:
        """The divisor of G's last row, so that weights fit int16. The row's products are multiplied by it."""
        return 1 if self.tile == 2 else 2

    @property
    def shift(self) -> int:
        """The power of 2 in times^2."""
        return 2 * ((self.times & -self.times).bit_length() - 1)

    def combined(self, g: Sequence[Expr]) -> list[Expr]:
        out = []
        for row in self.matrix:
            terms = [(int(f), e) for f, e in zip(row, g, strict=True) if f]
            up, down = ([_times(abs(f), e) for f, e in terms if (f > 0) is s] for s in (True, False))
            total = reduce(_plus, up) if up else const(0, I32)
            out.append(reduce(_less, down, total))
        return out

    def inputs(self, d: Sequence[Expr]) -> list[Expr]:
        if self.tile == 2:
            return [_less(d[2], d[0]), _plus(d[2], d[1]), _less(d[2], d[1]), _less(d[3], d[1])]
        even, odd = _less(d[4], d[2]), _doubled(_less(d[3], d[1]))
        evens, odds = (_less(d[n + 2], _doubled(_doubled(d[n]))) for n in (2, 1))
        first = _less(even, _doubled(_doubled(_less(d[2], d[0]))))
        last = _less(_less(d[5], d[3]), _doubled(odd))
        return [first, _plus(evens, odds), _less(evens, odds), _plus(even, odd), _less(even, odd), last]

    def outputs(self, m: Sequence[Expr]) -> list[Expr]:
        return super().outputs([*m[:-1], _scaled(self.last, m[-1])])

    def restored(self, e: Expr) -> Expr:
        inverse = pow(self.times**2 >> self.shift, -1, 1 << 32)
        signed = inverse - (inverse >> 31 << 32)
        return binary("shr", e if inverse == 1 else e * const(signed, I32), const(self.shift, I32))

    def weights(self, g: Array) -> Array:
        """Return G g G^T of words [O, C / 2, 3, 3], as words [products, C / 2, O]."""
        numbers = np.ascontiguousarray(g.transpose(2, 3, 1, 0)).view(np.int16)
        return super().weights(numbers.transpose(3, 2, 0, 1)).astype(np.int16).view(np.int32)

    def exact(self, g: Array, low: int, high: int) -> bool:
        """Return whether words [O, C / 2, 3, 3] fit int16 once transformed, and the results fit the bits that
        remain after the shift. Inputs are from `low` <= 0 to `high` >= 0."""
        numbers = np.ascontiguousarray(g).view(np.int16).astype(np.int64).reshape(len(g), -1)
        most = np.abs(numbers).max(initial=0) * np.abs(self.matrix).sum(1).max() ** 2
        up, down = (f(numbers, 0).sum(1) for f in (np.maximum, np.minimum))
        results = np.maximum(up * high + down * low, -up * low - down * high).max(initial=0)
        return bool(most < 1 << 15 and results < 1 << 31 >> self.shift)


def _plus(a: Expr, b: Expr) -> Expr:
    return call("add2", a, b)


def _less(a: Expr, b: Expr) -> Expr:
    return call("sub2", a, b)


def _doubled(e: Expr) -> Expr:
    return _plus(e, e)


def _times(factor: int, e: Expr) -> Expr:
    """Return both numbers of a pair times a whole factor of at least 1."""
    if factor == 1:
        return e
    double = _doubled(_times(factor // 2, e))
    return _plus(double, e) if factor % 2 else double


F2 = Transform((1.0,))
F4 = Transform((math.sqrt(0.5), math.sqrt(2.0)))
PAIRED = PairTransform((1.0,), 2), PairTransform((1.0, 2.0), 24)
MOST = 256
"""The largest magnitude of the inputs of a PairTransform. Transformed values are at most a hundred times as
large, so int16 can hold them."""


def exact_of(words: Array, low: int, high: int) -> list[Transform]:
    """Return the transforms that are exact for weights [O, C / 2, 3, 3] of pairs and inputs from `low` to
    `high`."""
    return [t for t in PAIRED if t.exact(words, max(-MOST, min(low, 0)), min(MOST, max(high, 0)))]
