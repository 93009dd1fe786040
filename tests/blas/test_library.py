"""BLAS as a shared library or C: CBLAS's and Fortran's symbols of some routines."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from jangin.blas.library import emit
from jangin.options import Options

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a library needs a C compiler")

GUARD = 777.0
DOUBLE = ctypes.c_double


def pointer(array: np.ndarray, first: int = 0) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data + first * array.itemsize)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("blas")
    assert emit(folder, ["dgemm", "dsyrk", "daxpy", "idamax", "ddot"]) == [
        "jangin_blas.h",
        "libjangin_blas.so",
    ]
    return ctypes.CDLL(str(folder / "libjangin_blas.so"))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("rows", [False, True])
def test_a_product_within_larger_matrices_writes_nothing_else(library: ctypes.CDLL, rows: bool) -> None:
    rng = np.random.default_rng(6)
    order = "C" if rows else "F"
    whole = [np.full((12, 12), GUARD, order=order) for _ in range(3)]
    a, b, c = whole[0][2:9, 1:6], whole[1][1:6, 3:8], whole[2][3:10, 2:7]
    for part in (a, b, c):
        part[...] = rng.standard_normal(part.shape)
    wanted, outside = 2 * a @ b - c, whole[2].copy()
    library.cblas_dgemm(
        101 if rows else 102, 111, 111, 7, 5, 5, DOUBLE(2), pointer(a), 12, pointer(b), 12, DOUBLE(-1),
        pointer(c), 12,
    )  # fmt: skip
    np.testing.assert_allclose(c, wanted, rtol=1e-13)
    outside[3:10, 2:7] = c
    np.testing.assert_array_equal(whole[2], outside)


def test_vectors_with_steps_keep_what_lies_between(library: ctypes.CDLL) -> None:
    x, y = np.arange(10.0), np.full(20, GUARD)
    y[1:17:3] = 1.0
    library.cblas_daxpy(6, DOUBLE(2), pointer(x), -1, pointer(y, 1), 3)
    np.testing.assert_array_equal(y[1:17:3], 1 + 2 * x[5::-1])
    assert (np.delete(y, np.arange(1, 17, 3)) == GUARD).all()
    library.cblas_ddot.restype = DOUBLE
    assert library.cblas_ddot(3, pointer(x), 1, pointer(x), 2) == 0 + 2 + 8
    assert library.cblas_idamax(10, pointer(x), 1) == 9


def test_matrices_without_elements_may_be_null(library: ctypes.CDLL) -> None:
    c = np.arange(6.0)
    for layout, m, n in ((101, 2, 3), (102, 3, 2)):
        library.cblas_dgemm(
            layout, 111, 111, m, n, 0, DOUBLE(1), None, 3, None, 3, DOUBLE(2), pointer(c), 3,
        )  # fmt: skip
    np.testing.assert_array_equal(c, 4 * np.arange(6.0))
    library.cblas_dsyrk(102, 121, 111, 1, 5, DOUBLE(0), None, 1, DOUBLE(2), pointer(c[1:]), 1)
    np.testing.assert_array_equal(c, [0, 8, 8, 12, 16, 20])


def test_an_unknown_layout_is_refused(library: ctypes.CDLL, capfd: pytest.CaptureFixture[str]) -> None:
    c = np.ones(1)
    library.cblas_dgemm(7, 111, 111, 1, 1, 1, DOUBLE(1), None, 1, None, 1, DOUBLE(0), pointer(c), 1)
    assert "On entry to cblas_dgemm parameter number  1 had an illegal value" in capfd.readouterr().err
    assert c == 1


@pytest.mark.parametrize("target", ["wasm32", "x86-64-v3-windows"])
def test_a_library_is_for_systems_with_elf(target: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=f"BLAS can't be emitted as 'shared' for {target}"):
        emit(tmp_path, ["daxpy"], options=Options(target, threads=1))


def test_c_sources_are_complete(tmp_path: Path) -> None:
    emit(tmp_path, ["sdot"], "c")
    main = '#include <stdio.h>\n#include "jangin_blas.h"\nint main(void) { float x[] = {1, 2, 3};\n'
    (tmp_path / "main.c").write_text(main + 'printf("%g", cblas_sdot(3, x, 1, x, 1)); }\n')
    sources = [*map(str, tmp_path.glob("*.c"))]
    flags = ["-w", "-O1", "-march=native", "-lm"]
    subprocess.run(["gcc", "-o", tmp_path / "main", *sources, *flags], check=True)
    assert subprocess.run([tmp_path / "main"], capture_output=True, text=True).stdout == "14"


def test_a_library_has_only_the_functions_that_its_interfaces_call(tmp_path: Path) -> None:
    """The other functions of a model's API took more time to compile than a small kernel."""
    told: list[tuple[int, int, str]] = []
    emit(tmp_path, ["daxpy", "zdotc"], progress=lambda *now: told.append(now))
    assert told == [(0, 2, "daxpy"), (1, 2, "zdotc"), (2, 2, "interfaces")]
    made = (tmp_path / "libjangin_blas.so").read_bytes()
    for name in ("daxpy", "zdotc"):
        assert f"jangin_{name}_run".encode() in made
        assert f"jangin_{name}_input".encode() not in made


def test_an_unknown_routine_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no routine .dgem.; known: .*dgemm"):
        emit(tmp_path, ["dgem"])
