"""The examples that train, on a few pictures or steps."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

sys.path.append(str(Path(__file__).resolve().parents[2] / "examples"))

import finetune_efficientnet
import train_characters
import train_fashion
import train_tiny

pytestmark = pytest.mark.slow
ROUNDING = 1e-3
"""The largest difference of two losses in a few steps, as a share. Sums of float32 are in another order, and
each step enlarges what they differ by."""


@pytest.fixture(autouse=True, scope="module")
def _prepared() -> Iterator[None]:
    """Have the pictures, and one thread: PyTorch's threads wait for each other on a busy machine."""
    import torch
    from packages import debian

    try:
        debian("dataset-fashion-mnist")
    except OSError as error:
        pytest.skip(f"Debian's Fashion-MNIST can't be fetched here: {error}")
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", train_tiny.NETWORKS)
def test_tiny_networks_follow_pytorch(name: str) -> None:
    """The losses of 12 steps are PyTorch's. They fall, so something is trained. Rounding stays small in
    float64."""
    runs = train_tiny.main(["--steps", "12", "--networks", name, "--double"])[name]
    ours, theirs = (run.losses for run in runs)
    np.testing.assert_allclose(ours, theirs, ROUNDING)
    assert np.mean(ours[-3:]) < np.mean(ours[:3])


def test_a_residual_network_learns() -> None:
    """After 120 steps, both ways recognise far more than one picture in ten."""
    given = ["--epochs", "3", "--pictures", "1280", "--batch", "32", "--tested", "500"]
    shares = [share for _, share in train_fashion.main(given)]
    assert min(shares) > 0.5, shares


def test_all_of_efficientnet_is_tuned() -> None:
    """The losses of 12 steps fall. The first are PyTorch's."""
    try:
        finetune_efficientnet.pretrained(10)
    except OSError as error:
        pytest.skip(f"the published weights can't be fetched here: {error}")
    given = ["--epochs", "3", "--pictures", "64", "--batch", "16", "--size", "32", "--tested", "100"]
    ours, theirs = (run.losses for run, _ in finetune_efficientnet.main(given))
    np.testing.assert_allclose(ours[0], theirs[0], ROUNDING)
    assert max(np.mean(losses[-4:]) / np.mean(losses[:4]) for losses in (ours, theirs)) < 0.9


def test_characters_are_trained_and_exported(tmp_path: Path) -> None:
    text = tmp_path / "text.txt"
    text.write_text("a b ba ab aab bba. " * 20)
    losses, apart = train_characters.main([str(text), "-o", str(tmp_path), "--steps", "30"])
    assert losses[-1] < 0.7 * losses[0]
    assert apart < 1e-4


def test_adapters_learn_turned_digits() -> None:
    pytest.importorskip("sklearn", reason="scikit-learn isn't installed: it has the digits")
    import train_lora

    before, after = train_lora.main(["--epochs", "3"])
    assert after > before + 0.2
