"""Many products at once: `dgemm_strided_batched(alpha, a, b)` for arrays, `dgemm_batched` for lists.

Names are cuBLAS's. Matrices are NumPy's, so their rows or columns may lie side by side. One kernel takes the
place of every matrix, so that a batch needs no copies and all threads share its tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from jangin.blas.calls import BlasError
from jangin.blas.compiled import is_device, run
from jangin.blas.routine import NUMPY, PLACES, Routine
from jangin.blas.table import BATCHED, on_device
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.runtime.arrays import address

WORDS = (
    "transa", "transb", "m", "n", "k", "alpha", "a", "lda", "stridea", "b", "ldb", "strideb", "beta",
    "c", "ldc", "stridec", "batch",
)  # fmt: skip
"""The arguments in the order of the strided call of C, without the layout. XERBLA gives a place in it."""
NAMES = {f"{t}{n}": (t, n) for t in "sd" for n in ("gemm_strided_batched", "gemm_batched")}
"""The functions, with the letter of their type and the name without it."""


@dataclass(frozen=True)
class Matrices:
    """The matrices of one operand, each of so many `rows` and `columns`.

    `held` begins with the first element of the first matrix, and `offsets` are the places of all matrices
    behind it. `turned` is whether a matrix lies in columns; else it lies in rows. `leading` is the leading
    dimension."""

    held: Array
    offsets: Array
    rows: int
    columns: int
    turned: bool
    leading: int


def _lying(matrix: Array) -> tuple[bool, int] | None:
    """Return whether a matrix lies in columns, and its leading dimension. None if it lies in neither way."""
    size = matrix.itemsize
    if not matrix.size:
        return False, max(1, matrix.shape[1])
    for turned, a in ((False, matrix), (True, matrix.T)):
        (lines, length), (step, one) = a.shape, a.strides
        fits = lines <= 1 or (step % size == 0 and step >= size * max(1, length))
        if fits and (length <= 1 or one == size):
            return turned, max(1, step // size if lines > 1 else length)
    return None


def _strided(a: Array) -> Matrices | None:
    """Return the matrices of an array [batch, rows, columns], if they lie in one way without a copy."""
    lying = _lying(a[0])
    if lying is None or a.strides[0] % a.itemsize:
        return None
    offsets = np.arange(len(a), dtype=np.int64) * (a.strides[0] // a.itemsize)
    return Matrices(a, offsets, a.shape[1], a.shape[2], *lying)


def _listed(matrices: Sequence[Array]) -> Matrices | None:
    """Return matrices that lie anywhere in memory, if all lie in one way."""
    first = matrices[0]
    ways = {(_lying(a), (address(a) - address(first)) % a.itemsize) for a in matrices}
    lying = _lying(first)
    if lying is None or len(ways) > 1:
        return None
    places = np.array([address(a) for a in matrices], np.int64)
    rows, columns = first.shape
    return Matrices(first, (places - places[0]) // first.itemsize, rows, columns, *lying)


class _Batch:
    """A call of a batched routine, with its options, sizes and operands converted to what the kernel
    takes."""

    def __init__(self, letter: str, name: str, strided: bool, target: str | None) -> None:
        self.letter, self.name, self.strided = letter, f"{letter}{name}".upper(), strided
        self.target = target
        self.routine: Routine = BATCHED["gemm_strided_batched"]
        self.dtype = NUMPY[letter]

    def wrong(self, argument: str, why: str) -> BlasError:
        number = WORDS.index(argument) + 1
        told = f"had an illegal value: {argument} {why}"
        return BlasError(f"On entry to {self.name} parameter number {number} {told}")

    def read(self, name: str, value: Any) -> list[Array] | Array:
        """Return an operand of the routine's type: an array with three axes, or a list of matrices."""
        if self.strided:
            a = np.asarray(value, self.dtype)
            if a.ndim not in (2, 3):
                raise self.wrong(name, f"has {a.ndim} axes, not 2 or 3")
            return a if a.ndim == 3 else a[None]
        matrices = [np.asarray(m, self.dtype) for m in value]
        shapes = sorted({m.shape for m in matrices})
        if any(len(s) != 2 for s in shapes) or len(shapes) > 1:
            raise self.wrong(name, f"has matrices of the shapes {', '.join(map(str, shapes))}, not of one")
        return matrices

    def matrices_of(self, a: list[Array] | Array) -> Matrices | None:
        """Return where an operand's matrices lie, or None if they don't lie in one way."""
        return _listed(a) if isinstance(a, list) else _strided(a)

    def matrices(self, a: list[Array] | Array, batch: int) -> Matrices:
        """Return an operand's matrices, which are copied if they must be. One may stand for the batch."""
        if not isinstance(a, list) and len(a) != batch:
            a = np.broadcast_to(a, (batch, *a.shape[1:]))
        lying = self.matrices_of(a) or self.matrices_of(np.array(a, order="C"))
        assert lying is not None, "a new array lies in rows"
        return lying

    def extents(
        self, a: list[Array] | Array, b: list[Array] | Array, c: Any, turned: tuple[bool, bool]
    ) -> tuple[int, int, int]:
        """Return the rows and columns of a product, and its number of terms. All shapes must fit."""
        left, right = (x[0].shape if isinstance(x, list) and x else np.shape(x)[1:] or (0, 0) for x in (a, b))
        m, depth = left[::-1] if turned[0] else left
        rows, n = right[::-1] if turned[1] else right
        if rows != depth:
            raise self.wrong("b", f"has matrices of the shape {right}, and {depth} terms are needed")
        shape = None if c is None or not len(c) else c[0].shape
        if shape not in (None, (m, n)):
            raise self.wrong("c", f"has matrices of the shape {shape}, and {m, n} is needed")
        return m, n, depth

    def option(self, name: str, value: Any) -> bool:
        if value not in range(3):
            raise self.wrong(name, f"is {value!r}, not 0 to 2")
        return bool(value)

    def batch(self, **operands: list[Array] | Array | None) -> int:
        """Return the number of products. A single matrix of a strided call is used for all of them."""
        counts = {name: len(a) for name, a in operands.items() if a is not None}
        batch = next((n for n in counts.values() if n != 1 or not self.strided), 1)
        for name, count in counts.items():
            if count != batch and (count != 1 or name == "c" or not self.strided):
                raise self.wrong(name, f"has {count} matrices, and {batch} are needed")
        return batch

    def multiply(
        self,
        factors: tuple[Any, Any],
        a: list[Array] | Array,
        b: list[Array] | Array,
        c: Matrices,
        turned: tuple[bool, bool],
        depth: int,
    ) -> None:
        """Write the products into c, which lies in rows. In columns it is transposed, as are a and b, which
        change their places."""
        left, right = (self.matrices(x, len(c.offsets)) for x in (b, a))
        options = {
            "transa": "NT"[turned[1] ^ left.turned],
            "transb": "NT"[turned[0] ^ right.turned],
        }
        sizes = {"m": c.columns, "n": c.rows, "k": depth, "batch": len(c.offsets)}
        sizes |= {"lda": left.leading, "ldb": right.leading, "ldc": c.leading}
        offsets = np.stack([left.offsets, right.offsets, c.offsets], axis=1)
        alpha, beta = (np.asarray(f, self.dtype) for f in factors)
        held = {"alpha": alpha, "a": left.held, "b": right.held, "beta": beta, "c": c.held, PLACES: offsets}
        run(self.routine, self.letter, options, held, sizes, self.target)

    def on_device(
        self, factors: tuple[Any, Any], given: Sequence[Any], turned: tuple[bool, bool], shape: Sequence[int]
    ) -> Array:
        """Return the products of a, b and maybe c by a device with memory of its own."""
        batch, m, n, depth = shape
        alpha, beta = (np.asarray(f, self.dtype) for f in factors)
        a, b, c = (np.zeros((batch, m, n), self.dtype) if x is None else np.asarray(x) for x in given)
        whole = (np.broadcast_to(x, (batch, *x.shape[1:])).T for x in (b, a, c))
        held = dict(zip("abc", whole, strict=True)) | {"alpha": alpha, "beta": beta}
        options = {"transa": "NT"[turned[1]], "transb": "NT"[turned[0]]}
        sizes = {"m": n, "n": m, "k": depth, "batch": batch}
        routine = on_device(self.routine.name, self.letter)
        return run(routine, self.letter, options, held, sizes, self.target)[0]


