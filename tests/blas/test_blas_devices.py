"""`jangin.blas.on`: the routines on OpenCL's devices, on WebGPU's adapters, and on NVIDIA's simulated driver,
beside sums in extended precision."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from blas_fuzz import KNOWN, Tally, run_one
from repeatable import RNG

from jangin import blas
from jangin.blas import compiled
from jangin.ir.graph import CompileError
from jangin.runtime.device import LoadError

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("cuda", "opencl", "webgpu")]

import mocked  # noqa: E402
import on_adapter  # noqa: E402
import on_device  # noqa: E402

DEVICES = [f"opencl:{d.number}" for d in on_device.usable() if d.platform != on_device.SIMULATOR]
needs_opencl = pytest.mark.skipif(
    not DEVICES, reason="no OpenCL device here: install a driver (Debian: pocl-opencl-icd)"
)
needs_webgpu = pytest.mark.skipif(not on_adapter.usable(), reason=on_adapter.NONE)
TARGETS = [
    *(pytest.param(d, marks=needs_opencl) for d in DEVICES or ["opencl"]),
    pytest.param("webgpu", marks=needs_webgpu),
]
DOUBLES = [n for n, (t, r) in KNOWN.items() if t in "dz" or "dsdot" in r.name]
"""Routines that need numbers of 64 bits."""
CALLS = 3
"""Random calls of a routine, each with other options and sizes."""


def confirm(target: str, names: list[str], calls: int) -> None:
    """Call routines on a target at random, and assert that each is right."""
    seed, tally = int(RNG.integers(1 << 32)), Tally(Counter(), [])
    for name in names:
        for number in range(calls):
            run_one(seed, number, None, [name], tally, blas.on(target))
    assert tally.calls.total() == calls * len(names)
    assert not tally.wrong, tally.wrong[:3]


@pytest.mark.parametrize("target", TARGETS)
def test_some_calls_are_right(target: str) -> None:
    confirm(target, ["saxpy"], 2)


@pytest.mark.slow  # drivers compile for a second or two in each of 600 cases
@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", sorted(KNOWN))
@pytest.mark.parametrize("target", TARGETS)
def test_every_routine_is_right(target: str, name: str) -> None:
    if target == "webgpu" and name in DOUBLES:
        with pytest.raises(CompileError, match=f"{name} can't compute in .* on webgpu"):
            confirm_alone(target, name)
        return
    confirm(target, [name], CALLS)


def confirm_alone(target: str, name: str) -> None:
    """Call a routine of one number or a vector, or of matrices of one column, on a target. A band of one
    diagonal on each side has three rows."""
    required = KNOWN[name][1].scipy.partition("[")[0].split(",")
    extents = KNOWN[name][1].extents
    matrix = (3, 1) if name[2] == "b" else (1, 1)
    values = [
        np.ones(matrix if n in KNOWN[name][1].matrices else 5 if n == "param" else 1) if n in extents else 1
        for n in required
        if n
    ]
    getattr(blas.on(target), name)(*values)


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A simulated GPU. Kernels on it end with the test."""
    with mocked.mocked():
        compiled.forget()
        yield
        compiled.forget()


@mocked.needed
def test_some_calls_on_a_gpu_are_right(cuda: None) -> None:
    confirm("cuda", ["daxpy"], 2)


@mocked.needed
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(KNOWN))
def test_every_routine_on_a_gpu_is_right(cuda: None, name: str) -> None:
    confirm("cuda", [name], CALLS)


