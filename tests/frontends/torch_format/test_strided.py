"""`as_strided` reads memory in PyTorch's layout, whatever the layout of the tensor is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch_models import near

import jangin
from jangin.ir.graph import CompileError
from jangin.torch_backend import backend

LAID: dict[str, Callable[[Any], Any]] = {
    "rows": lambda x: x + 1,
    "turned": lambda x: (x + 1).transpose(0, 2),
    "two axes turned": lambda x: (x * 2).permute(1, 0, 2),
    "with axes of 1": lambda x: (x * 2).permute(2, 1, 0).unsqueeze(1),
    "a part of rows": lambda x: (x + 1)[1:],
}


class Windows(torch.nn.Module):
    """A module with overlapping windows, as in Longformer."""

    def __init__(self, laid: Callable[[Any], Any], first: int | None = None) -> None:
        super().__init__()
        self.laid, self.first = laid, first

    def forward(self, x: Any) -> Any:
        return self.laid(x).as_strided((3, 4, 2), (5, 3, 1), self.first) * 3


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("laid", LAID.values(), ids=LAID)
def test_windows(laid: Callable[[Any], Any], given: bool) -> None:
    """Windows from a tensor's first element, or from a given offset of 1."""
    x = torch.randn(3, 4, 5)
    net = Windows(laid, laid(x).storage_offset() + 1 if given else None)
    with torch.no_grad():
        wanted = net(x)
        torch._dynamo.reset()
        near(torch.compile(net, backend=backend)(x), wanted)
    near(jangin.compile(net, example_inputs=(x,), cache=False)(x), wanted)


@pytest.mark.parametrize("laid", LAID.values(), ids=LAID)
def test_windows_are_written(laid: Callable[[Any], Any]) -> None:
    """`as_strided_scatter` writes windows. torch.compile makes it of writes through a tensor that shares
    memory."""
    x, src = torch.randn(3, 4, 5), torch.randn(2, 3)

    def written(x: Any, src: Any) -> Any:
        y = laid(x)
        return torch.as_strided_scatter(y, src, (2, 3), (7, 2), y.storage_offset() + 1)

    with torch.no_grad():
        torch._dynamo.reset()
        near(torch.compile(written, backend=backend)(x, src), written(x, src))


def test_what_isnt_among_a_tensors_elements_is_refused() -> None:
    """Windows that reach behind a tensor's elements, or over gaps between them, are refused."""
    x = torch.randn(3, 4, 5)
    for laid, why in (
        (lambda x: (x + 1)[:1], "reads elements 0 to 20"),
        (lambda x: (x + 1)[:, :, :3], "without gaps in memory"),
    ):
        with pytest.raises(CompileError, match=why):
            jangin.compile(Windows(laid), example_inputs=(x,), cache=False)
