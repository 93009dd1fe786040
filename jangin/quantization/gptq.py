"""Round weights row by row, and compensate each row's error in the rows that follow.

E. Frantar et al., GPTQ (ICLR 2023): the second moments of what the rows are multiplied with decide how much
of an error each row compensates."""

from __future__ import annotations

import numpy as np

from jangin.ir.dtype import DType
from jangin.ir.graph import Array
from jangin.quantization.scales import Scheme, of_weights

DAMPING = 0.01
"""This share of the diagonal's mean is added to the diagonal, so that the inverse exists."""


def gptq(w: Array, moments: Array, dtype: DType, block: int) -> tuple[Array, Scheme]:
    """Quantize weights [terms, columns] to integers, and return them with their scheme. A scale is shared by
    `block` terms of a column.

    `moments` are the second moments x.T @ x, [terms, terms] f64, of the data that the weights multiply."""
    first = of_weights(w, dtype, 0, block)
    rest, scale, whole = w.astype(np.float64), first.scale.copy(), np.empty(w.shape)
    diagonal = np.diag(moments)
    dead = diagonal == 0
    damping = DAMPING * float(diagonal.mean()) or 1.0
    upper = np.linalg.cholesky(np.linalg.inv(moments + np.diag(np.where(dead, 1.0, damping)))).T
    low, high = dtype.limits
    for start in range(0, len(w), block):
        end = start + block
        step = of_weights(rest[start:end], dtype, 0, block).scale[0].astype(np.float64)
        scale[start // block] = step
        errors = np.empty((block, w.shape[1]))
        for k in range(start, end):
            whole[k] = np.clip(np.rint(rest[k] / step), low, high)
            error = (rest[k] - whole[k] * step) / upper[k, k]
            rest[k + 1 : end] -= np.outer(upper[k, k + 1 : end], error)
            errors[k - start] = error
        rest[end:] -= upper[start:end, end:].T @ errors
    return whole.astype(dtype.numpy), Scheme(dtype, scale, first.zero, 0, block)
