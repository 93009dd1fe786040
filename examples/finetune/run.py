"""Train the last layers of a keyword spotter on an emulated microcontroller, and compare the losses with this
machine's.

    apt install gcc-arm-none-eabi qemu-system-arm
    python examples/finetune/run.py [--target cortex-m7] [--folder out]

The network is DS-CNN-S with random weights (Zhang, Suda, Lai, Chandra 2017, "Hello Edge: Keyword Spotting on
Microcontrollers"). Its last convolution and its classifier learn to tell twelve made-up words apart, with one
example a step. All that the program holds lies in 256 KB of RAM, as in Lin et al. 2022 ("On-Device Training
Under 256KB Memory"). The linker refuses more.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import jangin
from jangin import optim
from jangin.ahead.board import FIRMWARE
from jangin.ahead.emit import Emitted
from jangin.ahead.source import compiler_flags
from jangin.training.trainer import Trainer

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "microcontroller"))
from run import BOARDS, emulate, keyword_spotter  # noqa: E402

RAM = 256 << 10
"""The board's memory in bytes, which holds the stack too."""
WORDS, STEPS = 12, 36
LAST = ("w16", "w17", "w18", "w19")
"""The weights and biases of the last convolution and of the classifier."""

Array = np.ndarray[Any, Any]


def spotter() -> onnx.ModelProto:
    """Return the network without its softmax, which the loss has."""
    model = keyword_spotter(words=WORDS)
    del model.graph.node[-1]
    model.graph.output[0].name = model.graph.node[-1].output[0]
    return model


def examples() -> tuple[Array, Array]:
    """Return noisy recordings of made-up words, and the words' numbers."""
    rng = np.random.default_rng(3)
    words = rng.standard_normal((WORDS, 1, 1, 49, 10))
    labels = np.arange(STEPS) % WORDS
    noise = 0.3 * rng.standard_normal((STEPS, 1, 1, 49, 10))
    return (words[labels] + noise).astype(np.float32), labels[:, None]


def trainer() -> Trainer:
    x, labels = examples()
    return jangin.train(
        spotter(),
        "cross_entropy",
        optim.SGD(lr=0.02, momentum=0.9),
        (x[0], labels[0]),
        trainable=LAST,
        threads=1,
    )  # fmt: skip


def write_examples(folder: Path) -> None:
    for name, array in zip(("inputs.bin", "labels.bin"), examples(), strict=True):
        array.tofile(folder / name)


@dataclass(frozen=True)
class Trained:
    """The result on a board: the losses, the state's bytes, and the RAM that the linker gave out."""

    losses: Array
    state: bytes
    ram: int


def train_on_board(made: Emitted, folder: Path) -> Trained:
    """Build the firmware in a folder that has the emitted files, and train on the emulated board. The linker
    fails if all doesn't fit into RAM bytes."""
    board = BOARDS[made.model.target.name]
    flags = (*compiler_flags(made.model.target), *board.library, "-Wall", "-Wextra", "-Werror")
    x, labels = examples()
    given = (f"-DINPUT_BYTES={x[0].nbytes}", f"-DLABEL_BYTES={labels[0].nbytes}", f"-I{FIRMWARE}", "-I.")
    board = replace(board, data=(board.data[0], RAM))
    link = ("-nostartfiles", *board.places, "-T", str(FIRMWARE / "board.ld"))
    sources = (str(FIRMWARE / "startup.c"), str(HERE / "main.c"), "model.c", "model_weights.c")
    compiler = made.model.target.c_compiler
    command = (compiler, *flags, *given, *sources, *link, "-o", "model.elf", "-lm")
    subprocess.run(command, check=True, cwd=folder)
    write_examples(folder)
    emulate(folder / "model.elf", board)
    losses = np.fromfile(folder / "losses.bin", np.float32)
    return Trained(losses, (folder / "state.bin").read_bytes(), _ram(folder, compiler.removesuffix("gcc")))


def _ram(folder: Path, tools: str) -> int:
    """Return the bytes of all variables, as the linker placed them."""
    sizes = subprocess.run(
        [f"{tools}size", "model.elf"], check=True, cwd=folder, capture_output=True, text=True
    )
    _, data, bss, *_ = re.split(r"\s+", sizes.stdout.splitlines()[1].strip())
    return int(data) + int(bss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", choices=("cortex-m4", "cortex-m7", "cortex-m33"), default="cortex-m7")
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    here = trainer()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.folder or Path(temporary)
        made = here.emit("c", folder, args.target, force=True)
        there = train_on_board(made, folder)
    losses = [here.step(batch) for batch in zip(*examples(), strict=True)]
    first, last = np.mean(there.losses[:WORDS]), np.mean(there.losses[-WORDS:])
    print(f"{there.ram:,} bytes of RAM of {RAM:,}; {made.weights:,} bytes of weights in flash")
    print(f"the loss fell from {first:.3f} to {last:.3f} in {STEPS} steps")
    print(f"the largest difference from this machine's losses: {np.abs(there.losses - losses).max():.1e}")


if __name__ == "__main__":
    main()
