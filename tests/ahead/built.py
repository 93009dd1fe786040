"""Small models, compiled ahead of time, and their C APIs called from Python."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
from guarded import Memory, Range
from onnx import TensorProto, helper, numpy_helper

from jangin.ahead.emit import Emitted
from jangin.ahead.source import compiler_flags
from jangin.ir.graph import Array
from jangin.runtime.outputs import BYTE

STRICT = ("-Wall", "-Wextra", "-Werror")
COMPILERS = [c for c in ("gcc", "clang") if shutil.which(c)]
SYMBOLIC = ["batch", 24]


def layers() -> onnx.ModelProto:
    """Two outputs for any batch, one of them an input: y = softmax(relu(x w) v), z = x."""
    rng = np.random.default_rng(0)
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
        helper.make_node("Identity", ["x"], ["z out"]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, SYMBOLIC)]
    outputs = [helper.make_empty_tensor_value_info(n) for n in ("y", "z out")]
    weights = [
        numpy_helper.from_array(rng.standard_normal(shape).astype(np.float32), name)
        for name, shape in (("w", (24, 200)), ("v", (200, 40)))
    ]
    graph = helper.make_graph(nodes, "layers", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def small_network() -> onnx.ModelProto:
    """A convolution, a depthwise convolution, a residual sum and a pooling, of fixed sizes."""
    rng = np.random.default_rng(1)
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], pads=[1, 1, 1, 1]),
        helper.make_node("Clip", ["a", "zero", "six"], ["b"]),
        helper.make_node("Conv", ["b", "d"], ["c"], pads=[1, 1, 1, 1], group=16),
        helper.make_node("Add", ["b", "c"], ["e"]),
        helper.make_node("MaxPool", ["e"], ["y"], kernel_shape=[3, 3], strides=[2, 2]),
    ]
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 19, 23])]
    shapes: Mapping[str, tuple[int, ...]] = {"w": (16, 3, 3, 3), "d": (16, 1, 3, 3)}
    weights = [
        numpy_helper.from_array(rng.standard_normal(s).astype(np.float32), n) for n, s in shapes.items()
    ]
    weights += [numpy_helper.from_array(np.float32(v), n) for n, v in (("zero", 0), ("six", 6))]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph(nodes, "small network", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def integer_network() -> onnx.ModelProto:
    """A convolution of bytes with a zero point: its sums are exact."""
    rng = np.random.default_rng(4)
    w = numpy_helper.from_array(rng.integers(-128, 128, (13, 5, 3, 3)).astype(np.int8), "w")
    zero = numpy_helper.from_array(np.uint8(101), "zero")
    node = helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"], pads=[1, 1, 1, 1])
    ends = [helper.make_tensor_value_info("x", TensorProto.UINT8, [1, 5, 9, 11])]
    outputs = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([node], "integer network", ends, outputs, [w, zero])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def blocks_network() -> onnx.ModelProto:
    """Products with weights of 4 and of 8 bits in blocks, side by side."""
    rng, held, nodes = np.random.default_rng(5), list[onnx.TensorProto](), list[onnx.NodeProto]()
    for n, (kind, most) in enumerate(((TensorProto.INT4, 8), (TensorProto.INT8, 128))):
        numbers = rng.integers(-most, most, (70, 37))
        held.append(helper.make_tensor(f"w{n}", kind, numbers.shape, numbers.ravel()))
        held.append(numpy_helper.from_array(rng.standard_normal((3, 37)).astype(np.float32) / most, f"s{n}"))
        nodes.append(
            helper.make_node("DequantizeLinear", [f"w{n}", f"s{n}"], [f"d{n}"], axis=0, block_size=32)
        )
        nodes.append(helper.make_node("MatMul", ["x", f"d{n}"], [f"y{n}"]))
    nodes.append(helper.make_node("Concat", ["y0", "y1"], ["y"], axis=1))
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", [5, 70]), ("y", [5, 74]))
    ]
    graph = helper.make_graph(nodes, "blocks", ends[:1], ends[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def narrow_network() -> onnx.ModelProto:
    """Rows whose last vector has one element, and whose type becomes narrower on the way to the outputs.

    There are floats, 64-bit integers, and a quantized product's sums."""
    rng, columns = np.random.default_rng(6), 33
    to = {n: getattr(TensorProto, n.upper()) for n in ("int8", "uint8", "int16", "bfloat16", "float16")}
    nodes = [helper.make_node("Cast", ["x"], [n], to=kind) for n, kind in to.items()]
    whole = {"bool": TensorProto.BOOL, "int32": TensorProto.INT32, "uint8 of int64": TensorProto.UINT8}
    nodes += [helper.make_node("Cast", ["n"], [n], to=kind) for n, kind in whole.items()]
    nodes += [
        helper.make_node("DequantizeLinear", ["q", "s"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s"], ["b"]),
        helper.make_node("MatMul", ["a", "b"], ["c"]),
        helper.make_node("QuantizeLinear", ["c", "s"], ["product"]),
    ]
    ends = {
        "x": (TensorProto.FLOAT, columns),
        "n": (TensorProto.INT64, columns),
        "q": (TensorProto.UINT8, 24),
    }
    inputs = [helper.make_tensor_value_info(n, kind, [3, size]) for n, (kind, size) in ends.items()]
    outputs = [helper.make_empty_tensor_value_info(n) for n in (*to, *whole, "product")]
    w = rng.integers(-128, 128, (24, columns)).astype(np.int8)
    held = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.float32(0.125), "s")]
    graph = helper.make_graph(nodes, "narrow", inputs, outputs, held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def library(folder: Path, sources: Sequence[str], flags: Sequence[str] = (), compiler: str = "") -> Path:
    """Compile files in a folder to a shared library."""
    made = folder / "built.so"
    command = [compiler or COMPILERS[0], "-shared", "-fPIC", "-O1", *flags, "-o", str(made)]
    done = subprocess.run(
        [*command, *sources, "-lm", "-lpthread"], cwd=folder, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    return made


class Refused(Exception):
    """The code and the text of an error."""


class Api:
    """A model's C API, called by ctypes."""

    def __init__(self, path: Path, prefix: str) -> None:
        self.library, self.prefix = ctypes.CDLL(str(path)), prefix

    def __call__(self, name: str, *args: object, gives: type = ctypes.c_int64) -> int:
        """Call a function that returns a number."""
        function = getattr(self.library, f"{self.prefix}_{name}")
        function.restype = gives if name.endswith("_bytes") else ctypes.c_int32
        return int(function(*args))

    def known(self, name: str, *args: object) -> int:
        """Call a function that returns a number of bytes."""
        found = self(name, *args)
        if found < 0:
            raise Refused(found, self.text("error_text", found))
        return found

    def text(self, name: str, *args: object) -> str | None:
        function = getattr(self.library, f"{self.prefix}_{name}")
        function.restype = ctypes.c_char_p
        found = function(*args)
        return None if found is None else found.decode()

    def run(
        self,
        inputs: Sequence[Array],
        sizes: Sequence[int] = (),
        threads: int = 1,
        memory: Memory | None = None,
        gaps: Sequence[Range] = (),
    ) -> list[Array]:
        """Return the outputs as bytes in arrays of u8. Nothing may be written beyond them or the arena, nor
        in the outputs' `gaps`."""
        memory = memory or Memory()
        given = (ctypes.c_int64 * max(1, len(sizes)))(*sizes)
        bytes = [self.known("output_bytes", n, given) for n in range(self("output_count"))]
        outputs = [memory.fresh((b,), BYTE) for b in bytes]
        arena = memory.aligned((self.known("arena_bytes", given, threads),), BYTE)
        if (block := memory.block(arena)) is not None:
            block.leave(gaps)
        held = [memory.copy(a) for a in inputs]
        if code := self.run_in(held, outputs, given, arena.ctypes.data, len(arena), threads):
            raise Refused(code, self.text("error_text", code))
        faults = memory.faults()
        assert not faults, "\n".join(faults)
        return outputs

    def run_in(
        self,
        inputs: Sequence[Array],
        outputs: Sequence[Array],
        sizes: object,
        at: int,
        room: int,
        threads: int,
    ) -> int:
        tables = [
            (ctypes.c_void_p * len(arrays))(*(a.ctypes.data for a in arrays)) for arrays in (inputs, outputs)
        ]
        return self("run", *tables, sizes, ctypes.c_void_p(at), ctypes.c_int64(room), threads)


def api_of(made: Emitted, kind: str, folder: Path, compiler: str = "") -> Api:
    """Load the emitted files as a library of this process."""
    made.save(folder)
    p = made.model.prefix
    if kind == "shared":
        return Api(folder / f"lib{p}.so", p)
    flags = (*STRICT, *compiler_flags(made.model.target)) if kind == "c" else ()
    sources = sorted(f for f in made.files if f.endswith((".c", ".o")) and f != "main.c")
    return Api(library(folder, sources, flags, compiler), p)


def same_bits(got: Array, want: Array) -> bool:
    return np.array_equal(got, np.ascontiguousarray(want).reshape(-1).view(np.uint8))


def here() -> list[str]:
    """Return the levels of x86-64 that this machine runs."""
    from jangin.runtime.processor import why_not
    from jangin.targets import NAMED

    return [n for n, t in NAMED.items() if n.startswith("x86") and not why_not(str(t))]
