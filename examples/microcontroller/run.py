"""Compile a keyword spotter for a microcontroller to C, build it, run it in an emulator, and compare it with
this machine.

    apt install gcc-arm-none-eabi qemu-system-arm
    apt install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc  # for riscv32imc
    python examples/microcontroller/run.py [--target cortex-m7] [--model model.onnx] [--folder out]

The network is DS-CNN-S with random weights, unless a model of one input and one output is given. Source:
Zhang, Suda, Lai, Chandra 2017, "Hello Edge: Keyword Spotting on Microcontrollers". The script prints flash
and RAM before anything is built. The linker then finds the same numbers.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ahead.emit import Emitted
from jangin.ahead.source import compiler_flags

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Board:
    """An emulated board. The names of its compiler's tools begin with `tools`, and the compiler takes
    `options`. Its code and its data lie at `memory`."""

    machine: str
    options: tuple[str, ...] = ("-specs=nosys.specs",)
    memory: tuple[int, int] = (0, 0x20000000)
    tools: str = "arm-none-eabi-"
    emulator: tuple[str, ...] = ("qemu-system-arm",)

    @property
    def programs(self) -> tuple[str, str]:
        """The programs that must be installed."""
        return f"{self.tools}gcc", self.emulator[0]


BOARDS = {
    "cortex-m0plus": Board("mps2-an385"),
    "cortex-m4": Board("mps2-an386"),
    "cortex-m7": Board("mps2-an500"),
    "cortex-m33": Board("mps2-an505", memory=(0x10000000, 0x38000000)),
    "riscv32imc": Board(
        "virt", ("-specs=picolibc.specs",), (0x80000000, 0x80400000), "riscv64-unknown-elf-",
        ("qemu-system-riscv32", "-bios", "none"),
    ),
}  # fmt: skip
"""A Cortex-M3 runs the code of a Cortex-M0+. QEMU's own board with a Cortex-M0 has 16 KB of RAM."""


def keyword_spotter(channels: int = 64, words: int = 12) -> onnx.ModelProto:
    """Return DS-CNN-S: 49 frames of 10 cepstral coefficients -> a probability for each word."""
    rng = np.random.default_rng(0)
    nodes, weights = [], []

    def weight(*shape: int) -> str:
        name = f"w{len(weights)}"
        values = rng.standard_normal(shape) * np.sqrt(1 / max(1, np.prod(shape[1:])))
        weights.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def convolution(x: str, shape: tuple[int, ...], group: int = 1, **attributes: Any) -> str:
        made = f"c{len(nodes)}"
        nodes.append(
            helper.make_node("Conv", [x, weight(*shape), weight(shape[0])], [made], group=group, **attributes)
        )
        nodes.append(helper.make_node("Relu", [made], [f"{made}_relu"]))
        return f"{made}_relu"

    x = convolution("x", (channels, 1, 10, 4), strides=[2, 2], pads=[5, 1, 5, 1])
    for _ in range(4):
        x = convolution(x, (channels, 1, 3, 3), channels, pads=[1, 1, 1, 1])
        x = convolution(x, (channels, channels, 1, 1))
    nodes.append(helper.make_node("GlobalAveragePool", [x], ["pooled"]))
    nodes.append(helper.make_node("Flatten", ["pooled"], ["flat"]))
    nodes.append(helper.make_node("Gemm", ["flat", weight(channels, words), weight(words)], ["scores"]))
    nodes.append(helper.make_node("Softmax", ["scores"], ["y"]))
    ends = (("x", [1, 1, 49, 10]), ("y", [1, words]))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "ds_cnn", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@dataclass(frozen=True)
class Firmware:
    """A program for a board. The linker placed `weights` bytes of constants, `ram` bytes of arena, and `code`
    bytes of the model's functions and small tables."""

    program: Path
    weights: int
    ram: int
    code: int


