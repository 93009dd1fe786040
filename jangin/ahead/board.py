"""Write a whole firmware around a model for a microcontroller: a program, what runs before it, and its build.

It reads inputs and writes outputs by semihosting, as files of a debugger or an emulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from jangin.ahead.cmake import library
from jangin.ahead.memory import typical_sizes
from jangin.ahead.model import Model, Tensor
from jangin.ahead.output import Content
from jangin.ahead.source import compiler_flags, weights_name
from jangin.ir.expr import const
from jangin.ir.records import dataclass
from jangin.runtime.sizes import Evaluator

FIRMWARE = Path(__file__).with_name("firmware")
"""The folder with the files that each firmware has."""
KB, MB = 1 << 10, 1 << 20
"""Bytes of a kilobyte and of a megabyte of memory, as makers of boards count them."""


@dataclass(frozen=True)
class Board:
    """A board that QEMU emulates, with the begin and the bytes of its memories for code and for data."""

    machine: str
    code: tuple[int, int] = (0, 4 * MB)
    data: tuple[int, int] = (0x20000000, 2 * MB)
    emulator: tuple[str, ...] = ("qemu-system-arm",)
    library: tuple[str, ...] = ("-specs=nosys.specs",)

    @property
    def places(self) -> tuple[str, ...]:
        """The linker's options that say where the memories lie."""
        names = ("CODE", "CODE_BYTES", "DATA", "RAM_BYTES")
        return tuple(f"-Wl,--defsym={n}={v:#x}" for n, v in zip(names, (*self.code, *self.data), strict=True))

    def emulated(self, program: str) -> list[str]:
        """Return the command that runs a program in QEMU."""
        quiet = ("-nographic", "-monitor", "none", "-serial", "none")
        files = ("-semihosting-config", "enable=on,target=native")
        return [*self.emulator, "-M", self.machine, *quiet, *files, "-kernel", program]


_VIRT = Board(
    "virt", (0x80000000, 4 * MB), (0x80400000, 2 * MB), ("qemu-system-riscv32", "-bios", "none"),
    ("-specs=picolibc.specs",),
)  # fmt: skip
BOARDS: Mapping[str, Board] = {
    "cortex-m0plus": Board("mps2-an385"),
    "cortex-m4": Board("mps2-an386"),
    "cortex-m7": Board("mps2-an500"),
    "cortex-m33": Board("mps2-an505", (0x10000000, 4 * MB), (0x38000000, 2 * MB)),
    "cortex-m55": Board("mps3-an547", (0, 512 * KB), (0x01000000, 2 * MB)),
    "riscv32imc": _VIRT,
    "riscv32gc": _VIRT,
}
"""A board for each target. A Cortex-M3 runs the code of a Cortex-M0+."""
MICROBIT = Board("microbit", (0, 256 * KB), (0x20000000, 16 * KB))
"""A small board with a Cortex-M0."""


def firmware_files(model: Model) -> dict[str, Content]:
    """Return the files of a firmware for the target's board, except the model's own, by name."""
    board = BOARDS[model.target.name]
    texts = {name: (FIRMWARE / name).read_text() for name in ("startup.c", "semihosting.h", "board.ld")}
    texts |= {
        "main.c": _program(model),
        "toolchain.cmake": _toolchain(model),
        "CMakeLists.txt": _cmake_lists(model, board),
    }
    return {name: [text.encode()] for name, text in texts.items()}


def _program(model: Model) -> str:
    """Return the C text of the program that runs the model on a board."""
    p, up = model.prefix, model.prefix.upper()
    sizes = typical_sizes(model.parts[0].plan)
    value = Evaluator(sizes)
    lines, known = list[str](), dict[str, str]()
    for kind, tensors in (("in", model.inputs), ("out", model.outputs)):
        own = [max(1, value(prod(t.shapes[0], start=const(t.dtype.bytes)))) for t in tensors]
        lines += [f"static _Alignas(8) unsigned char {kind}_{n}[{size}];" for n, size in enumerate(own)]
        known |= _tables(kind, tensors, own)
    kept = model.state is not None
    lines += [f"static _Alignas(64) unsigned char state[{up}_STATE_BYTES];"] if kept else []
    known |= {
        "<INPUTS>": str(len(model.inputs)), "<OUTPUTS>": str(len(model.outputs)),
        "<ARENA>": str(model.typical_bytes()[0]), "<MEMORY>": "\n".join(lines),
        "<SIZES>": ", ".join(str(n) for n in sizes.values()) or "0",
        "<STATE, >": "state, " if kept else "", "<RESET>\n": f"  {p}_reset(state);\n" if kept else "",
        "<P>": p,
    }  # fmt: skip
    text = (FIRMWARE / "main.c").read_text()
    for mark, content in known.items():
        text = text.replace(mark, content)
    return text


def _tables(kind: str, tensors: Sequence[Tensor], sizes: Sequence[int]) -> dict[str, str]:
    """Return the tables of the inputs or outputs: their addresses, bytes and files. Each has one entry more,
    because C has no empty arrays."""
    word, numbers = {"in": "input", "out": "output"}[kind], range(len(tensors))
    return {
        f"<{kind.upper()}>": ", ".join([*(f"{kind}_{n}" for n in numbers), "0"]),
        f"<{kind.upper()}_BYTES>": ", ".join([*map(str, sizes), "0"]),
        f"<{kind.upper()}_FILES>": ", ".join([*(f'"{word}_{n}.bin"' for n in numbers), "0"]),
    }


def _toolchain(model: Model) -> str:
    """Return the text of a file that tells CMake of the compiler."""
    tools = model.target.c_compiler
    return "\n".join([
        "set(CMAKE_SYSTEM_NAME Generic)",
        f"set(CMAKE_SYSTEM_PROCESSOR {model.target.triple.split('-')[0]})",
        f"set(CMAKE_C_COMPILER {tools})",
        f"set(CMAKE_ASM_COMPILER {tools})",
        "set(CMAKE_TRY_COMPILE_TARGET_TYPE STATIC_LIBRARY)",
        "",
    ])  # fmt: skip


def _cmake_lists(model: Model, board: Board) -> str:
    """Return the text of a CMake project with the model as a library, a firmware, and a target `emulate` that
    runs it in QEMU."""
    p, own = model.prefix, library(model)
    sources = [f"{p}.c", *([] if model.beside else [weights_name(model)])]
    flags = " ".join((*compiler_flags(model.target), *board.library))
    link = " ".join((*flags.split(), "-nostartfiles", *board.places))
    return "\n".join([
        "cmake_minimum_required(VERSION 3.16)",
        "if(NOT CMAKE_TOOLCHAIN_FILE)",
        "  set(CMAKE_TOOLCHAIN_FILE ${CMAKE_CURRENT_SOURCE_DIR}/toolchain.cmake)",
        "endif()",
        f"project({p} C ASM)",
        f"add_library({own} STATIC {' '.join(sources)})",
        f"target_compile_options({own} PRIVATE {flags})",
        f"target_include_directories({own} PUBLIC ${{CMAKE_CURRENT_SOURCE_DIR}})",
        "add_executable(firmware.elf main.c startup.c)",
        f"target_compile_options(firmware.elf PRIVATE {flags})",
        f"target_link_options(firmware.elf PRIVATE {link} -T ${{CMAKE_CURRENT_SOURCE_DIR}}/board.ld)",
        f"target_link_libraries(firmware.elf PRIVATE {own} m)",
        f"add_custom_target(emulate COMMAND {' '.join(board.emulated('firmware.elf'))} DEPENDS firmware.elf)",
        "",
    ])  # fmt: skip
