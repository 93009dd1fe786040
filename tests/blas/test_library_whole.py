"""The library of all routines: Netlib's tests, and Debian's NumPy, SciPy and LAPACK with it as
libblas.so.3."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from jangin.blas.library import emit

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="a library needs a C compiler"),
]

LAPACK = Path(os.environ.get("LAPACK_SOURCE", "lapack"))
"""A checkout of Reference-LAPACK, whose tests of BLAS are run and not copied."""
NEWER = ("skewsymv", "skewsyr2", "skewsymm", "skewsyr2k")
"""Routines of drafts of the next LAPACK, which its tests name and no BLAS has yet."""
FAILURE = re.compile(r"(?<!\b0 )FAILED|FAIL\b|\*\*\*\*\*\*|SUSPECT|ABANDONED")
"""The words of Netlib's programs about a failure."""
PYTHON = Path("/usr/bin/python3")
SYSTEM = Path("/usr/lib") / f"{os.uname().machine}-linux-gnu"
"""Debian's libraries. Its reference LAPACK lies in a folder `lapack` there, and its BLAS in `blas`."""
INNER = re.compile(r"\w+sub_|CBLAS_CallFromC|RowMajorStrg")
"""Functions that only the reference's own functions of CBLAS call."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library under the system's name for BLAS. Two minutes of one processor make it."""
    folder = tmp_path_factory.mktemp("blas")
    emit(folder)
    made = folder / "libblas.so.3"
    made.symlink_to("libjangin_blas.so")  # programs that are linked with it ask for this name
    return made


def programs(folder: str, name: str) -> Path:
    """Return a source of Netlib's tests. The test is skipped if it, or gfortran, isn't here."""
    source = LAPACK.resolve() / folder / f"{name}.f"
    if shutil.which("gfortran") is None or not source.exists():
        pytest.skip("gfortran, or the checkout of Reference-LAPACK that LAPACK_SOURCE names, isn't here")
    return source


def passes(sources: Sequence[Path | str], given: str, library: Path, folder: Path) -> None:
    """Compile a program of Netlib's with the library, run it, and read what it tells."""
    includes = ["-I.", f"-I{LAPACK.resolve() / 'CBLAS' / 'include'}"]
    command = ["gfortran", "-w", "-O1", *includes, *map(str, sources), str(library), "-o", "program"]
    subprocess.run(command, cwd=folder, check=True, timeout=120)
    done = subprocess.run(
        ["./program"], cwd=folder, input=given, capture_output=True, text=True, timeout=120,
        env={**os.environ, "LD_LIBRARY_PATH": str(library.parent)},
    )  # fmt: skip
    told = done.stdout + "".join(p.read_text() for p in folder.glob("*.out"))
    # newer programs count failures, older ones tell of each
    failures = [line for line in told.splitlines() if FAILURE.search(line)]
    assert re.search(r"PASS|\b0 FAILED", told) and not failures, told[-3000:]
    assert not done.returncode, done.stderr


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("letter", "sdcz")
def test_netlibs_tests_pass(letter: str, level: int, library: Path, tmp_path: Path) -> None:
    """Netlib's own programs run on the library, with every variant, step and error exit."""
    source = programs("BLAS/TESTING", f"{letter}blat{level}")
    lacking = "".join(f"void {letter}{n}_(void) {{ abort(); }}\n" for n in NEWER)
    (tmp_path / "lacking.c").write_text(f"#include <stdlib.h>\n{lacking}")
    given = re.sub(r"(SKEW\w+ +)T", r"\1F", source.with_suffix(".in").read_text()) if level > 1 else ""
    passes([source, "lacking.c"], given, library, tmp_path)


