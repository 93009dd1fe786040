"""The description of a BLAS routine: its arguments as Fortran has them, as SciPy has them, and its kernel."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.ir.dtype import BF16, F16, F32, F64, DType
from jangin.ir.records import dataclass
from jangin.once import once

if TYPE_CHECKING:
    from jangin.blas.kernel import Kernel
    from jangin.ops.values import Tensor

TYPES: Mapping[str, DType] = {"s": F32, "d": F64, "h": F16, "b": BF16}
"""The type of elements by the letter before a routine's name."""
PAIRS: Mapping[str, DType] = {"c": F32, "z": F64}
"""The type of the real and the imaginary part of complex elements, which lie side by side."""
NUMPY_REALS: Mapping[str, Any] = {t: d.numpy for t, d in (*TYPES.items(), *PAIRS.items())}
NUMPY: Mapping[str, Any] = {**NUMPY_REALS, "c": np.complex64, "z": np.complex128}
"""NumPy's types of elements, and of real factors and results, by the letter."""
LETTERS: Mapping[str, str] = {
    "trans": "NT", "transa": "NT", "transb": "NT", "uplo": "UL", "diag": "NU", "side": "LR",
}  # fmt: skip
"""The values of each option, in the order of SciPy's numbers 0, 1. Other letters become one of these."""
MIXED: Mapping[str, Mapping[str, str]] = {
    "scal_real": {"c": "csscal", "z": "zdscal"},
    "rot": {"c": "csrot", "z": "zdrot"},
    "asum": {"c": "scasum", "z": "dzasum"},
    "nrm2": {"c": "scnrm2", "z": "dznrm2"},
}
"""The names of complex routines with real factors or results."""
CONJUGATED = "NTC"
"""The values of an option of complex routines that transposes: not, transposed, conjugate and transposed."""
SIZES = ("m", "n", "k", "kl", "ku", "batch")
PLACES = "offsets"
"""The operand with the place of each matrix of a batch: one row for each product, in elements."""


