"""Lower operators on sizes: those that return sizes as results, and those that give sizes known only during a
run."""

from __future__ import annotations

from jangin.frontends.registry import Table
from jangin.frontends.torch.operators.common import Number, Result, size
from jangin.ir.dtype import F64, I64
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor


def _sizes(b: Builder, out: Result, sizes: list[Number]) -> Tensor:
    return b.reshape(b.sizes([size(s) for s in sizes]), out.shape)


def _size(b: Builder, out: Result, self: Tensor, axis: int) -> Tensor:
    return b.reshape(b.sizes([self.shape[axis]]), ())


def _item(b: Builder, out: Result, self: Tensor) -> Tensor:
    """Return a number that the run computes and that is used as a size."""
    sizes = b.require_sizes(b.reshape(b.cast(self, I64), [1]), "a size")
    return b.reshape(b.sizes(sizes), ())


def _number(b: Builder, out: Result, self: Tensor) -> Tensor:
    """Return a fraction that the run computes and that other operators take as a number."""
    return b.reshape(b.cast(self, F64), ())


SIZES = Table({"torch.sizes": _sizes, "torch.size": _size, "torch.item": _item, "torch.number": _number})
