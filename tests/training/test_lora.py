"""Low-rank adapters against the same in PyTorch by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from torch import nn
from torch.nn import functional

import jangin
from jangin.ir.graph import CompileError

WIDTH, HEADS, RANK, ALPHA = 16, 2, 3, 6.0


class Block(nn.Module):
    """A transformer's block of plain linear layers, and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.up, self.down = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(3 * WIDTH, WIDTH)
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.first(x)
        q, k, v = (f(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + self.o(mixed)
        x = x + self.down(functional.gelu(self.up(self.second(x))))
        return self.head(x.mean(1))


class ByHand(nn.Module):
    """A frozen linear layer with an adapter."""

    def __init__(self, plain: nn.Linear, first: Any) -> None:
        super().__init__()
        self.plain = plain
        self.a = nn.Parameter(torch.from_numpy(first))
        self.b = nn.Parameter(torch.zeros(plain.out_features, RANK))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.plain(x) + ALPHA / RANK * (x @ self.a.T) @ self.b.T


def block() -> Block:
    torch.manual_seed(4)
    return Block()


RNG = np.random.default_rng(0)
BATCHES = [(RNG.standard_normal((6, 5, WIDTH), np.float32), RNG.integers(0, 4, 6)) for _ in range(3)]
TARGETS = ("[qkvo].weight", "up.weight", "down.weight")


def test_adapters_train_as_in_pytorch() -> None:
    trainer = jangin.train(
        block(), "cross_entropy", jangin.optim.AdamW(lr=0.02), BATCHES[0], threads=1,
        trainable=jangin.lora(rank=RANK, alpha=ALPHA, targets=TARGETS),
    )  # fmt: skip
    begin = trainer.state_dict()
    assert len(begin) == 2 * 6
    module = block().requires_grad_(False)
    for name in ("q", "k", "v", "o", "up", "down"):
        setattr(module, name, ByHand(getattr(module, name), begin[f"{name}.lora_A.weight"]))
    optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], lr=0.02)
    found, wanted = [], []
    for x, labels in BATCHES * 3:
        found.append(trainer.step((x, labels)))
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(torch.from_numpy(x)), torch.from_numpy(labels))
        loss.backward()
        optimizer.step()
        wanted.append(loss.item())
    np.testing.assert_allclose(found, wanted, 1e-4)  # rounding grows from step to step
    assert found[-3:] < found[:3]
    for name in ("q", "down"):
        state, layer = trainer.state_dict(), getattr(module, name)
        np.testing.assert_allclose(state[f"{name}.lora_A.weight"], layer.a.detach(), 1e-3, 1e-4)
        np.testing.assert_allclose(state[f"{name}.lora_B.weight"], layer.b.detach(), 1e-3, 1e-4)
    plain = block()
    plain.load_state_dict({n: torch.from_numpy(a) for n, a in trainer.merged().items()}, strict=False)
    x, labels = BATCHES[0]
    loss = functional.cross_entropy(plain(torch.from_numpy(x)), torch.from_numpy(labels)).item()
    np.testing.assert_allclose(loss, trainer.evaluate((x, labels)), 1e-5)
    assert trainer.state_bytes == 3 * sum(a.nbytes for a in begin.values())  # with both moments


def test_a_model_file_is_merged(tmp_path: Path) -> None:
    """Weights of both orientations, [in, out] and [out, in]."""
    arrays = {"w": RNG.standard_normal((8, 12)), "v": RNG.standard_normal((3, 12))}
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]), helper.make_node("Tanh", ["h"], ["t"]),
        helper.make_node("Gemm", ["t", "v"], ["y"], transB=1),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4, d]) for n, d in (("x", 8), ("y", 3))]
    held = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "net", ends[:1], ends[1:], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    x, labels = RNG.standard_normal((4, 8), np.float32), np.array([0, 1, 2, 1])
    trainer = jangin.train(
        model.SerializeToString(), "cross_entropy", "sgd", (x, labels), trainable=jangin.lora(2), threads=1
    )
    trainer.lr = 0.5
    losses = [trainer.step((x, labels)) for _ in range(8)]
    assert losses[-1] < 0.8 * losses[0]
    trainer.export(tmp_path / "out.onnx")
    scores = torch.from_numpy(np.array(jangin.compile(tmp_path / "out.onnx", threads=1)(x)))
    loss = functional.cross_entropy(scores, torch.from_numpy(labels)).item()
    np.testing.assert_allclose(loss, trainer.evaluate((x, labels)), 1e-5)
    written = {t.name: numpy_helper.to_array(t) for t in onnx.load(tmp_path / "out.onnx").graph.initializer}
    assert all(not np.array_equal(written[n], a) for n, a in arrays.items())


def test_what_cant_have_adapters() -> None:
    with pytest.raises(ValueError, match="rank=0 must be at least 1"):
        jangin.lora(0)
    with pytest.raises(CompileError, match=r"trainable='nothing\*' is none of the parameters .*up\.weight"):
        jangin.train(
            block(), "cross_entropy", "sgd", BATCHES[0], trainable=jangin.lora(targets=("nothing*",))
        )
    module = block()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with pytest.raises(CompileError, match="lora trains others"):
        jangin.train(module, "cross_entropy", optimizer, BATCHES[0], trainable=jangin.lora())
