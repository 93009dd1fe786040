"""Train a small transformer on the characters of a text, and export it to ONNX and TFLite.

    pip install 'jangin[torch]'
    python examples/train_characters.py README.md -o folder [--steps 500]

Says the loss, continues a line of the text, and writes the trained model as characters.onnx and .tflite.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

import jangin

LENGTH = 64
"""Characters that the model sees at once."""


class Layer(nn.Module):
    """A transformer's layer. A character sees those before it alone."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = self.qkv(self.before(x)).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, key, value = parts[0], parts[1], parts[2]
        later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        seen = scores.masked_fill(later, float("-inf")).softmax(-1) @ value
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Characters(nn.Module):
    """Logits [batch, characters, LENGTH] of the characters that follow."""

    def __init__(self, count: int, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.names, self.places = nn.Embedding(count, width), nn.Parameter(torch.randn(LENGTH, width) * 0.02)
        self.layers = nn.Sequential(*(Layer(width, heads) for _ in range(layers)), nn.LayerNorm(width))
        self.head = nn.Linear(width, count)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.names(x) + self.places)).transpose(1, 2)


def coded(text: Path) -> tuple[list[str], np.ndarray]:
    """Return the characters of a text file, and its content as numbers of them."""
    content = text.read_text(encoding="utf-8")
    names = sorted(set(content))
    return names, np.array([names.index(c) for c in content])


def windows(codes: np.ndarray, count: int, step: int) -> tuple[np.ndarray, np.ndarray]:
    """Return `count` windows of the text at random places, and the same one character later."""
    at = np.random.default_rng(step).integers(0, len(codes) - LENGTH, count)
    found = codes[at[:, None] + np.arange(LENGTH + 1)]
    return found[:, :-1].copy(), found[:, 1:].copy()


def exported(model: nn.Module, x: np.ndarray, folder: Path) -> list[Path]:
    """Write a module as ONNX and as TFLite, and return the files. `jangin convert` runs both, and keeps a
    file only if it gives the module's numbers."""
    program = folder / "characters.pt2"
    torch.export.save(torch.export.export(model, (torch.from_numpy(x),)), program)
    made = [program.with_suffix(ending) for ending in (".onnx", ".tflite")]
    for path in made:
        path.unlink(missing_ok=True)
        subprocess.run([sys.executable, "-m", "jangin", "convert", program, path], check=True)
    return made


def main(given: Sequence[str] | None = None) -> tuple[list[float], float]:
    """Train and export. Return the losses, and the largest difference of the ONNX file's logits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("text", type=Path)
    parser.add_argument("-o", dest="folder", type=Path, default=Path())
    parser.add_argument("--steps", type=int, default=500)
    asked = parser.parse_args(given)
    names, codes = coded(asked.text)
    torch.manual_seed(0)
    model = Characters(len(names)).train()
    trainer = jangin.train(model, "cross_entropy", jangin.optim.AdamW(lr=3e-3), windows(codes, 16, 0))
    losses = [trainer.step(windows(codes, 16, step)) for step in range(asked.steps)]
    print(f"the loss of a character is {losses[0]:.2f} at first, and {np.mean(losses[-10:]):.2f} at last")
    model.load_state_dict({n: torch.from_numpy(a) for n, a in trainer.state_dict().items()})
    x = windows(codes, 1, 0)[0]
    files = exported(model.eval(), x, asked.folder)
    exe = jangin.compile(files[0])
    apart = float(np.abs(exe(x) - model(torch.from_numpy(x)).detach().numpy()).max())
    print(f"{files[0]} gives the module's logits within {apart:.0e}; {files[1]} has them too")
    line = x[0]
    for _ in range(LENGTH):
        line = np.append(line, exe(line[None, -LENGTH:])[0, :, -1].argmax())
    print("".join(names[c] for c in line[:LENGTH]), "...", "".join(names[c] for c in line[LENGTH:]))
    return losses, apart


if __name__ == "__main__":
    main()
