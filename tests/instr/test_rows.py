"""Each instruction row against its reference body, on edge and random inputs, and the instruction that it
becomes."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from machine import WIDE
from rows_machine import (
    assembly,
    expected,
    inputs,
    matrices_expected,
    matrices_got,
    matrix_assembly,
    matrix_inputs,
    name,
    run,
    widths,
)

from jangin.backends.llvm.instruction import lines
from jangin.ir.dtype import BF16, F32, I8, I32, DType
from jangin.ir.graph import Array
from jangin.ir.interpret import run_func
from jangin.ir.products import DOT1H, DOT2, DOT2BF, DOT4BF, DOT4U, DOT8, DOT8U, PRODUCTS, Product
from jangin.ir.traversal import free_vars
from jangin.ir.verify import verify_func
from jangin.runtime.processor import why_not
from jangin.runtime.system.processor import architecture
from jangin.targets import NAMED, Target
from jangin.targets.arm import AARCH64, ARMV7, NEOVERSE_V1
from jangin.targets.arm_rows import NEON, NEON32
from jangin.targets.helium_rows import HELIUM
from jangin.targets.micro import CORTEX_M4
from jangin.targets.riscv import RISCV64_V, RVV
from jangin.targets.rows import PORTABLE, Row
from jangin.targets.small import ARGUMENT
from jangin.targets.wasm import WASM, WASM32
from jangin.targets.x86 import V2, V3, V3_VNNI, V4, V4_AMX, V4_BF16, V4_VNNI
from jangin.targets.x86_rows import AMX, AVX2, AVX512, SSE4

pytestmark = pytest.mark.sampled(4)

RUN_ON = {**{n: t for n, t in NAMED.items() if t.triple.startswith(f"{architecture()}-")}, "wide": WIDE}
"""This architecture's targets. `wide` is AVX-512's LLVM IR in AVX2's instructions, for machines without
AVX-512."""


def cases(targets: dict[str, Target], only_single: bool = False) -> list[object]:
    return [
        pytest.param(on, row, id=f"{label}-{n}-{row.name}")
        for label, on in targets.items()
        for n, row in enumerate(on.rows)
        if not row.of_tiles
        and (row.becomes or not only_single)
        and (on is not WIDE or row.lanes * 4 <= V3.machine.vector_bytes)
        # rows of VNNI and bfloat16 need their own processor
        if not re.search("vpdp|dpbf16", row.llvm) or all(map(on.has, row.needs))
    ]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(("on", "row"), cases(RUN_ON))
def test_computes_its_reference(on: Target, row: Row) -> None:
    if missing := why_not(str(V3 if on is WIDE else on)):
        pytest.skip(f"{on.name} rows run only where the processor has it: {missing}")
    got = run(row, on)
    for dtype in row.dtypes:
        want = expected(row, dtype)
        for lanes in widths(row, dtype, on):
            close(got[name(row, dtype, lanes)], want, row, dtype, lanes)


def close(got: Array, want: Array, row: Row, dtype: DType, lanes: int) -> None:
    """Check that results are equal, except that a product and sum may be rounded once or twice.

    In a sum of two bfloat16 products each addition is rounded, on some machines to odd. Subnormal numbers may
    be 0."""
    with np.errstate(all="ignore"):
        if dtype.is_float:
            got, want = got.astype(np.float64), want[: got.size].astype(np.float64)
        else:
            want = want[: got.size]
        wrong = (got != want) & ~((got != got) & (want != want))
        if row.name == "fma":
            x, y = (inputs(row, dtype)[n].astype(np.float64) for n in "xy")
            allowed = (2.0**-23 if dtype is F32 else 2.0**-52) * (np.abs(x * y) + np.abs(want)) + 1e-44
            wrong &= ~(np.abs(got - want) <= allowed)
        if row.product is not None and row.product.left is BF16:
            x, y = (inputs(row, dtype)[n].view(BF16.numpy).astype(np.float64) for n in "xy")
            terms = np.abs(x * y).reshape(-1, row.product.terms).sum(-1)[: want.size] + np.abs(want)
            wrong &= ~(np.abs(got - want) <= 2.0**-22 * terms + 2.0**-125)
    if wrong.any():
        n = int(np.argmax(wrong))
        given = {k: v[n] for k, v in inputs(row, dtype).items() if n < v.size}
        pytest.fail(
            f"{row.name} of {dtype}, {lanes} lanes: {got[n]!r}, not {want[n]!r}, at element {n} of "
            f"{wrong.sum()} wrong ones; operands {given}"
        )


@pytest.mark.parametrize(
    ("on", "row"),
    cases({t.name: t for t in (V2, V3, V4, AARCH64, ARMV7, WASM32, RISCV64_V)}, only_single=True),
)
def test_becomes_its_instruction(on: Target, row: Row) -> None:
    """A row compiles to its instruction, also for other processors than this machine's."""
    for dtype in row.dtypes:
        if on.row(row.name, dtype, row.lanes) is not row:
            continue  # the target has a better row
        if on in (AARCH64, ARMV7, WASM32, RISCV64_V) and row in PORTABLE:
            continue  # the row's pattern is one of x86
        text = assembly(row, dtype, on)
        assert re.search(row.becomes, text), f"{row.name} of {dtype} on {on.name}:\n{text}"
        assert not re.search(r"\bcall(_indirect)?\s", text)


