"""Steps whose gradients are averaged over several processes before the update."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.training.runner import Runner

Reduce = Callable[[Sequence[Array]], None]
"""A function that replaces arrays by their means over all processes, in place. All processes call it with
arrays of the same shapes. A step calls it once, with its loss and its gradients."""


class Reduced:
    """A step of two plans, which runs as a `Runner`: loss and gradients, then the update with their means."""

    is_stale = False

    def __init__(self, first: Runner, second: Runner, reduce: Reduce) -> None:
        self.first, self.second, self.reduce = first, second, reduce
        self.step = replace(
            second.step, inputs=first.step.inputs, after={**second.step.after, **first.step.after}
        )
        self.executable = first.executable
        self.feeds = first.feeds

    def run(
        self, batch: Any, kept: Mapping[str, Array], numbers: Mapping[str, Array], draw: int = 0
    ) -> dict[str, Array]:
        """Run the step, and return all outputs by name, as `Runner.run` does. Buffers that the forward pass
        has changed get their old values back if the gradients can't be averaged."""
        own, other = ({n: kept[n] for n in runner.names if n in kept} for runner in (self.first, self.second))
        before = {n: kept[n].copy() for n in self.first.step.after}
        outputs = self.first.run(batch, own, {}, draw)
        summed = [np.array(outputs[self.first.step.loss])]
        summed += [np.ascontiguousarray(outputs[g]) for g in self.first.step.gradients.values()]
        try:
            self.reduce(summed)
        except BaseException:
            for name, array in before.items():
                np.copyto(kept[name], array)
            raise
        return {**outputs, **self.second.run(tuple(summed), other, numbers)}


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
