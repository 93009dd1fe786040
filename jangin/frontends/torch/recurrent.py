"""Export modules with recurrent layers for any number of steps.

PyTorch's shape functions of its recurrent operators run the layer step by step, which fixes the number of
steps. An export therefore replaces the operators by others, whose shape functions are formulas. Arguments and
results are the same. `operators/recurrent.py` lowers both kinds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor

STATES = {"lstm": 2, "gru": 1, "rnn_tanh": 1, "rnn_relu": 1}
"""The number of states of each of PyTorch's recurrent functions."""


@contextmanager
def free_steps() -> Iterator[None]:
    """Inside this context, torch.nn's recurrent layers call the replacing operators."""
    originals = {name: getattr(torch._VF, name) for name in STATES}
    try:
        for name, original in originals.items():
            setattr(torch._VF, name, partial(_called, name, original))
        yield
    finally:
        for name in STATES:  # `torch._VF` looks up its own functions elsewhere
            delattr(torch._VF, name)


def _called(name: str, original: Any, *args: Any) -> Any:
    packed = not isinstance(args[2], list)  # for packed sequences the lengths come before the states
    return original(*args) if packed else getattr(torch.ops.jangin, name)(*args)


def _shapes(
    input: Tensor, hx: Tensor | Sequence[Tensor], params: Sequence[Tensor], has_biases: bool,
    num_layers: int, dropout: float, train: bool, bidirectional: bool, batch_first: bool,
) -> tuple[Tensor, ...]:  # fmt: skip
    """Return empty tensors in the shapes of the results: the sequence, then the last states. The sequence is
    [steps, batch, directions * hidden], or has the batch first."""
    states = [hx] if isinstance(hx, Tensor) else hx
    size = states[0].shape[-1] * (2 if bidirectional else 1)
    return (input.new_empty(*input.shape[:2], size), *(torch.empty_like(s) for s in states))


def _define() -> None:
    for name, count in STATES.items():
        hx, results = ("Tensor[]", "Tensor, Tensor") if count == 2 else ("Tensor", "Tensor")
        torch.library.define(
            f"jangin::{name}",
            f"(Tensor input, {hx} hx, Tensor[] params, bool has_biases, int num_layers, float dropout, "
            f"bool train, bool bidirectional, bool batch_first) -> (Tensor, {results})",
        )
        torch.library.register_fake(f"jangin::{name}", _shapes)


_define()
