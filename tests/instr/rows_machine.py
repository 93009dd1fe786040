"""Functions that each do one instruction row: their LLVM IR, their inputs, and their reference's results."""

from __future__ import annotations

import ctypes
import warnings
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import llvmlite.binding as llvm
import ml_dtypes
import numpy as np
from guarded import Memory

from jangin.backends.llvm.objects import compile_modules, target_machine
from jangin.backends.llvm.types import vector_type
from jangin.backends.llvm.writer import LlvmWriter
from jangin.backends.walk.arithmetic import Arithmetic
from jangin.backends.walk.writer import Value
from jangin.ir.dtype import BF16, BOOL, F32, I64, U8, DType
from jangin.ir.expr import Buffer, Const
from jangin.ir.graph import Array
from jangin.ir.interpret import run_func
from jangin.ir.loop import Func
from jangin.runtime.elf import Image
from jangin.targets import Target
from jangin.targets.rows import Row

COUNT = 384
"""Elements of a test. It is a multiple of every number of lanes."""
OFF = 5
"""The last lanes are masked off. Their memory can't be read."""
EDGES = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, 3.0, -7.25, 0.3, 65504.0, 65519.0, 65520.0, 7e-8,
         6.1e-5, -5.9e-8, 2.9e-8, 1e-42, 3.4e38, 8388609.0, np.inf, -np.inf, np.nan, 2147483520.0, 2.0**31,
         -(2.0**31), -2147483904.0, 3e9, -3e9, 9.2e18, -9.2e18, 2.0**63, -(2.0**63), -9.3e18)  # fmt: skip


def address(p: Buffer) -> bool:
    """Return whether an operand is memory that the row accesses itself, not a value."""
    return p.name == "memory"


def blocks(p: Buffer) -> bool:
    """Return whether each group of lanes has its own part of an operand."""
    return str(p.shape[0]) == "N"


def size(p: Buffer) -> int:
    """Return the number of elements of an operand that all lanes share."""
    (count,) = p.shape
    return int(count.value) if isinstance(count, Const) else COUNT