@pytest.mark.parametrize(("dot", "becomes"), [(DOT2, "vpdpwssd"), (DOT4U, "vpdpbusd")])
@pytest.mark.parametrize("on", [V3_VNNI, V4_VNNI], ids=lambda t: t.name)
def test_vnni_adds_to_products(on: Target, dot: Product, becomes: str) -> None:
    """VNNI multiplies and adds in one instruction, without saturation."""
    row = on.product_row(dot, on.machine.lanes(4))
    assert row is not None and "vnni" in row.needs[0]
    text = assembly(row, I32, on)
    assert re.search(rf"{becomes}\s", text) and not re.search("pmadd|paddd", text), text


@pytest.mark.parametrize(
    ("on", "becomes"), [(V4_BF16, r"vdpbf16ps\s"), (NEOVERSE_V1, r"bfdot\s")], ids=lambda v: str(v)[:6]
)
def test_pairs_of_bfloat16_are_one_instruction(on: Target, becomes: str) -> None:
    row = on.product_row(DOT2BF, on.machine.lanes(4))
    assert row is not None and on.machine.products[-1] == row.product
    text = assembly(row, F32, on)
    assert re.search(becomes, text) and not re.search(r"mul|fma|fmla|call", text), text


def test_f16_is_multiplied_by_two_instructions() -> None:
    """f16 products take one instruction for each half of a register. Nothing is widened before."""
    row = NEOVERSE_V1.product_row(DOT1H, 8)
    assert row is not None and AARCH64.product_row(DOT1H, 8) is None
    text = assembly(row, F32, NEOVERSE_V1)
    assert [len(re.findall(rf"\b{name}\s", text)) for name in ("fmlal", "fmlal2")] == [1, 1], text
    assert not re.search(r"\s(fcvtl2?|fmul|fmla|bl)\s", text), text


@pytest.mark.parametrize(
    ("dot", "becomes"), [(DOT8, r"\bsmmla\s"), (DOT8U, r"\busmmla\s"), (DOT4BF, r"\bbfmmla\s")]
)
def test_matrices_are_one_instruction(dot: Product, becomes: str) -> None:
    """A product of two rows by two columns is one instruction."""
    row = NEOVERSE_V1.product_row(dot, 4)
    assert row is not None and AARCH64.product_row(dot, 4) is None
    text = assembly(row, dot.row_type, NEOVERSE_V1)
    assert len(re.findall(becomes, text)) == 1 and not re.search(r"\s(mul|fmla|zip|bl)\d*\s", text), text


def test_pairs_are_multiplied_in_general_registers() -> None:
    """LLVM compiles pairs for Armv7-A, which has the instruction too, because Jangin has only C for
    Cortex-M."""
    row = CORTEX_M4.product_row(DOT2, 1)
    assert row is not None
    text = assembly(row, I32, ARMV7)
    assert len(re.findall(row.becomes, text)) == 1 and not re.search(r"\s(mul|mla)\s", text), text


