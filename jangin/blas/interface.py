"""The C text of BLAS's own interfaces around compiled kernels: Fortran's symbols (dgemm_) and CBLAS's.

A call checks its arguments as the reference does, and returns early where it does. It brings vectors side by
side, calls the kernel of its options, and copies the result to where the caller wants it. Fortran's and
CBLAS's functions make the same call. CBLAS's exchange rows and columns of matrices in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from jangin.blas.interface_batched import batch_declaration, batch_function
from jangin.blas.interface_cblas import called, cblas, cblas_declaration
from jangin.blas.interface_text import COMMON, HEADER
from jangin.blas.routine import LETTERS, SIZES, Routine
from jangin.blas.table import BATCHED

C_TYPES = {"s": "float", "d": "double", "c": "float _Complex", "z": "double _Complex"}
REALS = {"s": "float", "d": "double", "c": "float", "z": "double"}
"""The type of a part of an element."""


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
        if self.routine.name == "iamax":
            return "int"
        if self.routine.name == "dsdot":
            return "double"
        return REALS[self.letter] if self.routine.is_real else self.type

    def type_of(self, word: str) -> str:
        """Return the C type of an argument's elements. Some factors of complex routines are real."""
        return REALS[self.letter] if word in self.routine.real else self.type


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
            params.append(f"{'' if word in r.written else 'const '}{c.type_of(word)} *{word}")
    return params


def fortran_declaration(c: Compiled) -> str:
    return f"{c.result} {c.name}_({', '.join(_parameters(c))})"


def fortran(c: Compiled) -> str:
    """Return the C text of the Fortran function. Above level 1 a function of its own makes the call and
    returns the number of a wrong argument, or 0."""
    r = c.routine
    fail = "return 0;" if r.level > 1 or c.result != "void" else "return;"
    parameters = ", ".join(_parameters(c))
    lines = [f"static int {called(c)}({parameters}) {{" if r.level > 1 else f"{fortran_declaration(c)} {{"]
    for option in r.options:
        lines.append(f'  int o_{option} = option_of(*{option}, "{r.accepted(option)}");')
    lines += _checks(c) if r.level > 1 else []
    lines += [f"  {line}" for line in _early(c, fail)]
    lines += _element_by_element(c)
    for option in r.options:
        if len(r.letters(option)) == 2:
            lines.append(f"  o_{option} = o_{option} > 0;")
    if _reads(r):
        lines.append("  const int reads = *alpha != 0;")
    for vector in r.vectors:
        (n,) = _extents(r, vector)
        if _reads(r) and vector not in r.written:
            n = f"reads ? {n} : 0"
        copy = f"side_by_side({vector}, {n}, *inc{vector}, sizeof *{vector})"
        lines.append(f"  {c.type} *v_{vector} = ({c.type} *){copy};")
    lines += _call(c)
    if r.level > 1:
        name = c.name.upper().ljust(6)
        lines += ["  return 0;", "}", "", f"{fortran_declaration(c)} {{"]
        lines.append(f"  const int info = {called(c)}({', '.join(r.words)});")
        lines.append(f'  if (info) xerbla_("{name}", &info, {len(name)});')
    return "\n".join([*lines, "}", ""])


def _reads(r: Routine) -> bool:
    """Return whether a factor alpha of 0 leaves operands out, which may be null pointers then."""
    return "alpha" in r.scalars and r.level > 1


def _element_by_element(c: Compiled) -> list[str]:
    """Return the work of level 1 with a step of 0, where each element follows the one before."""
    r = c.routine
    if r.level > 1 or len(r.vectors) < 2 or not {*r.vectors} & {*r.written}:
        return []
    one = {"n": "&one"}
    one |= {f"inc{v}": "&one" for v in r.vectors}
    one |= {v: f"{v} + place_of(i, *n, *inc{v})" for v in r.vectors}
    call = ", ".join(one.get(w, w) for w in r.words)
    return [
        f"  if (*n > 1 && ({' || '.join(f'*inc{v} == 0' for v in r.vectors)})) {{",
        "    const int one = 1;",
        f"    for (int64_t i = 0; i < *n; ++i) {c.name}_({call});",
        "    return;",
        "  }",
    ]


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
    return [f"  const int info = {chosen} : 0;", "  if (info) return info;"]


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
    # kernels refuse null pointers, which operands without elements may be
    some = "reads" if _reads(r) else ""
    if "k" in r.sizes and r.level == 3:
        some = f"sizes[{c.symbols.index('k')}]"
    if some:
        read = [n for n in r.extents if n not in r.written]
        places |= {n: f"{some} ? (const void *){places[n]} : sizes" for n in read}
    index = "0"
    for option in r.options:
        index = f"({index}) * {len(r.letters(option))} + o_{option}"
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
        return f"&r_{name}", [f"  {c.type_of(name)} r_{name};"], [f"  *{name} = r_{name};"]
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


def header(compiled: Sequence[Compiled]) -> str:
    """Return the text of the header."""
    lines = [
        f"{batch_declaration(c)};"
        if c.routine.name in BATCHED
        else f"{cblas_declaration(c)};\n{fortran_declaration(c)};"
        for c in compiled
    ]
    return HEADER.replace("<DECLARATIONS>", "\n".join(lines))


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
    return "\n".join([COMMON, *kernels, "", *functions])
