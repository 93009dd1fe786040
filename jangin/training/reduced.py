"""Steps whose gradients are averaged over several processes before the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.training.runner import Runner, as_array

Reduce = Callable[[Sequence[Array]], None]
"""A function that replaces arrays by their means over all processes, in place. All processes call it with
arrays of the same shapes. A step calls it once, with its loss and its gradients."""


def shares(batch: Any, count: int) -> list[tuple[Array, ...]]:
    """Return a batch as equal parts along the first axis. Raises ValueError if it can't be divided."""
    arrays = [as_array(a) for a in (batch if isinstance(batch, (tuple, list)) else (batch,))]
    odd = [a.shape for a in arrays if a.ndim == 0 or len(a) % count or not len(a)]
    if odd:
        raise ValueError(
            f"an array of shape {odd[0]} has no {count} equal parts along its first axis: give batches of a "
            f"multiple of {count}"
        )
    return [*zip(*(np.split(a, count) for a in arrays), strict=True)]


class Reduced:
    """A step of two plans, which runs as a `Runner`: loss and gradients, then the update with their means.
    The means are those of `parts` of the batch, one after the other, and then those that `reduce` makes."""

    is_stale = False

    def __init__(self, first: Runner, second: Runner, reduce: Reduce | None, parts: int = 1) -> None:
        self.first, self.second, self.reduce, self.parts = first, second, reduce, parts
        self.step = replace(
            second.step, inputs=first.step.inputs, after={**second.step.after, **first.step.after}
        )
        self.executable = first.executable
        first.parts = parts
        self.feeds = first.feeds

    def run(
        self, batch: Any, kept: Mapping[str, Array], numbers: Mapping[str, Array], draw: int = 0
    ) -> dict[str, Array]:
        """Run the step, and return all outputs by name, as `Runner.run` does. Buffers that the forward pass
        has changed get their old values back if the gradients can't be averaged."""
        own, other = ({n: kept[n] for n in runner.names if n in kept} for runner in (self.first, self.second))
        before = {n: kept[n].copy() for n in self.first.step.after}
        try:
            outputs, means = self._averaged(batch, own, draw)
            if self.reduce is not None:
                self.reduce(means)
        except BaseException:
            for name, array in before.items():
                np.copyto(kept[name], array)
            raise
        return {**outputs, **self.second.run(tuple(means), other, numbers)}

    def _averaged(self, batch: Any, own: dict[str, Array], draw: int) -> tuple[dict[str, Array], list[Array]]:
        """Return the last part's outputs, and the means of loss and gradients over the parts. Floats of 16
        bits are added up in float32."""
        step, means = self.first.step, list[Array]()
        for n, part in enumerate(shares(batch, self.parts) if self.parts > 1 else [batch]):
            outputs = self.first.run(part, own, {}, draw * self.parts + n)
            own |= {state: outputs[out] for state, out in step.after.items()}
            found = [np.array(outputs[step.loss]), *(outputs[g] for g in step.gradients.values())]
            if self.parts == 1:
                return outputs, [np.asarray(a, order="C") for a in found]
            wide = [np.array(a, np.float32 if a.itemsize < 4 else a.dtype) for a in found]
            means = [m + a for m, a in zip(means, wide, strict=True)] if means else wide
        types = [a.dtype for a in found]
        return outputs, [np.asarray(m / self.parts, t) for m, t in zip(means, types, strict=True)]


def over_processes(group: Any = None) -> Reduce:
    """Return the `reduce` of `jangin.train` for processes that `torch.distributed` has connected, on one
    machine or several. `group` is a process group of PyTorch's, by default the one with all processes.

    Its error, a RuntimeError, says that another process has ended or doesn't answer."""
    import torch.distributed as dist

    from jangin.frontends.torch.tensors import tensor_of, torch_type

    def reduce(arrays: Sequence[Array]) -> None:
        size = dist.get_world_size() if group is None else group.size()
        for whole, parts in _joined(arrays):
            flat = tensor_of(whole, torch_type(whole.dtype))
            try:
                _summed(flat, group)
            except RuntimeError as error:
                raise RuntimeError(
                    "the gradients can't be averaged, as another process has ended or doesn't answer. The "
                    f"step changed nothing. Begin again from a saved state. PyTorch says: {error}"
                ) from error
            whole /= size
            for array, part in parts:
                np.copyto(array, part.reshape(array.shape))

    return reduce


def _summed(flat: Any, group: Any) -> None:
    import torch.distributed as dist

    if group is None:
        dist.all_reduce(flat)
    else:
        group.allreduce([flat]).wait()


def _joined(arrays: Sequence[Array]) -> list[tuple[Array, list[tuple[Array, Array]]]]:
    """Return one array for each dtype, with the arrays' numbers in a row, and the part of each."""
    blocks = []
    for dtype in dict.fromkeys(a.dtype for a in arrays):
        same = [a for a in arrays if a.dtype == dtype]
        whole = np.concatenate([a.reshape(-1) for a in same])
        ends = np.cumsum([a.size for a in same])
        blocks.append((whole, list(zip(same, np.split(whole, ends[:-1]), strict=True))))
    return blocks