@pytest.mark.parametrize("name", [n for n, p in PRODUCTS.items() if p.of_matrices])
def test_matrices_are_of_rows_by_columns(name: str) -> None:
    """A matrix row computes in each lane what the row of a single sum computes."""
    on, product = NEOVERSE_V1, PRODUCTS[name]
    one, four = on.product_row(product.by_lanes), on.product_row(product, 4)
    assert one is not None and four is not None
    given = inputs(four, product.row_type)
    count, want = given["x"].size, expected(four, product.row_type)
    lanes = np.arange(count)
    arrays = {"x": given["y"][lanes // 2 % 2], "y": given["z"][lanes % 2], "z": given["x"]}
    arrays["r"] = np.zeros_like(want)
    with np.errstate(all="ignore"):
        run_func(one.func(product.row_type), arrays, {"N": count})
    np.testing.assert_array_equal(arrays["r"], want)


MATRIX_ROWS = [pytest.param(row, t, id=f"{row.name}-{t}") for row in AMX for t in row.dtypes]


@pytest.mark.parametrize(("row", "dtype"), MATRIX_ROWS)
def test_matrix_registers_are_configured_and_used(row: Row, dtype: DType) -> None:
    """Each row of matrix registers is one instruction, beside the loads and stores of its operands."""
    text = matrix_assembly(row, dtype, V4_AMX)
    found = re.findall(r"(?m)^\s+(tile\w+|tdp\w+|ldtile\w+)[ \t]*(.*)$", text)
    matrices = sum(len(p.shape) == 2 for p in row.func(dtype).params)
    own = [row.becomes] if row.becomes != "tilestored" else []
    words = [word for word, _ in found]
    assert words == ["ldtilecfg", *["tileloadd"] * matrices, *own, "tilestored", "tilerelease"]
    if row.becomes.startswith("tdp"):  # AT&T's order: the right operand, the left, the sum
        assert (row.becomes, "%tmm1, %tmm0, %tmm2") in found


@pytest.mark.parametrize(("row", "dtype"), MATRIX_ROWS)
def test_matrix_registers_compute_their_reference(row: Row, dtype: DType) -> None:
    """AMX adds the sums of the first and of the second bfloat16 of each pair at the end, which rounds
    differently."""
    if missing := why_not(str(V4_AMX)):
        pytest.skip(f"matrix registers work only where the processor has them: {missing}")
    arrays = matrix_inputs(row, dtype)
    got, want = matrices_got(row, dtype, arrays, V4_AMX), matrices_expected(row, dtype, arrays)
    if dtype is F32:
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    else:
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize(("on", "becomes"), [(AARCH64, r"fmla\s"), (RISCV64_V, r"vf(madd|macc)\.")])
def test_other_processors_round_a_product_and_sum_once(on: Target, becomes: str) -> None:
    """A product and sum is rounded once, as in AVX2, so that a model's results have the same bits on other
    processors."""
    row = on.row("fma", F32)
    assert row is not None and not row.needs
    text = assembly(row, F32, on)
    assert re.search(becomes, text) and "call" not in text, text


@pytest.mark.parametrize(
    "row",
    [*dict.fromkeys((*AMX, *AVX512, *AVX2, *NEON, *NEON32, *RVV, *WASM, *HELIUM, *PORTABLE))],
    ids=lambda r: r.name,
)
def test_reads_its_operands_and_no_others(row: Row) -> None:
    for dtype in row.dtypes:
        func = row.func(dtype)
        verify_func(func)
        if row.expansion is not None:
            assert {v.name for v in free_vars(row.expansion)} == {ARGUMENT}
        if not row.llvm:
            continue
        form = lines(row, dtype, row.lanes or 4)
        used = {x for _, text in form for x in re.findall(r"%\((\w+)\)s", text)} - {n for n, _ in form}
        assert used == {p.name for p in func.params} - ({"r"} if row.result else set())
        assert form[-1][0] == "" and all(n for n, _ in form[:-1]), "only the last line has no name"


def test_the_first_row_whose_needs_are_met_is_taken() -> None:
    assert [(V.row("fma", F32) or PORTABLE[0]).needs for V in (V2, V3, V4)] == [(), ("fma",), ("fma",)]
    assert V3.row("gather", F32) is None and V4.row("gather", F32) is not None
    for target, needs in (
        (V2, ()),
        (V3, ("avx2",)),
        (V4, ("avx512f", "avx512bw", "avx512vl")),
        (WIDE, ("avx2",)),
    ):
        row = target.row("masked_load", F32)
        assert row is not None and row.needs == needs
    small = V4.row("masked_load", I8)
    assert small is not None and small.becomes
    assert V3.row("masked_load", I8) in PORTABLE and V4.row("gather", I8) is None


@pytest.mark.parametrize("target", [V2, V3, V4], ids=("v2", "v3", "v4"))
def test_every_target_has_every_operation(target: Target) -> None:
    assert all(target.row(row.name, t, row.lanes) for row in (*PORTABLE, *target.rows) for t in row.dtypes)


@pytest.mark.parametrize(
    ("table", "inherited", "on"),
    [
        (PORTABLE, (), replace(V2, rows=PORTABLE)),
        (SSE4, PORTABLE, V2),
        (AVX2, SSE4, V3),
        (AVX512, AVX2, V4),
        ((*AMX, *AVX512), AVX512, V4_AMX),
    ],
    ids=("portable", "v2", "v3", "v4", "amx"),
)
def test_no_row_is_hidden_by_those_before_it(
    table: tuple[Row, ...], inherited: tuple[Row, ...], on: Target
) -> None:
    for row in table[: len(table) - len(inherited)]:
        having = replace(on, features=",".join([on.features, *(f"+{f}" for f in row.needs)]))
        assert all(having.row(row.name, t, row.lanes) is row for t in row.dtypes), row.name
