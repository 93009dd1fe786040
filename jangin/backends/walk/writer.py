"""The writer of kernels: values, and the operations on them that every language has.

The walk over Loop IR (`backends.walk.kernel`) decides what a kernel does, and calls a Writer. Its operations
are those of machines: indices, masks and small types are resolved already. A writer knows one language's
syntax and nothing of Loop IR.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jangin.ir.dtype import BOOL, F32, I64, DType
from jangin.ir.expr import Scalar
from jangin.targets.rows import Row
from jangin.targets.target import Target

T = TypeVar("T")
Pointer = str
"""The name of an element's address."""
INTERLEAVED = 16
"""Bytes within which processors interleave the elements of two vectors in one instruction."""


class Value(NamedTuple):
    """A value by its name in the text. With one lane, it is the same for every lane of a vector loop.
    `number`: the number, if all lanes are this constant."""

    ref: str
    dtype: DType
    lanes: int = 1
    number: Scalar | None = None

    @property
    def is_const(self) -> bool:
        return self.number is not None


def rounded(value: Scalar, dtype: DType) -> Scalar:
    """Return a number as a type represents it. Integers wrap as in C."""
    if dtype is BOOL:
        return bool(value)
    if dtype.is_float:
        with np.errstate(over="ignore"):
            return float(np.float32(value)) if dtype is F32 else float(value)
    wrapped = int(value) & ((1 << dtype.bits) - 1)
    return wrapped - (1 << dtype.bits) if dtype.kind == "i" and wrapped >> (dtype.bits - 1) else wrapped


