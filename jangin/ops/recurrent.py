"""LSTM, GRU and plain recurrent layers, which operators are lowered to.

At small batches a step costs one reading of all the state's weights. They are therefore constants in the
order of reading: by block of hidden units, row by row, all gates side by side. `ops.rounds` has the nest over
time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from jangin.ir.dtype import F32, I32, I64
from jangin.ir.expr import Buffer, Expr, Var, cast, const, select
from jangin.ir.graph import CompileError, static_shape
from jangin.ir.loop import For, If
from jangin.ir.records import dataclass
from jangin.ir.simplify import simplify
from jangin.ir.types import tensor_type
from jangin.ops.builder import Builder
from jangin.ops.cells import SIGMOID, TANH, Cell, gru_step, lstm_saving_step, lstm_step, rnn_step
from jangin.ops.index import in_range
from jangin.ops.levels import Levels
from jangin.ops.nontensor import host
from jangin.ops.operands import wide
from jangin.ops.quantized import integer_matmul
from jangin.ops.recurrent_gradient import of_lstm
from jangin.ops.register_tiles import Tile
from jangin.ops.rounds import LEVEL_ROWS, ROUND, TASK, Activation, Scan
from jangin.ops.unit_blocks import Blocks, column, size_of
from jangin.ops.values import OwnGradient, Tensor

LSTM_GATES = ("input", "output", "forget", "candidate")
GRU_GATES = ("update", "reset", "candidate")


@dataclass(frozen=True)
class Layer:
    """The inputs of a recurrent layer with D directions.

    - `x` [steps, batch, size].
    - `w` [D, gates * hidden, size] are the inputs' weights, `r` [D, gates * hidden, hidden] the state's.
      Their shapes are known.
    - `bias` [D, 2, gates, hidden]: the inputs' and the state's.
    - `lengths` [batch] (integers): sequences may be shorter than x; their further results are 0.
    - `backward`: for each direction, whether it goes from the last step to the first.
    - `activations`: for each direction, a cell's functions.
    - `levels`: the weights are of 8 bits, and inputs and states are quantized to these levels to be
      multiplied.
    - `scales`: the 8-bit weights' scales, of the inputs and of the state, [D] or [D, gates * hidden].
    - `zeros`: the weights' zero points, shaped alike, in the weights' types; none if they are 0.
    """

    x: Tensor
    w: Tensor
    r: Tensor
    bias: Tensor | None = None
    lengths: Tensor | None = None
    backward: tuple[bool, ...] = (False,)
    activations: Sequence[Sequence[Activation]] | None = None
    levels: Levels | None = None
    scales: tuple[Tensor, ...] = ()
    zeros: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Projection:
    """The projection at the end of an LSTM's step: h becomes P h' + offset, clipped to `bound` (0: no
    clipping).

    `weights` P is [D, size, hidden], with `size` not above `hidden`; `offset` is [D, size]. `scales` [D,
    size] belong to weights that are multiplied as a layer's `levels`.
    """

    weights: Tensor
    offset: Tensor
    bound: float = 0.0
    scales: Tensor | None = None


def rnn(b: Builder, layer: Layer, *, h: Tensor | None = None) -> tuple[Tensor, ...]:
    """Return the plain recurrence h' = f(W x + R h + bias), where f defaults to tanh (Elman 1990).

    The results are y [D, steps, batch, hidden] and the last h [D, batch, hidden]. The initial `h` defaults to
    0.
    """
    return _recurrent(b, layer, Cell("rnn", ("hidden",), ("h0",), (("hidden",),), rnn_step, (TANH,)), [h], {})


def gru(
    b: Builder, layer: Layer, *, h: Tensor | None = None, gates: Sequence[str] = GRU_GATES,
    reset_after: bool = False,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return a GRU: h' = (1 - z) g(candidate) + z h, with gates z ("update") and r ("reset") by f (Cho et al.
    2014).

    f defaults to sigmoid and g to tanh. `gates` is their order in the weights, with the candidate first or
    last. `reset_after`: the reset gate scales the state's product, not the state. The results are those of
    `rnn`.
    """
    rest = tuple(g for g in gates if g != "candidate")
    step = partial(gru_step, reset_after=reset_after)
    usual, settings = (SIGMOID, TANH), {"reset_after": reset_after}
    if reset_after:
        cell = Cell("gru", tuple(gates), ("h0",), (tuple(gates),), step, usual, settings, apart="candidate")
    else:
        cell = Cell("gru", tuple(gates), ("h0",), (rest, ("candidate",)), step, usual, settings, kept=2)
    return _recurrent(b, layer, cell, [h], {})


