"""Channels-last for the convolutional parts of the whole graph.

Every value keeps its meaning; some get a *twin*: the same tensor with its channel axes moved to
the end. Convolutions and pools are always computed on twins, operators that don't care follow
their inputs, and the original order is restored only where something needs it. A value [N, C, ...]
whose channel axis a reshape has split (group normalization, channel shuffle) has a twin too:
`split` counts the channel axes, which stand right after the batch axis.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.core import (
    Compute,
    Concat,
    Conv,
    Expand,
    Gather,
    Normalize,
    Pad,
    Pool,
    Reduce,
    Reshape,
    Slice,
    Softmax,
    Transpose,
)
from jangin.ir.expr import Buffer, Expr, Load, const, is_const, rewrite
from jangin.ir.graph import Array, Attributes, Graph, Node, Shape, Value
from jangin.ir.simplify import interval, simplify
from jangin.ir.te import Stage
from jangin.targets.target import Target


def layout(graph: Graph, target: Target) -> Graph:
    """The graph with convolutions and pools channels-last; inputs and outputs stay as they are."""
    if not any(isinstance(n.attrs, (Conv, Pool)) and n.attrs.layout == "first" for n in graph.nodes):
        return graph
    return _Layout(graph, target.fusion.few_channels).run()


def to_last(rank: int, split: int = 1) -> tuple[int, ...]:
    """The permutation that moves axes 1..split to the end."""
    return (0, *range(split + 1, rank), *range(1, split + 1))


def inverse(perm: Sequence[int]) -> tuple[int, ...]:
    return tuple(perm.index(i) for i in range(len(perm)))


def permuted(items: Sequence[Any], perm: Sequence[int]) -> tuple[Any, ...]:
    return tuple(items[p] for p in perm)


def moves_nothing(shape: Shape, perm: Sequence[int]) -> bool:
    """True when transposing only moves axes of size 1: the bytes stay where they are."""
    real = [p for p in perm if not is_const(shape[p], 1)]
    return real == sorted(real)


class _Layout:
    """One run: `here` has the originals there are (by value, the name they go by), `twins` the
    channels-last copies (by value and split), `fitted` the operands rearranged to broadcast against
    twins (by value, rank and split), `born` the values computed as twins (with their split)."""

    def __init__(self, graph: Graph, few_channels: int) -> None:
        self.few_channels = few_channels
        self.graph = graph
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = dict(graph.values)
        self.constants: dict[str, Array] = dict(graph.constants)
        self.here = {n: n for n in (*graph.inputs, *graph.constants)}
        self.twins: dict[tuple[str, int], str] = {}
        self.fitted: dict[tuple[str, int, int], str] = {}
        self.born: dict[str, int] = {}
        self.users = graph.consumers()

    def run(self) -> Graph:
        for node in self.graph.nodes:
            follow = FOLLOW.get(node.op)
            if follow is None or not follow(self, node):
                inputs = [self.original(n) for n in node.inputs]
                self.emit(node, inputs, node.outputs[0], node.attrs)
                self.here[node.outputs[0]] = node.outputs[0]
        for name in self.graph.outputs:
            actual = self.original(name)
            if actual != name:
                self.move(actual, self.shape(actual), range(len(self.shape(actual))), name)
        return self.graph.with_nodes(self.nodes, values=self.values, constants=self.constants)

    # -- values ---------------------------------------------------------------------------------

    def shape(self, name: str) -> Shape:
        shape = self.values[name].shape
        assert shape is not None
        return shape

    def fresh(self, base: str) -> str:
        name, n = base, 0
        while name in self.values:
            n += 1
            name = f"{base}{n}"
        return name

    def original(self, name: str) -> str:
        """The name of the value in its own order of axes."""
        if not name or name in self.here:
            return self.here.get(name, name)
        split = self.born[name]
        back = inverse(to_last(len(self.shape(name)), split))
        self.move(self.twins[name, split], self.shape(name), back, name)
        self.here[name] = name
        return name

    def twin(self, name: str, split: int) -> str:
        """The name of the value with `split` channel axes last."""
        if (name, split) not in self.twins:
            perm = to_last(len(self.shape(name)), split)
            shape = permuted(self.shape(name), perm)
            if name in self.constants:
                out = self.constant(name, np.transpose(self.constants[name], perm))
            else:
                out = self.fresh(f"{name}.last")
                self.move(self.original(name), shape, perm, out)
            self.twins[name, split] = out
        return self.twins[name, split]

    def constant(self, name: str, array: Array) -> str:
        out = self.fresh(f"{name}.last")
        self.constants[out] = np.ascontiguousarray(array)
        self.values[out] = Value(out, self.values[name].dtype, tuple(const(d) for d in array.shape))
        return out

    def operand(self, name: str, rank: int, split: int) -> str:
        """An operand that broadcasts against a value of `rank`, to fit that value's twin."""
        shape = self.shape(name)
        if len(shape) == rank and name not in self.constants:
            return self.twin(name, split)
        if all(is_const(d, 1) for d in shape):
            return self.original(name)
        perm = to_last(rank, split)
        aligned = (*(const(1),) * (rank - len(shape)), *shape)
        lead = next(i for i, p in enumerate(perm) if not is_const(aligned[p], 1))
        final = permuted(aligned, perm)[lead:]
        key = (name, rank, split)
        if key not in self.fitted:
            if name in self.constants:
                data = self.constants[name]
                moved = np.transpose(data.reshape([1] * (rank - len(shape)) + list(data.shape)), perm)
                self.fitted[key] = self.constant(name, moved.reshape(moved.shape[lead:]))
            else:
                self.fitted[key] = self.align(name, aligned, perm, final)
        return self.fitted[key]

    def align(self, name: str, aligned: Shape, perm: Sequence[int], final: Shape) -> str:
        source, out = self.original(name), self.fresh(f"{name}.last")
        if not moves_nothing(aligned, perm):
            wide = self.fresh(f"{name}.wide")
            self.move(source, aligned, range(len(aligned)), wide)
            turned = self.fresh(f"{name}.turned")
            self.move(wide, permuted(aligned, perm), perm, turned)
            source = turned
        self.move(source, final, range(len(final)), out)
        return out

    # -- nodes ----------------------------------------------------------------------------------

    def emit(self, node: Node, inputs: Sequence[str], out: str, attrs: Attributes) -> None:
        self.nodes.append(replace(node, inputs=tuple(inputs), outputs=(out,), attrs=attrs, name=out))

    def move(self, source: str, shape: Shape, perm: Sequence[int], out: str) -> None:
        """A transpose to `shape`, or a reshape where no byte moves (then `perm` may be of any rank)."""
        value = self.values[source]
        why = f"layout of {out}"
        self.values[out] = Value(out, value.dtype, shape)
        if list(perm) == list(range(len(perm))) or moves_nothing(self.shape(source), perm):
            self.nodes.append(Node(out, (source,), (out,), Reshape(shape), why))
        else:
            self.nodes.append(Node(out, (source,), (out,), Transpose(tuple(perm)), why))

    def follow(self, node: Node, split: int, inputs: Sequence[str], attrs: Attributes) -> bool:
        """Compute the node's result as a twin."""
        name = node.outputs[0]
        shape = permuted(self.shape(name), to_last(len(self.shape(name)), split))
        out = self.fresh(f"{name}.last")
        self.values[out] = Value(out, self.values[name].dtype, shape)
        self.emit(node, inputs, out, attrs)
        self.twins[name, split] = out
        self.born[name] = split
        return True

    def settle(self, node: Node, inputs: Sequence[str], attrs: Attributes) -> bool:
        """Compute the node's result in its own order, from rearranged inputs."""
        self.emit(node, inputs, node.outputs[0], attrs)
        self.here[node.outputs[0]] = node.outputs[0]
        return True

    def same_rank(self, node: Node) -> int:
        """The split of input 0 if it was born a twin and the result has its rank, else 0."""
        name = node.inputs[0]
        fits = len(self.shape(name)) == len(self.shape(node.outputs[0]))
        return self.born.get(name, 0) if fits else 0

    def perm(self, node: Node, split: int) -> tuple[int, ...]:
        return to_last(len(self.shape(node.inputs[0])), split)


