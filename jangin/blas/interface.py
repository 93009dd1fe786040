"""The C text of BLAS's own interfaces around compiled kernels: Fortran's symbols (dgemm_) and CBLAS's.

A Fortran function checks its arguments as the reference does, and returns early where it does. It brings
vectors side by side, calls the kernel of its options, and copies the result to where the caller wants it. A
CBLAS function calls Fortran's, with rows and columns exchanged for matrices in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jangin.blas.interface_batched import batch_declaration, batch_function
from jangin.blas.routine import LETTERS, SIZES, Routine
from jangin.blas.table import BATCHED

C_TYPES = {"s": "float", "d": "double"}
ENUMS = {
    "trans": "CBLAS_TRANSPOSE", "transa": "CBLAS_TRANSPOSE", "transb": "CBLAS_TRANSPOSE",
    "uplo": "CBLAS_UPLO", "diag": "CBLAS_DIAG", "side": "CBLAS_SIDE",
}  # fmt: skip
ACCEPTED = {"trans": "NTC", "transa": "NTC", "transb": "NTC"}
"""The letters that Fortran accepts for an option, if they are more than its variants."""


@dataclass(frozen=True)
class Compiled:
    """A routine of one type with its kernels. `prefixes` begin the names of their functions, in the order of
    `Routine.variants`. `inputs` and `symbols` are the names of their inputs and sizes."""

    routine: Routine
    letter: str
    prefixes: tuple[str, ...]
    inputs: tuple[str, ...]
    symbols: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.routine.named(self.letter)

    @property
    def type(self) -> str:
        return C_TYPES[self.letter]

    @property
    def result(self) -> str:
        """The C type of the function's value."""
        if "result" not in self.routine.written:
            return "void"
        own = {"iamax": "int", "dsdot": "double"}
        return own.get(self.routine.name, self.type)


def _size(text: str) -> str:
    """Return the C expression of an extent (see `Routine.extent`)."""
    if text.endswith("*"):
        n = f"(int64_t)*{text[:-1]}"
        return f"({n} * ({n} + 1) / 2)"
    return "(" + " + ".join(p if p.isdigit() else f"(int64_t)*{p}" for p in text.split("+")) + ")"


def _extents(routine: Routine, operand: str) -> tuple[str, ...]:
    """Return the C expressions of an operand's sizes, which may depend on an option."""
    text = routine.extents[operand]
    option, asks, rest = text.partition("?")
    if not asks:
        return tuple(map(_size, text.split()))
    first, _, other = rest.partition("|")
    both = zip(first.split(), other.split(), strict=True)
    return tuple(f"(o_{option.strip()} == 0 ? {_size(a)} : {_size(b)})" for a, b in both)


def _parameters(c: Compiled) -> list[str]:
    """Return the parameters of the Fortran function."""
    r, params = c.routine, []
    for word in r.words:
        if word in LETTERS:
            params.append(f"const char *{word}")
        elif word in SIZES or word.startswith(("ld", "inc")):
            params.append(f"const int *{word}")
        else:
            params.append(f"{'' if word in r.written else 'const '}{c.type} *{word}")
    return params


def fortran_declaration(c: Compiled) -> str:
    return f"{c.result} {c.name}_({', '.join(_parameters(c))})"


def fortran(c: Compiled) -> str:
    """Return the C text of the Fortran function."""
    r = c.routine
    fail = "return 0;" if c.result != "void" else "return;"
    lines = [f"{fortran_declaration(c)} {{"]
    for option in r.options:
        accepted = ACCEPTED.get(option, LETTERS[option])
        lines.append(f'  int o_{option} = option_of(*{option}, "{accepted}");')
    lines += _checks(c) if r.level > 1 else []
    lines += [f"  {line}" for line in _early(c, fail)]
    for option in r.options:
        lines.append(f"  o_{option} = o_{option} > 0;")
    for vector in r.vectors:
        (n,) = _extents(r, vector)
        copy = f"side_by_side({vector}, {n}, *inc{vector}, sizeof *{vector})"
        lines.append(f"  {c.type} *v_{vector} = ({c.type} *){copy};")
    lines += _call(c)
    return "\n".join([*lines, "}", ""])


