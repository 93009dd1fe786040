"""Lower layers that only move elements."""

from __future__ import annotations

from jangin.frontends.caffe.operators.common import Layer
from jangin.frontends.registry import lowers
from jangin.ir.expr import Expr, const
from jangin.ir.graph import CompileError
from jangin.ops import move
from jangin.ops.axes import product
from jangin.ops.values import Tensor


@lowers("Concat")
def concat(layer: Layer) -> Tensor:
    old = layer.whole("concat_param.concat_dim", 1)
    return layer.b.concat(list(layer.inputs), layer.axis("concat_param.axis", old))


@lowers("Slice")
def slice_(layer: Layer) -> list[Tensor]:
    b, x = layer.b, layer.x()
    axis = layer.axis("slice_param.axis", layer.whole("slice_param.slice_dim", 1))
    points = layer.wholes("slice_param.slice_point")
    if points and len(points) != layer.tops - 1:
        raise CompileError(f"{len(points)} slice points don't fit {layer.tops} tops")
    if not points:
        return list(move.parts_of(b, x, axis, move.equal_sizes(b, x, axis, layer.tops)))
    ends = [*map(const, points), x.shape[axis]]
    return list(move.parts_of(b, x, axis, [e - s for s, e in zip([const(0), *ends], ends, strict=False)]))


@lowers("Flatten")
def flatten(layer: Layer) -> Tensor:
    x = layer.x()
    first, last = layer.axis("flatten_param.axis", 1), layer.axis("flatten_param.end_axis", -1)
    return layer.b.reshape(x, [*x.shape[:first], product(x.shape[first : last + 1]), *x.shape[last + 1 :]])


@lowers("Reshape")
def reshape(layer: Layer) -> Tensor:
    """Reshape `num_axes` axes, from `axis` on, to new sizes. The size 0 keeps an axis, and -1 is computed
    from the number of elements."""
    b, x, p = layer.b, layer.x(), "reshape_param."
    dims, first, count = (
        layer.wholes(p + "shape.dim"),
        layer.whole(p + "axis"),
        layer.whole(p + "num_axes", -1),
    )
    first = first + x.rank + 1 if first < 0 else first
    last = x.rank if count == -1 else first + count
    if not 0 <= first <= last <= x.rank:
        raise CompileError(f"a reshape replaces axes {first} to {last}, and {x} has axes 0 to {x.rank}")
    inner = [x.shape[first + n] if d == 0 else const(d) for n, d in enumerate(dims)]
    whole: list[Expr] = [*x.shape[:first], *inner, *x.shape[last:]]
    return move.reshape_to(b, x, whole, keep_zero=False)


@lowers("Permute")
def permute(layer: Layer) -> Tensor:
    order = layer.wholes("permute_param.order")
    rest = [n for n in range(layer.x().rank) if n not in order]
    return layer.b.transpose(layer.x(), [*order, *rest])


@lowers("Tile")
def tile(layer: Layer) -> Tensor:
    x = layer.x()
    axis, count = layer.axis("tile_param.axis", 1), layer.whole("tile_param.tiles", 1)
    return move.repeat(layer.b, x, [const(count if n == axis else 1) for n in range(x.rank)])


@lowers("Crop")
def crop(layer: Layer) -> Tensor:
    """Crop the axes from `axis` on to the sizes of the second bottom, beginning at the offsets."""
    x, like = layer.x(), layer.x(1)
    axis, offsets = layer.axis("crop_param.axis", 2), layer.wholes("crop_param.offset") or [0]
    count = x.rank - axis
    if len(offsets) not in (1, count):
        raise CompileError(f"{len(offsets)} offsets don't fit {count} axes")
    starts = [0] * axis + (offsets * count if len(offsets) == 1 else offsets)
    return layer.b.slice(x, starts, [*x.shape[:axis], *like.shape[axis:]], [1] * x.rank)


@lowers("ShuffleChannel")
def shuffle_channel(layer: Layer) -> Tensor:
    b, x, groups = layer.b, layer.x(), layer.whole("shuffle_channel_param.group", 1)
    parts = b.reshape(x, [x.shape[0], groups, x.shape[1] // groups, *x.shape[2:]])
    turned = b.transpose(parts, [0, 2, 1, *range(3, parts.rank)])
    return b.reshape(turned, x.shape)
