"""Convert the arguments of `as_strided`. Its positions are in memory, and Jangin's are among a tensor's
elements in row-major order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from jangin.ir.graph import CompileError

STRIDED = tuple(
    getattr(torch.ops.aten, name).default for name in ("as_strided", "as_strided_copy", "as_strided_scatter")
)


def lying(tensor: torch.Tensor, size: Sequence[Any], stride: Sequence[Any], offset: Any) -> dict[str, Any]:
    """Return the arguments that describe the positions among a tensor's elements.

    `order` is the order of the axes of `tensor` in memory. `storage_offset` is the first position, counted
    from the tensor's first element. Raises CompileError if positions are outside of the elements, or if there
    are gaps between the elements."""
    start = 0 if offset is None else offset - tensor.storage_offset()
    steps, sizes = _known(tensor.stride()), _known(tensor.shape)
    size, stride, start = _known(size), _known(stride), _known([start])[0]
    if not all(isinstance(n, int) for n in (*sizes, *steps, *size, *stride, start)):
        if not tensor.is_contiguous():
            raise CompileError(
                "as_strided of a tensor with free sizes is supported only if the tensor is contiguous: call "
                "contiguous() before it, or fix the sizes"
            )
        return {"storage_offset": start}
    order = sorted(range(len(sizes)), key=lambda i: (-steps[i], i))
    count = 1
    for i in reversed(order):
        if sizes[i] != 1 and steps[i] != count:
            raise CompileError(
                f"as_strided is supported only for tensors without gaps in memory, not for strides {steps}: "
                "call contiguous() before it"
            )
        count *= sizes[i]
    reach = sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    if 0 not in size and not 0 <= start <= start + reach < count:
        raise CompileError(
            f"as_strided reads elements {start} to {start + reach} of a tensor of {count} elements"
        )
    return {"order": order, "storage_offset": start}


def _known(sizes: Sequence[Any]) -> list[Any]:
    """Return sizes, with those that PyTorch has fixed as ints."""
    return [int(n) if isinstance(n, torch.SymInt) and n.node.expr.is_Integer else n for n in sizes]
