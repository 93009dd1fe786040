"""Complex routines of the emitted library: matrices in rows and in columns, steps of 0, and null pointers."""

from __future__ import annotations

import ctypes
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blas_cases import value

from jangin import blas
from jangin.blas import calls
from jangin.blas.library import emit
from jangin.blas.routine import LETTERS, SIZES, Routine
from jangin.blas.table import COMPLEX

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a library needs a C compiler")

SIZE = {"m": 9, "n": 7, "k": 5, "kl": 2, "ku": 1}
ENUMS = {"N": 111, "T": 112, "C": 113, "U": 121, "L": 122}
OTHERS = {"side": {"L": 141, "R": 142}, "diag": {"N": 131, "U": 132}}
ROWS, COLUMNS = 101, 102


def whole(name: str) -> bool:
    return not any(n in COMPLEX[name].packed for n in ("ap",)) and name[:2] != "tb" and name[1:] != "bmv"


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    return ctypes.c_void_p(array.ctypes.data)


def called(
    library: ctypes.CDLL,
    routine: Routine,
    options: Mapping[str, str],
    layout: int,
    operands: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Call a routine on copies of operands in the order of a layout. Return the copies."""
    own = {n: np.array(a, order="C" if layout == ROWS else "F") for n, a in operands.items()}
    arguments: list[Any] = [layout]
    for word in routine.words:
        if word in LETTERS:
            arguments.append({**ENUMS, **OTHERS.get(word, {})}[options[word]])
        elif word in SIZES:
            arguments.append(SIZE[word])
        elif word in own:
            arguments.append(pointer(own[word]))
        elif word.startswith("ld"):
            arguments.append(own[word[2:]].shape[1 if layout == ROWS else 0])
        elif word.startswith("inc"):
            arguments.append(-1 if word == "incx" else 1)
        else:
            assert word in routine.real
            arguments.append(ctypes.c_double(0.75))
    getattr(library, f"cblas_{routine.named('z')}")(*arguments)
    return own


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", [n for n, r in COMPLEX.items() if r.level > 1 and whole(n)])
def test_matrices_in_rows_give_what_those_in_columns_do(name: str, tmp_path: Path) -> None:
    routine = COMPLEX[name]
    emit(tmp_path, [routine.named("z")])
    library = ctypes.CDLL(str(tmp_path / "libjangin_blas.so"))
    rng = np.random.default_rng(4)
    for options in routine.variants():
        operands: dict[str, np.ndarray] = {}
        for word in routine.operands:
            if word not in routine.real:
                shape = (
                    [value(e, SIZE) for e in routine.extent(word, options)]
                    if word in routine.extents
                    else [1]
                )
                operands[word] = rng.standard_normal(shape) + 1j * rng.standard_normal(shape)
                if len(shape) == 2 and shape[0] == shape[1]:
                    operands[word][np.diag_indices(shape[0])] += shape[0]
        results = [called(library, routine, options, layout, operands) for layout in (ROWS, COLUMNS)]
        for word in operands:
            np.testing.assert_allclose(results[0][word], results[1][word], rtol=1e-12, err_msg=f"{options}")
        assert any((results[0][w] != operands[w]).any() for w in routine.written)


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("blas")
    emit(folder, ["daxpy", "zaxpy", "dcopy", "dgemv", "dtrmm", "zdotc", "zrotg"])
    return ctypes.CDLL(str(folder / "libjangin_blas.so"))


def test_a_step_of_0_takes_one_element_each_time(library: ctypes.CDLL) -> None:
    x, y = np.arange(5.0), np.ones(3)
    library.cblas_daxpy(5, ctypes.c_double(2), pointer(x), -1, pointer(y), 0)
    np.testing.assert_array_equal(y, [21, 1, 1])
    library.cblas_daxpy(3, ctypes.c_double(1), pointer(x[3:]), 0, pointer(y), 1)
    np.testing.assert_array_equal(y, [24, 4, 4])
    library.cblas_dcopy(5, pointer(x), 1, pointer(y), 0)
    np.testing.assert_array_equal(y, [4, 4, 4])
    z, w, factor = x + 1j, np.ones(2, complex), np.array([1j])
    library.cblas_zaxpy(5, pointer(factor), pointer(z), 1, pointer(w), 0)
    np.testing.assert_array_equal(w, [1 + 1j * z.sum(), 1])
    result = np.zeros(1, complex)
    library.cblas_zdotc_sub(5, pointer(z), 0, pointer(z), -1, pointer(result))
    assert result == np.conj(z[0]) * z.sum()


def test_a_rotation_writes_r_over_the_first_number(library: ctypes.CDLL) -> None:
    for a, b in ((3 + 4j, 1 - 2j), (0j, 2j), (1 + 1j, 0j), (1e-300j, 1e-301 + 0j)):
        r, other, c, s = (np.array([z]) for z in (a, b, 0.0, 0j))
        library.cblas_zrotg(*map(pointer, (r, other, c, s)))
        np.testing.assert_allclose(r, c * a + s * b, rtol=1e-15)
        np.testing.assert_allclose(abs(r), np.hypot(abs(a), abs(b)), rtol=1e-15)
        assert other == b


def test_operands_beside_a_factor_of_0_may_be_null(library: ctypes.CDLL) -> None:
    y, b, none = np.arange(4.0), np.ones((3, 4), order="F"), ctypes.c_double(0)
    library.cblas_dgemv(COLUMNS, 111, 4, 2, none, None, 4, None, 3, ctypes.c_double(2), pointer(y), 1)
    np.testing.assert_array_equal(y, 2 * np.arange(4.0))
    library.cblas_dtrmm(COLUMNS, 141, 121, 111, 131, 3, 4, none, None, 3, pointer(b), 3)
    assert not b.any()


def test_complex_calls_are_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    """A call like an earlier one takes its own operands and factors."""
    firsts = []
    whole = calls._Call
    monkeypatch.setattr(calls, "_Call", lambda *given: (firsts.append(given), whole(*given))[1])
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x, y = (rng.standard_normal(9) + 1j * rng.standard_normal(9) for _ in "xy")
        wanted, factor = y + (seed - 2j) * x, seed - 2j
        np.testing.assert_allclose(blas.zaxpy(x, y, a=factor), wanted)
        assert blas.zdotc(x, y) == pytest.approx(np.vdot(x, y))
        assert blas.dznrm2(x) == pytest.approx(np.linalg.norm(x))
        a = np.asfortranarray(np.outer(x, y))
        np.testing.assert_allclose(blas.zgemm(factor, a, a), factor * a @ a)
        np.testing.assert_allclose(blas.zdscal(1.5 + seed, x.copy(), overwrite_x=1), (1.5 + seed) * x)
    assert len(firsts) <= 5
