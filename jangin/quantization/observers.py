"""Choose the range of values to keep, by a histogram of calibration data.

`entropy` chooses the range whose integers lose least information by the Kullback-Leibler divergence (S.
Migacz, 8-bit inference with TensorRT, GTC 2017). `mse` chooses the range of the least mean squared error.
`percentile` drops 0.005% of the values at each end, and `minmax` keeps all."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jangin.ir.graph import Array

BINS = 2048
"""The bins of a histogram. PyTorch's HistogramObserver and ONNX Runtime's percentile calibration have as
many."""
PERCENTILE = 99.99
"""The share of the numbers, in percent, that a range by percentile contains. It is one of those that Wu et
al. compare ("Integer Quantization for Deep Learning Inference", 2020)."""
LEVELS = 256
"""The numbers that an integer of 8 bits can have."""
CUTS = 64
"""The number of positions that are tried for each end of a range. Neighbours differ by 1.6 % of the end,
about a step of seven bits."""


class Observer:
    """The statistics of one tensor: its extremes, and a histogram of BINS bins over -reach..reach. The reach
    doubles until it contains the largest absolute value."""

    def __init__(self) -> None:
        self.low, self.high = np.inf, -np.inf
        self.reach = 0.0
        self.counts: Array = np.zeros(BINS)

    def see(self, values: Array) -> None:
        """Add the numbers of an array to the statistics. Raises ValueError if one is infinite or NaN."""
        if not values.size:
            return
        low, high = float(values.min()), float(values.max())
        if not np.isfinite(low) or not np.isfinite(high):
            raise ValueError("calibration makes infinities or NaN: check the data's range, and the model")
        self.low, self.high = min(self.low, low), max(self.high, high)
        largest = max(-low, high)
        if not self.reach:
            self.reach = largest
        while self.reach and largest > self.reach:
            quarter, half = BINS // 4, self.counts.reshape(-1, 2).sum(1)
            self.counts = np.pad(half, quarter)
            self.reach *= 2
        if self.reach:
            self.counts += np.histogram(values, BINS, (-self.reach, self.reach))[0]

    def range(self, method: str) -> tuple[float, float]:
        """Return the least and the largest value to keep. `method` is a name in METHODS. The result is within
        the observed extremes."""
        if not self.reach:
            return 0.0, 0.0
        low, high = METHODS[method](self)
        return max(low, self.low), min(high, self.high)

    @property
    def edges(self) -> Array:
        return np.linspace(-self.reach, self.reach, BINS + 1)


def _minmax(seen: Observer) -> tuple[float, float]:
    return seen.low, seen.high


def _percentile(seen: Observer) -> tuple[float, float]:
    shares = np.cumsum(seen.counts) / seen.counts.sum()
    tail = (100 - PERCENTILE) / 200
    first, last = np.searchsorted(shares, [tail, 1 - tail])
    return float(seen.edges[first]), float(seen.edges[last + 1])


def _tried(seen: Observer, loss: Callable[[Observer, float, float], float]) -> tuple[float, float]:
    """Return the range of the least loss. The best upper end is found first, then the best lower end."""
    shares = [float(s) for s in np.linspace(1, 1 / CUTS, CUTS)]
    high = seen.high * min(shares, key=lambda s: loss(seen, seen.low, seen.high * s))
    return seen.low * min(shares, key=lambda s: loss(seen, seen.low * s, high)), high


def _squares(seen: Observer, low: float, high: float) -> float:
    low, high = min(low, 0.0), max(high, 0.0)
    middles = (seen.edges[1:] + seen.edges[:-1]) / 2
    step = (high - low) / (LEVELS - 1)
    if step <= 0:
        return float("inf")
    kept = np.clip(np.rint((middles - low) / step), 0, LEVELS - 1) * step + low
    width = 2 * seen.reach / BINS  # the width of a bin; values are spread within it
    inside = (middles >= low) & (middles <= high)
    error = np.where(inside, max(step, width) ** 2 / 12, (middles - kept) ** 2)
    return float(seen.counts @ error)


def _divergence(seen: Observer, low: float, high: float) -> float:
    """Return the divergence of the observed values from their quantized ones. Values outside of low..high
    count as if they were at its ends. The result is infinite for a range of few bins."""
    first = int(np.searchsorted(seen.edges, min(low, 0.0), "right")) - 1
    last = int(np.searchsorted(seen.edges, max(high, 0.0), "left"))
    inside = seen.counts[first:last].copy()
    if len(inside) <= LEVELS // 2 or not inside.any():
        return float("inf")
    true = inside.copy()
    true[0] += seen.counts[:first].sum()
    true[-1] += seen.counts[last:].sum()
    level = np.minimum(np.arange(len(inside)) * LEVELS // len(inside), LEVELS - 1)
    filled = inside > 0
    sums, places = (np.bincount(level, v, LEVELS) for v in (inside, filled.astype(float)))
    said = np.where(filled, (sums / np.maximum(places, 1))[level], 0)
    p, q = true / true.sum(), said / said.sum()
    both = (p > 0) & (q > 0)
    return float((p[both] * np.log(p[both] / q[both])).sum() + p[(p > 0) & (q <= 0)].sum() * np.log(1e4))


METHODS: Mapping[str, Callable[[Observer], tuple[float, float]]] = {
    "minmax": _minmax,
    "percentile": _percentile,
    "entropy": lambda seen: _tried(seen, _divergence),
    "mse": lambda seen: _tried(seen, _squares),
}
"""Methods to choose a range, by name. `quantize` tries them in this order."""
