"""Adapt a small transformer of PyTorch's to turned pictures, by low-rank adapters (LoRA) of its products.

    pip install 'jangin[torch]' scikit-learn
    python examples/train_lora.py [--epochs 10]

The transformer first learns scikit-learn's digits, row by row. Its weights then stay as they are. Adapters
learn the digits turned by a quarter. Says what is recognised, and how much is trained.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import jangin

BATCH, TRAINED = 32, 1437


class Rows(nn.Module):
    """A transformer that reads a picture row by row."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.rows, self.places = nn.Linear(8, width), nn.Parameter(torch.randn(8, width) * 0.1)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.rows(x) + self.places).flatten(1))


def learned(model: nn.Module, x: np.ndarray, labels: np.ndarray, epochs: int, rank: int = 0) -> int:
    """Train a module in place, or adapters of its products if a rank is given. Return the number of numbers
    that were trained."""
    chosen = jangin.lora(rank=rank) if rank else None
    example = (x[:BATCH], labels[:BATCH])
    optimizer = jangin.optim.AdamW(lr=3e-3)
    trainer = jangin.train(model.train(), "cross_entropy", optimizer, example, trainable=chosen)
    rng = np.random.default_rng(0)
    for _ in range(epochs):
        order = rng.permutation(TRAINED)
        for i in range(0, TRAINED - BATCH + 1, BATCH):
            at = order[i : i + BATCH]
            trainer.step((x[at], labels[at]))
    weights = {n: torch.from_numpy(a) for n, a in trainer.merged().items()}
    model.load_state_dict(weights, strict=False)
    return sum(a.size for a in trainer.state_dict().values())


def accuracy(model: nn.Module, x: np.ndarray, labels: np.ndarray) -> float:
    """Return the share of the test pictures that a module recognises."""
    with torch.no_grad():
        guessed = model.eval()(torch.from_numpy(x[TRAINED:])).argmax(1).numpy()
    return float((guessed == labels[TRAINED:]).mean())


def main(given: Sequence[str] | None = None) -> tuple[float, float]:
    """Train and adapt. Return the accuracy on turned pictures before and after."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--rank", type=int, default=4)
    asked = parser.parse_args(given)
    torch.manual_seed(0)
    pixels, labels = load_digits(return_X_y=True)
    x = pixels.reshape(-1, 8, 8).astype(np.float32) / 16
    turned = np.rot90(x, axes=(1, 2)).copy()
    model = Rows()
    whole = learned(model, x, labels, asked.epochs)
    print(f"upright: {accuracy(model, x, labels):.1%} are recognised; {whole} numbers are trained")
    before = accuracy(model, turned, labels)
    few = learned(model, turned, labels, asked.epochs, asked.rank)
    after = accuracy(model, turned, labels)
    print(f"turned: {before:.1%} are recognised before, {after:.1%} after; {few} numbers are trained")
    return before, after


if __name__ == "__main__":
    main()