def _checks(c: Compiled) -> list[str]:
    """Return the checks in the order of the arguments. The first that fails gives XERBLA's number."""
    r, tests = c.routine, []
    for word in r.words:
        if word in LETTERS:
            tests.append(f"o_{word} < 0")
        elif word in SIZES:
            tests.append(f"*{word} < 0")
        elif word.startswith("inc"):
            tests.append(f"*{word} == 0")
        elif word.startswith("ld"):
            tests.append(f"*{word} < least({_extents(r, word[2:])[0]})")
        else:
            tests.append("")
    chosen = " : ".join(f"{t} ? {n}" for n, t in enumerate(tests, 1) if t)
    name = c.name.upper().ljust(6)
    return [
        f"  int info = {chosen} : 0;",
        "  if (info) {",
        f'    xerbla_("{name}", &info, {len(name)});',
        "    return;",
        "  }",
    ]


def _early(c: Compiled, fail: str) -> list[str]:
    """Return the returns for calls that change nothing."""
    r = c.routine
    tests = [f"*{n} <= 0" for n in ("m", "n") if n in r.sizes]
    if r.one_sided:
        tests.append("*incx <= 0")
    if r.idle:
        tests.append(f"*{r.idle} == 0")
    if "beta" in r.scalars:
        no_product = "*k == 0 || *alpha == 0" if "k" in r.sizes and r.level == 3 else "*alpha == 0"
        tests.append(f"(({no_product}) && *beta == 1)")
    if r.name == "sdsdot":
        return ["if (*n <= 0) return *b;"]
    return [f"if ({' || '.join(tests)}) {fail}"] if tests else []


def _call(c: Compiled) -> list[str]:
    """Return the call of the kernel, and the copies of its results."""
    r = c.routine
    value = {w: f"(int64_t)*{w}" for w in r.words}
    if "k" in r.sizes and r.level == 3:
        value["k"] = "(*alpha == 0 ? 0 : (int64_t)*k)"
    sizes = ", ".join(value[s] for s in c.symbols) or "0"
    places = {n: f"v_{n}" if n in r.vectors else n for n in c.inputs}
    if "k" in r.sizes and r.level == 3:
        # kernels refuse null pointers, which matrices without elements may be
        some = f"sizes[{c.symbols.index('k')}]"
        places |= {n: f"{some} ? (const void *){n} : sizes" for n in r.matrices if n not in r.written}
    index = "0"
    for option in r.options:
        index = f"({index}) * 2 + o_{option}"
    table = ", ".join(f"{{{p}_run, {p}_arena_bytes}}" for p in c.prefixes)
    lines = [
        f"  static const kernel kernels[] = {{{table}}};",
        f"  const int64_t sizes[] = {{{sizes}}};",
        f"  const void *inputs[] = {{{', '.join(places[n] for n in c.inputs)}}};",
    ]
    outputs, after = [], []
    for name in r.written:
        out, before, then = _result(c, name)
        outputs.append(out)
        lines += before
        after += then
    lines += [
        f"  void *outputs[] = {{{', '.join(outputs)}}};",
        f"  run(&kernels[{index}], inputs, outputs, sizes);",
        *after,
    ]
    lines += [f"  if (v_{v} != {v}) free(v_{v});" for v in r.vectors]
    if "result" in r.written:
        lines.append(f"  return {'(int)result + 1' if r.name == 'iamax' else 'result'};")
    return lines


def _result(c: Compiled, name: str) -> tuple[str, list[str], list[str]]:
    """Return the address of a result's memory, its declaration, and the copy to the caller's memory."""
    r = c.routine
    if name == "result":
        return "&result", [f"  {'int64_t' if r.name == 'iamax' else c.result} result;"], []
    if name in r.scalars:
        return f"&r_{name}", [f"  {c.type} r_{name};"], [f"  *{name} = r_{name};"]
    extents = _extents(r, name)
    if name in r.in_place(c.letter):
        if name in r.matrices:
            return name, [], []
        return f"v_{name}", [], [f"  put_vector({name}, v_{name}, {extents[0]}, *inc{name}, sizeof *{name});"]
    count = " * ".join(extents)
    before = [f"  {c.type} *r_{name} = ({c.type} *)memory({count} * sizeof *{name});"]
    if name in r.matrices:
        copy = f"  put_matrix({name}, r_{name}, {extents[0]}, {extents[1]}, *ld{name}, sizeof *{name});"
    else:
        step = f"*inc{name}" if name in r.vectors else "1"
        copy = f"  put_vector({name}, r_{name}, {extents[0]}, {step}, sizeof *{name});"
    return f"r_{name}", before, [copy, f"  free(r_{name});"]


