"""Train a small convolutional network on scikit-learn's 1,797 handwritten digits, by one compiled step.

    pip install 'jangin[torch]' scikit-learn
    python examples/train_digits.py

Says the test accuracy, and the time of a step beside PyTorch's own.
"""

from __future__ import annotations

import copy
import time

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

import jangin

BATCH, EPOCHS = 32, 15


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )  # fmt: skip


def main() -> None:
    torch.manual_seed(0)
    pictures, labels = load_digits(return_X_y=True)
    pictures = pictures.reshape(-1, 1, 8, 8).astype(np.float32) / 16
    order = np.random.default_rng(0).permutation(len(pictures))
    training, test = order[:1437], order[1437:]
    model = network().train()
    example = (pictures[:BATCH], labels[:BATCH])
    optimizer = jangin.optim.AdamW(lr=3e-3)
    trainer = jangin.train(model, "cross_entropy", optimizer, example)
    rng = np.random.default_rng(1)
    start = time.perf_counter()
    for epoch in range(EPOCHS):
        mixed = rng.permutation(training)
        batches = [mixed[i : i + BATCH] for i in range(0, len(mixed) - BATCH + 1, BATCH)]
        losses = [trainer.step((pictures[at], labels[at])) for at in batches]
        trainer.lr = 3e-3 * 0.5 * (1 + np.cos(np.pi * (epoch + 1) / EPOCHS))
        print(f"epoch {epoch + 1:2}: loss {np.mean(losses):.4f}")
    ours = (time.perf_counter() - start) / trainer.count
    theirs = by_torch(copy.deepcopy(model), pictures[:BATCH], labels[:BATCH])
    model.load_state_dict({name: torch.from_numpy(array) for name, array in trainer.state_dict().items()})
    exe = jangin.compile(model.eval(), example_inputs=(torch.from_numpy(pictures[test]),))
    guessed = exe(torch.from_numpy(pictures[test])).argmax(1).numpy()
    print(f"{(guessed == labels[test]).mean():.1%} of {len(test)} test pictures are recognised")
    print(f"{ours * 1e3:.2f} ms a step; PyTorch takes {theirs * 1e3:.2f} ms")


def by_torch(model: nn.Module, pictures: np.ndarray, labels: np.ndarray, steps: int = 100) -> float:
    """Seconds of a step of PyTorch's."""
    x, t = torch.from_numpy(pictures), torch.from_numpy(labels)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    start = time.perf_counter()
    for _ in range(steps):
        optimizer.zero_grad()
        F.cross_entropy(model(x), t).backward()
        optimizer.step()
    return (time.perf_counter() - start) / steps


if __name__ == "__main__":
    main()
