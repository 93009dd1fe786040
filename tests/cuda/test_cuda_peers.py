"""The peers of the benchmark for a GPU compute the same as Jangin, as far as a processor can tell."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
SMALL = {
    "unet": {"side": 8, "width": 32, "wide": 64}, "gpt2": {"past": 8, "layers": 1, "width": 64, "words": 50},
    "bert": {"rows": 8, "layers": 1, "width": 64}, "resnet50": {"size": 32}, "mobilenetv2": {"size": 32},
    "squeezenet": {"size": 32},
}  # fmt: skip
LIMIT = 1e-5
"""Sums of float32 in other orders, over tens of layers. The largest difference seen is 1.2e-6."""


@pytest.mark.parametrize("peer", ["torch", "jax"])
@pytest.mark.parametrize("name", [*SMALL])
@pytest.mark.sampled(3)
def test_the_same_network(name: str, peer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch's modules and JAX's functions are made of the same nodes and weights."""
    package: Any = pytest.importorskip(peer)
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    from cuda_onnx import jax_network, tensor, torch_module
    from gpu_networks import NETWORKS, feeds

    model = NETWORKS[name]("float32", 1, **SMALL[name])
    exe = jangin.compile(model, "cpu", cache=False)
    given = feeds(exe)
    (want,) = exe.run(given).values()
    if peer == "jax":
        run, constants = jax_network(package, model)
        found = np.asarray(run(constants, given))
    else:
        net, names = torch_module(package, model)
        found = net(*(tensor(package, given[n]) for n in names)).detach().numpy()
    assert np.abs(found - want).max() <= LIMIT * np.abs(want).max()


CHECK = """
import torch, cuda_triton as c
x, y, z = torch.randn(33, 50), torch.randn(50, 70), torch.zeros(33, 70)
c.product(x, y, z, False, {"BM": 16, "BN": 32, "BK": 16, "GROUP": 2})()
torch.testing.assert_close(z, x @ y, rtol=1e-4, atol=1e-4)
q, k, v = (torch.randn(3, 64, 16) for _ in range(3))
o = torch.zeros(3, 64, 16)
c.attention(q, k, v, o, {"BM": 32, "BN": 16})()
torch.testing.assert_close(o, torch.nn.functional.scaled_dot_product_attention(q, k, v))
"""


@pytest.mark.skipif(
    find_spec("triton") is None or find_spec("torch") is None, reason="Triton or PyTorch isn't installed"
)
def test_triton_s_kernels(tmp_path: Path) -> None:
    """Triton's interpreter runs them on the processor."""
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(
        [sys.executable, "-c", CHECK], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
