"""Lower the resizing of pictures. Results of integers are equal to those of TensorFlow Lite's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jangin.frontends.registry import lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.ir.dtype import F32, I8, I16, I64, U8
from jangin.ir.expr import Expr, binary, cast, const, select
from jangin.ir.expr import call as intrinsic
from jangin.ir.graph import Array, CompileError, static_shape
from jangin.ops.axes import channels_first, channels_last
from jangin.ops.resize import Style, resize, sized_lines
from jangin.ops.resize_positions import align_corners, aligned_centre, asymmetric, half_pixel, pixel_centre
from jangin.ops.values import Tensor


def _resized(call: Call, style: Style) -> Tensor:
    x = channels_first(call.b, call.x())
    lines = sized_lines(call.b, x, [2, 3], call.sizes(1))
    return channels_last(call.b, resize(call.b, x, lines, style))


@lowers("RESIZE_BILINEAR")
def resize_bilinear(call: Call) -> Tensor:
    """Return images resized bilinearly. int8 and int16 are computed with positions and weights of 10
    fractional bits, as in LiteRT's `ResizeBilinearInteger`."""
    o = call.options
    if o["align_corners"] and o["half_pixel_centers"]:
        raise CompileError("aligned corners and centres of half pixels exclude each other")
    if call.x().dtype in (I8, I16):
        return _resized_integers(call)
    if call.x().dtype is U8:
        return _resized_bytes(call)
    call.only_floats()
    place = align_corners if o["align_corners"] else half_pixel if o["half_pixel_centers"] else asymmetric
    return _resized(call, Style("linear", place, "floor"))


def _resized_bytes(call: Call) -> Tensor:
    """Return uint8 images resized in f32. A half is rounded up, as in LiteRT's `ResizeBilinear` of uint8."""
    *corners, down, right = _corners(call, _real_places)

    def mixed(a: Expr, c: Expr, d: Expr, e: Expr, v: Expr, h: Expr) -> Expr:
        a, c, d, e = (cast(F32, t) for t in (a, c, d, e))
        total = a * (1 - v) * (1 - h) + d * v * (1 - h) + c * (1 - v) * h + e * v * h
        return cast(U8, intrinsic("floor", total + 0.5))

    return call.b.map(mixed, *corners, down, right)


def _real_places(o: Mapping[str, Any], old: int, new: int) -> tuple[Array, Array, Array]:
    """Return the source entries before and after each entry of the result's axis, and its distance from the
    first. Like `_places`, but distances are f32 and in entries."""
    scale = np.float32(old) / np.float32(new)
    if o["align_corners"] and new > 1:
        scale = np.float32(old - 1) / np.float32(new - 1)
    at = np.arange(new, dtype=np.float32) * scale
    if o["half_pixel_centers"]:
        half = np.float32(0.5)
        at = (np.arange(new, dtype=np.float32) + half) * scale - half
    first = np.maximum(np.floor(at).astype(np.int64), 0)
    last = np.minimum(np.ceil(at).astype(np.int64), old - 1)
    return first, last, at - first.astype(np.float32)


def _corners(call: Call, places_of: Callable[[Mapping[str, Any], int, int], Any]) -> list[Tensor]:
    """Return the four source elements around each element of the result, and its vertical and horizontal
    distance from the first. Raises CompileError if a size isn't fixed."""
    b, x = call.b, call.x()
    sizes = static_shape((*x.shape[1:3], *call.sizes(1)))
    if sizes is None:
        raise CompileError(f"resizing {x} of integers needs known sizes: fix them with shapes=")
    places = [places_of(call.options, old, new) for old, new in zip(sizes[:2], sizes[2:], strict=True)]
    rows, columns = ([b.const(a) for a in p[:2]] for p in places)
    down = b.const(places[0][2].reshape(1, -1, 1, 1))
    right = b.const(places[1][2].reshape(1, 1, -1, 1))
    return [*(b.gather(b.gather(x, r, 1), c, 2) for r in rows for c in columns), down, right]


def _resized_integers(call: Call) -> Tensor:
    b, x = call.b, call.x()
    *corners, down, right = _corners(call, _places)

    def mixed(a: Expr, c: Expr, d: Expr, e: Expr, v: Expr, h: Expr) -> Expr:
        a, c, d, e = (cast(I64, t) for t in (a, c, d, e))
        total = a * (1024 - v) * (1024 - h) + d * v * (1024 - h) + c * (1024 - v) * h + e * v * h
        half = select(total > 0, const(1 << 19, I64), const(-(1 << 19), I64))
        return cast(x.dtype, binary("div", total + half, const(1 << 20, I64)))

    return b.map(mixed, *corners, down, right)


def _places(o: Mapping[str, Any], old: int, new: int) -> tuple[Array, Array, Array]:
    """Return the source entries before and after each entry of the result's axis, and its distance from the
    first in 1024ths of an entry."""
    scale = ((old << 10) + new // 2) // new
    if o["align_corners"] and new > 1:
        scale = (((old - 1) << 10) + (new - 1) // 2) // (new - 1)
    at = np.arange(new, dtype=np.int64) * scale
    if o["half_pixel_centers"]:
        at += scale // 2 - (1 << 9)
    first = np.clip(np.trunc(at / 1024).astype(np.int64), 0, old - 1)
    last = np.minimum(np.trunc((at + 1023) / 1024).astype(np.int64), old - 1)
    return first, last, at - (first << 10)


@lowers("RESIZE_NEAREST_NEIGHBOR")
def resize_nearest(call: Call) -> Tensor:
    o = call.options
    if o["align_corners"] and o["half_pixel_centers"]:
        return _resized(call, Style("nearest", aligned_centre, "half_up"))
    if o["align_corners"]:
        return _resized(call, Style("nearest", align_corners, "half_up"))
    return _resized(call, Style("nearest", pixel_centre if o["half_pixel_centers"] else asymmetric, "floor"))