@needs_opencl
@pytest.mark.sampled(4)
class TestConventions:
    """Calls take, return and overwrite the same arrays on all targets."""

    def test_a_matrix_within_another_is_written_where_it_lies(self) -> None:
        rng, on = np.random.default_rng(), blas.on(DEVICES[0])
        whole = np.full((20, 20), 777.0, np.float32, order="F")
        c, a, b = whole[3:10, 4:9], rng.standard_normal((7, 3)), rng.standard_normal((3, 5))
        c[...] = 1
        a, b = a.astype(np.float32), b.astype(np.float32)
        found = on.sgemm(2.0, a, b, beta=-1.0, c=c, overwrite_c=1)
        assert np.shares_memory(found, whole)
        np.testing.assert_allclose(c, 2 * a.astype(float) @ b - 1, rtol=1e-5, atol=1e-5)
        before = c.copy()
        assert on.sgemm(2.0, a, b, beta=-1.0, c=c) is not c
        np.testing.assert_array_equal(c, before)
        c[...] = 777
        assert (whole == 777).all()

    def test_level_1_writes_into_the_callers_vector(self) -> None:
        on, x, y = blas.on(DEVICES[0]), np.arange(4, dtype=np.float32), np.zeros(12, np.float32)
        assert on.saxpy(x, y, n=4, a=2.0, incy=-3, offy=1) is y
        np.testing.assert_array_equal(y, [0, 6, 0, 0, 4, 0, 0, 2, 0, 0, 0, 0])

    def test_a_factor_of_0_leaves_its_operand_out(self) -> None:
        on = blas.on(DEVICES[0])
        bad, good = (np.full((3, 3), value, np.float32) for value in (np.nan, 1))
        assert (on.sgemm(1.0, good, good, beta=0.0, c=bad) == 3).all()
        assert (on.sgemm(0.0, bad, good, beta=2.0, c=good) == 2).all()
        assert (on.strsm(0.0, bad, bad) == 0).all()
        assert (on.strsm(0.0, bad, bad, trans_a=1) == 0).all()
        assert np.isnan(on.sgemm(1.0, bad, good)).all()

    def test_a_length_neither_overflows_nor_underflows(self) -> None:
        on = blas.on(DEVICES[0])
        for x, length in (([3e30, 4e30], 5e30), ([3e-30, 4e-30], 5e-30), ([0, 0], 0), ([np.inf, 1], np.inf)):
            np.testing.assert_allclose(on.snrm2(np.float32(x)), np.float32(length), rtol=1e-6)
        assert np.isnan(on.snrm2(np.float32([1, np.nan])))

    def test_results_without_rows_columns_or_terms(self) -> None:
        on, empty = blas.on(DEVICES[0]), np.ones((3, 0), np.float32)
        assert (on.sgemm(1.0, empty, empty.T, beta=2.0, c=np.ones((3, 3))) == 2).all()
        assert on.sgemm(1.0, empty.T, np.ones((3, 2))).shape == (0, 2)
        assert on.sdot([], []) == 0

    def test_numbers_of_16_bits(self) -> None:
        rng, on = np.random.default_rng(), blas.on(DEVICES[0])
        for name, dtype in (("hgemm", np.float16), ("bgemm", ml_dtypes.bfloat16)):
            a, b = (rng.standard_normal(s).astype(dtype) for s in ((33, 257), (257, 17)))
            exact, found = a.astype(float) @ b.astype(float), getattr(on, name)(1.0, a, b)
            assert found.dtype == dtype
            # A result is rounded once. Sums in float32 of 257 terms lose less than 1e-4.
            half_unit = float(ml_dtypes.finfo(dtype).eps) / 2
            assert (np.abs(found.astype(float) - exact) <= np.abs(exact) * half_unit * 1.01 + 1e-4).all()

    def test_batches(self) -> None:
        rng, on = np.random.default_rng(), blas.on(DEVICES[0])
        a, b, c = (rng.standard_normal(s).astype(np.float32) for s in ((5, 7, 9), (5, 9, 11), (5, 7, 11)))
        exact = 2.0 * (a.astype(float) @ b) + 0.5 * c

        def near(found: Any) -> None:
            np.testing.assert_allclose(np.array(found), exact, rtol=0, atol=1e-5)

        near(on.sgemm_strided_batched(2.0, a, b, 0.5, c))
        near(on.sgemm_strided_batched(2.0, a.transpose(0, 2, 1), b, 0.5, c, trans_a=1))
        near(on.sgemm_batched(2.0, [*a], [*b], 0.5, [*c]))
        for called, own in ((on.sgemm_strided_batched, c.copy()), (on.sgemm_batched, [x.copy() for x in c])):
            assert called(2.0, a, b, 0.5, own, overwrite_c=1) is own
            near(own)
        assert on.sgemm_strided_batched(1.0, a[:0], b[:0]).shape == (0, 7, 11)


@needs_webgpu
def test_a_type_that_a_device_lacks_is_named() -> None:
    with pytest.raises(
        CompileError, match=r"dgemm can't compute in float64 on webgpu.*or sgemm on the device"
    ):
        blas.on("webgpu").dgemm(1.0, np.eye(2), np.eye(2))


def test_a_target_that_isnt_here_is_told_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        blas.on("nowhere")
    with pytest.raises(LoadError, match=r"can't run on 'riscv64' here: it is for riscv64"):
        blas.on("riscv64")
    with pytest.raises(ValueError, match=r"one device, and .* names several"):
        blas.on("x86-64-v2+x86-64-v3")
    monkeypatch.setattr("jangin.targets.opencl.select", absent)
    with pytest.raises(LoadError, match="no device"):
        blas.on("opencl:7")


def absent(which: str) -> None:
    raise LoadError("there is no device")


def test_a_level_of_this_processor_is_a_target_too() -> None:
    on = blas.on("cpu")
    assert on.ddot(np.ones(5), np.ones(5)) == 5
    assert "dgemm" in dir(on)
    assert repr(on) == "jangin.blas.on('cpu')"
    with pytest.raises(AttributeError, match="xgemm"):
        on.xgemm  # noqa: B018
