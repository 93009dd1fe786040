"""Channels-last (NHWC) layout for the convolutional parts of the whole graph.

Convolutions and pools are computed on channels-last copies (see `channels_last`), unless too few of them
would pay for the copies (`planes`). Operators for which the layout makes no difference follow their inputs.
The original order is restored only for nodes that need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from jangin.ir.core import (
    Compute,
    Concat,
    Conv,
    CoreAttributes,
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
from jangin.ir.expr import Buffer, Expr, Load, const, is_const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.simplify import interval, simplify
from jangin.ir.sources import Sources
from jangin.ir.te import Stage
from jangin.ir.traversal import rewrite
from jangin.ops.core_window import conv_te
from jangin.passes.layouts.channels_last import ChannelsLast, inverse, permuted, to_last
from jangin.passes.layouts.planes import in_planes
from jangin.passes.windows.winograd_cost import Estimate, is_window
from jangin.targets.target import Target
from jangin.templates.window import LARGEST_WINDOW

TESTED = 0.12
"""The share of a convolution's time that the tests for the image's border take on a device. Loops over 3 x 3
windows of 256 channels have 0.66 multiply-adds without the tests, and 0.59 with them, as NVRTC compiles
them."""
LONGEST_TESTED = 16
"""Most taps along a row of a depthwise convolution that tests for the image's border itself. With longer
windows, most positions would be tested instead of a row's ends only."""


def layout(graph: Graph, target: Target) -> Graph:
    """Return the graph with convolutions and pools channels-last if this is quicker. Inputs and outputs keep
    their order."""
    if not _is_first(graph):
        return graph

    def rewrite(part: Graph, kept: Collection[str]) -> Graph:
        return channels_last(part, target, kept)

    return rewrite(graph, in_planes(graph, target, FOLLOW, rewrite))


def all_last(graph: Graph, target: Target) -> Graph:
    """Return the graph with all convolutions and pools channels-last, for machines on which this always
    pays."""
    return channels_last(graph, target) if _is_first(graph) else graph


def _is_first(graph: Graph) -> bool:
    """Return whether any convolution or pool is channels-first."""
    return any(isinstance(n.attrs, (Conv, Pool)) and n.attrs.layout == "first" for n in graph.nodes)


def channels_last(graph: Graph, target: Target, kept: Collection[str] = ()) -> Graph:
    """Return the graph with all convolutions and pools channels-last, except for the nodes named in
    `kept`."""
    run = ChannelsLast(graph, target)
    for node in graph.nodes:
        follow = None if node.name in kept else FOLLOW.get(node.op)
        if follow is None or not follow(run, node):
            run.compute(node, [run.original(n) for n in node.inputs], node.of(CoreAttributes))
    for name in graph.outputs:
        actual = run.original(name)
        if actual != name:
            run.move(actual, run.shape(actual), range(len(run.shape(actual))), out=name)
    return run.rewritten(graph)


# --- convolutions and maps -------------------------------------------------------------------


def _window(run: ChannelsLast, node: Node) -> bool:
    """Compute a convolution or pool channels-last. A convolution over all channels reads a padded copy,
    unless warps multiply it. Return whether it is done."""
    window = node.attrs
    if not isinstance(window, (Conv, Pool)) or window.layout != "first":
        return False
    x, pads = node.inputs[0], window.pads
    others = [run.original(n) for n in node.inputs[1:]]
    last = replace(window, layout="last")
    if isinstance(window, Conv) and window.dot is not None and run.target.groups:
        return _by_warps(run, node, others[0])
    if isinstance(window, Conv) and not run.target.groups and _is_plain_depthwise(run, window, node.inputs):
        return _turned_depthwise(run, node, replace(window, layout="last"), others[0])
    if not isinstance(window, Conv) or not any(pads) or _tests_border(run, node, others[0]):
        return run.compute_last(node, 1, [run.last(x, 1), *others], last)
    # A product over all channels reads a padded copy, so its inner loop has no tests.
    few = interval(run.shape(others[0])[1])[1]
    few_channels = run.target.machine.fusion.few_channels
    if few is not None and few < few_channels and (x, 1) not in run.copies:
        padded = _padded(run, run.original(x), pads, (0, 0), node.source)
        run.originals[padded] = padded
        padded = run.last(padded, 1)
    else:
        padded = _padded(run, run.last(x, 1), pads, (0,), node.source)
    return run.compute_last(node, 1, [padded, *others], replace(last, pads=(0,) * len(pads)))


def _tests_border(run: ChannelsLast, node: Node, weights: str) -> bool:
    """Return whether a convolution tests for the image's border itself, and reads no padded copy."""
    return _small_depthwise(run, node.of(Conv), weights) or _is_short(run, node, weights)


