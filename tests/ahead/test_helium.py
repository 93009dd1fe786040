"""Helium's instruction rows and kernels, compiled by GCC and run on an emulated Cortex-M55."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from test_microcontroller import example, needs_tools

import jangin
from jangin.ahead.source import compiler_flags
from jangin.backends.clike.dialect import C, type_name
from jangin.backends.clike.lanes import function_name, row_function
from jangin.ir.dtype import BOOL, DType
from jangin.ir.graph import Array
from jangin.ir.interpret import run_func
from jangin.ir.verify import verify_func
from jangin.targets.helium_rows import HELIUM
from jangin.targets.micro import CORTEX_M55
from jangin.targets.rows import Row

COUNT = 64
"""Elements of each operand, a multiple of every number of lanes."""
EDGES = (np.nan, np.inf, -np.inf, 0.0, -0.0, 0.5, -1.5, 2.5, 2.0**31, -(2.0**31), -2147483904.0, 3e9)
HELD = "to_i32_held", "nearest"
"""Rows for numbers that an i32 holds."""
CASES = [(row, t) for row in HELIUM for t in row.dtypes if row.lanes]
NET_SIZES = [(7, 9, 8, 10, 3), (16, 6, 5, 12, 1), (3, 8, 8, 16, 3), (20, 5, 4, 7, 1), (1, 12, 6, 8, 4)]


def operands(row: Row, dtype: DType, random: np.random.Generator) -> dict[str, Array]:
    """Return random operands of a row with the ends of their types among them."""
    arrays = {}
    for p in row.func(dtype).params:
        if p.dtype.is_float:
            arrays[p.name] = (8 * random.standard_normal(COUNT)).astype(np.float32)
            number = row.name.endswith("_number") and p.name == "x"
            arrays[p.name][:32] = random.choice(np.float32(EDGES[number:]), 32)
            continue
        if p.dtype is BOOL:
            arrays[p.name] = np.zeros(COUNT, bool)
            continue
        low, high = p.dtype.limits
        arrays[p.name] = random.integers(low, high, COUNT, p.dtype.numpy, endpoint=True)
        ends = np.array([low, high, -1 if low else 1, 0], p.dtype.numpy)
        arrays[p.name][:16] = random.choice(ends, 16)
    return arrays


def references(row: Row, dtype: DType, arrays: dict[str, Array]) -> Array:
    """Return the results of a row's reference on each vector of the operands."""
    func, results = row.func(dtype), []
    out = "memory" if not row.result else "r"
    for first in range(0, COUNT, row.lanes):
        part = {n: a[first : first + row.lanes].copy() for n, a in arrays.items()}
        for p in func.params:
            if str(p.shape[0]) == "1":
                part[p.name] = part[p.name][:1]
        with np.errstate(all="ignore"):
            run_func(func, part, {"N": row.lanes})
        results.append(part[out])
    return np.concatenate(results)


def numbers(array: Array, kind: str, name: str) -> str:
    named = {"nan": "NAN", "inf": "INFINITY", "-inf": "-INFINITY"}
    texts = (float(v).hex() if array.dtype.kind == "f" else f"{int(v)}ll" for v in array)
    items = ", ".join(named.get(text, text) for text in texts)
    return f"static _Alignas(16) {kind} {name}[] = {{{items}}};"


