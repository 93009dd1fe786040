"""The gradient of an LSTM layer (backpropagation through time: Werbos 1990).

The general gradient of a loop nest runs on one thread. Here a nest like the forward one goes through the
steps in reverse order (`ops.rounds`), and gives the gradients of all gates. The gradients of weights, inputs
and biases are then large products over all steps. The forward nest has saved its gates and cells.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce

from jangin.ir.expr import Buffer, Expr, Load, const
from jangin.ir.loop import For, Stmt, Store
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ops.builder import Builder
from jangin.ops.cells import TANH
from jangin.ops.register_tiles import Tile
from jangin.ops.rounds import BATCH, INNER, PLACE, ROUND, TASK, Phase, Scan
from jangin.ops.unit_blocks import Blocks, size_of
from jangin.ops.values import Tensor

NARROW = 8
"""An input is narrow if all gates have at least so many times as many columns. Its weights' gradient is then
made transposed, which took 2.2 instead of 2.4 ms in a step of an LSTM."""


@dataclass(frozen=True)
class Direction:
    """One direction of a layer, in the type in which the layer computes.

    - `x` [steps, batch, size] is its input, and `y` [steps, batch, hidden] its output.
    - `w` [gates * hidden, size] and `r` [gates * hidden, hidden] are its weights.
    - `h` and `c` [batch, hidden] are the states before the first step.
    - `saved` has the gates, and the cell "c", of all steps, shaped as y."""

    b: Builder
    gates: tuple[str, ...]
    backward: bool
    x: Tensor
    w: Tensor
    r: Tensor
    h: Tensor
    c: Tensor
    y: Tensor
    saved: Mapping[str, Tensor]

    @property
    def steps(self) -> Expr:
        return self.x.shape[0]

    def rows(self, t: Tensor) -> Tensor:
        """Return [steps, batch, N] as [steps * batch, N]."""
        return self.b.reshape(t, [simplify(t.shape[0] * t.shape[1]), t.shape[2]])

    def before(self, t: Tensor, start: Tensor) -> Tensor:
        """Return each step's value of [steps, batch, hidden] before it. `start` is the first step's."""
        first = self.b.reshape(start, [1, *start.shape])
        size = simplify(self.steps - 1), *t.shape[1:]
        rest = self.b.slice(t, [int(self.backward), 0, 0], size, [1] * 3)
        return self.b.concat([rest, first] if self.backward else [first, rest], 0)

    def gradients(self, gy: Tensor, gh: Tensor, gc: Tensor) -> dict[str, Tensor]:
        """Return the gradients by the names of the fields, given those of y and of the last states."""
        b = self.b
        h, opened, c = self.before(self.y, self.h), self.saved, self.saved["c"]
        earlier = [0 if self.backward else simplify(self.steps - 1), 0, 0]
        later = [simplify(self.steps - 1) if self.backward else 0, 0, 0]
        gh = b.pad(b.reshape(gh, [1, *gh.shape]), [*earlier, *later])
        slopes = {
            "y": b.map(lambda v, u: v + u, gy, gh),
            "squash": b.map(lambda o, v: o * (1.0 - TANH(v) * TANH(v)), opened["output"], c),
            "input": b.map(lambda i, g: g * i * (1.0 - i), opened["input"], opened["candidate"]),
            "forget": b.map(lambda f, v: v * f * (1.0 - f), opened["forget"], self.before(c, self.c)),
            "candidate": b.map(lambda i, g: i * (1.0 - g * g), opened["input"], opened["candidate"]),
            "output": b.map(lambda o, v: TANH(v) * o * (1.0 - o), opened["output"], c),
            "keep": opened["forget"],
        }
        of_gates, of_c = self.backwards(slopes, gc)
        rows = self.rows(of_gates)
        first = [simplify(self.steps - 1) if self.backward else 0, 0, 0]
        begin = b.slice(of_gates, first, [1, *of_gates.shape[1:]], [1] * 3)
        return {
            "x": b.reshape(b.matmul(rows, self.w), self.x.shape),
            "w": self.of_weights(rows, self.x),
            "r": self.of_weights(rows, h),
            "bias": b.reduce("sum", rows, [0]),
            "h": b.matmul(b.reshape(begin, begin.shape[1:]), self.r),
            "c": of_c,
        }

    def of_weights(self, of_gates: Tensor, read: Tensor) -> Tensor:
        """Return the gradient of weights that multiply `read`, a product over all steps. A narrow operand is
        the left one, because the right one is read by whole lines."""
        b, x = self.b, self.rows(read)
        if NARROW * size_of(x, 1) > size_of(of_gates, 1):
            return b.matmul(of_gates, x, transpose_a=True)
        return b.transpose(b.matmul(x, of_gates, transpose_a=True), [1, 0])

    def backwards(self, slopes: dict[str, Tensor], gc: Tensor) -> tuple[Tensor, Tensor]:
        """Return the gradients of all gates [steps, batch, gates * hidden], and that of the first cell state.

        The nest's states are the gates' gradients at the step before in its order, and the cell state's."""
        b, (steps, batch, hidden), dtype = self.b, self.y.shape, self.y.dtype
        size = size_of(self.y, 2)
        tile = Tile.fit(size, 1, batch, dtype.bytes, b.tile)  # all gates' products are one sum
        blocks = Blocks(b, 1, 1, size, tile.lanes)
        none = b.expand(b.scalar(0, dtype), [1, batch, blocks.count * blocks.lanes])
        tensors = {n: blocks.padded(b.reshape(t, [1, *t.shape])) for n, t in {**slopes, "c": gc}.items()}
        tensors |= {"none": none, "r0": blocks.turned_weights(b.reshape(self.r, [1, *self.r.shape]))}
        buffers = {n: Buffer(f"x{i}", t.dtype, t.shape) for i, (n, t) in enumerate(tensors.items())}
        states = *["none"] * len(self.gates), "c"
        behind = 2 * len(states)
        rows = simplify(steps * len(self.gates) + behind)
        shape = const(1), rows, batch, const(blocks.count * blocks.lanes)
        scan = Scan(
            self.gates, 0, not self.backward, tile, states, buffers, Buffer("out", dtype, shape), steps
        )
        tasks = For(TASK, const(blocks.count), scan.task([_step(scan)]), "parallel")
        rounds = b.loop_nest([*tensors.values()], For(ROUND, simplify(steps + 1), tasks), dtype, shape)

        def part(start: Expr | int, count: Expr | int) -> Tensor:
            sizes = [const(1), simplify(const(0) + count), batch, hidden]
            rows = b.slice(rounds, [0, start, 0, 0], sizes, [1] * 4)
            return b.reshape(rows, sizes[1:])

        starts = [const(0), *(scan.saved(n) for n in range(len(self.gates) - 1))]
        last = part(simplify(steps + steps % 2 + 2 * len(self.gates)), 1)
        return b.concat([part(s, steps) for s in starts], 2), b.reshape(last, [batch, hidden])