def _is_short(run: ChannelsLast, node: Node, weights: str) -> bool:
    """Return whether a convolution of a device takes less time to test for the image's border than the launch
    of a padded copy takes. Winograd's method reads a padded copy."""
    conv, figures = node.of(Conv), run.target.machine.winograd
    shapes = static_shape(run.shape(node.outputs[0])), static_shape(run.shape(weights))
    if not (run.target.groups and figures.launch) or conv.groups > 1 or None in shapes:
        return False
    (batch, outputs, *size), (_, terms, *taps) = (shape or () for shape in shapes)
    work = batch * outputs * math.prod(size) * terms * math.prod(taps)
    if TESTED * work > figures.launch:
        return False
    plain = replace(conv, pads=(0,) * len(conv.pads), layout="last")
    if len(size) != 2 or not is_window(plain):
        return True
    height, width = size
    return not Estimate(height, width, terms, outputs, figures, dilations=conv.dilations, batch=batch).best()


def _small_depthwise(run: ChannelsLast, conv: Conv, weights: str) -> bool:
    """Return whether a convolution is depthwise with windows that may test for the border: only few tiles lie
    at a row's ends."""
    few = conv.kernel[-1] <= LONGEST_TESTED and math.prod(conv.kernel) <= LARGEST_WINDOW
    return few and _is_depthwise(run, conv, weights)


def _is_depthwise(run: ChannelsLast, conv: Conv, weights: str) -> bool:
    outputs, inputs, *_ = run.shape(weights)
    return conv.groups > 1 and is_const(inputs, 1) and is_const(outputs, conv.groups)


def _is_plain_depthwise(run: ChannelsLast, conv: Conv, inputs: Sequence[str]) -> bool:
    """Return whether a depthwise convolution of floats has weights that change, and can read them turned."""
    x, weights = inputs
    same = run.dtype(x) is run.dtype(weights) and run.dtype(x).is_float
    plain = same and conv.dot is None and conv.dtype is None and not conv.halves
    return plain and weights not in run.constants and _small_depthwise(run, conv, weights)


def _turned_depthwise(run: ChannelsLast, node: Node, last: Conv, weights: str) -> bool:
    """Compute a depthwise convolution whose weights change. It reads a copy of the weights with channels
    last, as constant weights are packed."""
    rank = len(run.shape(weights))
    perm = (*range(2, rank), 1, 0)
    turned = run.move(weights, permuted(run.shape(weights), perm), perm, f"{weights}.turned")
    names = [run.last(node.inputs[0], 1), turned]
    x, w = (Buffer(f"x{i}", *run.typed(n)) for i, n in enumerate(names))
    shape = permuted(run.shape(node.outputs[0]), to_last(rank))

    def load(e: Expr) -> Expr | None:
        return Load(w, permuted(e.index, perm)) if isinstance(e, Load) and e.buffer.name == "x1" else None

    straight = Buffer("x1", w.dtype, run.shape(weights))
    out = Buffer("out", run.dtype(node.outputs[0]), shape)
    stages = tuple(_reloaded(s, load) for s in conv_te([x, straight], out, last))
    return run.compute_last(node, 1, names, Compute(stages))


def _by_warps(run: ChannelsLast, node: Node, weights: str) -> bool:
    """Compute a convolution whose matrices warps multiply, and return True.

    The work-items that copy its operands to shared memory test for the image's border, so no padded copy is
    made. They copy whole loads of channels. Channels that don't fill a load are therefore filled up with
    zeros, with constant weights, in a copy that is padded too."""
    conv, x = node.of(Conv), run.last(node.inputs[0], 1)
    last = replace(conv, layout="last")
    array = run.constants.get(weights)
    missing = 0 if array is None else -array.shape[1] % run.target.machine.lanes(run.dtype(x).bytes)
    if missing and array is not None:
        x = _padded(run, x, conv.pads, (0,), node.source, missing)
        more = ((0, 0), (0, missing), *((0, 0) for _ in conv.kernel))
        weights = run.constant(np.pad(array, more), f"{weights}.pad")
        last = replace(last, pads=(0,) * len(conv.pads))
    return run.compute_last(node, 1, [x, weights], last)


def _padded(
    run: ChannelsLast, x: str, pads: Sequence[int], lead: Sequence[int], source: Sources, channels: int = 0
) -> str:
    """Return the name of `x` with zeros around its spatial axes. `lead`: zeros for the axes before these.
    `channels`: zeros behind the last axis, the channels."""
    half, rank = len(pads) // 2, len(run.shape(x))
    trail = (0,) * (rank - half - len(lead))
    ends = (*lead, *pads[half:], *trail[1:], *((channels,) if trail else ()))
    amounts = tuple(const(p) for p in (*lead, *pads[:half], *trail, *ends))
    return run.add(Pad(amounts), [x], f"{x}.pad", source)


