"""The kernel of a routine under construction: its operands, sizes and options.

A matrix arrives as Fortran stores it, column after column. Its tensor has a row for each column, as long as
the leading dimension, so sub-matrices need no copy. A vector's elements lie side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jangin.blas.numbers import scaled
from jangin.blas.routine import PAIRS, PLACES, TYPES, Routine
from jangin.ir.dtype import I64, DType
from jangin.ir.expr import Expr, ExprLike, Var, cast, const
from jangin.ir.graph import Graph
from jangin.ir.loop import Stmt
from jangin.ir.te import accumulator
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor
from jangin.targets.machine import Machine


class Kernel:
    """The operands that a routine's body reads, and the functions that it makes results with.

    `dtype` is the type of the elements, or of both parts of complex ones. `parts` is the number of parts of
    an element. They lie side by side, and shapes count parts. `options` has the letter of each option.
    `operands` are the arguments by name. `threads` is the number that a large call is made for."""

    def __init__(
        self,
        routine: Routine,
        letter: str,
        options: Mapping[str, str],
        machine: Machine,
        threads: int = 1,
    ) -> None:
        self.routine, self.dtype, self.options = routine, PAIRS.get(letter) or TYPES[letter], options
        self.parts = 2 if letter in PAIRS else 1
        self.machine, self.threads = machine, threads
        names = (*routine.sizes, *(f"ld{m}" for m in routine.matrices if not routine.placed))
        self.b = Builder(f"{letter}{routine.name}", {Var(n): (const(0), None) for n in names})
        self.in_place = routine.in_place(letter)
        read = (n for n in routine.operands if n not in self.in_place)
        self.operands = {n: self.b.input(n, self._type(n), self._shape(n)) for n in read}

    def _type(self, name: str) -> DType:
        """Return the type of an operand. Scalars beside small floats have the type of sums."""
        if name == PLACES:
            return I64
        return accumulator(self.dtype) if name in self.routine.scalars else self.dtype

    def _shape(self, name: str) -> tuple[Expr, ...]:
        if name not in self.routine.extents:
            return (const(2),) if self.parts == 2 and name not in self.routine.real else ()
        extents = [self.size(e) for e in self.routine.extent(name, self.options)]
        if name in self.routine.matrices:
            extents = [*extents[:0:-1], extents[0] if self.routine.placed else Var(f"ld{name}")]
        shape = [*self._batch(name), *extents]
        return (*shape[:-1], shape[-1] * self.parts)

    def size(self, text: str) -> Expr:
        """Return a size, given its name, a number, or a sum of these. "n*" is the length of a packed
        triangle."""
        if text.endswith("*"):
            n = Var(text[:-1])
            return n * (n + 1) // 2
        parts = [const(int(p)) if p.isdigit() else Var(p) for p in text.split("+")]
        total: Expr = parts[0]
        for p in parts[1:]:
            total = total + p
        return total

    def is_set(self, option: str) -> bool:
        """Return whether an option differs from its first letter: transposed, lower, unit, from the right."""
        return self.options[option] != {"side": "L", "uplo": "U"}.get(option, "N")

    @property
    def is_transposed(self) -> bool:
        """Return whether a triangle is transposed before it is applied to vectors."""
        option = "trans" if "trans" in self.options else "transa"
        return self.is_set(option) ^ ("side" in self.options and self.is_set("side"))

    @property
    def order(self) -> Expr:
        """The rows and columns of a triangular or symmetric matrix."""
        return Var("m" if "side" in self.options and not self.is_set("side") else "n")

    def __getitem__(self, name: str) -> Tensor:
        return self.operands[name]

    def matrix(self, name: str) -> Tensor:
        """Return a matrix without what lies between its columns, transposed: [columns, rows]."""
        rows, columns = (self.size(e) for e in self.routine.extent(name, self.options))
        return self.b.slice(self[name], (0, 0), (columns, rows), (1, 1))

    def elements(
        self, shape: Sequence[ExprLike], names: str, element: Callable[..., Any], dtype: DType | None = None
    ) -> Tensor:
        """Return a tensor of elements: `element(*operands, *index)`, with the operands of these names as
        buffers."""
        operands = [self[n] for n in names.split()]
        return self.b.compute(dtype or self.dtype, shape, operands, lambda bufs, *at: element(*bufs, *at))

    def total(
        self,
        count: Expr,
        names: str,
        term: Callable[..., Expr],
        after: Callable[[Expr], ExprLike] | None = None,
        combiner: str = "sum",
        dtype: DType | None = None,
    ) -> Tensor:
        """Return a scalar: the terms `term(*operands, i)` combined, and `after` of the result."""
        operands = [self[n] for n in names.split()]
        return self.b.reduction(
            dtype or self.dtype, (), [count], combiner, operands,
            lambda bufs, _, k: term(*bufs, k[0]), after and (lambda acc, _: after(acc)),
        )  # fmt: skip

    def nest(self, names: str, body: Stmt, like: str) -> Tensor:
        """Return the result of a loop nest over operands x0, x1, ..., which is the written operand `like`."""
        return self.b.loop_nest([self[n] for n in names.split()], body, self.dtype, self.result(like))

    def result(self, name: str) -> tuple[Expr, ...]:
        """Return the shape of a written operand as the kernel has it."""
        if name in self.in_place:
            return self._shape(name)
        extents = [self.size(e) for e in self.routine.extent(name, self.options)]
        return (*self._batch(name), *reversed(extents[1:]), extents[0] * self.parts)

    def _batch(self, name: str) -> tuple[Expr, ...]:
        """Return the first size of a batch's matrices on a device, whose places are known."""
        is_batch = self.routine.placed and "batch" in self.routine.sizes and name in self.routine.matrices
        return (self.size("batch"),) if is_batch else ()

    def updated(self, product: Tensor, before: Tensor) -> Tensor:
        """Return alpha product + beta before. A factor of 0 leaves its operand out, even if that is NaN."""
        operands = product, before, self["alpha"], self["beta"]
        return self.b.map(lambda *values: cast(self.dtype, sum_of_scaled(*values)), *operands)

    def graph(self) -> Graph:
        """Return the routine's graph. Its outputs are the written operands, in order."""
        outputs = self.routine.body(self)
        results = outputs if isinstance(outputs, tuple) else (outputs,)
        return self.b.graph(results, [f"{n}_out" for n in self.routine.written])


def sum_of_scaled(product: Expr, before: Expr, alpha: Expr, beta: Expr) -> Expr:
    total: Expr = scaled(alpha, cast(alpha.dtype, product)) + scaled(beta, cast(beta.dtype, before))
    return total
