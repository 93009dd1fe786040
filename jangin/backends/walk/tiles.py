"""Matrix registers: each nest over tile buffers is one instruction.

The last two axes of a tile buffer are the rows r and the columns c of matrices. The axes before them select a
matrix, by numbers. If the machine has matrix registers, only whole matrices are touched, by nests of four
forms:

```
tile[.., r, c] = 0
tile[.., r, c] = memory[..]                           c is contiguous, rows are evenly far apart
memory[..] = tile[.., r, c]                           likewise
tile[.., r, c] = tile[.., r, c] + dot(a[.., r, k], b[.., k, c])
```

On other machines tile buffers are local arrays, and the nests run as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from jangin.backends.walk.expressions import Expressions
from jangin.backends.walk.index import constant_shape
from jangin.backends.walk.writer import Pointer, Value
from jangin.ir.dtype import I64
from jangin.ir.expr import Binary, Buffer, Call, Const, Expr, Load, Var, const
from jangin.ir.graph import CompileError
from jangin.ir.loop import For, Stmt, Store
from jangin.ir.simplify import Range, linear, simplify
from jangin.ir.traversal import free_vars, loads, row_major, substitute
from jangin.targets.rows import TILE_BYTES, TILE_ROWS, TILES


class Tiles:
    """The matrix registers of one kernel. `shapes`: the rows of each, and the bytes of a row."""

    def __init__(self, kernel: str, x: Expressions) -> None:
        self._kernel, self._x, self._w = kernel, x, x.w
        self.shapes: list[tuple[int, int]] = []
        self._free: set[int] = set()
        self._numbers: dict[str, list[int]] = {}

    def holds(self, buffer: Buffer) -> bool:
        """Return whether the machine has registers for a tile buffer, and the language has words for them."""
        row = self._w.target.row("tile_load", buffer.dtype)
        return row is not None and self._w.has_text(row)

    @contextmanager
    def allotted(self, buffer: Buffer) -> Iterator[None]:
        """Allocate a register for each matrix of a buffer, inside the context."""
        *lead, rows, columns = constant_shape(buffer) or (0, 0)
        shape = rows, columns * buffer.dtype.bytes
        if not (1 <= rows <= TILE_ROWS and 1 <= shape[1] <= TILE_BYTES):
            raise CompileError(
                f"{self._kernel}: no matrix register has the {rows} rows of {shape[1]} bytes of {buffer.name}"
            )
        own = [self._take(shape) for _ in range(math.prod(lead))]
        self._numbers[buffer.name] = own
        yield
        del self._numbers[buffer.name]
        self._free.update(own)

    def _take(self, shape: tuple[int, int]) -> int:
        number = next((n for n in sorted(self._free) if self.shapes[n] == shape), len(self.shapes))
        if number == TILES:
            raise CompileError(f"{self._kernel}: its matrices need more than {TILES} registers")
        if number == len(self.shapes):
            self.shapes.append(shape)
        self._free.discard(number)
        return number

    def nest(self, s: Stmt) -> bool:
        """Write a nest over a matrix's rows and columns as one instruction, and return True.

        Return False for a nest that touches no matrices. Raises CompileError if there is no instruction for
        it.
        """
        if not self._numbers:
            return False
        loops = dict[Var, Expr]()
        while isinstance(s, For) and s.kind in ("serial", "vector", "unroll"):
            loops[s.var] = s.extent
            s = s.body
        if not isinstance(s, Store):
            return False
        own = [n for n in (Load(s.buffer, s.index), *loads(s.value)) if n.buffer.name in self._numbers]
        along = {v for n in own for i in n.index[-2:] for v in free_vars(i)}
        if not own or along < loops.keys():
            return False
        whole = all(self._is_whole(n, loops) for n in own)
        if not (whole and along == loops.keys() and self._said(s, loops)):
            raise CompileError(
                f"{self._kernel}: no instruction on matrices does {s.buffer.name}{list(map(str, s.index))} = "
                f"{s.value} over {', '.join(f'{v} in {n}' for v, n in loops.items()) or 'no loops'}"
            )
        return True

    def _is_whole(self, access: Load, loops: Mapping[Var, Expr]) -> bool:
        """Return whether loops go over all rows and columns of a matrix. A single row or column has no
        loop."""
        rows, columns = access.index[-2:]
        return (rows != columns or rows == const(0)) and all(
            loops.get(i) == n if isinstance(i, Var) else i == const(0) and n == const(1)
            for i, n in zip((rows, columns), access.buffer.shape[-2:], strict=True)
        )

    def _said(self, s: Store, loops: Mapping[Var, Expr]) -> bool:
        value, at, numbers = s.value, Load(s.buffer, s.index), self._numbers
        if self._x.ix.lane is not None:
            return False
        if s.buffer.name not in numbers:
            if not isinstance(value, Load) or not self._moved("tile_store", "x", value, at, loops):
                return False
            self._x.memory.written(s.buffer.name)
            return True
        if value == const(0, at.dtype):
            self._w.tile("tile_zero", at.dtype, r=self._number(at))
            return True
        if isinstance(value, Load) and value.buffer.name not in numbers:
            return self._moved("tile_load", "r", at, value, loops)
        return self._multiplied(at, value)

    def _moved(self, name: str, operand: str, tile: Load, place: Load, loops: Mapping[Var, Expr]) -> bool:
        """Load a matrix from memory, or store it there. Return False, with nothing written, if the elements
        have no layout for it."""
        memory = self._memory(place, tile.index[-2:], loops) if place.dtype is tile.dtype else None
        if memory is None:
            return False
        operands = {operand: self._number(tile), "memory": memory[0], "stride": memory[1].ref}
        self._w.tile(name, tile.dtype, **operands)
        return True

    def _multiplied(self, at: Load, value: Expr) -> bool:
        parts = (value.a, value.b) if isinstance(value, Binary) and value.op == "add" else ()
        words = next((p for p in parts if isinstance(p, Call) and p.product is not None), None)
        if words is None or words.product is None or at not in parts:
            return False
        a, b = words.args
        if not (isinstance(a, Load) and isinstance(b, Load)):
            return False
        if not {a.buffer.name, b.buffer.name} <= self._numbers.keys():
            return False
        row, (rows, columns) = self._w.target.matrix_row(words.product), at.index[-2:]
        if (a.index[-2], b.index[-1]) != (rows, columns) or a.index[-1] != b.index[-2]:
            return False
        if row is None or at.dtype is not words.product.total:
            return False
        self._w.tile(row.name, at.dtype, r=self._number(at), x=self._number(a), y=self._number(b))
        return True

    def _number(self, access: Load) -> str:
        """Return the number of the register of the matrix that an access touches."""
        lead = row_major(access.index[:-2], access.buffer.shape[:-2])
        number = self._x.ix.condition(lead)
        if not isinstance(number, Const):
            raise CompileError(f"{self._kernel}: which matrix of {access.buffer.name} is {lead} isn't known")
        return str(self._numbers[access.buffer.name][int(number.value)])

    def _memory(
        self, access: Load, lines: tuple[Expr, ...], loops: Mapping[Var, Expr]
    ) -> tuple[Pointer, Value] | None:
        """Return the address in memory of a matrix's elements at the rows and columns `lines`, and the bytes
        from row to row. Return None if the elements have no such layout."""
        ix = self._x.ix
        numbers: dict[Var, Expr] = {v: const(n) for v, n in ix.numbers.items()}
        ranges: dict[Var, Range] = {**ix.ranges, **{v: (const(0), n - 1) for v, n in loops.items()}}
        flat = simplify(substitute(row_major(access.index, access.buffer.shape), numbers), ranges)
        steps = []
        for along in lines:
            parts = linear(flat, along) if isinstance(along, Var) else (const(1), flat)
            if parts is None:
                return None
            steps.append(parts[0])
        if steps[1] != const(1):
            return None
        stride = self._x.evaluate(simplify(steps[0] * const(access.dtype.bytes, I64), ranges))
        first = tuple(substitute(i, dict.fromkeys(loops, const(0))) for i in access.index)
        return self._x.memory.pointer(access.buffer, ix.flat(access.buffer, first)), stride
