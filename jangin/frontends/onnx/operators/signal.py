"""Lower ONNX's signal operators, whose lengths and axes are tensors."""

from __future__ import annotations

from jangin.frontends.onnx.registry import op
from jangin.frontends.onnx.types import element_type
from jangin.ir.expr import const
from jangin.ir.graph import CompileError, static_shape
from jangin.ops.axes import integers
from jangin.ops.builder import Builder
from jangin.ops.signal import dft, mel_weights, stft
from jangin.ops.values import Tensor


def _integer(b: Builder, t: Tensor | None, what: str) -> int | None:
    return None if t is None else integers(b, t, what)[0]


@op("DFT", since=17)
def dft_17(
    b: Builder, x: Tensor, length: Tensor | None = None, *, axis: int = 1, inverse: int = 0, onesided: int = 0
) -> Tensor:
    n = _integer(b, length, "DFT's length")
    return dft(b, x, axis=axis, length=n, inverse=bool(inverse), onesided=bool(onesided))


@op("DFT", since=20)
def dft_20(
    b: Builder, x: Tensor, length: Tensor | None = None, axis: Tensor | None = None, *, inverse: int = 0,
    onesided: int = 0,
) -> Tensor:  # fmt: skip
    at = -2 if axis is None else integers(b, axis, "DFT's axis")[0]
    return dft_17(b, x, length, axis=at, inverse=inverse, onesided=onesided)


@op("STFT", since=17)
def stft_17(
    b: Builder, signal: Tensor, frame_step: Tensor, window: Tensor | None = None,
    frame_length: Tensor | None = None, *, onesided: int = 1,
) -> Tensor:  # fmt: skip
    # the standard demands an axis for the real part; ONNX Runtime and files leave it out
    if signal.rank == 2:
        signal = b.reshape(signal, [*signal.shape, const(1)])
    (step,) = integers(b, frame_step, "STFT's frame_step")
    n = _integer(b, frame_length, "STFT's frame_length")
    if n is None:
        size = static_shape(signal.shape[1:2] if window is None else window.shape)
        if size is None:
            raise CompileError(f"STFT of {signal}: the frame length must be known; fix it with shapes=")
        n = size[0]
    return stft(b, signal, window, frame=n, step=step, onesided=bool(onesided))


@op("MelWeightMatrix", since=17)
def mel_weight_matrix(
    b: Builder, bins: Tensor, dft_length: Tensor, sample_rate: Tensor, lower: Tensor, upper: Tensor,
    *, output_datatype: int = 1,
) -> Tensor:  # fmt: skip
    count, length, rate = (
        integers(b, t, f"MelWeightMatrix's {what}")[0]
        for t, what in ((bins, "num_mel_bins"), (dft_length, "dft_length"), (sample_rate, "sample_rate"))
    )
    low, high = (float(b.require_constant(t, "MelWeightMatrix's edges").reshape(())) for t in (lower, upper))
    return b.const(mel_weights(count, length, rate, low, high).astype(element_type(output_datatype).numpy))
