"""A module's weights are not copied in memory on their way to the kernels."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

GROWTH = 1.2
"""The most memory, as a multiple of the weights' bytes. Weights packed for the kernels lie once more in a
mapped file, and compiling takes the rest."""

CHILD = """
import sys
import torch
from torch import nn
import jangin
from jangin.runtime.system.usage import peak_bytes
from jangin.torch_backend import backend

def compiled(net, x):
    if sys.argv[1] == "torch.compile":
        return torch.compile(net, backend=backend)
    return jangin.compile(net, example_inputs=(x,), cache=False)

with torch.no_grad():
    small, x = nn.Linear(8, 8), torch.randn(4, 8)
    compiled(small, x)(x)
    net = nn.Sequential(*(m for _ in range(24) for m in (nn.Linear(2048, 2048), nn.Tanh())))
    x = torch.randn(4, 2048)
    wanted = net(x)
    before = peak_bytes()
    got = compiled(net, x)(x)
    assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    print((peak_bytes() - before) / sum(p.numel() * p.itemsize for p in net.parameters()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["jangin.compile", "torch.compile"])
def test_peak_memory_of_compiling_and_the_first_call(way: str) -> None:
    """Peak memory of a separate process with 384 MiB of weights."""
    child = subprocess.run([sys.executable, "-c", CHILD, way], capture_output=True, text=True, timeout=600)
    assert child.returncode == 0, child.stderr
    growth = float(child.stdout)
    assert 0 < growth <= GROWTH, f"{growth:.2f} times the weights' bytes"