@pytest.mark.parametrize("level", [1, 2, 3])
@pytest.mark.parametrize("letter", "sdcz")
def test_netlibs_tests_of_cblas_pass(letter: str, level: int, library: Path, tmp_path: Path) -> None:
    """The programs call CBLAS's functions on matrices in rows and in columns, with every error exit."""
    source = programs("CBLAS/testing", f"c_{letter}blat{level}")
    folder = source.parent
    (tmp_path / "cblas_mangling.h").write_text("#define F77_GLOBAL(name, NAME) name##_\n")
    lacking = "".join(f"void cblas_{letter}{n}(void) {{ abort(); }}\n" for n in NEWER)
    (tmp_path / "globals.c").write_text(f"#include <stdlib.h>\nint CBLAS_CallFromC, RowMajorStrg;\n{lacking}")
    sources = [source, folder / f"c_{letter}blas{level}.c", "globals.c"]
    given = ""
    if level > 1:
        sources += [folder / name for name in (f"c_{letter}{level}chke.c", "auxiliary.c", "c_xerbla.c")]
        given = re.sub(r"(skew\w+ +)T", r"\1F", (folder / f"{letter}in{level}").read_text())
    passes(sources, given, library, tmp_path)


def ran(library: Path, *arguments: str) -> str:
    """Return what Debian's Python prints with the library as its BLAS, and the reference LAPACK."""
    paths = os.pathsep.join(map(str, (library.parent, SYSTEM / "lapack")))
    environment = {"LD_LIBRARY_PATH": paths, "PATH": "/usr/bin:/bin", "HOME": str(library.parent)}
    command = [PYTHON, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=library.parent)
    assert not done.returncode, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def needs(library: str, *modules: str) -> None:
    """Skip the test if Debian's Python lacks modules, or if the first one of C doesn't use a library."""
    asks = f"import {', '.join(modules)}, pytest as _; print({modules[0]}.__file__)"
    there = subprocess.run([PYTHON, "-c", asks], capture_output=True, text=True) if PYTHON.exists() else None
    if there is None or there.returncode or library not in _read("readelf", "-d", there.stdout.strip()):
        pytest.skip(f"the system's Python has no {', '.join(modules)} on its {library}, with pytest")


def _read(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True).stdout


MAPS = "print(open('/proc/self/maps').read())"
"""Prints the files that a process has mapped, by the names to which links lead."""


def test_every_function_of_the_systems_blas_is_there(library: Path) -> None:
    reference = SYSTEM / "blas" / "libblas.so.3"
    if not reference.exists():
        pytest.skip("Debian's libblas3 isn't here")
    names, own = (
        {line.split()[-1] for line in _read("nm", "-D", "--defined-only", str(path)).splitlines()}
        for path in (reference, library)
    )
    assert len(names) > 300
    assert {n for n in names - own if not INNER.fullmatch(n)} == set()


def test_debians_numpy_passes_its_tests_of_linear_algebra(library: Path) -> None:
    needs("libblas.so.3", "numpy.linalg._umath_linalg", "hypothesis")
    assert str(library.resolve()) in ran(library, "-c", f"import numpy; {MAPS}")
    told = ran(library, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", "numpy.linalg")
    assert " passed" in told


def test_debians_scipy_passes_its_tests_of_blas(library: Path) -> None:
    needs("libblas.so.3", "scipy.linalg._fblas")
    assert str(library.resolve()) in ran(library, "-c", f"import scipy.linalg; {MAPS}")
    asked = "scipy.linalg.tests.test_blas"
    assert " passed" in ran(library, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--pyargs", asked)


def test_magnitudes_and_the_name_of_an_error_as_an_array(
    library: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    blas = ctypes.CDLL(str(library))
    z = (ctypes.c_double * 2)(-3.0, 4.0)
    for name in ("dcabs1_", "cblas_dcabs1"):
        function = getattr(blas, name)
        function.restype = ctypes.c_double
        assert function(z) == 7.0
    info, length = ctypes.c_int(2), ctypes.c_int(3)
    blas.xerbla_array_(b"ABCDEF", ctypes.byref(length), ctypes.byref(info))
    assert "On entry to ABC parameter number  2" in capfd.readouterr().err