def _window(run: _Layout, node: Node) -> bool:
    """Convolution and pooling."""
    window = node.attrs
    if not isinstance(window, (Conv, Pool)) or window.layout != "first":
        return False
    pads = window.pads
    others = [run.original(n) for n in node.inputs[1:]]
    if isinstance(window, Conv) and any(pads) and not is_const(run.shape(others[0])[1], 1):
        # A product over all channels reads a padded copy: no tests in its inner loop.
        few = interval(run.shape(others[0])[1])[1]
        if few is not None and few < run.few_channels and (node.inputs[0], 1) not in run.twins:
            padded = _padded(run, run.original(node.inputs[0]), pads, (0, 0), node.source)
            run.here[padded] = padded
            x = run.twin(padded, 1)
        else:
            x = _padded(run, run.twin(node.inputs[0], 1), pads, (0,), node.source)
        return run.follow(node, 1, [x, *others], replace(window, layout="last", pads=(0,) * len(pads)))
    return run.follow(node, 1, [run.twin(node.inputs[0], 1), *others], replace(window, layout="last"))


def _padded(run: _Layout, x: str, pads: Sequence[int], lead: Sequence[int], source: str) -> str:
    """`x` with zeros around its spatial axes, which `lead` axes stand before."""
    half, rank = len(pads) // 2, len(run.shape(x))
    trail = (0,) * (rank - half - len(lead))
    amounts = tuple(const(p) for p in (*lead, *pads[:half], *trail, *lead, *pads[half:], *trail))
    shape = tuple(simplify(d + amounts[i] + amounts[i + rank]) for i, d in enumerate(run.shape(x)))
    out = run.fresh(f"{x}.pad")
    run.values[out] = Value(out, run.values[x].dtype, shape)
    run.nodes.append(Node(out, (x,), (out,), Pad(amounts), source))
    return out


