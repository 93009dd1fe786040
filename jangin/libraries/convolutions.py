"""Compute convolutions by cuDNN: windows over the rows and columns of images of known sizes, channels last,
with constant weights.

cuDNN pads an image alike on both sides. Windows that need no zero behind the image may have fewer there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jangin.ir import te
from jangin.ir.dtype import F32
from jangin.ir.expr import Binary, Const, Expr, Load, Select, Var, const, is_const
from jangin.ir.graph import static_shape
from jangin.ir.library import Convolution, LibraryCall
from jangin.ir.simplify import Ranges, linear, simplify
from jangin.ir.traversal import conjuncts
from jangin.libraries.gemm import Device
from jangin.templates.roles import Roles, roles
from jangin.templates.scheduled import Packing, Params, Recorder, Scheduled
from jangin.templates.template import Workload

Pair = tuple[int, int]


def convolution(workload: Workload) -> Convolution | None:
    """Return the kernel as one convolution of images, or None if it isn't one that cuDNN computes."""
    if len(workload.stages) != 1:
        return None
    (stage,) = workload.stages
    role, body = roles(stage, guarded=True), stage.body
    if role is None or not isinstance(body, Binary) or stage.at or stage.rounded:
        return None
    x, w, params = role.left, role.right, [p.name for p in workload.inputs]
    shapes = [static_shape(b.shape) for b in (x.buffer, w.buffer, stage.out)]
    image, weights, result = shapes
    floats = {x.dtype, w.dtype, stage.out.dtype, body.dtype} == {F32}
    if (
        image is None
        or weights is None
        or result is None
        or not floats
        or w.buffer.name not in workload.constants
    ):
        return None
    if not len(image) == len(weights) == len(result) == 4 or 0 in (*image, *weights, *result):
        return None
    ranges: Ranges = {a.var: (const(0), a.extent - 1) for a in (*stage.axes, *stage.reduce_axes)}
    taps = _weights(stage, w, ranges)
    windows = [_window(x.index[n], stage.axes[n].var, taps[n + 1], ranges) for n in (1, 2)] if taps else []
    down, across = windows or (None, None)
    if taps is None or down is None or across is None:
        return None
    if not _reads_all(stage, x, taps[1], role.groups, ranges) or not _is_border(body, x, ranges):
        return None
    strides, dilations, pads = ((a, b) for a, b in zip(down, across, strict=True))
    found = Convolution(
        image[0], role.groups, (image[3], weights[0]), (image[1], image[2]), (result[1], result[2]),
        (weights[2], weights[3]), pads, strides, dilations,
        (params.index(x.buffer.name), params.index(w.buffer.name), len(params)),
    )  # fmt: skip
    return found if _sizes(found) == found.outputs else None


def _weights(stage: te.Stage, w: Load, ranges: Ranges) -> Sequence[Expr] | None:
    """Return the index of weights [result's channels, channels, rows, columns]. Each is a variable of its
    own, or 0 if there is only one. Return None for any other index."""
    column, free = stage.axes[-1].var, [a.var for a in stage.reduce_axes]
    index = [simplify(i, ranges) for i in w.index]
    first, *rest = index
    if first != (const(0) if stage.axes[-1].extent == const(1) else column):
        return None
    named = [i for i in rest if not is_const(i, 0)]
    own = all(i in free for i in named) and len(set(named)) == len(named)
    whole = [a for a in stage.reduce_axes if a.extent != const(1)]
    return index if own and {a.var for a in whole} == set(named) and _covered(w, whole, rest) else None


def _covered(w: Load, whole: Sequence[te.Axis], rest: Sequence[Expr]) -> bool:
    """Return whether the sum goes over all weights of a channel of the result."""
    extents: Mapping[Expr, Expr] = {a.var: a.extent for a in whole}
    return all(extents.get(i, const(1)) == size for i, size in zip(rest, w.buffer.shape[1:], strict=True))


def _window(at: Expr, place: Var, tap: Expr, ranges: Ranges) -> tuple[int, int, int] | None:
    """Return the (stride, dilation, zeros before) of a row or column of the image, or None if it isn't that
    of a window. A stride or a distance that doesn't matter is 1."""
    rest, steps = simplify(at, ranges), []
    for var in (place, tap):
        parts = linear(rest, var) if isinstance(var, Var) else (const(0), rest)
        if parts is None or not isinstance(parts[0], Const):
            return None
        steps.append(int(parts[0].value) or 1)
        rest = simplify(parts[1])
    if not isinstance(rest, Const) or rest.value > 0 or min(steps) < 1:
        return None
    return steps[0], steps[1], -int(rest.value)


def _reads_all(stage: te.Stage, x: Load, channel: Expr, groups: int, ranges: Ranges) -> bool:
    """Return whether each image is the result's of the same number, and each group has channels of its
    own."""
    image, *_, last = stage.axes
    if x.buffer.shape[0] != image.extent or simplify(x.index[0] - image.var, ranges) != const(0):
        return False
    each = int(last.extent.value) // groups if isinstance(last.extent, Const) else 0
    inputs = x.buffer.shape[3] // groups
    own = (last.var // each) * inputs + channel if groups > 1 else channel
    return each * groups == last.extent.value and simplify(x.index[3] - own, ranges) == const(0)  # type: ignore[attr-defined]


def _is_border(body: Binary, x: Load, ranges: Ranges) -> bool:
    """Return whether the image is read as it is, or as 0 only outside of it."""
    guard = next((e for e in (body.a, body.b) if isinstance(e, Select)), None)
    if guard is None:
        return x in (body.a, body.b)
    inside = {
        simplify(c, ranges) for i, n in zip(x.index, x.buffer.shape, strict=True) for c in (i >= 0, i < n)
    }
    return guard.a == x and all(simplify(c, ranges) in inside for c in conjuncts(guard.cond))


def _sizes(c: Convolution) -> Pair:
    """Return the result's rows and columns, as cuDNN counts them from the same zeros on both sides."""
    down, across = (
        (c.size[n] + 2 * c.pads[n] - c.dilations[n] * (c.window[n] - 1) - 1) // c.strides[n] + 1
        for n in range(2)
    )
    return down, across


class Windows(Device):
    """A convolution by cuDNN. Weights are packed with their channels last, as the image's are."""

    def __init__(self, workload: Workload, of: Convolution, role: Roles) -> None:
        super().__init__(workload, of, "cudnn")
        self.role, self.convolution = role, of

    def scheduled(self, params: Params, call: LibraryCall, cost: float) -> Scheduled:
        p, name = self.workload, self.role.right.buffer.name
        rec = Recorder(te.lower(p.name, p.stages, p.inputs, p.symbols))
        of = self.convolution
        rec.pack(name, Packing((0, 2, 3, 1), 3, 1, of.channels[0] // of.groups))
        rec.do("simplify")
        return Scheduled(self.library, rec.func, (), rec.packings, params=params, cost=cost, call=call)


def cudnn(workload: Workload) -> Windows | None:
    """Return the kernel by cuDNN, or None if it isn't a fitting convolution."""
    found = convolution(workload)
    role = roles(workload.stages[0], guarded=True) if found else None
    return Windows(workload, found, role) if found and role else None
