"""The numbers of wrong arguments that the emitted library tells, for every argument in both layouts."""

from __future__ import annotations

import ctypes
import itertools
import re
import shutil
import subprocess
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pytest
from blas_cases import value

from jangin.blas.interface import Compiled, header, source
from jangin.blas.interface_batched import batch_declaration
from jangin.blas.interface_cblas import ENUMS, VALUES, cblas_declaration
from jangin.blas.routine import LETTERS, SIZES, Routine
from jangin.blas.table import BATCHED, COMPLEX, ROUTINES

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="a library needs a C compiler")

ROWS, COLUMNS = 101, 102
SIZE = {"m": 4, "n": 6, "k": 3, "kl": 2, "ku": 1}
NUMBERS = {
    "CblasNoTrans": 111, "CblasTrans": 112, "CblasConjTrans": 113, "CblasUpper": 121, "CblasLower": 122,
    "CblasNonUnit": 131, "CblasUnit": 132, "CblasLeft": 141, "CblasRight": 142,
}  # fmt: skip
"""The values of the standard's header of CBLAS."""
HANDLERS = """
int told, from_fortran;
char message[200];
void xerbla_(const char *name, const int *info, size_t length) {
  (void)name, (void)length;
  from_fortran = *info;
}
void cblas_xerbla(int info, const char *name, const char *form, ...) {
  va_list values;
  (void)name;
  told = info;
  va_start(values, form);
  vsnprintf(message, sizeof message, form, values);
  va_end(values);
}
"""
"""The functions of a program that has its own handlers of errors."""


def _inputs(r: Routine) -> tuple[str, ...]:
    return tuple(w for w in r.operands if w not in r.updates)


def interfaces() -> list[Compiled]:
    """Return routines of doubles with the names of kernels that compute nothing."""
    tables = [("d", ROUTINES), ("z", COMPLEX), ("d", BATCHED)]
    return [
        Compiled(r, t, ("nothing",) * len([*r.variants()]), _inputs(r), r.sizes)
        for t, table in tables
        for r in table.values()
        if r.level > 1
    ]


MATRICES = [c for c in interfaces() if c.routine.name not in BATCHED]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The interfaces around a kernel that computes nothing: what they refuse doesn't depend on kernels."""
    folder, compiled = tmp_path_factory.mktemp("blas"), interfaces()
    (folder / "jangin_blas.h").write_text(header(compiled))
    (folder / "interfaces.c").write_text(source(compiled))
    kernel = (
        "int nothing_run(void *a, void *b, void *c, void *d, long e, int f) { return 0; }\n"
        "long nothing_arena_bytes(void *a, int b) { return 0; }\n"
    )
    text = f"#include <stdarg.h>\n#include <stdio.h>\n{HANDLERS}{kernel}"
    (folder / "handlers.c").write_text(text)
    command = ["gcc", "-w", "-O0", "-shared", "-fPIC", "-o", "library.so", "interfaces.c", "handlers.c"]
    subprocess.run(command, cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "library.so"))


def signature(declaration: str) -> dict[str, str]:
    """Return the types of a C function's arguments by name, in order."""
    inner = declaration[declaration.index("(") + 1 : -1]
    return {re.split(r"[ *]", p)[-1]: re.sub(r"\w+$", "", p).strip() for p in inner.split(",")}


def number_told(
    library: ctypes.CDLL,
    name: str,
    types: Mapping[str, str],
    given: Mapping[str, int],
    null: Collection[str] = (),
    factor: float = 0.5,
) -> int:
    """Call a function of CBLAS. Return the number in the message about a wrong argument, or 0. Factors that
    it takes by address are 0."""
    memory = np.zeros(400)
    arguments: list[Any] = []
    for word, kind in types.items():
        if "*" in kind:
            arguments.append(None if word in null else ctypes.c_void_p(memory.ctypes.data))
        else:
            arguments.append(ctypes.c_double(factor) if kind == "double" else given[word])
    told, message = ctypes.c_int.in_dll(library, "told"), (ctypes.c_char * 200).in_dll(library, "message")
    told.value, message.value = 0, b""
    getattr(library, name)(*arguments)
    number = re.search(rb"\d+", message.value)
    return int(number[0]) if number else 0


def least(c: Compiled, layout: int, matrix: str, options: Mapping[str, str]) -> int:
    """Return the least leading dimension: the elements of a row or a column, or of a column of a band."""
    rows, columns = (value(e, SIZE) for e in c.routine.extent(matrix, options))
    in_rows = layout == ROWS and "+" not in c.routine.extents[matrix]
    return columns if in_rows else rows


def rightly(c: Compiled, layout: int, options: Mapping[str, str]) -> dict[str, int]:
    """Return numbers for all arguments that no function refuses. Leading dimensions are the least."""
    numbers = {**SIZE, "layout": layout}
    numbers |= {o: NUMBERS[VALUES[ENUMS[o]][letter]] for o, letter in options.items()}
    numbers |= {f"inc{v}": 1 for v in c.routine.vectors}
    return numbers | {f"ld{m}": least(c, layout, m, options) for m in c.routine.matrices}


