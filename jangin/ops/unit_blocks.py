"""The layout of recurrent layers' tensors, by blocks of hidden units."""

from __future__ import annotations

from jangin.ir.core import Reshape
from jangin.ir.dtype import I8, I32
from jangin.ir.expr import Const, cast, const
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


@dataclass(frozen=True)
class Blocks:
    """The layout of tensors over hidden units: units are padded to `count` blocks of `lanes`."""

    b: Builder
    directions: int
    gates: int
    hidden: int
    lanes: int

    @property
    def count(self) -> int:
        return -(-self.hidden // self.lanes)

    def padded(self, t: Tensor) -> Tensor:
        """Pad the hidden units of a tensor with 0: [..., up to hidden] -> [..., units]."""
        return self.b.pad(t, [0] * (2 * t.rank - 1) + [self.count * self.lanes - size_of(t, -1)])

    def weights(self, t: Tensor) -> Tensor:
        """Return weights laid out by blocks: [D, gates * (up to hidden), N] -> [D, blocks, N, gates,
        lanes]."""
        count, each = t.shape[2], size_of(t, 1) // self.gates
        if each == self.count * self.lanes:
            apart = self.b.reshape(t, [self.directions, self.gates, self.count, self.lanes, count])
            return self.b.transpose(apart, [0, 2, 4, 1, 3])
        rows = self.b.transpose(t, [0, 2, 1])
        units = self.padded(self.b.reshape(rows, [self.directions, count, self.gates, each]))
        apart = self.b.reshape(units, [self.directions, count, self.gates, self.count, self.lanes])
        return self.b.transpose(apart, [0, 3, 1, 2, 4])

    def turned_weights(self, t: Tensor) -> Tensor:
        """Return `weights` of one gate, given their transpose: [D, N, up to hidden]."""
        count = t.shape[1]
        apart = self.b.reshape(self.padded(t), [self.directions, count, self.count, self.lanes])
        turned = self.b.transpose(apart, [0, 2, 1, 3])
        return self.b.reshape(turned, [self.directions, self.count, count, 1, self.lanes])

    def whole_weights(self, t: Tensor, scale: Tensor, zero: Tensor | None) -> dict[str, Tensor]:
        """Return 8-bit weights [D, gates * (up to hidden), N], their scales and zero points, laid out as
        `ops.rounds.Scan` reads them, by name. Scales and zero points have the first two axes."""
        b, (directions, rows, _) = self.b, t.shape
        less = 0 if t.dtype is I8 else 128
        signed = b.map(lambda v: cast(I8, cast(I32, v) - less), t)
        named = {"columns": b.reduce("sum", b.cast(signed, I32), [2], True), "s": column(b, scale)}
        if zero is not None or less:
            zero = b.scalar(0, t.dtype) if zero is None else column(b, zero)
            named["z"] = b.expand(b.map(lambda v: cast(I32, v) - less, zero), named["columns"].shape)
        each, count = b.tile.words.each, -(-size_of(t, 2) // self.lanes)
        part = self.lanes // each
        whole = b.pad(signed, [0, 0, 0, 0, 0, count * self.lanes - size_of(t, 2)])
        parts = b.reshape(whole, [directions, rows, count, each, part])
        shape = directions, rows, const(count * part)
        beside = b.transpose(parts, [0, 1, 2, 4, 3])
        named["r"] = b.node(Reshape(shape, I32), [beside]) if each > 1 else b.reshape(beside, shape)
        return {name: self.weights(of) for name, of in named.items()}

    def columns(self, t: Tensor) -> Tensor:
        """Return weights as the columns of a matrix: [D, gates * hidden, N] -> [D, N, blocks * gates *
        lanes]."""
        parts = self.b.transpose(self.weights(t), [0, 2, 1, 3, 4])
        return self.b.reshape(parts, [self.directions, t.shape[2], self.count * self.gates * self.lanes])


def size_of(t: Tensor, axis: int) -> int:
    extent = t.shape[axis]
    assert isinstance(extent, Const)
    return int(extent.value)


def column(b: Builder, t: Tensor) -> Tensor:
    return b.reshape(t, [*t.shape, 1])
