"""The C text of CBLAS's functions, which make Fortran's calls.

Matrices in rows are those in columns, transposed: rows and columns are exchanged, and options turned. A
transposed Hermitian matrix is its conjugate, so that vectors are conjugate beside it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jangin.blas.routine import LETTERS, SIZES, Routine

if TYPE_CHECKING:
    from jangin.blas.interface import Compiled

ENUMS = {
    "trans": "CBLAS_TRANSPOSE", "transa": "CBLAS_TRANSPOSE", "transb": "CBLAS_TRANSPOSE",
    "uplo": "CBLAS_UPLO", "diag": "CBLAS_DIAG", "side": "CBLAS_SIDE",
}  # fmt: skip
VALUES = {
    "CBLAS_TRANSPOSE": {"N": "CblasNoTrans", "T": "CblasTrans", "C": "CblasConjTrans"},
    "CBLAS_UPLO": {"U": "CblasUpper", "L": "CblasLower"},
    "CBLAS_DIAG": {"N": "CblasNonUnit", "U": "CblasUnit"},
    "CBLAS_SIDE": {"L": "CblasLeft", "R": "CblasRight"},
}
"""CBLAS's names of Fortran's letters. Several types share a letter, but not its value."""
HERMITIAN = ("hemv", "hbmv", "hpmv", "her", "hpr", "her2", "hpr2", "gerc")
"""The routines whose vectors become conjugate for matrices in rows."""
WITH_FACTORS = ("hemv", "hbmv", "hpmv", "gemv", "gbmv", "her2k")
"""The routines whose complex factors become conjugate too."""


def _is_value(c: Compiled, word: str) -> bool:
    """Return whether CBLAS passes an argument by value. Complex numbers are passed by address."""
    r = c.routine
    if word in r.extents or (word in r.scalars and word in r.written):
        return False
    return word not in r.scalars or c.letter in "sd" or word in r.real


def cblas_declaration(c: Compiled) -> str:
    r = c.routine
    params = ["CBLAS_LAYOUT layout"] if r.level > 1 else []
    for word in r.words:
        if word in LETTERS:
            params.append(f"{ENUMS[word]} {word}")
        elif word in SIZES or word.startswith(("ld", "inc")):
            params.append(f"int {word}")
        elif _is_value(c, word):
            params.append(f"{c.type_of(word)} {word}")
        else:
            kind = c.type_of(word) if c.letter in "sd" or word in r.real else "void"
            params.append(f"{'' if word in r.written else 'const '}{kind} *{word}")
    result, name = "size_t" if r.name == "iamax" else c.result, f"cblas_{c.name}"
    if c.result.endswith("_Complex"):
        result, name, params = "void", f"{name}_sub", [*params, "void *result"]
    return f"{result} {name}({', '.join(params)})"


def called(c: Compiled) -> str:
    """Return the name of the function behind Fortran's and CBLAS's, which returns a wrong argument's
    number."""
    return f"call_{c.name}"


def cblas(c: Compiled) -> str:
    """Return the C text of the CBLAS function."""
    r = c.routine
    lines = [f"{cblas_declaration(c)} {{"]
    if r.level > 1:
        return "\n".join([*lines, *_checked(c), "}", ""])
    call = f"{c.name}_({', '.join(_passed(c, w) for w in r.words)})"
    if r.name == "iamax":
        lines.append(f"  int place = {call};\n  return place > 0 ? (size_t)place - 1 : 0;")
    elif c.result.endswith("_Complex"):
        lines.append(f"  *({c.result} *)result = {call};")
    elif c.result != "void":
        lines.append(f"  return {call};")
    else:
        lines.append(f"  {call};")
    return "\n".join([*lines, "}", ""])


def _checked(c: Compiled) -> list[str]:
    """Return the statements of a routine with matrices. Like Netlib's, they check the layout and the options
    in CBLAS's order, and leave the rest to Fortran's checks."""
    r = c.routine
    tests = ["layout != CblasRowMajor && layout != CblasColMajor ? 1"]
    for option in r.options:
        values = [VALUES[ENUMS[option]][letter] for letter in r.accepted(option)]
        refused = " && ".join(f"{option} != {v}" for v in values)
        tests.append(f"{refused} ? {r.words.index(option) + 2}")
    tell = f'cblas_xerbla(%s, "cblas_{c.name}", ILLEGAL, %s);'
    lines = [f"  int info = {' : '.join(tests)} : 0;", "  if (info) {"]
    lines += [f"    {tell % ('info', 'info')}", "    return;", "  }"]
    lines += [f"  char c_{option} = letter_of({option});" for option in r.options]
    columns = ", ".join(_passed(c, w) for w in r.words)
    numbers = ", ".join(str(r.words.index(w) + 2) for w in _in_rows(r))
    return [
        *lines,
        "  if (layout == CblasRowMajor) {",
        f"    static const int numbers[] = {{1, {numbers}}};",
        *(f"    {line}" for line in _of_rows(c)),
        f"    if (info) {tell % ('info + 1', 'numbers[info]')}",
        "  } else {",
        f"    info = {called(c)}({columns});",
        f"    if (info) {tell % ('info + 1', 'info + 1')}",
        "  }",
    ]


def _passed(c: Compiled, word: str) -> str:
    if word in LETTERS:
        return f"&c_{word}"
    return f"&{word}" if _is_value(c, word) else word


def _of_rows(c: Compiled) -> list[str]:
    """Return the call for matrices in rows."""
    before, after, own = _conjugates(c) if c.letter in "cz" else ([], [], {})
    words = (own.get(w, _passed(c, w)) for w in _in_rows(c.routine))
    return [*before, *_turned(c.routine), f"info = {called(c)}({', '.join(words)});", *after]


def _conjugates(c: Compiled) -> tuple[list[str], list[str], Mapping[str, str]]:
    """Return the statements before and after a call that make vectors and factors conjugate, and the
    arguments that stand for others."""
    r, before, after = c.routine, [], []
    own: dict[str, str] = {}
    always = r.name in HERMITIAN or r.name == "her2k"
    if not always and not (r.level == 2 and "trans" in r.options):
        return [], [], {}
    before.append(f"const int conjugates = {'1' if always else 'trans == CblasConjTrans'};")
    for vector in r.vectors:
        n = "m" if vector == "x" and "m" in r.sizes else "n"
        if vector in r.written:
            change = f"if (conjugates) conjugate_{c.letter}({vector}, {n}, inc{vector});"
            before.append(change)
            after.append(change)
            continue
        if "alpha" in r.scalars:  # the operand beside an alpha of 0 may be a null pointer
            alpha = "alpha" if _is_value(c, "alpha") else f"*(const {c.type} *)alpha"
            n = f"{alpha} != 0 ? {n} : 0"
        copy = f"conjugated_{c.letter}({vector}, {n}, inc{vector})"
        before.append(f"const void *u_{vector} = conjugates ? {copy} : {vector};")
        before.append(f"const int step_{vector} = conjugates && inc{vector} ? 1 : inc{vector};")
        after.append(f"if (conjugates) free((void *)u_{vector});")
        own |= {vector: f"u_{vector}", f"inc{vector}": f"&step_{vector}"}
    for name in (n for n in r.scalars if r.name in WITH_FACTORS and not _is_value(c, n)):
        before.append(f"{c.type} f_{name} = *(const {c.type} *){name};")
        before.append(f"if (conjugates) conjugate_{c.letter}(&f_{name}, 1, 1);")
        own[name] = f"&f_{name}"
    return before, after, own


def _in_rows(r: Routine) -> Sequence[str]:
    """Return the arguments for matrices in rows, each in the place of the one that it becomes."""
    swaps = {"m": "n", "n": "m", "kl": "ku", "ku": "kl"} if "m" in r.sizes else {}
    if r.name in ("gemm", "gemmtr"):
        swaps |= {"a": "b", "b": "a", "lda": "ldb", "ldb": "lda", "transa": "transb", "transb": "transa"}
    if r.name in ("ger", "geru", "gerc", "her2", "hpr2"):
        swaps |= {"x": "y", "y": "x", "incx": "incy", "incy": "incx"}
    return [swaps.get(w, w) for w in r.words]


def _turned(r: Routine) -> list[str]:
    """Return the statements that exchange the options of matrices in rows."""
    pairs = [o for o in r.options if o in ("uplo", "side")]
    turns = "trans" in r.options
    if turns and r.types == "cz" and len(r.letters("trans")) == 2:
        pairs.append("trans")
        turns = False
    letters = {o: r.letters(o) for o in pairs}
    lines = [f"c_{o} = exchanged(c_{o}, '{two[0]}', '{two[1]}');" for o, two in letters.items()]
    return lines + ["c_trans = turned(c_trans);"] * turns
