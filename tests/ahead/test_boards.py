"""Firmware as it is emitted: CMake builds it, and QEMU's boards run it."""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import jangin
from jangin.ahead.board import BOARDS, MICROBIT, Board
from jangin.ahead.emit import Emitted
from jangin.ahead.source import compiler_flags
from jangin.ir.graph import Array
from jangin.targets import resolve

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")

from streaming import steps, wake_word

OWN_FRAME = 128
"""Bytes of stack of the program's function that runs the model, which its measurement includes."""


def needs(target: str, *programs: str) -> None:
    wanted = (*programs, resolve(target).c_compiler, BOARDS[target].emulator[0])
    if missing := [p for p in wanted if shutil.which(p) is None]:
        pytest.skip(f"not installed here: {', '.join(missing)}")


def emulate(board: Board, program: str, folder: Path) -> str:
    """Run a program on a board and return what it says."""
    done = subprocess.run(board.emulated(program), cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return done.stderr + done.stdout


def write_steps(given: list[list[Array]], folder: Path) -> None:
    """Write the inputs of all steps to the files that the firmware reads."""
    for n, arrays in enumerate(zip(*given, strict=True)):
        np.concatenate([a.reshape(-1) for a in arrays]).tofile(folder / f"input_{n}.bin")


def check_stream(made: Emitted, given: list[list[Array]], folder: Path, said: str) -> None:
    """Check the outputs of all steps, and the stack that the program saw, against the header's bound."""
    exe = jangin.compile(wake_word(), threads=1, cache=False)
    wanted = [exe(*x) for x in given]
    scores = np.fromfile(folder / "output_0.bin", np.float32).reshape(len(given), -1)
    integers = np.fromfile(folder / "output_1.bin", np.int8).reshape(len(given), -1)
    np.testing.assert_array_equal(integers, [q.reshape(-1) for _, q in wanted])
    want = np.array([y.reshape(-1) for y, _ in wanted])
    np.testing.assert_allclose(scores, want, rtol=1e-4, atol=1e-5)  # sums in other orders
    (taken,) = re.findall(r"bytes of stack: (\d+)", said)
    assert made.stack is not None and 0 < int(taken) <= made.stack + OWN_FRAME
    assert f"STACK_BYTES {made.stack} " in (folder / "net.h").read_text()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", BOARDS)
def test_cmake_builds_a_firmware_that_streams(target: str, tmp_path: Path) -> None:
    """CMake alone builds the emitted folder. Steps on the emulated board give Python's results, and the stack
    stays below what the header says."""
    needs(target, "cmake")
    made = jangin.emit(wake_word(), "c", target, name="net", cache=False)
    made.save(tmp_path)
    for command in (["cmake", "-S", ".", "-B", "build"], ["cmake", "--build", "build"]):
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    given = steps(7)
    write_steps(given, tmp_path)
    said = emulate(BOARDS[target], "build/firmware.elf", tmp_path)
    check_stream(made, given, tmp_path, said)


@pytest.mark.sampled(2)
def test_a_small_board(tmp_path: Path) -> None:
    """The firmware fits the 16 KB of RAM of a micro:bit, which has a Cortex-M0. A board with too little RAM
    is refused by the linker."""
    needs("cortex-m0plus")
    made = jangin.emit(wake_word(), "c", "cortex-m0plus", name="net", cache=False)
    made.save(tmp_path)
    target = made.model.target
    flags = (*compiler_flags(target), *MICROBIT.library, "-Wall", "-Wextra", "-Werror", "-nostartfiles")
    sources = ("main.c", "startup.c", "net.c", "net_weights.c")

    def linked(board: Board) -> subprocess.CompletedProcess[str]:
        command = [target.c_compiler, *flags, *sources, *board.places, "-T", "board.ld", "-lm"]
        return subprocess.run([*command, "-o", "net.elf"], cwd=tmp_path, capture_output=True, text=True)

    done = linked(MICROBIT)
    assert done.returncode == 0, done.stderr
    given = steps(3)
    write_steps(given, tmp_path)
    check_stream(made, given, tmp_path, emulate(MICROBIT, "net.elf", tmp_path))
    assert "overflowed" in linked(replace(MICROBIT, data=(MICROBIT.data[0], 512))).stderr
