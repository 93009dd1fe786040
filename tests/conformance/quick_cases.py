"""Make ONNX's node tests in a fifth of the time.

The expected values of poolings without padding come from NumPy's windows, not from a Python loop. No test's
source is read for documentation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx.backend.test.case.base as case
import onnx.reference.ops.op_pool_common as reference
import pytest

from jangin.ir.graph import Array


def pool(
    x: Array, x_shape: Sequence[int], kernel: Sequence[int], strides: Sequence[int], out_shape: Sequence[int],
    kind: str, *others: Any, p: int = 1, **options: Any,
) -> Array:  # fmt: skip
    """Return the result of ONNX's own function. Padded or dilated windows are passed to it."""
    if others or options or set(strides or ()) != {1}:
        return OFFICIAL(x, x_shape, kernel, strides, out_shape, kind, *others, p=p, **options)
    windows = np.lib.stride_tricks.sliding_window_view(x, kernel, axis=tuple(range(2, x.ndim)))
    points = tuple(range(x.ndim, windows.ndim))
    if kind == "MAX":
        return windows.max(points)
    if kind == "AVG":
        return windows.mean(points)
    return (np.abs(windows) ** p).sum(points) ** np.float32(1 / p)


OFFICIAL = reference.pool


@contextmanager
def quickly() -> Iterator[None]:
    """A context in which the tests are made."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reference, "pool", pool)
        patch.setattr(case, "process_snippet", lambda op, name, export: (name, ""))
        yield