def function(name: str, target: str | None = None) -> Callable[..., Any]:
    """Return a function of `NAMES` for a target."""
    letter, called = NAMES[name]
    strided = called == "gemm_strided_batched"

    def call(
        alpha: float,
        a: Any,
        b: Any,
        beta: float = 0.0,
        c: Any = None,
        trans_a: int = 0,
        trans_b: int = 0,
        overwrite_c: int = 0,
    ) -> Any:
        batch = _Batch(letter, called, strided, target)
        return _result(batch, (alpha, beta), (a, b, c), (trans_a, trans_b), bool(overwrite_c))

    kind = "an array [batch, m, n]" if strided else "a list of matrices"
    call.__name__ = call.__qualname__ = name
    call.__doc__ = f"Return alpha op(a) op(b) + beta c for each matrix of a batch, as {kind}."
    return call


def _result(
    call: _Batch, factors: tuple[Any, Any], given: tuple[Any, ...], trans: tuple[Any, Any], overwrite: bool
) -> Any:
    """Return the products of a call: new memory, or the caller's c if it may be overwritten."""
    turned = call.option("transa", trans[0]), call.option("transb", trans[1])
    a, b = call.read("a", given[0]), call.read("b", given[1])
    c = None if given[2] is None else call.read("c", given[2])
    shape = (call.batch(a=a, b=b, c=c), *call.extents(a, b, c, turned))
    target = c if overwrite and c is not None and _is_own(call, c, given[2]) else None
    if 0 not in shape[:3] and is_device(call.target):
        result = call.on_device(factors, (a, b, c), turned, shape)
        for matrix, product in zip(result[:0] if target is None else target, result, strict=False):
            matrix[...] = product
        return given[2] if target is not None else result if call.strided else [*result]
    lying = None if target is None or 0 in shape[:3] else call.matrices_of(target)
    if lying is None or lying.turned:
        result = np.zeros(shape[:3], call.dtype) if factors[1] else np.empty(shape[:3], call.dtype)
        if c is not None:
            result[...] = c
        lying = call.matrices_of(result) if 0 not in shape[:3] else None
    if lying is not None:
        call.multiply(factors, a, b, lying, turned, shape[3])
    if target is None:
        return result if call.strided else list(result)
    if lying is not None and lying.held is not target[0] and lying.held is not target:
        for matrix, product in zip(target, lying.held, strict=True):
            matrix[...] = product
    return given[2]


def _is_own(call: _Batch, c: list[Array] | Array, given: Any) -> bool:
    """Return whether c is the caller's own memory, which may be written. Each element has its own place."""
    matrices = list(c)
    written = [given] if call.strided else list(given)
    own = all(isinstance(x, np.ndarray) and x.dtype == call.dtype and x.flags.writeable for x in written)
    alone = len({address(x) for x in matrices}) == len(matrices)
    return own and alone and all(0 not in x.strides for x in matrices)