class Writer(ABC):
    """Writes one function's body from front to back. Each operation returns its value.

    A pure operation that was written before, in a dominating block, returns the earlier value. `state`
    distinguishes equal loads of changed memory. Operands of one operation have equal lanes, except that a
    scalar condition may select vectors. `lo`, `hi`: the range of tasks to run. `most_lanes`: of a vector.
    """

    lo: Value
    hi: Value
    most_lanes: int = 1 << 20

    def __init__(self, target: Target) -> None:
        self.target = target
        self.lines: list[str] = []
        self.constants: dict[tuple[object, DType], Value] = {}
        self._count = 0
        self._known: dict[object, Any] = {}
        self._scopes: list[list[object]] = [[]]
        self._found: dict[tuple[str, DType, int], Row] = {}

    # --- names

    def fresh(self, prefix: str = "v") -> str:
        self._count += 1
        return f"{prefix}{self._count}"

    def remembered(self, key: object, make: Callable[[], T]) -> T:
        """Return the name or value that `make` returned for a key in a dominating block, or returns now."""
        entry: T | None = self._known.get(key)
        if entry is None:
            entry = self._known[key] = make()
            self._scopes[-1].append(key)
        return entry

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Write, inside the context, a part that need not dominate the code after it."""
        self._scopes.append([])
        yield
        for key in self._scopes.pop():
            del self._known[key]

    @abstractmethod
    def op(self, text: str, dtype: DType, lanes: int = 1, state: str = "") -> Value:
        """Write a pure operation of the language, unless it was written before, and return its value."""

    def weakest(self, texts: Sequence[str], dtype: DType, lanes: int, state: str) -> Value:
        """Return the value of the last of several loads, or of an earlier (less masked) one that is written
        already."""
        for text in texts[:-1]:
            ref = self._known.get(text + state)
            if ref is not None:
                return Value(ref, dtype, lanes)
        return self.op(texts[-1], dtype, lanes, state)

    def row(self, name: str, dtype: DType, lanes: int = 0) -> Row:
        """Return the target's row for an operation on `lanes` values of a type (0: any number)."""
        row = self._found.get((name, dtype, lanes))
        if row is None:
            row = self.target.row(name, dtype, lanes)
            assert row is not None, f"{self.target.name} has no row for {name} of {dtype}"
            self._found[name, dtype, lanes] = row
        return row

    @abstractmethod
    def has_text(self, row: Row) -> bool:
        """Return whether a row has text in this language. Otherwise its expansion, if any, is evaluated."""

    # --- the function's arguments

    @abstractmethod
    def parameter(self, number: int) -> Pointer:
        """Return the address of a buffer argument of the kernel."""

    @abstractmethod
    def size(self, number: int) -> Value:
        """Return an integer argument of the kernel."""

    # --- work-groups

    def work_item(self) -> Value | None:
        """Return the number (i64) of the current work-item in its group. It is None in languages without
        groups, whose code loops over the work-items."""
        return None

    def shared(self, dtype: DType, at: Value) -> Pointer:
        """Return the address `at` bytes into a group's shared memory."""
        raise NotImplementedError

    def barrier(self) -> None:
        """Write a barrier: it waits until all work-items of the group arrive, and makes visible what they
        wrote."""
        raise NotImplementedError

    def when_last(self, tile: Value, shares: int, then: Callable[[], None]) -> None:
        """Write the work of the last of the `shares` groups that make a tile. It sees all that they stored to
        launch memory."""
        raise NotImplementedError

    @property
    def asynchronous(self) -> bool:
        """Whether `copy_apart` has text."""
        return False

    def copy_apart(self, to: Pointer, at: Pointer, whole: Value, ahead: Sequence[int]) -> None:
        """Copy 16 bytes from memory to a group's shared memory beside the work that follows. Set them to 0 if
        not `whole`.

        The bytes lie `ahead` of the addresses `to` and `at`, and are aligned. The next barrier waits for the
        copy (`wait_at_barriers`)."""
        raise NotImplementedError

    def wait_at_barriers(self) -> None:
        """Let each barrier that is written so far, and the kernel's end, wait for the copies before it."""
        raise NotImplementedError

    # --- values of lanes

    def constant(self, value: Scalar, dtype: DType) -> Value:
        """Return a scalar constant, wrapped or rounded to its type."""
        key = (value or repr(value), dtype)  # 0.0 and -0.0 are equal
        constant = self.constants.get(key)
        if constant is None:
            number = rounded(value, dtype)
            constant = self.constants[key] = Value(self.literal(number, dtype), dtype, 1, number)
        return constant

    def index(self, value: int) -> Value:
        """Return an i64 constant."""
        return self.constant(value, I64)

    @abstractmethod
    def literal(self, number: Scalar, dtype: DType) -> str:
        """Return a scalar constant, rounded to its type."""

    @abstractmethod
    def zeros(self, dtype: DType, lanes: int) -> Value: ...

    @abstractmethod
    def iota(self, lanes: int, dtype: DType, step: int = 1) -> Value:
        """Return the vector 0, step, 2*step..."""

    @abstractmethod
    def broadcast(self, v: Value, lanes: int) -> Value:
        """Return the value in every lane. A value of this many lanes is returned unchanged."""

    def unify(self, *values: Value) -> Sequence[Value]:
        """Return values broadcast to the lanes of the widest."""
        lanes = values[0].lanes
        for v in values:
            if v.lanes != lanes:
                break
        else:
            return values
        lanes = max([v.lanes for v in values])
        return [self.broadcast(v, lanes) for v in values]

    def like(self, value: Scalar, v: Value) -> Value:
        """Return a constant with the type and lanes of `v`."""
        return self.broadcast(self.constant(value, v.dtype), v.lanes)

    @abstractmethod
    def lane(self, v: Value, number: int) -> Value: ...

    @abstractmethod
    def from_lanes(self, parts: Sequence[Value]) -> Value:
        """Return a vector of these scalars."""

    @abstractmethod
    def shuffle(self, a: Value, b: Value | None, picks: Sequence[int]) -> Value:
        """Return the lanes `picks` from the lanes of `a` followed by those of `b`."""

    @abstractmethod
    def any_lane(self, mask: Value) -> Value:
        """Return whether some lane of a mask is set."""

    # --- arithmetic

    @abstractmethod
    def binary(self, op: str, x: Value, y: Value) -> Value:
        """Return the result of an operation: add, sub, mul, div, rem, and, or, xor, shl, shr, udiv, urem;
        also min and max of i64. Integers wrap.

        div and rem of integers truncate and must not trap. shl and shr are by fewer than the type's bits.
        udiv and urem are unsigned.
        """

    @abstractmethod
    def compare(self, op: str, x: Value, y: Value) -> Value:
        """Return whether a comparison holds: lt, le, gt, ge, eq, ne as in Loop IR; ule is unsigned. For
        floats, "unordered" means that one is NaN, and "apart" that neither is and they differ."""

    @abstractmethod
    def select(self, cond: Value, x: Value, y: Value) -> Value: ...

    def extreme(self, op: str, x: Value, y: Value) -> Value:
        """Return the lesser (`op` is min) or the greater (max) of integers."""
        return self.select(self.compare("lt" if op == "min" else "gt", x, y), x, y)

    @abstractmethod
    def negate(self, x: Value) -> Value:
        """Return a float with the other sign."""

    @abstractmethod
    def absolute(self, x: Value) -> Value:
        """Return a float without its sign."""

    @abstractmethod
    def cast(self, dtype: DType, x: Value) -> Value:
        """Return x converted as in C, between integers or floats, of integers to floats, or from bool. (Rows
        convert floats to integers.)"""

    @abstractmethod
    def bitcast(self, dtype: DType, x: Value) -> Value: ...

    @abstractmethod
    def instruction(self, name: str, dtype: DType, result: DType, *values: Value) -> Value:
        """Return the result of the target's row `name` for an operation of a type on values called x, y and
        z."""

    @abstractmethod
    def function(self, name: str, *args: Value) -> Value:
        """Return the result of a function of C's mathematical library, by its name for f64, on scalars."""

    @abstractmethod
    def power(self, base: Value, exponent: Value) -> Value:
        """Return base**exponent modulo 2**64, of i64 scalars; the exponent is unsigned."""

    # --- memory

    @abstractmethod
    def registers(self, dtype: DType, count: int) -> Pointer:
        """Return the address of a new local array, whose elements end up in registers."""

    @abstractmethod
    def scratch(self, dtype: DType, at: Value) -> Pointer:
        """Return the address `at` bytes into the scratch memory."""

    @abstractmethod
    def step(self, dtype: DType, start: Pointer, by: Value) -> Pointer:
        """Return the address of the element `by` elements after another."""

    @abstractmethod
    def load(
        self,
        dtype: DType,
        lanes: int,
        at: Pointer,
        state: str,
        masks: Sequence[Value] = (),
        *,
        aligned: bool = False,
    ) -> Value:
        """Return the element, or a row of `lanes` elements, at an address.

        Lanes that the last of `masks` switches off touch no memory and may have any value. Each mask implies
        those before it, so an earlier load under fewer masks serves too. `aligned`: the row begins a multiple
        of its lanes after its buffer's start.
        """

    @abstractmethod
    def gather(
        self, dtype: DType, at: Pointer, index: Value, state: str, masks: Sequence[Value] = ()
    ) -> Value:
        """Return an element for each lane, `index` elements after `at`. `masks`: as in `load`."""

    @abstractmethod
    def store(self, at: Pointer, v: Value, mask: Value | None = None, *, aligned: bool = False) -> None:
        """Store an element, or a row of elements: the counterpart of `load`."""

    @abstractmethod
    def scatter(self, at: Pointer, index: Value, v: Value, mask: Value) -> None:
        """Store an element for each lane, `index` elements after `at`. If two lanes store to one element, the
        later wins."""

    @abstractmethod
    def prefetch(self, dtype: DType, at: Pointer) -> None:
        """Prefetch a cache line for reading."""

    # --- matrix registers

    def tile(self, name: str, dtype: DType, **operands: str) -> None:
        """Write the target's row for an operation on matrix registers, given by their numbers."""
        raise NotImplementedError

    def tiles(self, shapes: Sequence[tuple[int, int]]) -> None:
        """Declare the matrix registers that were used: the rows of each, and the bytes of a row."""
        raise NotImplementedError

    # --- matrices that the lanes of a warp share

    def multiply(self, row: Row, total: Pointer, left: Pointer, right: Pointer) -> None:
        """Write a row that adds a product of matrices to a third, given by the lane's registers of each."""
        raise NotImplementedError

    def load_matrices(self, count: int, to: Pointer, at: Pointer, *, transposed: bool) -> None:
        """Load the lane's part of matrices of 8 by 8 elements of 16 bits to its registers.

        Lane n says where row n % 8 of matrix n // 8 is, in shared memory at a multiple of 16 bytes. Each lane
        gets two neighbours in a row, or in a column if `transposed`.
        """
        raise NotImplementedError

    # --- blocks

    @abstractmethod
    def loop(self, first: Value, end: Value, body: Callable[[Value], None], *, entered: bool) -> None:
        """Write `for i in [first, end)`. `entered`: it is known to run at least once."""

    @abstractmethod
    def when(self, cond: Value, then: Callable[[], None], other: Callable[[], None] | None = None) -> None:
        """Write a condition, under which `then` runs, or else `other`."""

    @abstractmethod
    def choose(self, cond: Value, then: Callable[[], Value], other: Callable[[], Value]) -> Value:
        """Return the value of one of two pieces of code, of which only one runs; both have the same type."""

    # --- operations made of the others

    def flip(self, cond: Value) -> Value:
        """Return the negation of a condition."""
        return self.binary("xor", cond, self.broadcast(self.constant(True, BOOL), cond.lanes))

    def by_lane(self, scalar: Callable[..., Value], *args: Value) -> Value:
        """Return a vector of a scalar function's results for each lane of the arguments."""
        args = tuple(self.unify(*args))
        lanes = args[0].lanes
        if lanes == 1:
            return scalar(*args)
        return self.from_lanes([scalar(*(self.lane(a, n) for a in args)) for n in range(lanes)])

    def turned(self, rows: Sequence[Value]) -> Sequence[Value]:
        """Return the columns of a square tile, given its rows.

        Halves of two rows are exchanged, then halves of these, down to the size that can be interleaved.
        """
        lanes = len(rows)
        block, size = max(1, min(lanes, INTERLEAVED // rows[0].dtype.bytes)), lanes
        while size > block:
            size //= 2
            low = [j + lanes - size if j & size else j for j in range(lanes)]
            high = [j + lanes if j & size else j + size for j in range(lanes)]
            rows = [
                self.shuffle(rows[i & ~size], rows[i | size], high if i & size else low) for i in range(lanes)
            ]
        half = block // 2
        firsts = [j // block * block + j % block // 2 + lanes * (j % 2) for j in range(lanes)]
        picks = firsts, [p + half for p in firsts]
        for _ in range(block.bit_length() - 1):
            rows = [
                self.shuffle(rows[g + i // 2], rows[g + i // 2 + half], picks[i % 2])
                for g in range(0, lanes, block)
                for i in range(block)
            ]
        return rows