# --- CBLAS


def cblas_declaration(c: Compiled) -> str:
    r = c.routine
    params = ["CBLAS_LAYOUT layout"] if r.level > 1 else []
    for word in r.words:
        if word in LETTERS:
            params.append(f"{ENUMS[word]} {word}")
        elif word in SIZES or word.startswith(("ld", "inc")):
            params.append(f"int {word}")
        elif word in r.scalars and word not in r.written:
            params.append(f"{c.type} {word}")
        else:
            params.append(f"{'' if word in r.written else 'const '}{c.type} *{word}")
    result = "size_t" if r.name == "iamax" else c.result
    return f"{result} cblas_{c.name}({', '.join(params)})"


def cblas(c: Compiled) -> str:
    """Return the C text of the CBLAS function."""
    r = c.routine
    lines = [f"{cblas_declaration(c)} {{"]
    for option in r.options:
        lines.append(f"  char c_{option} = letter_of({option});")
    names = [*r.words]
    columns = [_passed(r, w) for w in names]
    call = f"{c.name}_({', '.join(columns)})"
    if r.name == "iamax":
        lines.append(f"  int place = {call};\n  return place > 0 ? (size_t)place - 1 : 0;")
    elif c.result != "void":
        lines.append(f"  return {call};")
    elif r.level == 1:
        lines.append(f"  {call};")
    else:
        rows = f"{c.name}_({', '.join(_passed(r, w) for w in _in_rows(r))})"
        if r.level > 1:
            lines += ["  if (layout == CblasRowMajor) {", *_turned(r), f"    {rows};"]
            lines += ["  } else if (layout == CblasColMajor) {", f"    {call};", "  } else {"]
            name = f"cblas_{c.name}"
            lines += ["    const int first = 1;", f'    xerbla_("{name}", &first, {len(name)});', "  }"]
    return "\n".join([*lines, "}", ""])


def _passed(r: Routine, word: str) -> str:
    if word in LETTERS:
        return f"&c_{word}"
    is_value = word not in r.extents and not (word in r.scalars and word in r.written)
    return f"&{word}" if is_value else word


def _in_rows(r: Routine) -> Sequence[str]:
    """Return the arguments for matrices in rows, each in the place of the one that it becomes."""
    swaps = {"m": "n", "n": "m", "kl": "ku", "ku": "kl"} if "m" in r.sizes else {}
    if r.name in ("gemm", "gemmtr"):
        swaps |= {"a": "b", "b": "a", "lda": "ldb", "ldb": "lda", "transa": "transb", "transb": "transa"}
    if r.name in ("ger", "syr2", "spr2"):
        swaps |= {"x": "y", "y": "x", "incx": "incy", "incy": "incx"}
    return [swaps.get(w, w) for w in r.words]


def _turned(r: Routine) -> list[str]:
    """Return the statements that exchange the options of matrices in rows."""
    lines = [f"    c_{o} = turned(c_{o});" for o in r.options if o in ("uplo", "side")]
    return lines + ["    c_trans = turned(c_trans);"] * ("trans" in r.options)


def header(compiled: Sequence[Compiled]) -> str:
    """Return the text of the header."""
    lines = [
        f"{batch_declaration(c)};"
        if c.routine.name in BATCHED
        else f"{cblas_declaration(c)};\n{fortran_declaration(c)};"
        for c in compiled
    ]
    return _HEADER.replace("<DECLARATIONS>", "\n".join(lines))


def source(compiled: Sequence[Compiled]) -> str:
    """Return the C text of all functions."""
    kernels = [
        f"extern int32_t {p}_run(const void *, const void *, const int64_t *, void *, int64_t, int32_t);\n"
        f"extern int64_t {p}_arena_bytes(const int64_t *, int32_t);"
        for c in compiled
        for p in c.prefixes
    ]
    functions = [
        text
        for c in compiled
        for text in ((batch_function(c),) if c.routine.name in BATCHED else (fortran(c), cblas(c)))
    ]
    return "\n".join([_COMMON, *kernels, "", *functions])


