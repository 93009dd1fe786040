"""Jangin's decompositions of operators give the results of PyTorch's own operators."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch_models import near

import jangin
from jangin.frontends.torch import composed, decompositions


@pytest.mark.parametrize("low, high, bins", [(0, 0, 7), (0, 8, 9), (-1, 2, 13), (0.1, 0.7, 5), (3, 3, 4)])
def test_histograms(low: float, high: float, bins: int) -> None:
    torch.manual_seed(bins)
    for x in (torch.randn(5, 13), torch.randint(-2, 9, (77,)).float(), torch.full((6,), 2.0)):
        for dtype in (torch.float32, torch.float64):
            given = x.to(dtype)
            wanted = torch.histc(given, bins, low, high)
            assert torch.equal(decompositions._histogram(given, bins, low, high), wanted)


def _one_by_one(input: Any, weight: Any, offs: Any) -> Any:
    found, start = torch.zeros(input.shape[0], weight.shape[2]), 0
    for matrix, end in zip(weight, offs.tolist(), strict=True):
        found[start:end] = input[start:end] @ matrix
        start = end
    return found


@pytest.fixture(scope="module")
def grouped() -> Any:
    """Return the operator of the package transformers. If it is missing, define one with its name and
    schema."""
    if not hasattr(torch.ops.transformers, "grouped_mm_fallback"):
        name, schema = (
            "transformers::grouped_mm_fallback",
            "(Tensor input, Tensor weight, Tensor offs) -> Tensor",
        )
        made = torch.library.custom_op(name, _one_by_one, mutates_args=(), schema=schema)
        made.register_fake(lambda input, weight, offs: input.new_empty(input.shape[0], weight.shape[2]))
    return torch.ops.transformers.grouped_mm_fallback


class Experts(nn.Module):
    """Multiply each row by the matrix of its expert. Rows are sorted by expert."""

    def __init__(self, grouped: Any) -> None:
        super().__init__()
        self.grouped = grouped
        self.weight = nn.Parameter(torch.randn(5, 9, 21))

    def forward(self, x: Any, expert: Any) -> Any:
        order = expert.argsort(stable=True)
        offs = torch.histc(expert.float(), 5, 0, 4).cumsum(0).to(torch.int32)
        return self.grouped(x[order], self.weight.transpose(1, 2), offs)


def test_experts(grouped: Any) -> None:
    """One expert has all rows, some have none, and some rows lie behind the last. No matrix is copied for
    each row."""
    torch.manual_seed(1)
    net, x = Experts(grouped).eval(), torch.randn(8, 21)
    compiled = jangin.compile(net, example_inputs=(x, torch.zeros(8, dtype=torch.int64)))
    assert all(b.shape[1:] != (21, 9) for b in compiled.executable.plan.buffers if b.kind == "arena")
    for experts in (
        [0] * 8,
        [4, 0, 0, 4, 2, 2, 2, 0],
        [4] * 8,
        [3, 1, 2, 0, 4, 3, 1, 1],
        [7, 1, 7, 7, 0, 0, 0, 4],
    ):
        expert = torch.tensor(experts)
        with torch.no_grad():
            near(compiled(x, expert), net(x, expert))


@pytest.mark.parametrize("mode", [0, 1, 2])
def test_bags_of_no_embeddings(mode: int) -> None:
    weight, none = torch.ones(7, 5), torch.zeros(0, dtype=torch.int64)
    bags = composed.TABLE[torch.ops.aten._embedding_bag.default](
        weight, none, torch.tensor([0, 0]), mode=mode
    )
    assert torch.equal(bags[0], torch.zeros(2, 5))


@pytest.mark.parametrize("padding", [-1, 2])
@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_all_results_of_bags(mode: int, dtype: torch.dtype, last: bool, padding: int) -> None:
    """The bags of indices, their sizes and the rows of the maxima are PyTorch's too, whether it has a direct
    kernel or not."""
    weight, indices = torch.randn(7, 5, dtype=dtype), torch.tensor([2, 0, 6, 2, 2, 1])
    offsets = torch.tensor([0, 1, 1, 4, 6] if last else [0, 1, 1, 4])
    operator = torch.ops.aten._embedding_bag.default
    args = (weight, indices, offsets, False, mode, False, None, last, padding)
    for ours, theirs in zip(composed.TABLE[operator](*args), operator(*args), strict=True):
        torch.testing.assert_close(ours, theirs)
