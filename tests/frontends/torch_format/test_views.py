"""Results of `torch.compile` lie in memory as PyTorch's own: with the same strides, offset and shared
memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention as attention
from torch_models import near, seeded

from jangin import torch_backend
from jangin.torch_backend import backend

CONV = seeded(nn.Conv2d(3, 5, 3))
PLANES = torch.randn(2, 3, 6, 5)
HEADS = torch.randn(2, 3, 5, 8)


def _written(x: Any) -> Any:
    """Write to a tensor behind a graph break, and return a view of it."""
    y = x * 2
    turned = y.t()
    torch._dynamo.graph_break()
    y.add_(1)
    return turned


def _strided(x: Any) -> Any:
    y = x.t() * 2
    torch._dynamo.graph_break()
    return y.as_strided((3, 2), (1, 3)), y.storage_offset()


def _between(x: Any) -> Any:
    """Read elements outside a view, after a graph break."""
    y = (x * 2)[:, 1:3]
    torch._dynamo.graph_break()
    return y.as_strided((3, 2), (6, 1), 0)


def _turned_in_place(x: Any) -> Any:
    x.t_()
    return x * 2


def _changed(x: Any) -> Any:
    whole = torch.zeros(4, 6)
    whole[:, 1:3].add_(x[:, 1:3])
    x.add_(1)
    return whole[:, 1:3], x.t(), whole


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "axes turned": lambda x: (x.t() * 2, torch.sort(x.t() * 1, 0)),
    "a view of what is new": lambda x: (x * 2).t(),
    "parts": lambda x: (x * 2).chunk(3, 1),
    "repeated": lambda x: (x + 1).expand(3, 4, 6),
    "views of inputs": lambda x: (x[:, 1:], x.t(), x, x + 1),
    "nothing new": lambda x: x.t(),
    "one result twice": lambda x: [x + 1] * 2,
    "sizes": lambda x: ((x * 2).reshape(-1)[3:], x.shape[0] * 2, None),
    "a branch": lambda x: torch.cond(x.sum() > 0, lambda v: v.t() * 2, lambda v: (v * 3).t(), (x,)),
    "a parameter": lambda x: (CONV.weight.transpose(0, 1), x + 1),
    "written": _written, "strided": _strided, "between": _between, "turned in place": _turned_in_place,
    "changed": _changed,
}  # fmt: skip


def _same(got: Any, wanted: Any) -> None:
    if not isinstance(wanted, torch.Tensor):
        assert got == wanted
        return
    near(got, wanted)
    for what in (torch.Tensor.stride, torch.Tensor.storage_offset):
        assert what(got) == what(wanted)
    assert got.untyped_storage().nbytes() == wanted.untyped_storage().nbytes()


def _check(function: Callable[[Any], Any], x: Any, dynamic: bool = False) -> None:
    torch._dynamo.reset()
    own, other = x.clone(), x.clone()
    with torch.no_grad():
        wanted, got = function(own), torch.compile(function, backend=backend, dynamic=dynamic)(other)
    wanted, got = (torch.utils._pytree.tree_leaves(v) for v in (wanted, got))
    for pair in zip([*got, other], [*wanted, own], strict=True):
        _same(*pair)
    for i, one in enumerate(wanted):
        for j, two in enumerate(wanted[:i]):
            if isinstance(one, torch.Tensor) and isinstance(two, torch.Tensor):
                shared = [a.untyped_storage().data_ptr() == b.untyped_storage().data_ptr()
                          for a, b in ((one, two), (got[i], got[j]))]  # fmt: skip
                assert shared[0] == shared[1]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_as_pytorch_has_it(name: str) -> None:
    _check(FUNCTIONS[name], torch.randn(4, 6))


@pytest.mark.parametrize("name", ["axes turned", "parts", "views of inputs", "sizes"])
def test_of_free_sizes(name: str) -> None:
    _check(FUNCTIONS[name], torch.randn(4, 6), dynamic=True)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (CONV, PLANES.to(memory_format=torch.channels_last)),
        (torch.relu, PLANES.to(memory_format=torch.channels_last)),
        (lambda q: attention(q, q, q), HEADS),
        (lambda q: attention(q, q, q, torch.ones(3, 5, 5)), HEADS),
    ],
)
def test_layers(function: Any, x: Any) -> None:
    _check(function, x)


def test_gaps_of_its_own_are_left_to_pytorch(monkeypatch: pytest.MonkeyPatch) -> None:
    """An operator that declares gaps in its result is left to PyTorch. The contents of the gaps are
    undefined."""
    with torch.library._scoped_library("jangintest", "DEF") as library:
        library.define("gaps(Tensor x) -> Tensor")
        library.impl("gaps", lambda x: x.new_empty_strided(x.shape, (12, 2)), "CompositeExplicitAutograd")
        monkeypatch.setattr(torch_backend, "_SAID", set())
        with torch.no_grad(), pytest.warns(UserWarning, match="jangintest.gaps.default is not supported"):
            made = torch.compile(torch.ops.jangintest.gaps, backend=backend)(torch.randn(4, 6))
        assert made.stride() == (12, 2)