def _map(run: ChannelsLast, node: Node) -> bool:
    """Compute a map channels-last if an operand of the result's shape is, or else one of its rank. The other
    operands are rearranged to broadcast as before. Return whether it is done."""
    shape = run.shape(node.outputs[0])
    rank = len(shape)
    full = [n for n in node.inputs if run.shape(n) == shape and n not in run.constants]
    leaders = full or [n for n in node.inputs if len(run.shape(n)) == rank]
    channels = next((run.computed[n] for n in leaders if n in run.computed), 0)
    if not channels:
        return False
    inputs = [run.operand(n, rank, channels) for n in node.inputs]
    return run.compute_last(node, channels, inputs, node.of(CoreAttributes))


def _compute(run: ChannelsLast, node: Node) -> bool:
    """Compute a tensor expression channels-last if an operand of the result's rank is. It reads channels-last
    copies by permuted indices, also of other operands with the result's batch and channels. Return whether it
    is done."""
    shape, own = run.shape(node.outputs[0]), node.of(Compute)
    rank = len(shape)
    like = {n: run.computed[n] for n in node.inputs if n in run.computed and len(run.shape(n)) == rank}
    channels = next(iter(like.values()), 0)
    if not channels:
        return False
    for n in node.inputs:
        own_shape = run.shape(n)
        if len(own_shape) == rank and own_shape[: channels + 1] == shape[: channels + 1]:
            like.setdefault(n, channels)
    perm = to_last(rank, channels)
    moved = {f"x{i}" for i, n in enumerate(node.inputs) if like.get(n) == channels}

    def load(e: Expr) -> Expr | None:
        if isinstance(e, Load) and e.buffer.name in moved:
            return Load(_permuted(e.buffer, perm), permuted(e.index, perm))
        return None

    *inner, last = (_reloaded(s, load) for s in own.stages)
    last = replace(last, out=_permuted(last.out, perm), axes=permuted(last.axes, perm))
    inputs = [
        run.last(n, channels) if f"x{i}" in moved else run.original(n) for i, n in enumerate(node.inputs)
    ]
    return run.compute_last(node, channels, inputs, replace(own, stages=(*inner, last)))


def _permuted(buffer: Buffer, perm: Sequence[int]) -> Buffer:
    return replace(buffer, shape=permuted(buffer.shape, perm))


def _reloaded(stage: Stage, load: Callable[[Expr], Expr | None]) -> Stage:
    epilogue = None if stage.epilogue is None else rewrite(stage.epilogue, load)
    return replace(stage, body=rewrite(stage.body, load), epilogue=epilogue)


# --- operators along axes --------------------------------------------------------------------


def _concat(run: ChannelsLast, node: Node) -> bool:
    """Compute a concatenation channels-last if at least half of its inputs are, constants aside. Return
    whether it is done."""
    moving = [n for n in node.inputs if n not in run.constants]
    last_computed = [run.computed[n] for n in moving if n in run.computed]
    if not last_computed or 2 * len(last_computed) < len(moving):
        return False
    axis = run.perm(node, last_computed[0]).index(node.of(Concat).axis)
    return run.compute_last(
        node, last_computed[0], [run.last(n, last_computed[0]) for n in node.inputs], Concat(axis)
    )


def _alike(run: ChannelsLast, node: Node) -> bool:
    """Compute an operator channels-last if operand 0 is. The operator's attributes name axes, and its result
    has operand 0's axes. Return whether it is done."""
    channels = run.channels(node)
    attrs = _turned(node, run.perm(node, channels)) if channels else None
    if attrs is None or (isinstance(attrs, Gather) and len(run.shape(node.inputs[1])) != 1):
        return False
    x, *others = node.inputs
    inputs = [run.last(x, channels), *(run.original(n) for n in others)]
    return run.compute_last(node, channels, inputs, attrs)


def _turned(node: Node, perm: Sequence[int]) -> CoreAttributes | None:
    """Return the attributes for an operand whose axes are permuted, or None for other operators."""
    match node.attrs:
        case Pad(pads) as own:
            half = len(perm)
            return replace(own, pads=(*permuted(pads[:half], perm), *permuted(pads[half:], perm)))
        case Slice(starts, steps, shape):
            return Slice(permuted(starts, perm), permuted(steps, perm), permuted(shape, perm))
        case Expand(shape):
            return Expand(permuted(shape, perm))
        case Gather(axis):
            return Gather(perm.index(axis))
        case Softmax(axis) as own:
            return replace(own, axis=perm.index(axis))
        case Normalize(axes) as own:
            return replace(own, axes=tuple(sorted(map(perm.index, axes))))
    return None