@pytest.mark.parametrize("layout", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("c", MATRICES, ids=[c.name for c in MATRICES])
def test_a_wrong_argument_is_told_by_its_place_in_the_call(
    c: Compiled, layout: int, library: ctypes.CDLL
) -> None:
    types, r = signature(cblas_declaration(c)), c.routine
    number = {word: n for n, word in enumerate(types, 1)}
    for options in r.variants():
        right = rightly(c, layout, options)
        wrong = {"layout": (0, 103, 111)}
        for word in r.words:
            if word in LETTERS:
                own = {NUMBERS[v] for v in VALUES[ENUMS[word]].values()}
                wrong[word] = (0, -1, *({*NUMBERS.values()} - own))
            elif word in SIZES:
                wrong[word] = (-1,)
            elif word.startswith("inc"):
                wrong[word] = (0,)
            elif word.startswith("ld"):
                wrong[word] = (right[word] - 1, 0, -5)
        assert number_told(library, f"cblas_{c.name}", types, right) == 0
        for word, values in wrong.items():
            for bad in values:
                told = number_told(library, f"cblas_{c.name}", types, {**right, word: bad})
                assert told == number[word], f"{word}={bad} of {options}"
        ordered = ["layout", *r.options]
        for first, second in itertools.combinations(ordered, 2):
            both = {**right, first: 0, second: 0}
            assert number_told(library, f"cblas_{c.name}", types, both) == number[first]


FACTORED = [c for c in MATRICES if "alpha" in c.routine.scalars]


@pytest.mark.parametrize("layout", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("c", FACTORED, ids=[c.name for c in FACTORED])
def test_operands_beside_a_factor_of_0_may_be_null(c: Compiled, layout: int, library: ctypes.CDLL) -> None:
    """Vectors are copied before the kernel runs, also to make them conjugate for matrices in rows."""
    types, r = signature(cblas_declaration(c)), c.routine
    null = {n for n in r.extents if n not in r.written}
    for options in r.variants():
        for step in (1, 2, -1):
            right = rightly(c, layout, options) | {f"inc{v}": step for v in r.vectors}
            assert number_told(library, f"cblas_{c.name}", types, right, null, 0.0) == 0


NETLIBS = {
    "gemm": {4: 5, 5: 4, 9: 11, 11: 9}, "gemmtr": {9: 11, 11: 9}, "symm": {4: 5, 5: 4}, "hemm": {4: 5, 5: 4},
    "trmm": {6: 7, 7: 6}, "trsm": {6: 7, 7: 6}, "gemv": {3: 4, 4: 3}, "gbmv": {3: 4, 4: 3, 5: 6, 6: 5},
    "ger": {2: 3, 3: 2, 6: 8, 8: 6}, "geru": {2: 3, 3: 2, 6: 8, 8: 6}, "gerc": {2: 3, 3: 2, 6: 8, 8: 6},
    "her2": {6: 8, 8: 6}, "hpr2": {6: 8, 8: 6},
}  # fmt: skip
"""The numbers that Netlib's handler exchanges for matrices in rows, by routine."""


@pytest.mark.parametrize("layout", [ROWS, COLUMNS], ids=["rows", "columns"])
@pytest.mark.parametrize("c", MATRICES, ids=[c.name for c in MATRICES])
def test_a_handler_like_netlibs_exchanges_the_numbers_back(
    c: Compiled, layout: int, library: ctypes.CDLL
) -> None:
    types, r = signature(cblas_declaration(c)), c.routine
    right = rightly(c, layout, next(r.variants()))
    told = ctypes.c_int.in_dll(library, "told")
    for number, word in enumerate(types, 1):
        if word in right:
            wrong = 0 if word.startswith(("inc", "ld")) or word in LETTERS else -1
            number_told(library, f"cblas_{c.name}", types, {**right, word: wrong})
            exchanged = NETLIBS.get(r.name, {}) if layout == ROWS else {}
            assert exchanged.get(told.value, told.value) == number, word


@pytest.mark.parametrize("c", MATRICES, ids=[c.name for c in MATRICES])
def test_fortrans_functions_tell_their_own_numbers(c: Compiled, library: ctypes.CDLL) -> None:
    memory, r = np.zeros(400), c.routine
    options = next(r.variants())
    told = ctypes.c_int.in_dll(library, "from_fortran")
    for number, wrong in enumerate(r.words, 1):
        if wrong in r.operands:
            continue
        arguments: list[Any] = []
        for word in r.words:
            bad = word == wrong
            if word in LETTERS:
                arguments.append(ctypes.c_char_p(b"?" if bad else options[word].lower().encode()))
            elif word in r.operands:
                arguments.append(ctypes.c_void_p(memory.ctypes.data))
            else:
                right = SIZE.get(word, 9 if word.startswith("ld") else 1)
                arguments.append(ctypes.byref(ctypes.c_int((-1 if word in SIZES else 0) if bad else right)))
        told.value = 0
        getattr(library, f"{c.name}_")(*arguments)
        assert told.value == number, wrong


@pytest.mark.parametrize("layout", [ROWS, COLUMNS], ids=["rows", "columns"])
def test_batches_tell_their_own_numbers(layout: int, library: ctypes.CDLL) -> None:
    (c,) = (c for c in interfaces() if c.routine.name in BATCHED)
    types = signature(batch_declaration(c).replace("\n", " "))
    right = {**SIZE, "layout": layout, "transa": 111, "transb": 112, "batch": 2}
    right |= {"lda": 3 if layout == ROWS else 4, "ldb": 3 if layout == ROWS else 6}
    right |= {"ldc": 6 if layout == ROWS else 4, "stridea": 30, "strideb": 30, "stridec": 30}
    assert number_told(library, "cblas_dgemm_batch_strided", types, right) == 0
    for number, word in enumerate(types, 1):
        if word in right and not word.startswith("stride"):
            bad = right[word] - 1 if word.startswith("ld") else -1 if word in SIZES else 131
            told = number_told(library, "cblas_dgemm_batch_strided", types, {**right, word: bad})
            assert told == number, word
