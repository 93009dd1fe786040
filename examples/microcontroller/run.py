"""Compile a keyword spotter for a microcontroller to C, build it, run it in an emulator, and compare it with
this machine.

    apt install gcc-arm-none-eabi qemu-system-arm
    apt install gcc-riscv64-unknown-elf picolibc-riscv64-unknown-elf qemu-system-misc  # for RISC-V
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
from jangin.ahead.board import BOARDS, Board
from jangin.ahead.emit import Emitted
from jangin.ahead.source import compiler_flags
from jangin.targets import Target, resolve


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


def build(made: Emitted, folder: Path, board: Board | None = None) -> Firmware:
    """Write the firmware's files, compile them and link them for a board. The default is the target's."""
    made.save(folder, force=True)
    target, board = made.model.target, board or BOARDS[made.model.target.name]
    flags = (*compiler_flags(target), *board.library, "-Wall", "-Wextra", "-Werror")
    run = partial(subprocess.run, check=True, cwd=folder)
    objects = [f"{name}.o" for name in ("startup", "main", "model", "model_weights")]
    run([target.c_compiler, *flags, "-c", *(f"{name[:-2]}.c" for name in objects)])
    link = ("-nostartfiles", *board.places, "-T", "board.ld", "-Wl,-Map=model.map")
    run([target.c_compiler, *flags, *objects, *link, "-o", "model.elf", "-lm"])
    names = f"{tools(target)}nm"
    found = (_linked(folder, of, names) for of in ("model_weights.o", "main.o", "model.o"))
    return Firmware(folder / "model.elf", *found)


def tools(target: Target) -> str:
    """Return what the names of a target's tools begin with."""
    return target.c_compiler.removesuffix("gcc")


def programs(target: str) -> tuple[str, str]:
    """Return the programs that must be installed to build and run a target's firmware."""
    return resolve(target).c_compiler, BOARDS[target].emulator[0]


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


def run(firmware: Firmware, board: Board, x: np.ndarray[Any, Any], *more: str) -> np.ndarray[Any, Any]:
    """Return the bytes of the model's output on an emulated board as f32. `more` are options of the
    emulator."""
    folder = firmware.program.parent
    (folder / "input_0.bin").write_bytes(x.tobytes())
    emulate(firmware.program, board, *more)
    return np.fromfile(folder / "output_0.bin", np.float32)


def emulate(program: Path, board: Board, *more: str) -> str:
    """Run a program on an emulated board, in the program's folder, and return what it says. Raises
    CalledProcessError if it fails."""
    command = [*board.emulated(program.name), *more]
    done = subprocess.run(
        command, check=True, cwd=program.parent, timeout=600, capture_output=True, text=True
    )
    return done.stderr + done.stdout


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
