"""Operators that PyTorch doesn't decompose itself, made of others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

aten = torch.ops.aten


def _dist(self: Tensor, other: Tensor, p: float = 2) -> Tensor:
    return torch.linalg.vector_norm(self - other, p)


def _narrow_copy(self: Tensor, dim: int, start: int, length: int) -> Tensor:
    return self.narrow(dim, start, length).clone()


def _diagonal_scatter(self: Tensor, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    whole = self.movedim((dim1, dim2), (-2, -1))
    rows, columns = (torch.arange(n, device=self.device) for n in whole.shape[-2:])
    place = (rows[:, None] if offset >= 0 else columns[None]).expand(whole.shape[-2:])
    if not src.shape[-1]:
        return self.clone()
    taken = src.index_select(-1, place.reshape(-1).clamp(max=src.shape[-1] - 1)).reshape(whole.shape)
    written = torch.where(columns[None] - rows[:, None] == offset, taken.to(self.dtype), whole)
    return written.movedim((-2, -1), (dim1, dim2))


def _index_reduce(
    self: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:
    """Return `self` with rows of `source` combined with those at `index`."""
    sizes = [1] * source.dim()
    if sizes:
        sizes[dim] = -1
    places = index.reshape(sizes).expand(source.shape)
    return self.scatter_reduce(dim, places, source, reduce, include_self=include_self)


def _put(self: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    flat, place = self.reshape(-1), index.reshape(-1)
    place = torch.where(place < 0, place + flat.shape[0], place)
    return flat.index_put((place,), source.reshape(-1), accumulate).reshape(self.shape)


def _nanmedian(self: Tensor, dim: int, keepdim: bool = False) -> tuple[Tensor, Tensor]:
    """Return the lower median of the elements that aren't NaN. NaN are sorted behind all numbers."""
    if not self.dim():
        return self.clone(), torch.zeros((), dtype=torch.int64)
    values, places = self.sort(stable=True, dim=dim)
    middle = ((~values.isnan()).sum(dim, keepdim=True) - 1).clamp(min=0) // 2
    found = values.gather(dim, middle), places.gather(dim, middle)
    return found if keepdim else tuple(x.squeeze(dim) for x in found)


def _nanmedian_of_all(self: Tensor) -> Tensor:
    return _nanmedian(self.reshape(-1), 0)[0]


def _embedding_bag(
    weight: Tensor, indices: Tensor, offsets: Tensor, scale_grad_by_freq: bool = False, mode: int = 0,
    sparse: bool = False, per_sample_weights: Tensor | None = None, include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Return the sum (mode 0), mean (1) or maxima (2) of the rows of each bag. A bag begins at its offset.
    Indices that are `padding_idx` don't count. The bags of indices, their sizes, and the rows that have
    the maxima are returned too. As in PyTorch, sums don't count the sizes and may lack the bags."""
    starts = offsets[:-1] if include_last_offset else offsets
    bags, count = starts.shape[0], indices.shape[0]
    rows, kept = weight[indices], indices != padding_idx
    bag = (starts[None] <= torch.arange(count, device=indices.device)[:, None]).sum(1) - 1
    sizes = torch.zeros(bags, dtype=torch.int64).index_add(0, bag, kept.to(torch.int64))
    if mode == 2:
        rows = torch.where(kept[:, None], rows, float("-inf"))
        start = rows.new_full((bags, rows.shape[1]), float("-inf"))
        most = start.scatter_reduce(0, bag[:, None].expand(rows.shape), rows, "amax")
        places = torch.arange(count, device=indices.device)[:, None]
        best = torch.where(kept[:, None] & (rows == most[bag]), places, count - 1)
        first = torch.full_like(most, count - 1, dtype=torch.int64)
        first = first.scatter_reduce(0, bag[:, None].expand(rows.shape), best, "amin")
        filled = sizes[:, None] > 0
        chosen = torch.where(filled, indices[first], 0) if count else torch.zeros_like(first)
        return torch.where(filled, most, 0), bag, sizes, chosen
    rows = torch.where(kept[:, None], rows, 0)
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    total = rows.new_zeros((bags, rows.shape[1])).index_add(0, bag, rows)
    if mode == 1:
        return total / sizes.clamp(min=1).to(total.dtype)[:, None], bag, sizes, sizes
    unused = torch.zeros_like(sizes)
    if _sums_without_bags(weight, per_sample_weights, padding_idx):
        bag = bag[:0]
    return total, bag, unused, unused


def _sums_without_bags(weight: Tensor, per_sample_weights: Tensor | None, padding_idx: int) -> bool:
    """Return whether PyTorch's CPU kernel sums bags directly, and then returns no bags of indices."""
    plain = weight.dtype in (torch.float32, torch.float16) and weight.stride(1) == 1 and padding_idx < 0
    return plain and (per_sample_weights is None or per_sample_weights.stride(0) == 1)


TABLE: Mapping[Any, Callable[..., Any]] = {
    aten.dist.default: _dist,
    aten.narrow_copy.default: _narrow_copy,
    aten.diagonal_scatter.default: _diagonal_scatter,
    aten.index_reduce.default: _index_reduce,
    aten.put.default: _put,
    aten.nanmedian.dim: _nanmedian,
    aten.nanmedian.default: _nanmedian_of_all,
    aten._embedding_bag_forward_only.default: _embedding_bag,
    aten._embedding_bag.default: _embedding_bag,
}