def widths(row: Row, dtype: DType, on: Target) -> list[int]:
    """Return the numbers of lanes to try: the row's own, or one, an odd number, a vector register and two
    registers."""
    if row.lanes:
        return [row.lanes]
    func = row.func(dtype)
    full = on.machine.lanes(max(p.dtype.bytes for p in func.params))
    vectors_only = any(address(p) or isinstance(p.shape[0], Const) for p in func.params)
    return [*([] if vectors_only else [1]), 3, full, *([] if full * 2 > COUNT // 3 else [full * 2])]


def name(row: Row, dtype: DType, lanes: int) -> str:
    return f"{row.name}_{dtype}_{lanes}"


def function(row: Row, dtype: DType, lanes: int, on: Target) -> tuple[str, list[str]]:
    """Return LLVM IR of `void name(address of each operand and result)`, and the declarations that it needs.
    The function does the row on COUNT elements."""
    w, func = LlvmWriter(replace(on, rows=(replace(row, needs=()),))), row.func(dtype)

    def group(n: Value) -> None:
        first = w.op(f"mul i64 {n.ref}, {lanes}", I64)
        at, operands = {}, {}
        for p in func.params:
            kept = U8 if p.dtype is BOOL else p.dtype
            at[p.name] = (
                w.named(f"getelementptr {vector_type(kept, 1)}, ptr %{p.name}, i64 {first.ref}")
                if blocks(p)
                else f"%{p.name}"
            )
            if address(p):
                operands[p.name] = at[p.name]
            elif p.name != "r":
                kind = vector_type(kept, lanes if blocks(p) else size(p))
                ref = w.named(f"load {kind}, ptr {at[p.name]}, align {kept.bytes}")
                narrow = f"trunc {kind} {ref} to {kind.replace('i8', 'i1')}"
                operands[p.name] = w.named(narrow) if p.dtype is BOOL else ref
        if row.llvm:
            last = w.last(row.name, dtype, lanes, **operands)
            if not row.result:
                w.effect(last)
                return
            out = w.new(last, func.params[-1].dtype, lanes)
        else:
            assert row.expansion is not None
            out = Arithmetic(w).formula(row.expansion, Value(operands["x"], func.params[0].dtype, lanes))
        if out.dtype is BOOL:
            out = w.new(f"zext {vector_type(BOOL, lanes)} {out.ref} to {vector_type(U8, lanes)}", U8, lanes)
        w.effect(f"store {vector_type(out.dtype, lanes)} {out.ref}, ptr {at['r']}, align {out.dtype.bytes}")

    w.loop(w.index(0), w.index(COUNT // lanes), group, entered=True)
    params = ", ".join(f"ptr %{p.name}" for p in func.params)
    head = f"define void @{name(row, dtype, lanes)}({params}) #0 {{"
    return "\n".join([head, "entry:", *w.lines, "  ret void", "}", ""]), [*w.declarations.values()]


def module(row: Row, dtypes: tuple[DType, ...], lanes: dict[DType, list[int]], on: Target) -> str:
    made = [function(row, t, n, on) for t in dtypes for n in lanes[t]]
    declared = sorted({d for _, needed in made for d in needed})
    wide = f'attributes #0 = {{ "prefer-vector-width"="{8 * on.machine.vector_bytes}" }}'
    return "\n".join([f'target triple = "{on.triple}"', *(text for text, _ in made), *declared, wide, ""])


def assembly(row: Row, dtype: DType, on: Target) -> str:
    """Return a target's assembly of the row on one vector register."""
    lanes = widths(row, dtype, on)
    full = row.lanes or lanes[lanes.index(3) + 1]
    parsed = llvm.parse_assembly(module(row, (dtype,), {dtype: [full]}, on))
    return str(target_machine(on).emit_assembly(parsed))


def values(p: Buffer, row: Row, rng: np.random.Generator) -> Array:
    """Return inputs of an operand: every edge value, then random ones."""
    count = size(p)
    if p.name == "index":
        out: Array = rng.integers(0, COUNT, COUNT)
        out[-OFF:] += 1 << 30 if "mask" in row.operands else 0
        return out
    if p.dtype is BOOL:
        out = rng.random(count) < 0.5
        out[COUNT - OFF :] = False
        return out
    top = 1 << min(p.dtype.bits, 8)
    random = rng.integers(0, top, count * p.dtype.bytes, np.uint8).view(p.dtype.numpy)
    if row.product is not None and row.product.total is F32 and not p.dtype.is_float and count == COUNT:
        several = row.product.terms_of_word * COUNT
        numbers = rng.standard_normal(several) * 10.0 ** rng.integers(-8, 6, several)
        numbers[-2 * len(EDGES) :] = [*EDGES, *EDGES]
        with np.errstate(over="ignore"):
            return numbers[rng.permutation(several)].astype(BF16.numpy).view(p.dtype.numpy)
    if not p.dtype.is_float or count == 1:
        return random
    # for other rows every bit pattern counts alike
    if row.name not in ("widen", "masked_load", "masked_store"):
        with np.errstate(over="ignore"):
            scale = 10.0 ** rng.integers(-8, 6, COUNT)
            random = (rng.standard_normal(COUNT) * scale).astype(p.dtype.numpy)
    if row.name == "narrow":  # add numbers half-way between two results
        bits = random.view(np.uint32)
        lost = 23 - ml_dtypes.finfo(row.dtypes[0].numpy).nmant
        bits[: COUNT // 2] &= ~np.uint32((1 << lost) - 1)
        bits[: COUNT // 2] |= np.uint32(1 << (lost - 1))
    edges = [e for e in EDGES if not (np.isnan(e) and p.name == "x" and row.name.endswith("_number"))]
    if row.name.endswith("_held"):
        edges = [e for e in edges if abs(e) < 1 << 31]
    with np.errstate(over="ignore"):
        random[-2 * len(edges) :] = rng.permutation(edges * 2).astype(p.dtype.numpy)
    return random


@cache
def inputs(row: Row, dtype: DType) -> dict[str, Array]:
    """Return the inputs by operand name. They are the same at every call."""
    rng = np.random.default_rng([*f"{row.name} {dtype}".encode()])
    arrays = {p.name: values(p, row, rng) for p in row.func(dtype).params}
    if row.result:
        arrays["r"] = np.zeros_like(arrays["r"])
    return arrays


@cache
def expected(row: Row, dtype: DType) -> Array:
    """Return what the reference writes to its last parameter."""
    func: Func = row.func(dtype)
    arrays = {n: a.copy() for n, a in inputs(row, dtype).items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        run_func(func, arrays, {v.name: COUNT for v, _ in func.symbols})
    return arrays[func.params[-1].name]


def run(row: Row, on: Target) -> dict[str, Array]:
    """Run the row on the machine, and return what it writes, by function name. Memory ends where the
    masked-off lanes begin."""
    lanes = {t: widths(row, t, on) for t in row.dtypes}
    image = Image([compile_modules([(row.name, module(row, row.dtypes, lanes, on))], on)])
    out: dict[str, Array] = {}
    for dtype in row.dtypes:
        params = row.func(dtype).params
        for n in lanes[dtype]:
            memory, held = Memory(pages=True), []
            for p in params:
                array = inputs(row, dtype)[p.name]
                cut = address(p) and blocks(p) and "mask" in row.operands
                held.append(memory.copy(array[:-OFF] if cut else array))
            out[name(row, dtype, n)] = called(image, name(row, dtype, n), memory, held)
    return out


SIZES = {"R": 11, "C": 7, "K": 13, "M": 11 * 10}
"""Sizes of matrices: rows, columns, terms, and the elements of their memory."""
STRIDE = 10
"""Elements from row to row in the matrices' memory."""


def matrix_inputs(row: Row, dtype: DType) -> dict[str, Array]:
    """Return random operands of a row of matrix registers: words of random bytes, or of two bfloat16."""
    rng, found = np.random.default_rng(), {}
    for p in row.func(dtype).params:
        shape = tuple(SIZES.get(str(d), 1) for d in p.shape)
        words = rng.integers(-(1 << 31), 1 << 31, shape).astype(np.int32)
        if dtype is F32 and p.dtype is not F32:
            words = rng.standard_normal((*shape[:-1], 2 * shape[-1])).astype(BF16.numpy).view(np.int32)
        found[p.name] = rng.standard_normal(shape).astype(np.float32) if p.dtype is F32 else words
    if "stride" in found:
        found["stride"] = np.array([STRIDE * dtype.bytes])
    return found


def matrix_module(row: Row, dtype: DType, on: Target) -> str:
    """Return LLVM IR of a function that does the row once. It takes the operands' addresses, loads the
    matrices, and stores the one that changes."""
    w, operands, shapes = LlvmWriter(on), dict[str, str](), list[tuple[int, int]]()
    params = row.func(dtype).params
    for p in params:
        operands[p.name] = f"%{p.name}"
        if len(p.shape) == 2:
            rows, columns = (SIZES[str(d)] for d in p.shape)
            operands[p.name] = number = str(len(shapes))
            shapes.append((rows, columns * p.dtype.bytes))
            w.tile("tile_load", p.dtype, r=number, memory=f"%{p.name}", stride=str(shapes[-1][1]))
        elif p.name == "stride":
            operands[p.name] = str(STRIDE * dtype.bytes)
    w.tile(row.name, dtype, **operands)
    if len(params[-1].shape) == 2:
        w.tile("tile_store", dtype, x=operands["r"], memory="%r", stride=str(shapes[-1][1]))
    w.tiles(shapes)
    given = ", ".join(f"ptr %{p.name}" for p in params)
    lines = [f"define void @{row.name}({given}) #0 {{", "entry:", *w.allocas, *w.lines, "  ret void", "}"]
    attributes = f'attributes #0 = {{ "target-features"="{on.features}" }}'
    return "\n".join([f'target triple = "{on.triple}"', *lines, *w.declarations.values(), attributes, ""])


def matrix_assembly(row: Row, dtype: DType, on: Target) -> str:
    """Return the assembly of the function."""
    return str(target_machine(on).emit_assembly(llvm.parse_assembly(matrix_module(row, dtype, on))))


def matrices_expected(row: Row, dtype: DType, arrays: dict[str, Array]) -> Array:
    """Return what the reference writes to the last operand."""
    func, held = row.func(dtype), {n: a.copy() for n, a in arrays.items()}
    run_func(func, held, {v.name: SIZES[v.name] for v, _ in func.symbols})
    return held[func.params[-1].name]


def matrices_got(row: Row, dtype: DType, arrays: dict[str, Array], on: Target) -> Array:
    """Return what the machine writes to the last operand."""
    image = Image([compile_modules([(row.name, matrix_module(row, dtype, on))], on)])
    memory = Memory(pages=True)
    return called(image, row.name, memory, [memory.copy(a) for a in arrays.values()])


def called(image: Image, function: str, memory: Memory, arrays: Sequence[Array]) -> Array:
    """Call a function with the arrays' addresses, and return what it leaves in the last array."""
    call = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(arrays))
    call(image.address(function))(*(a.ctypes.data for a in arrays))
    assert not (faults := memory.faults()), faults
    return arrays[-1].copy()