def build(made: Emitted, folder: Path) -> Firmware:
    """Compile and link the model with the example's program."""
    made.save(folder, force=True)
    board = BOARDS[made.model.target.name]
    compiler, flags = f"{board.tools}gcc", (*compiler_flags(made.model.target), *board.options)
    flags = (*flags, "-Wall", "-Wextra", "-Werror")
    sizes = (f"-DINPUT_BYTES={_bytes(made.model.inputs)}", f"-DOUTPUT_BYTES={_bytes(made.model.outputs)}")
    run = partial(subprocess.run, check=True, cwd=folder)
    run([compiler, *flags, "-c", "model.c", "model_weights.c"])
    run([compiler, *flags, *sizes, "-I.", "-c", HERE / "main.c", HERE / "startup.c"])
    objects = [f"{name}.o" for name in ("startup", "main", "model", "model_weights")]
    places = [f"-Wl,--defsym={n}={at}" for n, at in zip(("CODE", "DATA"), board.memory, strict=True)]
    link = ("-nostartfiles", *places, "-T", HERE / "mps2.ld", "-Wl,-Map=model.map")
    run([compiler, *flags, *objects, *link, "-o", "model.elf", "-lm"])
    return Firmware(
        folder / "model.elf",
        *(_linked(folder, of, f"{board.tools}nm") for of in ("model_weights.o", "main.o", "model.o")),
    )


def _linked(folder: Path, of: str, names: str) -> int:
    """Return the bytes that the linker placed of an object: the arena of main.o, and what lies in flash of
    any other."""
    if of == "main.o":
        listed = subprocess.run(
            [names, "-S", "model.elf"], check=True, cwd=folder, capture_output=True, text=True
        )
        (size,) = re.findall(r"^\w+ (\w+) \w arena$", listed.stdout, re.M)
        return int(size, 16)
    kinds = r"\.(?:text|rodata|data)"
    sizes = re.findall(
        rf"^ {kinds}\S*\s+0x\w+\s+0x(\w+) {re.escape(of)}$", (folder / "model.map").read_text(), re.M
    )
    return sum(int(size, 16) for size in sizes)


def _bytes(tensors: Any) -> int:
    (tensor,) = tensors
    return int(np.prod([int(d.value) for d in tensor.shapes[0]])) * tensor.dtype.bytes


def run(firmware: Firmware, board: Board, x: np.ndarray[Any, Any], *more: str) -> np.ndarray[Any, Any]:
    """Return the bytes of the model's output on an emulated board as f32. `more` are options of the
    emulator."""
    folder = firmware.program.parent
    (folder / "input.bin").write_bytes(x.tobytes())
    emulate(firmware.program, board, *more)
    return np.fromfile(folder / "output.bin", np.float32)


def emulate(program: Path, board: Board, *more: str) -> None:
    """Run a program on an emulated board, in the program's folder. Raises CalledProcessError if it fails."""
    quiet = ("-nographic", "-monitor", "none", "-serial", "none")
    files = ("-semihosting-config", "enable=on,target=native")
    command = (*board.emulator, "-M", board.machine, *quiet, *files, *more, "-kernel", program.name)
    subprocess.run(command, check=True, cwd=program.parent, timeout=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--target", choices=BOARDS, default="cortex-m4")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--folder", type=Path)
    args = parser.parse_args()
    model = onnx.load(args.model) if args.model else keyword_spotter()
    made = jangin.emit(model, "c", args.target, name="model")
    print(f"compiled: {made.weights:,} bytes of weights, {made.code:,} of code, {made.ram:,} of RAM")
    with tempfile.TemporaryDirectory() as folder:
        firmware = build(made, args.folder or Path(folder))
        print(
            f"linked:   {firmware.weights:,} bytes of weights, {firmware.code:,} of code, "
            f"{firmware.ram:,} of RAM"
        )
        here = jangin.compile(model)
        shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
        x = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
        there = run(firmware, BOARDS[args.target], x)
    print(f"word {there.argmax()}, probability {there.max():.3f}")
    print(f"the largest difference from this machine: {np.abs(there - here(x).reshape(-1)).max():.1e}")


if __name__ == "__main__":
    main()