def _step(scan: Scan) -> Phase:
    """Return one step of the nest. It computes the gradient of the step's h from the gates' gradients of the
    later step, then those of its own gates."""
    (h, at), (c, _) = scan.register(0), scan.register(1)

    def slope(name: str) -> Expr:
        return scan.vector(name, PLACE, BATCH)

    def finish(total: Expr) -> Sequence[Stmt]:
        of_h, of_c = Load(h, at), Load(c, at)
        slopes = [slope(g) * (of_h if g == "output" else of_c) for g in scan.gates]
        return [
            Store(h, at, total),
            Store(c, at, scan.state(len(scan.gates)) + of_h * slope("squash")),
            *scan.advance(*slopes, of_c * slope("keep")),
            *(scan.save(n, v) for n, v in enumerate(slopes[1:])),
        ]

    later = [scan.state(n, INNER) for n in range(len(scan.gates))]
    return scan.total(0, later, slope("y"), finish, h, c)


def of_lstm(
    b: Builder, inputs: Sequence[Tensor | None], outputs: Sequence[Tensor], gs: Sequence[Tensor],
    *, gates: tuple[str, ...], backward: tuple[bool, ...], saved: Sequence[Tensor],
) -> tuple[Tensor | None, ...]:  # fmt: skip
    """Return the gradients of an LSTM's inputs (x, w, r, bias, h, c). `gs` are those of its outputs (y, the
    last h, the last c), and `saved` the values that it saved. All but x have a first axis of directions."""
    x, w, r, bias, h, c = inputs
    assert x is not None and w is not None and r is not None
    dtype = x.dtype.wide
    none = b.expand(b.scalar(0, dtype), [x.shape[1], r.shape[2]])

    def of(t: Tensor, d: int) -> Tensor:
        own = b.slice(t, [d, *[0] * (t.rank - 1)], [1, *t.shape[1:]], [1] * t.rank)
        return b.cast(b.reshape(own, t.shape[1:]), dtype)

    by_direction = []
    for d, turned in enumerate(backward):
        start, cell = (of(t, d) if t else none for t in (h, c))
        values = dict(zip((*gates, "c"), (of(t, d) for t in saved), strict=True))
        own = b.cast(x, dtype)
        one = Direction(b, gates, turned, own, of(w, d), of(r, d), start, cell, of(outputs[0], d), values)
        by_direction.append(one.gradients(*(of(g, d) for g in gs)))

    def joined(name: str, like: Tensor | None) -> Tensor | None:
        if like is None:
            return None
        parts = [b.reshape(f[name], [1, *f[name].shape]) for f in by_direction]
        return b.cast(b.concat(parts, 0) if len(parts) > 1 else parts[0], like.dtype)

    of_x = reduce(lambda v, u: b.map(lambda p, q: p + q, v, u), [f["x"] for f in by_direction])
    each = [joined(name, t) for name, t in (("w", w), ("r", r), ("bias", bias), ("h", h), ("c", c))]
    if bias is not None and each[2] is not None:
        one_row = b.reshape(each[2], [bias.shape[0], 1, *bias.shape[2:]])
        each[2] = b.expand(one_row, bias.shape)
    return b.cast(of_x, x.dtype), *each
