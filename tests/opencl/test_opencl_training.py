"""Training steps on each OpenCL driver, with both kinds of schedules, against native code."""

from __future__ import annotations

import pytest
from on_device import SIMULATOR, usable

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch

import jangin
from jangin.runtime.devices.opencl_devices import Found

DEVICES = [d for d in usable() if d.platform != SIMULATOR]
STEPS = 4
ROUNDING = 1e-5
"""The largest difference of two losses, as a share. The schedules add in different orders."""
pytestmark = [
    pytest.mark.slow,  # drivers compile some dozen kernels
    pytest.mark.skipif(not DEVICES, reason="no OpenCL device here: neither PoCL nor another driver"),
]


def losses(target: str | None) -> list[float]:
    """Train a small network with convolution and batch normalization."""
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.BatchNorm2d(4), torch.nn.ReLU(),
        torch.nn.MaxPool2d(2), torch.nn.Flatten(), torch.nn.Linear(36, 5),
    )  # fmt: skip
    batch = torch.randn(6, 3, 8, 8), torch.randint(0, 5, (6,))
    trainer = jangin.train(net, "cross_entropy", jangin.optim.AdamW(lr=0.01), example=batch, target=target)
    return [trainer.step(batch) for _ in range(STEPS)]


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
def test_steps_have_native_losses(device: Found, kind: str) -> None:
    native = losses(None)
    assert losses(f"opencl:{device.number}@{kind}") == pytest.approx(native, rel=ROUNDING)
    assert native[-1] < native[0]
