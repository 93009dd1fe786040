"""Run executables on PyTorch's tensors without copying them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch

from jangin.frontends.torch.element_types import array_of
from jangin.ir.graph import Array

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


def on_tensors(executable: Any, lender: tuple[int, int] | None = None) -> Run:
    """Return a function that runs an executable on tensors. It takes them in the order of the executable's
    inputs, and returns tensors in the order of its outputs. It raises the executable's errors. Runs of known
    sizes take the threads of a library (see `openmp.lender`)."""
    by_array = functools.partial(_through_arrays, executable)
    is_plan = hasattr(executable, "addressed")  # programs and variants lack it
    addressed = executable.addressed(lender) if is_plan else None
    return by_array if addressed is None else _ByAddress(executable, addressed, by_array)


def tensor_of(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Return an array as a tensor of type `dtype` that shares its memory."""
    if dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        return torch.from_numpy(array.view("i2" if array.itemsize == 2 else "u1")).view(dtype)
    return torch.from_numpy(array)


def _through_arrays(executable: Any, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    outputs = executable(*map(array_of, given))
    return [
        tensor_of(a, torch_type(a.dtype)) for a in (outputs if isinstance(outputs, tuple) else (outputs,))
    ]


@functools.cache
def torch_type(dtype: Any) -> torch.dtype:
    """Return PyTorch's type with the same name as a type of NumPy. Results are kept, because the name takes
    microseconds to find."""
    torch_dtype = getattr(torch, str(dtype))
    assert isinstance(torch_dtype, torch.dtype)
    return torch_dtype


class _ByAddress:
    """A function that runs an executable by passing the addresses of tensors to its machine code. For a small
    model, this takes less time than making arrays of the tensors.

    Tensors whose types or shapes the plan doesn't have are passed to `otherwise`."""

    def __init__(self, executable: Any, run: Callable[[Sequence[int]], None], otherwise: Run) -> None:
        self._run, self._otherwise = run, otherwise
        self._inputs, self._outputs = (
            [(torch_type(s.dtype), torch.Size(s.shape)) for s in specs]
            for specs in (executable.inputs, executable.outputs)
        )

    def __call__(self, given: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if len(given) != len(self._inputs):
            return self._otherwise(given)
        held = []
        for tensor, (dtype, shape) in zip(given, self._inputs, strict=True):
            if tensor.dtype is not dtype or tensor.shape != shape or not tensor.is_cpu:
                return self._otherwise(given)
            if not tensor.is_contiguous() or tensor.is_neg():
                tensor = tensor.resolve_neg().contiguous()
            held.append(tensor)
        outputs = [torch.empty(shape, dtype=dtype) for dtype, shape in self._outputs]
        self._run([t.data_ptr() for t in (*held, *outputs)])
        return outputs