def program(cases: list[tuple[Row, DType, dict[str, Array]]]) -> str:
    """Return a program that writes the results of each case to output_0.bin."""
    dialect, types, functions, calls = C(), dict[str, str](), list[str](), list[str]()
    for number, (row, dtype, arrays) in enumerate(cases):
        given, lanes = [], row.lanes
        for p in row.func(dtype).params:
            kind, name = type_name(p.dtype), f"{p.name}_{number}"
            types.setdefault(type_name(p.dtype, lanes), dialect.vector_type(p.dtype, lanes))
            functions.append(numbers(arrays[p.name], kind, name))
            whole = f"*({type_name(p.dtype, lanes)}_u *)({name} + n)"
            if p.name != "r":
                given.append(
                    f"{name} + n" if p.name == "memory" else f"{name}[n]" if str(p.shape[0]) == "1" else whole
                )
        functions.append(row_function(row, dtype, lanes, CORTEX_M55, dialect))
        out = f"{'r' if row.result else 'memory'}_{number}"
        place = (
            f"{out}[n / {lanes}]"
            if row.across
            else f"*({type_name(dtype_of(row, dtype), lanes)}_u *)({out} + n)"
        )
        call = f"{function_name(row, dtype, lanes)}({', '.join(given)})"
        call = f"{place} = {call}" if row.result else call
        size = f"sizeof {out}" + (f" / {lanes}" if row.across else "")
        calls.append(f"  for (int n = 0; n < {COUNT}; n += {lanes}) {call};")
        calls.append(f"  transferred(WRITE, file, {out}, {size});")
    main = [
        "void main(void) {",
        '  int32_t file = opened("output_0.bin", BINARY_WRITE);',
        *calls,
        "  leave(0);",
        "}",
    ]
    return "\n".join(['#include "semihosting.h"', dialect.head(), *types.values(), *functions, *main, ""])


def dtype_of(row: Row, dtype: DType) -> DType:
    """Return the type of a row's results."""
    return row.func(dtype).params[-1].dtype


def test_rows_compute_their_references(tmp_path: Path) -> None:
    """GCC's intrinsics have the results of Loop IR on random operands and at the ends of the types."""
    needs_tools("cortex-m55")
    random = np.random.default_rng()
    cases = [(row, t, operands(row, t, random)) for row, t in CASES]
    tools = example()
    one = helper.make_node("Relu", ["x"], ["y"])
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [4]) for n in "xy"]
    model = helper.make_model(helper.make_graph([one], "relu", ends[:1], ends[1:]), ir_version=8)
    jangin.emit(model, "c", "cortex-m55", name="model").save(tmp_path, force=True)
    (tmp_path / "main.c").write_text(program(cases))
    board = tools.BOARDS["cortex-m55"]
    flags = (*compiler_flags(CORTEX_M55), *board.library, "-w")
    link = ("-nostartfiles", *board.places, "-T", "board.ld", "-o", "rows.elf", "-lm")
    command = [CORTEX_M55.c_compiler, *flags, "startup.c", "main.c", *link]
    subprocess.run(command, check=True, cwd=tmp_path)
    tools.emulate(tmp_path / "rows.elf", board)
    results, at = (tmp_path / "output_0.bin").read_bytes(), 0
    for row, dtype, arrays in cases:
        verify_func(row.func(dtype))
        want = references(row, dtype, arrays)
        got = np.frombuffer(results, np.int32 if want.dtype == bool else want.dtype, want.size, at)
        at += got.nbytes
        assert want.dtype != bool or {*got} <= {0, -1}, "a mask has all bits of a lane or none"
        with np.errstate(all="ignore"):
            apart = np.abs(got.astype(np.float64) - want)
            # the interpreter rounds a product before the sum, a fused multiply-add doesn't
            most = 2.0**-23 * (np.abs(arrays["x"] * arrays["y"]) + np.abs(want)) if row.fuses else 0.0
            same = (got.astype(want.dtype) == want) | ((got != got) & (want != want)) | (apart <= most)
        held = np.abs(arrays["x"]) < 2.0**31 if row.name in HELD else True
        assert np.all(same | ~np.asarray(held)), f"{row.name} of {dtype}: {got} isn't {want}"
    assert at == len(results)


