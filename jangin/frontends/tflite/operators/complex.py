"""Lower operators on complex numbers. A complex tensor has real and imaginary parts along its last axis."""

from __future__ import annotations

from dataclasses import replace

from jangin.frontends.registry import Lowering, lowers
from jangin.frontends.tflite.operators.common import Call
from jangin.ir.dtype import F32
from jangin.ir.expr import call as intrinsic
from jangin.ir.expr import const
from jangin.ir.graph import CompileError
from jangin.ops.signal import dft
from jangin.ops.values import Tensor

MOVES = frozenset({
    "CONCATENATION", "EXPAND_DIMS", "GATHER", "PACK", "RESHAPE", "SLICE", "SQUEEZE", "STRIDED_SLICE",
    "TRANSPOSE",
})  # fmt: skip
"""Operators that move elements. They are applied to the real and to the imaginary parts."""


def _part(call: Call, i: int, part: int) -> Tensor:
    x = call.x(i)
    if not call.given[i].complex:
        return x
    starts, sizes = [0] * (x.rank - 1) + [part], (*x.shape[:-1], const(1))
    return call.b.reshape(call.b.slice(x, starts, sizes, [1] * x.rank), x.shape[:-1])


def of_complex(name: str, lower: Lowering, call: Call) -> Tensor:
    """Lower an operator with complex inputs or results. Raises CompileError if this isn't supported."""
    if name in OWN:
        tensor: Tensor = OWN[name](call)
        return tensor
    if name not in MOVES:
        raise CompileError("it is not supported for complex numbers")
    parts = []
    for part in (0, 1):
        inputs = (_part(call, i, part) if isinstance(t, Tensor) else t for i, t in enumerate(call.inputs))
        y: Tensor = lower(replace(call, inputs=tuple(inputs)))
        parts.append(call.b.reshape(y, [*y.shape, 1]))
    return call.b.concat(parts, parts[0].rank - 1)


@lowers("RFFT2D")
def rfft2d(call: Call) -> Tensor:
    """Return the Fourier transform of x [..., rows, columns], which is first cropped, or padded with 0, to
    the lengths in input 1. The result has half of the frequencies along the columns, and all along the
    rows."""
    rows, columns = call.integers(1)
    x = call.x()
    y = dft(call.b, call.b.reshape(x, [*x.shape, 1]), axis=x.rank - 1, length=columns, onesided=True)
    return dft(call.b, y, axis=x.rank - 2, length=rows)


@lowers("REAL")
def real_part(call: Call) -> Tensor:
    return _part(call, 0, 0)


@lowers("IMAG")
def imaginary_part(call: Call) -> Tensor:
    return _part(call, 0, 1)


@lowers("COMPLEX_ABS")
def magnitude(call: Call) -> Tensor:
    parts = _part(call, 0, 0), _part(call, 0, 1)
    return call.b.map(lambda r, i: intrinsic("sqrt", r * r + i * i), *parts)


def _cast(call: Call) -> Tensor:
    """Convert complex numbers to their real parts, or real numbers to complex ones with the imaginary part
    0."""
    if call.given[0].complex:
        return call.b.cast(_part(call, 0, 0), call.out.dtype or F32)
    x = call.b.cast(call.x(), F32)
    zero = call.b.expand(call.b.scalar(0, F32), x.shape)
    return call.b.concat([call.b.reshape(t, [*x.shape, 1]) for t in (x, zero)], x.rank)


OWN = {"RFFT2D": rfft2d, "REAL": real_part, "IMAG": imaginary_part, "COMPLEX_ABS": magnitude, "CAST": _cast}
