"""Compare with the code of TinyEngine for its own network, on an emulated Cortex-M4.

    python benchmarks/tinyengine.py TINYENGINE CMSIS --keep

TINYENGINE is a checkout of github.com/mit-han-lab/tinyengine. CMSIS is one of github.com/ARM-software/CMSIS_5
at the commit that TinyEngine names. Nothing of them is kept. The network is MCUNet-VWW1 (assets/vww.tflite).
TinyEngine's code for it is what its generator made for TinyEngine's own tests, layer by layer and by patches.
Both programs take int8 in and out, so the model's first and last operators are cut off. QEMU counts the
instructions of one run.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as schema
from sections import Section, Table
from small import example

import jangin
from jangin.ahead.board import BOARDS

sys.path += [str(Path(__file__).parent / "small")]
from counts import counted, cycles, instructions, of_model, plugin

TARGET = "cortex-m4"
BETWEEN = frozenset({6, 25, 114})
"""LiteRT's numbers of DEQUANTIZE, SOFTMAX and QUANTIZE."""
FLAGS = (
    "-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16", "-Ofast", "-ffunction-sections",
    "-fdata-sections", "-fno-strict-aliasing", "-D__FPU_PRESENT=1", "-D__DSP_PRESENT=1", "-DARM_MATH_CM4",
    "-DARM_MATH_DSP", "-w", "-include", "arm_nnsupportfunctions.h",
)  # fmt: skip
"""TinyEngine's own options are those of STM32CubeIDE with -Ofast."""
MAIN = """#include <stdint.h>
#include "genNN.h"
#include "semihosting.h"
int main(void) {
  if (!transferred(READ, opened("input_0.bin", BINARY_READ), getInput(), INPUT)) return 2;
  invoke(0);
  return transferred(WRITE, opened("output_0.bin", BINARY_WRITE), getOutput(), 2) ? 0 : 4;
}
"""
OURS = {"": None, ", `--ram 41K`": 41 << 10, ", without patches": 1 << 30}
"""The bytes of RAM that Jangin may take beside the input, by what is said of it."""
THEIRS = {"": "vww", ", by patches": "vww_patchedbased"}
"""The names of TinyEngine's generated code."""


@dataclass(frozen=True)
class Counted:
    """A program's figures: `ram` is working memory with inputs and outputs, without the stack."""

    executed: int
    cycles: int
    ram: int
    flash: int
    outputs: np.ndarray[Any, Any]

    @property
    def cells(self) -> list[str]:
        return [
            f"{self.executed / 1e6:.2f}",
            f"{self.cycles / 1e6:.2f}",
            *(f"{n / 1e3:.1f}" for n in (self.ram, self.flash)),
        ]


def inner(data: bytes) -> bytes:
    """Return a model without the operators at its ends that quantize, dequantize and apply softmax."""
    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(data, 0))
    graph, codes = model.subgraphs[0], [c.deprecatedBuiltinCode for c in model.operatorCodes]
    while codes[graph.operators[0].opcodeIndex] in BETWEEN:
        graph.inputs = [graph.operators.pop(0).outputs[0]]
    while codes[graph.operators[-1].opcodeIndex] in BETWEEN:
        graph.outputs = [graph.operators.pop().inputs[0]]
    model.signatureDefs, model.metadata = [], []
    builder = flatbuffers.Builder(len(data))
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def ran(program: Path, ram: int) -> Counted:
    """Run a program in its folder, and count."""
    folder = program.parent
    command = [*BOARDS[TARGET].emulated(program.name), "-plugin", f"{plugin(folder)},out=counts.txt"]
    subprocess.run(command, check=True, cwd=folder, capture_output=True)
    code = instructions(program, "arm-none-eabi-objdump")
    executed = of_model(code, counted(folder / "counts.txt"))
    size = subprocess.run(["arm-none-eabi-size", program.name], cwd=folder, capture_output=True, text=True)
    text, data = map(int, size.stdout.splitlines()[1].split()[:2])
    outputs = np.fromfile(folder / "output_0.bin", np.int8)
    return Counted(sum(executed.values()), cycles(code, executed), ram, text + data, outputs)