def quantized_net(sizes: tuple[int, int, int, int, int], random: np.random.Generator) -> onnx.ModelProto:
    """Return a convolution of bytes, whose sums are ints. Both operands have the least byte among them."""
    channels, height, width, outputs, kernel = sizes
    w = random.integers(-128, 128, (outputs, channels, kernel, kernel), np.int8)
    w[:, 0, 0, 0] = -128
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], kernel_shape=[kernel] * 2)
    down, along = height - kernel + 1, width - kernel + 1
    x = helper.make_tensor_value_info("x", TensorProto.INT8, [1, channels, height, width])
    y = helper.make_tensor_value_info("y", TensorProto.INT32, [1, outputs, down, along])
    graph = helper.make_graph([node], "net", [x], [y], [numpy_helper.from_array(w, "w")])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", NET_SIZES)
def test_convolutions_of_any_sizes(sizes: tuple[int, int, int, int, int], tmp_path: Path) -> None:
    """Terms that fill vectors of 16, 8 or 4 bytes, or none, and columns that no vector divides."""
    needs_tools("cortex-m55")
    random = np.random.default_rng()
    tools, model = example(), quantized_net(sizes, random)
    firmware = tools.build(jangin.emit(model, "c", "cortex-m55", name="model"), tmp_path)
    x = random.integers(-128, 128, (1, *sizes[:3]), np.int8)
    x[0, 0] = -128
    there = tools.run(firmware, tools.BOARDS["cortex-m55"], x).view(np.int32)
    np.testing.assert_array_equal(there, np.asarray(jangin.compile(model)(x)).reshape(-1))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", [(64, 5, 5, 16, 1), (1, 12, 6, 16, 4)])
def test_products_are_added_across_lanes(sizes: tuple[int, int, int, int, int], tmp_path: Path) -> None:
    """A convolution multiplies 16 bytes by one instruction, also if they are pixels of a single channel."""
    needs_tools("cortex-m55")
    random = np.random.default_rng()
    tools = example()
    tools.build(jangin.emit(quantized_net(sizes, random), "c", "cortex-m55", name="model"), tmp_path)
    command = ["arm-none-eabi-objdump", "-d", "-marmv8.1-m.main", "model.o"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
    assert len(re.findall(r"\bvmla(?:da)?va\.s8\b", listed)) >= 4
    assert not re.search(r"\b(?:smlad|smlabb|mla)\b", listed)


def test_floats_are_compared_in_every_lane(tmp_path: Path) -> None:
    """GCC 12 keeps one lane of two joined comparisons of f32 vectors, so that lanes are compared singly."""
    needs_tools("cortex-m55")
    tools, random = example(), np.random.default_rng()
    nodes = [
        helper.make_node("Less", ["x", "high"], ["below"]),
        helper.make_node("Greater", ["x", "low"], ["above"]),
        helper.make_node("And", ["below", "above"], ["inside"]),
        helper.make_node("Where", ["inside", "x", "low"], ["y"]),
    ]
    known = [numpy_helper.from_array(np.float32(v), n) for n, v in (("low", -0.5), ("high", 0.75))]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, 32]) for n in "xy"]
    graph = helper.make_graph(nodes, "inside", ends[:1], ends[1:], known)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    firmware = tools.build(jangin.emit(model, "c", "cortex-m55", name="model"), tmp_path)
    x = random.standard_normal((3, 32)).astype(np.float32)
    there = tools.run(firmware, tools.BOARDS["cortex-m55"], x)
    np.testing.assert_array_equal(there, jangin.compile(model)(x).reshape(-1))


def test_constants_are_loaded_by_one_instruction(tmp_path: Path) -> None:
    """GCC 12 counts one instruction for two loads of a constant beside the code. The assembler refuses a
    short branch over many of them."""
    needs_tools("cortex-m55")
    four = "typedef float f32x4 __attribute__((vector_size(16)));"
    (tmp_path / "four.c").write_text(f"{four} f32x4 four(void) {{ return (f32x4){{101, 7, 103, 9}}; }}")
    command = [CORTEX_M55.c_compiler, *compiler_flags(CORTEX_M55), "-S", "four.c"]
    subprocess.run(command, check=True, cwd=tmp_path)
    written = (tmp_path / "four.s").read_text()
    assert len(re.findall(r"\bvldr", written)) == 1, written