@dataclass(frozen=True)
class Routine:
    """One routine in every type.

    - `arguments`: in Fortran's order, so that XERBLA's number is a place in it.
    - `scipy`: the call of `scipy.linalg.blas`, optional arguments in brackets.
    - `extents`: rows and columns of a matrix, or the length of another operand, by its name. A text
      "trans? m n | n m" depends on an option: the second part counts unless the option is its first letter.
    - `results`: the operands that the routine writes; "result" is a function's value.
    - `body`: builds the kernel.
    - `types`: the letters of the types that exist.
    - `returns`: what SciPy's function returns, by default `results`.
    - `updates`: the written operands that kernels of singles and doubles update where they lie.
    - `placed`: whether it runs on a device with memory of its own, where operands have no gaps.
    """

    name: str
    level: int
    arguments: str
    scipy: str
    extents: Mapping[str, str]
    results: str
    body: Callable[[Kernel], Tensor | tuple[Tensor, ...]]
    types: str = "sd"
    returns: str = ""
    updates: tuple[str, ...] = ()
    placed: bool = False

    def named(self, letter: str) -> str:
        """Return the routine's name for a type: dgemm, idamax."""
        if self.name in ("sdsdot", "dsdot"):
            return self.name
        if self.name in MIXED and letter in PAIRS:
            return MIXED[self.name][letter]
        return f"i{letter}{self.name[1:]}" if self.name == "iamax" else f"{letter}{self.name}"

    @once
    def returned(self) -> tuple[str, ...]:
        return tuple(self.returns.split()) or self.written

    @once
    def words(self) -> tuple[str, ...]:
        return tuple(self.arguments.split())

    @once
    def written(self) -> tuple[str, ...]:
        return tuple(self.results.split())

    @once
    def options(self) -> tuple[str, ...]:
        return tuple(w for w in self.words if w in LETTERS)

    def letters(self, option: str) -> str:
        """Return the values of an option."""
        if not option.startswith("trans") or self.types != "cz":
            return LETTERS[option]
        of_one_kind = {"syrk": "NT", "syr2k": "NT", "herk": "NC", "her2k": "NC"}
        return of_one_kind.get(self.name, CONJUGATED)

    def accepted(self, option: str) -> str:
        """Return the letters that callers may pass for an option, which may be more than its values."""
        is_real = option.startswith("trans") and self.types != "cz"
        return CONJUGATED if is_real else self.letters(option)

    @once
    def sizes(self) -> tuple[str, ...]:
        return tuple(w for w in self.words if w in SIZES)

    @once
    def matrices(self) -> tuple[str, ...]:
        """The operands with a leading dimension."""
        return tuple(w for w in self.words if w in self.extents and f"ld{w}" in self.words)

    def in_place(self, letter: str) -> tuple[str, ...]:
        """Return the matrices that the kernel updates where they lie, with their leading dimensions."""
        return self.updates if letter in "sdcz" and not self.placed else ()

    @once
    def vectors(self) -> tuple[str, ...]:
        """The operands with an increment."""
        return tuple(w for w in self.words if w in self.extents and f"inc{w}" in self.words)

    @once
    def packed(self) -> tuple[str, ...]:
        """The operands whose elements lie without gaps."""
        return tuple(w for w in self.words if w in self.extents and w not in (*self.matrices, *self.vectors))

    @once
    def scalars(self) -> tuple[str, ...]:
        known = {*self.options, *self.sizes, *self.extents}
        steps = {f"{kind}{w}" for w in self.extents for kind in ("ld", "inc")}
        return tuple(w for w in self.words if w not in known | steps)

    @once
    def real(self) -> tuple[str, ...]:
        """The factors that are real numbers though the elements are complex."""
        known = {"scal_real": ("a",), "rot": ("c", "s"), "rotg": ("c",), "her": ("alpha",), "hpr": ("alpha",)}
        return {**known, "herk": ("alpha", "beta"), "her2k": ("beta",)}.get(self.name, ())

    @once
    def is_real(self) -> bool:
        """Whether the function's value is real though the elements are complex, or a place."""
        return self.name in ("asum", "nrm2", "iamax")

    @once
    def idle(self) -> str:
        """The factor that leaves every operand as it is if it is 0, or "" if there is none."""
        if self.name == "axpy":
            return "a"
        return "alpha" if self.level == 2 and "alpha" in self.scalars and "beta" not in self.scalars else ""

    @once
    def of_a_triangle(self) -> bool:
        """Whether the routine writes a triangle of a matrix."""
        return self.name in ("syr", "syr2", "syrk", "syr2k", "gemmtr", "her", "her2", "herk", "her2k")

    @once
    def one_sided(self) -> bool:
        """Whether the routine does nothing for a step of 0 or less."""
        return self.name in ("asum", "scal", "scal_real", "iamax")

    @once
    def in_order(self) -> tuple[str, ...]:
        """The arrays in the order of SciPy's arguments. The first of them give the sizes."""
        names = self.scipy.replace("[", "").replace("]", "").split(",")
        return tuple(n for n in names if n in self.extents)

    def matrices_before(self, name: str) -> bool:
        """Return whether a matrix stands before an operand, so that its sizes are the matrix's."""
        return any(n in self.matrices for n in self.in_order[: self.in_order.index(name)])

    @once
    def operands(self) -> tuple[str, ...]:
        """The arguments that the kernel reads from memory, in order."""
        return tuple(w for w in self.words if w in self.extents or w in self.scalars)

    def extent(self, operand: str, options: Mapping[str, str]) -> tuple[str, ...]:
        """Return the sizes of an operand, each a name or a sum of names and numbers without spaces."""
        text = self.extents[operand]
        option, asks, rest = text.partition("?")
        if asks:
            first, _, other = rest.partition("|")
            text = first if options[option.strip()] == LETTERS[option.strip()][0] else other
        return tuple(text.split())

    def variants(self) -> Iterator[dict[str, str]]:
        """Yield every choice of the options. Each is a kernel of its own."""
        for letters in itertools.product(*(self.letters(o) for o in self.options)):
            yield dict(zip(self.options, letters, strict=True))