def _reduce(run: ChannelsLast, node: Node) -> bool:
    """Compute a reduction channels-last if operand 0 is. Return whether it is done.

    Without `keepdims` the result may have no channel or no spatial axis left; both orders are then the same.
    """
    name, own = node.inputs[0], node.of(Reduce)
    channels = run.computed.get(name, 0)
    if not channels:
        return False
    perm, axes = run.perm(node, channels), own.axes
    moved = replace(own, axes=tuple(sorted(map(perm.index, axes))))
    x = [run.last(name, channels)]
    if own.keepdims:
        return run.compute_last(node, channels, x, moved)
    kept = sum(a not in axes for a in range(1, channels + 1))
    spatial = sum(a not in axes for a in range(channels + 1, len(perm)))
    if not kept or not spatial:
        return run.compute(node, x, moved)
    return 0 not in axes and run.compute_last(node, kept, x, moved)


# --- transposes and reshapes -----------------------------------------------------------------


def _transpose(run: ChannelsLast, node: Node) -> bool:
    """Compute a transpose without a copy if it is just a change of layout; otherwise start from the
    channels-last copy if there is one. Return whether it is done."""
    name, out, perm = node.inputs[0], node.outputs[0], node.of(Transpose).perm
    channels = run.computed.get(name, 0)
    if not channels:
        if len(perm) < 3 or perm != inverse(to_last(len(perm))):
            return False
        run.copies[out, 1] = run.original(name)
        run.computed[out] = 1
        return True
    last = to_last(len(perm), channels)
    if perm == last:
        run.originals[out] = run.copies[name, channels]
        return True
    x = run.last(name, channels)
    apart = range(1, channels + 1)
    if perm[0] == 0 and all((i in apart) == (p in apart) for i, p in enumerate(perm)):
        inner = tuple(last.index(perm[d]) for d in last)
        return run.compute_last(node, channels, [x], Transpose(inner))
    if kept := _interleaved(run, node, channels):
        inner = tuple(last.index(perm[d]) for d in to_last(len(perm), kept))
        return run.compute_last(node, kept, [x], Transpose(inner))
    run.originals[out] = run.move(x, run.shape(out), tuple(last.index(p) for p in perm), out=out)
    return True


def _interleaved(run: ChannelsLast, node: Node, channels: int) -> int:
    """Return the number of channel axes in front of a transpose's result that interleaves channels and
    positions, for reshapes to merge (depth to space).

    Return 0 for any other transpose.
    """
    perm, out = node.of(Transpose).perm, node.outputs[0]
    kept = next((i - 1 for i in range(1, len(perm)) if perm[i] > channels), len(perm) - 1)
    users = run.users.get(out, ())
    if perm[0] != 0 or not kept or not users or out in run.graph.outputs:
        return 0
    apart = all(isinstance(u.attrs, Reshape) and _channels_of(run, u, kept) for u in users)
    return kept if apart else 0


def _reshape(run: ChannelsLast, node: Node) -> bool:
    """Compute a reshape channels-last if operand 0 is, and batch, channels and positions stay apart. Return
    whether it is done."""
    name, shape = node.inputs[0], run.shape(node.outputs[0])
    channels = run.computed.get(name, 0)
    cut = _channels_of(run, node, channels) if channels else 0
    if not cut:
        return False
    x, tail = [run.last(name, channels)], shape[cut + 1 :]
    target = Reshape((shape[0], *tail, *shape[1 : cut + 1]))
    return run.compute_last(node, cut, x, target) if tail else run.compute(node, x, target)


def _channels_of(run: ChannelsLast, node: Node, channels: int) -> int:
    """Return the number of axes of a reshape's result that hold its input's channel axes. Return 0 if the
    reshape mixes batch, channels and positions."""
    before, shape = run.shape(node.inputs[0]), run.shape(node.outputs[0])
    if not shape or shape[0] != before[0]:
        return 0

    def size(dims: Sequence[Expr]) -> Expr:
        return simplify(math.prod(dims, start=const(1)), run.symbols)

    wanted = size(before[1 : channels + 1]), size(before[channels + 1 :])
    cuts = range(1, len(shape))
    return next((c for c in cuts if (size(shape[1 : c + 1]), size(shape[c + 1 :])) == wanted), 0)


FOLLOW: Mapping[str, Callable[[ChannelsLast, Node], bool]] = {
    "conv": _window,
    "pool": _window,
    "map": _map,
    "compute": _compute,
    "concat": _concat,
    "pad": _alike,
    "slice": _alike,
    "expand": _alike,
    "gather": _alike,
    "softmax": _alike,
    "normalize": _alike,
    "reduce": _reduce,
    "transpose": _transpose,
    "reshape": _reshape,
}
"""For each operator, the function that computes it channels-last. The function returns False, with nothing
done, if the operator needs its operands in their own order."""