def ours(data: bytes, x: np.ndarray[Any, Any], ram: int | None, folder: Path) -> Counted:
    """Measure Jangin's program. Raises ValueError if its results aren't this machine's."""
    made = jangin.emit(data, "c", TARGET, name="model", ram=ram)
    firmware = example().build(made, folder)
    (folder / "input_0.bin").write_bytes(x.tobytes())
    here = np.asarray(jangin.compile(data, threads=1)(x)).reshape(-1)
    found = ran(firmware.program, made.ram + x.nbytes + here.nbytes)
    if not np.array_equal(found.outputs, here):
        raise ValueError("the results on the board differ from this machine's")
    return found


def theirs(name: str, checkout: Path, cmsis: Path, x: np.ndarray[Any, Any], folder: Path) -> Counted:
    """Measure TinyEngine's program. The folder above has the files of the board."""
    folder.mkdir()
    for file in ("startup.c", "semihosting.h", "board.ld"):
        shutil.copy(folder.parent / file, folder)
    with zipfile.ZipFile(checkout / f"tests/examples/assets/{name}/codegen.zip") as archive:
        archive.extractall(folder)
    (folder / "main.c").write_text(MAIN.replace("INPUT", str(x.nbytes)))
    engine, layers = checkout / "TinyEngine", cmsis / "CMSIS/NN/Source/ConvolutionFunctions"
    kinds = ("int_forward_op", "fp_requantize_op")
    sources = [s for kind in kinds for s in (engine / "src/kernels" / kind).glob("*.c")]
    sources += [*(folder / "codegen/Source").glob("*.c"), folder / "main.c", folder / "startup.c"]
    sources.append(layers / "arm_nn_mat_mult_kernel_s8_s16_reordered.c")
    headers = [engine / "include", folder / "codegen/Include"]
    headers += [cmsis / "CMSIS" / part for part in ("NN/Include", "DSP/Include", "Core/Include")]
    link = (
        "-nostartfiles",
        "-specs=nosys.specs",
        *BOARDS[TARGET].places,
        "-T",
        "board.ld",
        "-Wl,--gc-sections",
    )
    command = ["arm-none-eabi-gcc", *FLAGS, *(f"-I{h}" for h in headers), *map(str, sources), *link]
    subprocess.run([*command, "-o", "model.elf", "-lm"], check=True, cwd=folder)
    (folder / "input_0.bin").write_bytes(x.tobytes())
    header = (folder / "codegen/Include/genModel.h").read_text()
    return ran(folder / "model.elf", int(header.split("#define PEAK_MEM ")[1].split()[0]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tinyengine", type=Path)
    parser.add_argument("cmsis", type=Path)
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/tinyengine.json")
    args = parser.parse_args()
    checkout, cmsis = args.tinyengine.resolve(), args.cmsis.resolve()
    data = inner((checkout / "assets/vww.tflite").read_bytes())
    x = np.random.default_rng(0).integers(-128, 128, (1, 80, 80, 3)).astype(np.int8)
    with tempfile.TemporaryDirectory() as folder:
        found = {f"Jangin{way}": ours(data, x, ram, Path(folder)) for way, ram in OURS.items()}
        for way, name in THEIRS.items():
            found[f"TinyEngine{way}"] = theirs(name, checkout, cmsis, x, Path(folder) / name)
    rows = [[title, *figures.cells] for title, figures in found.items()]
    for row, figures in zip(rows, found.values(), strict=True):
        print("  ".join(row), figures.outputs)
    if args.keep:
        note = (
            "`python benchmarks/tinyengine.py TINYENGINE CMSIS --keep`: MCUNet-VWW1 (80 x 80 pixels) as "
            "Jangin's C and as the code that TinyEngine's tests keep, with int8 in and out. QEMU counts the "
            "instructions, and the cycles are estimates for a Cortex-M4. RAM has inputs and outputs, without "
            "the stack. Jangin runs the first layers by patches if they cost next to no time. TinyEngine "
            "rescales in floats layer by layer, so its results aren't LiteRT's."
        )
        columns = ["engine", "million instructions", "million cycles", "RAM, KB", "flash, KB"]
        Section("Beside TinyEngine", [note, Table(columns, rows)]).save("tinyengine")


if __name__ == "__main__":
    main()