def lstm(
    b: Builder, layer: Layer, *, h: Tensor | None = None, c: Tensor | None = None,
    gates: Sequence[str] = LSTM_GATES, peepholes: Tensor | None = None, coupled: bool = False,
    limit: float = 0.0, projection: Projection | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return an LSTM: c' = f(forget) c + f(input) g(candidate), h' = f(output) e(c') (Hochreiter &
    Schmidhuber 1997).

    f defaults to sigmoid, g and e to tanh. The results are (y, the last h, the last c), shaped as in `rnn`.

    - `gates`: their order in the weights.
    - `peepholes` [D, 3, hidden]: weights by which the input, output and forget gates see the cell (Gers &
      Schmidhuber 2000).
    - `coupled`: the forget gate is 1 minus the input gate.
    - `limit`: the cell is clipped to [-limit, limit]; 0 means no clipping.
    - `projection`: a projection by levels or with a bound; `projected_lstm` is quicker for any other.

    Without these settings, lengths, levels and other activations, a trained layer has a quick gradient.
    """
    bound = 0.0 if projection is None else projection.bound
    step = partial(lstm_step, coupled=coupled, limit=limit, bound=bound)
    settings = {"coupled": coupled, "limit": limit}
    cell = Cell("lstm", tuple(gates), ("h0", "c0"), (tuple(gates),), step, (SIGMOID, TANH, TANH), settings)
    if projection is not None:
        cell = replace(cell, kept=2)
    extra = {} if peepholes is None else {"p": peepholes}
    special = coupled, limit, projection, peepholes, layer.activations, layer.lengths, layer.levels
    if not b.trained or any(special):
        return _recurrent(b, layer, cell, [h, c], extra, projection)
    cell = replace(cell, step=lstm_saving_step, saved=len(gates) + 1)
    y, last, held, *saved = _recurrent(b, layer, cell, [h, c], {})
    function = partial(of_lstm, gates=tuple(gates), backward=layer.backward, saved=saved)
    inputs = layer.x, layer.w, layer.r, layer.bias, h, c
    b.own_gradients.append(OwnGradient(inputs, (y, last, held), function, tuple(saved)))
    return y, last, held


def projected_lstm(
    b: Builder, layer: Layer, projection: Tensor, offset: Tensor | None = None, *, h: Tensor, c: Tensor,
    **given: Any,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return an LSTM whose gates and caller see P h' + offset instead of h' (Sak et al. 2014).

    `projection` is [D, size, hidden], `offset` [D, size], the layer's r [D, gates * hidden, size], `h` [D,
    batch, size]. The other arguments and the results are those of `lstm`.

    The state's gate weights are multiplied by the projection beforehand, so the nest over time is that of any
    LSTM. The first step's `h` comes with x, in columns that are 0 at all other steps.
    """
    by_direction = []
    for d in range(len(layer.backward)):
        size, start, cell = (_of(b, t, d) for t in (projection, h, c))
        by_direction.append(_projected(b, layer, d, size, offset and _of(b, offset, d), start, cell, given))
    return tuple(b.concat(list(t), 0) if len(t) > 1 else t[0] for t in zip(*by_direction, strict=True))


def _projected(
    b: Builder, layer: Layer, d: int, projection: Tensor, offset: Tensor | None, h: Tensor, c: Tensor,
    given: Mapping[str, Any],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return the results of `projected_lstm` for one direction."""
    w, r = _of(b, layer.w, d), _of(b, layer.r, d)
    bias = layer.bias and _of(b, layer.bias, d)
    steps, batch = layer.x.shape[:2]
    if offset is not None:
        h = b.map(lambda v, o: v - o, h, offset)
        sums = b.matmul(r, b.reshape(offset, [1, *offset.shape]), transpose_b=True)
        more = b.reshape(sums, [1, 1, len(LSTM_GATES), projection.shape[2]])
        more = b.concat([more, b.map(lambda v: v * 0, more)], 1)
        bias = more if bias is None else b.map(lambda v, o: v + o, bias, more)
    later = b.expand(b.scalar(0, h.dtype), [steps - 1, batch, h.shape[2]])
    first = b.concat([later, h] if layer.backward[d] else [h, later], 0)
    one = replace(
        layer, x=b.concat([layer.x, first], 2), w=b.concat([w, r], 2), r=b.matmul(r, projection), bias=bias,
        backward=layer.backward[d : d + 1], activations=layer.activations and layer.activations[d : d + 1],
    )  # fmt: skip
    y, _, last = lstm(b, one, c=c, **given)
    y = b.matmul(y, b.reshape(projection, [1, *projection.shape]), transpose_b=True)
    if offset is not None:
        y = b.map(lambda v, o: v + o, y, offset)
    end = const(0) if layer.backward[d] else steps - 1
    return y, b.reshape(b.slice(y, [0, end, 0, 0], [1, 1, batch, h.shape[2]], [1] * 4), h.shape), last


def _of(b: Builder, t: Tensor, d: int) -> Tensor:
    """Return the part of one direction, whose first axis has size 1."""
    return b.slice(t, [d, *[0] * (t.rank - 1)], [1, *t.shape[1:]], [1] * t.rank)


# -- a layer -------------------------------------------------------------------------------------


def _recurrent(
    b: Builder, layer: Layer, cell: Cell, initial: Sequence[Tensor | None], extra: Mapping[str, Tensor],
    projection: Projection | None = None,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return (y, the last value of each state) of a layer, as `rnn` does."""
    x, r = layer.x, layer.r
    sizes = static_shape((*r.shape, layer.w.shape[1], *(projection.weights.shape if projection else ())))
    if x.rank != 3 or sizes is None:
        raise CompileError(
            f"inputs {x} with weights {layer.w} and {r}: ranks must be 3, the weights' shapes known"
        )
    directions, rows, size = sizes[:3]
    hidden = sizes[-1] if projection else size
    if directions != len(layer.backward) or rows != len(cell.gates) * hidden or size > hidden:
        raise CompileError(
            f"{len(layer.backward)} directions of {len(cell.gates)} gates don't fit weights {r}"
        )
    together = layer.levels is None or layer.levels.together
    if projection is None and together and (b.whole or b.layers):
        return _whole(b, layer, cell, initial, extra)
    scales, zeros = (tuple(_of_rows(b, t, layer, rows) for t in of) for of in (layer.scales, layer.zeros))
    layer = replace(layer, scales=scales, zeros=zeros, x=_ended(b, layer))
    steps, batch = x.shape[:2]
    tile, blocks = laid_out(b, layer, cell, hidden)
    tensors = _inputs(b, layer, blocks, cell)
    if layer.lengths is not None:
        tensors["lengths"] = in_range(b, layer.lengths, steps + 1, from_end=False)
    for name, state in zip(cell.states, initial, strict=True):
        begin = state or b.expand(b.scalar(0, x.dtype), [directions, batch, hidden])
        tensors[name] = blocks.padded(begin)
    tensors |= {name: blocks.padded(t) for name, t in extra.items()}
    if projection is not None:
        columns = replace(blocks, gates=1)
        tensors["offset"] = blocks.padded(projection.offset)
        if projection.scales is None:
            tensors["r1"] = columns.weights(projection.weights)
        else:
            whole = columns.whole_weights(projection.weights, projection.scales, None)
            tensors |= {f"{name}1": t for name, t in whole.items()}
    widths = [size, *[hidden] * (len(initial) - 1)]
    outputs = scanned(b, tensors, blocks, layer, cell, tile, widths)
    return tuple(b.cast(t, x.dtype) for t in outputs)


def _of_rows(b: Builder, t: Tensor, layer: Layer, rows: int) -> Tensor:
    """Return `t`, [D] or [D, rows], as [D, rows]. D is the number of the layer's directions."""
    return b.expand(b.reshape(t, [*t.shape, *[1] * (2 - t.rank)]), [len(layer.backward), rows])


def _ended(b: Builder, layer: Layer) -> Tensor:
    """Return x, with zeros in the steps after the longest sequence if all rows share a quantization range.
    The padding then can't widen that range."""
    if layer.lengths is None or layer.levels is None or not layer.levels.together:
        return layer.x
    longest = b.reduce("max", layer.lengths, [0])

    def kept(bufs: Sequence[Buffer], t: Expr, n: Expr, i: Expr) -> Expr:
        return select(t < cast(I64, bufs[1][()]), bufs[0][t, n, i], const(0, layer.x.dtype))

    return b.compute(layer.x.dtype, layer.x.shape, [layer.x, longest], kept)


def laid_out(b: Builder, layer: Layer, cell: Cell, hidden: int) -> tuple[Tile, Blocks]:
    """Return the register tile of a layer's nest, and the layout of its units."""
    directions, batch = len(layer.backward), layer.x.shape[1]
    dtype = wide(const(0, layer.x.dtype)).dtype
    element = dtype.bytes if dtype.is_float else I32.bytes
    gates = max(map(len, cell.phases))
    tile = Tile.fit(hidden, gates, batch, element, b.tile, of_words=layer.levels is not None)
    return tile, Blocks(b, directions, len(cell.gates), hidden, tile.lanes)


def scanned(
    b: Builder, tensors: Mapping[str, Tensor], blocks: Blocks, layer: Layer, cell: Cell, tile: Tile,
    widths: Sequence[int],
) -> tuple[Tensor, ...]:  # fmt: skip
    """Add the nest over time (`ops.rounds.Scan`, whose inputs are `tensors`). Return y [D, steps, batch,
    widths[0]], the last states [D, batch, width] and the saved values, which are shaped as y. All have the
    dtype of the computation."""
    all_states, scan = _nest(b, tensors, blocks, layer, cell, tile)
    steps, batch = layer.x.shape[:2]

    def part(start: Expr, count: Expr, width: int) -> Tensor:
        shape: list[Expr] = [const(blocks.directions), count, batch, const(width)]
        return b.slice(all_states, [0, start, 0, 0], shape, [1] * 4)

    y = part(const(0), steps, widths[0])
    last = (part(steps + steps % 2 + 2 * n, const(1), width) for n, width in enumerate(widths))
    states = (b.reshape(t, [blocks.directions, batch, t.shape[3]]) for t in last)
    return y, *states, *(part(scan.saved(n), steps, widths[0]) for n in range(cell.saved))


USUAL_GATES: Mapping[str, tuple[str, ...]] = {"rnn": ("hidden",), "gru": GRU_GATES, "lstm": LSTM_GATES}


def _whole(
    b: Builder, layer: Layer, cell: Cell, initial: Sequence[Tensor | None], extra: Mapping[str, Tensor]
) -> tuple[Tensor, ...]:
    """Return a layer as a single node that calls a function, for a graph that is written, not run.

    Its inputs are x, w, r, bias [D, 2 * gates * hidden], lengths, the states and the peepholes [D, 3 *
    hidden]. Gates are in the order of `USUAL_GATES`. Its results are y [steps, D, batch, hidden] and the last
    states. Its attributes are `backward`, `activations` (expressions of x0 for each direction) and the cell's
    settings. A layer of levels calls a function of its own: w and r are transposed, and followed by their
    scales and zero points.
    """
    x, count = layer.x, len(cell.gates)
    directions, hidden = layer.r.shape[0], int(static_shape(layer.r.shape[2:])[0])  # type: ignore[index]
    order = [cell.gates.index(g) for g in USUAL_GATES[cell.function]]
    rows = b.const(np.concatenate([np.arange(hidden) + i * hidden for i in order]))
    usual = order == list(range(count))
    w, r = (t if usual else b.gather(t, rows, 1) for t in (layer.w, layer.r))
    bias = layer.bias
    if bias is not None:
        bias = bias if usual else b.gather(bias, b.const(np.array(order)), 2)
        bias = b.reshape(bias, [directions, 2 * count * hidden])
    lengths = layer.lengths and b.cast(layer.lengths, I32)
    more: list[Tensor | None] = [b.reshape(t, [directions, 3 * hidden]) for t in extra.values()]
    fns = layer.activations or [cell.usual] * len(layer.backward)
    element = Var("x0", F32)
    spoken = tuple(tuple(fn(element) for fn in of) for of in fns)
    state = tensor_type(x.dtype, (directions, x.shape[1], const(hidden)))
    y = tensor_type(x.dtype, (x.shape[0], directions, x.shape[1], const(hidden)))
    settings = {"hidden": hidden, "backward": layer.backward, "activations": spoken, **cell.settings}
    inputs = [x, w, r, bias, lengths, *initial, *more]
    function = cell.function
    if layer.levels is not None:
        assert usual, "scales would be in another order"
        function, turned = f"leveled_{function}", [b.transpose(t, [0, 2, 1]) for t in (w, r)]
        zeros = layer.zeros or [b.expand(b.scalar(0, w.dtype), s.shape) for s in layer.scales]
        pairs = [t for pair in zip(layer.scales, zeros, strict=True) for t in pair]
        inputs = [x, *turned, bias, lengths, *initial, *(more or [None]), *pairs]
    sequence, *last = host(b, function, inputs, [y, *[state] * len(initial)], settings)
    return b.transpose(sequence, [1, 0, 2, 3]), *last


def _inputs(b: Builder, layer: Layer, blocks: Blocks, cell: Cell) -> dict[str, Tensor]:
    """Return the nest's inputs that come from the sequence and the weights, by name."""
    directions, gates, hidden, lanes = blocks.directions, blocks.gates, blocks.hidden, blocks.lanes
    seq, rows = layer.x, gates * hidden
    steps, batch, width = seq.shape
    split = layer.bias or b.expand(b.scalar(0, seq.dtype), [directions, 2, gates, hidden])
    own = np.array([[g != cell.apart] for g in cell.gates]).astype(seq.dtype.numpy)
    kept = b.reduce("sum", b.map(lambda v, k: v * k, split, b.const(np.stack([np.ones_like(own), own]))), [1])
    product = _product(b, layer, b.reshape(seq, [1, steps * batch, width]), blocks)
    offset = blocks.columns(b.reshape(kept, [directions, rows, 1]))
    x = b.map(lambda v, c: v + c, product, offset)
    tensors = {"x": b.reshape(x, [directions, steps, batch, blocks.count, gates, lanes])}
    if layer.levels is None:
        weights = {"r": blocks.weights(layer.r)}
    else:
        weights = blocks.whole_weights(layer.r, layer.scales[1], layer.zeros[1] if layer.zeros else None)
    for n, phase in enumerate(cell.phases):
        starts = [0, 0, 0, cell.gates.index(phase[0]), 0]
        for name, t in weights.items():
            shape: list[Expr] = [*t.shape[:3], const(len(phase)), const(lanes)]
            tensors[f"{name}{n}"] = b.slice(t, starts, shape, [1] * 5)
    if cell.apart:
        states = b.slice(split, [0, 1, 0, 0], [directions, 1, gates, hidden], [1] * 4)
        tensors["bias"] = blocks.padded(b.reshape(states, [directions, gates, hidden]))
    return tensors


def _product(b: Builder, layer: Layer, rows: Tensor, blocks: Blocks) -> Tensor:
    """Return the inputs [1, rows, size] times their weights: [D, rows, blocks * gates * lanes]."""
    columns = blocks.columns(layer.w)
    if layer.levels is None:
        return b.matmul(rows, columns)
    scales = blocks.columns(column(b, layer.scales[0]))
    zero = blocks.columns(column(b, layer.zeros[0])) if layer.zeros else None
    return layer.levels.multiplied(b, rows, [2], lambda q, z: integer_matmul(b, q, columns, z, zero), scales)


def _nest(
    b: Builder, tensors: Mapping[str, Tensor], blocks: Blocks, layer: Layer, cell: Cell, tile: Tile
) -> tuple[Tensor, Scan]:
    """Return the result of the nest over time, `Scan.out`, and the last direction's `Scan`."""
    steps, batch = layer.x.shape[:2]
    dtype = wide(const(0, tensors["x"].dtype)).dtype
    buffers = {n: Buffer(f"x{i}", t.dtype, t.shape) for i, (n, t) in enumerate(tensors.items())}
    directions = blocks.directions
    behind = 2 * len(cell.states) + cell.kept + LEVEL_ROWS * (layer.levels is not None)
    count = simplify(steps * (1 + cell.saved) + behind)
    rows = (const(directions), count, batch, const(blocks.count * blocks.lanes))
    out = Buffer("out", dtype, rows)
    fns = layer.activations or [cell.usual] * directions
    sizes = size_of(layer.r, 2), blocks.hidden
    bodies = []
    for d, backward in enumerate(layer.backward):
        scan = Scan(
            cell.gates, d, backward, tile, cell.states, buffers, out, steps, cell.kept, layer.levels,
            b.tile.words, sizes,
        )  # fmt: skip
        phases = cell.step(scan, fns[d])
        bodies.append(scan.task(phases))
    body = bodies[0] if directions == 1 else If(blocks.count > TASK, *bodies)
    tasks = For(TASK, const(blocks.count * directions), body, "parallel")
    rounds = For(ROUND, simplify(steps * len(phases) + 1), tasks)
    return b.loop_nest(list(tensors.values()), rounds, dtype, rows), scan