_HEADER = """/* BLAS compiled by Jangin: CBLAS's functions, and Fortran's. */
#ifndef JANGIN_BLAS_H
#define JANGIN_BLAS_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef enum { CblasRowMajor = 101, CblasColMajor = 102 } CBLAS_LAYOUT;
typedef enum { CblasNoTrans = 111, CblasTrans = 112, CblasConjTrans = 113 } CBLAS_TRANSPOSE;
typedef enum { CblasUpper = 121, CblasLower = 122 } CBLAS_UPLO;
typedef enum { CblasNonUnit = 131, CblasUnit = 132 } CBLAS_DIAG;
typedef enum { CblasLeft = 141, CblasRight = 142 } CBLAS_SIDE;
/* A program may define its own xerbla_, which is called with a routine's name and an argument's number. */
void xerbla_(const char *name, const int *info, size_t length);
int lsame_(const char *a, const char *b, size_t one, size_t other);
<DECLARATIONS>
#ifdef __cplusplus
}
#endif
#endif
"""

_COMMON = """/* BLAS's interfaces around kernels compiled by Jangin. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jangin_blas.h"

typedef struct {
  int32_t (*run)(const void *, const void *, const int64_t *, void *, int64_t, int32_t);
  int64_t (*arena_bytes)(const int64_t *, int32_t);
} kernel;

__attribute__((weak)) void xerbla_(const char *name, const int *info, size_t length) {
  fprintf(stderr, " ** On entry to %.*s parameter number %2d had an illegal value\\n", (int)length,
          name, *info);
}

/* Whether two letters are equal but for their case. */
int lsame_(const char *a, const char *b, size_t one, size_t other) {
  (void)one, (void)other;
  return (*a | 32) == (*b | 32);
}

static void *memory(int64_t bytes) {
  void *found = malloc((size_t)bytes + 1);
  if (!found) {
    fprintf(stderr, "BLAS: there is no memory for %lld bytes\\n", (long long)bytes);
    abort();
  }
  return found;
}

static void run(const kernel *k, const void *inputs, void *outputs, const int64_t *sizes) {
  int64_t bytes = k->arena_bytes(sizes, 1);
  void *arena = bytes > 0 ? memory(bytes) : NULL;
  if (k->run(inputs, outputs, sizes, arena, bytes, 1)) {
    fprintf(stderr, "BLAS: a kernel refused its sizes\\n");
    abort();
  }
  free(arena);
}

/* The place of a letter among those that are accepted, or -1. */
static int option_of(char letter, const char *accepted) {
  const char upper = letter >= 'a' && letter <= 'z' ? (char)(letter - 32) : letter;
  const char *found = upper ? strchr(accepted, upper) : NULL;
  return found ? (int)(found - accepted) : -1;
}

static int64_t least(int64_t rows) { return rows > 1 ? rows : 1; }

/* A vector's elements side by side: the caller's memory if they lie so, else a copy. */
static void *side_by_side(const void *x, int64_t n, int64_t step, size_t size) {
  if (step == 1) return (void *)x;
  char *made = (char *)memory(n * (int64_t)size);
  const char *from = (const char *)x + (step < 0 ? (1 - n) * step * (int64_t)size : 0);
  for (int64_t i = 0; i < n; ++i) memcpy(made + i * (int64_t)size, from + i * step * (int64_t)size, size);
  return made;
}

static void put_vector(void *x, const void *made, int64_t n, int64_t step, size_t size) {
  if (step == 1) {
    if (x != made) memcpy(x, made, (size_t)n * size);
    return;
  }
  char *to = (char *)x + (step < 0 ? (1 - n) * step * (int64_t)size : 0);
  for (int64_t i = 0; i < n; ++i)
    memcpy(to + i * step * (int64_t)size, (const char *)made + i * (int64_t)size, size);
}

static void put_matrix(void *a, const void *made, int64_t rows, int64_t columns, int64_t ld, size_t size) {
  for (int64_t j = 0; j < columns; ++j)
    memcpy((char *)a + j * ld * (int64_t)size, (const char *)made + j * rows * (int64_t)size,
           (size_t)rows * size);
}

static inline char letter_of(int value) {
  switch (value) {
    case 111: return 'N';
    case 112: return 'T';
    case 113: return 'C';
    case 121: return 'U';
    case 122: return 'L';
    case 131: return 'N';
    case 132: return 'U';
    case 141: return 'L';
    case 142: return 'R';
    default: return '?';
  }
}

/* The option of a matrix in rows: the other triangle, the other side, or transposed. */
static inline char turned(char option) {
  switch (option) {
    case 'U': return 'L';
    case 'L': return 'U';
    case 'R': return 'L';
    case 'N': return 'T';
    case 'T': return 'N';
    case 'C': return 'N';
    default: return option;
  }
}
"""