def _map(run: _Layout, node: Node) -> bool:
    """Follow an operand of the result's shape; the others are rearranged to broadcast as before."""
    shape = run.shape(node.outputs[0])
    rank = len(shape)
    full = [n for n in node.inputs if run.shape(n) == shape and n not in run.constants]
    leaders = full or [n for n in node.inputs if len(run.shape(n)) == rank]
    split = next((run.born[n] for n in leaders if n in run.born), 0)
    return bool(split) and run.follow(
        node, split, [run.operand(n, rank, split) for n in node.inputs], node.attrs
    )


def _concat(run: _Layout, node: Node) -> bool:
    """Follow when at least half of the inputs are twins."""
    moving = [n for n in node.inputs if n not in run.constants]
    splits = [run.born[n] for n in moving if n in run.born]
    if not splits or 2 * len(splits) < len(moving):
        return False
    perm = run.perm(node, splits[0])
    inputs = [run.twin(n, splits[0]) for n in node.inputs]
    return run.follow(node, splits[0], inputs, Concat(perm.index(node.of(Concat).axis)))


def _pad(run: _Layout, node: Node) -> bool:
    split = run.same_rank(node)
    if not split:
        return False
    perm, own = run.perm(node, split), node.of(Pad)
    pads = own.pads
    amounts = (*permuted(pads[: len(perm)], perm), *permuted(pads[len(perm) :], perm))
    return run.follow(node, split, [run.twin(node.inputs[0], split)], replace(own, pads=amounts))


def _slice(run: _Layout, node: Node) -> bool:
    split = run.same_rank(node)
    if not split:
        return False
    perm = run.perm(node, split)
    own = node.of(Slice)
    cut = Slice(permuted(own.starts, perm), permuted(own.steps, perm), permuted(own.shape, perm))
    return run.follow(node, split, [run.twin(node.inputs[0], split)], cut)


def _expand(run: _Layout, node: Node) -> bool:
    split = run.same_rank(node)
    if not split:
        return False
    shape = permuted(node.of(Expand).shape, run.perm(node, split))
    return run.follow(node, split, [run.twin(node.inputs[0], split)], Expand(shape))


def _gather(run: _Layout, node: Node) -> bool:
    split = run.same_rank(node)
    if not split or len(run.shape(node.inputs[1])) != 1:
        return False
    axis = run.perm(node, split).index(node.of(Gather).axis)
    inputs = [run.twin(node.inputs[0], split), run.original(node.inputs[1])]
    return run.follow(node, split, inputs, Gather(axis))


def _softmax(run: _Layout, node: Node) -> bool:
    split = run.same_rank(node)
    if not split:
        return False
    own = node.of(Softmax)
    axis = run.perm(node, split).index(own.axis)
    return run.follow(node, split, [run.twin(node.inputs[0], split)], replace(own, axis=axis))


def _normalize(run: _Layout, node: Node) -> bool:
    split = run.same_rank(node)
    if not split:
        return False
    perm, own = run.perm(node, split), node.of(Normalize)
    axes = tuple(sorted(perm.index(a) for a in own.axes))
    return run.follow(node, split, [run.twin(node.inputs[0], split)], replace(own, axes=axes))


def _reduce(run: _Layout, node: Node) -> bool:
    """Without `keepdims` the result may have no channel or no spatial axis left: one order then."""
    name = node.inputs[0]
    split = run.born.get(name, 0)
    if not split:
        return False
    perm, own = run.perm(node, split), node.of(Reduce)
    axes = own.axes
    moved = replace(own, axes=tuple(sorted(perm.index(a) for a in axes)))
    x = [run.twin(name, split)]
    if own.keepdims:
        return run.follow(node, split, x, moved)
    channels = sum(a not in axes for a in range(1, split + 1))
    spatial = sum(a not in axes for a in range(split + 1, len(perm)))
    if not channels or not spatial:
        return run.settle(node, x, moved)
    return 0 not in axes and run.follow(node, channels, x, moved)


def _transpose(run: _Layout, node: Node) -> bool:
    """Free where it is just a change of layout; else it starts from the twin."""
    name, out, perm = node.inputs[0], node.outputs[0], node.of(Transpose).perm
    split = run.born.get(name, 0)
    if not split:
        if len(perm) < 3 or perm != inverse(to_last(len(perm))):
            return False
        run.twins[out, 1] = run.original(name)
        run.born[out] = 1
        return True
    last = to_last(len(perm), split)
    if perm == last:
        run.here[out] = run.twins[name, split]
        return True
    channels = range(1, split + 1)
    if perm[0] == 0 and all((i in channels) == (p in channels) for i, p in enumerate(perm)):
        inner = tuple(last.index(perm[d]) for d in last)
        return run.follow(node, split, [run.twin(name, split)], Transpose(inner))
    if kept := _interleaved(run, node, split):
        inner = tuple(last.index(perm[d]) for d in to_last(len(perm), kept))
        return run.follow(node, kept, [run.twin(name, split)], Transpose(inner))
    run.move(run.twin(name, split), run.shape(out), tuple(last.index(p) for p in perm), out)
    run.here[out] = out
    return True


def _interleaved(run: _Layout, node: Node, split: int) -> int:
    """How many channel axes a transpose leaves in front where it brings others between the positions, for
    reshapes to make one of both (depth to space); 0 where it is another."""
    perm, out = node.of(Transpose).perm, node.outputs[0]
    kept = next((i - 1 for i in range(1, len(perm)) if perm[i] > split), len(perm) - 1)
    users = run.users.get(out, ())
    if perm[0] != 0 or not kept or not users or out in run.graph.outputs:
        return 0
    return kept if all(isinstance(u.attrs, Reshape) and _channels_of(run, u, kept) for u in users) else 0


def _reshape(run: _Layout, node: Node) -> bool:
    """A reshape that keeps batch, channels and positions apart is one of the twin too."""
    name, shape = node.inputs[0], run.shape(node.outputs[0])
    split = run.born.get(name, 0)
    cut = _channels_of(run, node, split) if split else 0
    if not cut:
        return False
    x, tail = [run.twin(name, split)], shape[cut + 1 :]
    target = (shape[0], *tail, *shape[1 : cut + 1])
    if tail:
        return run.follow(node, cut, x, Reshape(target))
    return run.settle(node, x, Reshape(target))


def _channels_of(run: _Layout, node: Node, split: int) -> int:
    """How many axes of a reshape's result hold what `split` channel axes of its input do; 0 where batch,
    channels and positions don't stay apart."""
    before, shape = run.shape(node.inputs[0]), run.shape(node.outputs[0])
    if not shape or shape[0] != before[0]:
        return 0
    symbols = run.graph.symbols
    channels = simplify(_product(before[1 : split + 1]), symbols)
    positions = simplify(_product(before[split + 1 :]), symbols)
    for cut in range(1, len(shape)):
        head, tail = shape[1 : cut + 1], shape[cut + 1 :]
        if simplify(_product(head), symbols) == channels and simplify(_product(tail), symbols) == positions:
            return cut
    return 0


def _product(dims: Shape) -> Expr:
    total: Expr = const(1)
    for d in dims:
        total = total * d
    return total


def _compute(run: _Layout, node: Node) -> bool:
    """Any tensor expression can read twins and write one: its indices are permuted."""
    rank = len(run.shape(node.outputs[0]))
    split = next(
        (run.born[n] for n in node.inputs if n in run.born and len(run.shape(n)) == rank),
        0,
    )
    if not split:
        return False
    perm = to_last(rank, split)
    moved = {
        f"x{i}" for i, n in enumerate(node.inputs) if run.born.get(n) == split and len(run.shape(n)) == rank
    }

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name in moved:
            return Load(_permuted(e.buffer, perm), permuted(e.index, perm))
        return None

    own = node.of(Compute)
    *inner, last = (_reloaded(s, load) for s in own.stages)
    last = replace(last, out=_permuted(last.out, perm), axes=permuted(last.axes, perm))
    inputs = [run.twin(n, split) if f"x{i}" in moved else run.original(n) for i, n in enumerate(node.inputs)]
    return run.follow(node, split, inputs, replace(own, stages=(*inner, last)))


def _permuted(buffer: Buffer, perm: Sequence[int]) -> Buffer:
    return replace(buffer, shape=permuted(buffer.shape, perm))


def _reloaded(stage: Stage, load: Callable[[Expr], Expr | None]) -> Stage:
    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, load)
    return replace(stage, body=rewrite(stage.body, load), epilogue=epilogue)


FOLLOW: Mapping[str, Callable[[_Layout, Node], bool]] = {
    "conv": _window,
    "pool": _window,
    "map": _map,
    "concat": _concat,
    "pad": _pad,
    "slice": _slice,
    "expand": _expand,
    "gather": _gather,
    "softmax": _softmax,
    "normalize": _normalize,
    "reduce": _reduce,
    "transpose": _transpose,
    "reshape": _reshape,
    "compute": _compute,
}
"""How each operator meets twins: True when it has placed its result, False to get originals."""
