"""Kernels that each access memory under one kind of mask, for several numbers of active lanes.

A kernel moves vectors between rows of memory and a plain array, and converts them on the way. All bytes
around a stored row are guards. A loaded row begins or ends at a page boundary, and the pages beside it can't
be read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from jangin.ir.dtype import BF16, BOOL, F8E4M3FN, F16, F32, F64, I8, I16, I32, I64, U8, U16, U32, U64, DType
from jangin.ir.expr import Buffer, Expr, Load, Var, binary, call, cast, const, eq, select
from jangin.ir.graph import Array
from jangin.ir.loop import For, Func, If, Stmt, Store, block
from jangin.targets import Target

TYPES = (I8, U8, I16, U16, I32, U32, I64, U64, F8E4M3FN, F16, BF16, F32, F64, BOOL)
_STORES = "store", "store step 2", "store step 3", "scatter", "blend"
WAYS = "load", "load step 2", "load step 3", "gather", *_STORES
"""The ways to access memory. A blend loads a whole row, changes the active lanes, and stores the whole
row."""
MASKS = ("first", "last", "one", "both", "running")
"""The masks: a vector's first lanes are active, its last ones, a single one, or some in the middle by two
conditions. `running` has its first lanes active, and their number is known only when the kernel runs."""
PAGE = 4096
"""Bytes of a page on the machines that the tests run on or emulate."""
PITCH = 2048
"""Bytes from row to row of stored memory: three times 64 lanes of 8 bytes, with guards around."""
START = 256
"""Bytes of guards before a stored row."""
GUARD = 0x5A
LOWEST, HIGHEST = 0x3D, 0x40
"""The bytes that all numbers are made of. In every type they are far from its limits, and none is a guard
byte."""
MIDDLE, MIDDLE_INT = 1.6, 0x3F
"""Thresholds, as a float and an integer, that lie between those numbers."""
SMALL_FLOATS = (F8E4M3FN, F16, BF16)
MOST = 64
"""The most rows of memory: AVX-512's lanes of bytes."""


@dataclass(frozen=True)
class Case:
    """A kernel to test.

    `memory`: the type of what is accessed under a mask. `other`: the type of the plain array. `made`: how one
    becomes the other. `cast` is a cast, `compare` a comparison, `clamp` a cast after a clamp to the type's
    range, and `quantize` a float's quantization. `counts`: the active lanes of each row."""

    way: str
    mask: str
    memory: DType
    other: DType
    lanes: int
    counts: tuple[int, ...]
    made: str = "cast"

    @property
    def name(self) -> str:
        parts = self.way, self.mask, self.made, self.memory, self.other, self.lanes
        return "_".join(map(str, parts)).replace(" ", "_")

    @property
    def loads(self) -> bool:
        return self.way.startswith("load") or self.way == "gather"

    @property
    def step(self) -> int:
        return int(self.way[-1]) if "step" in self.way else 1

    def on(self, count: int) -> range:
        """Return the lanes that are active in a row with `count` active lanes."""
        first = {"last": self.lanes - count, "one": count - 1, "both": count // 2}.get(self.mask, 0)
        return range(first, self.lanes if self.mask == "last" else count)

    def places(self) -> Array:
        """Return the element of its row that each lane accesses.

        The active lanes' elements fill the row. The other lanes' elements lie outside, and the table's lie
        beyond any memory."""
        found = np.full((len(self.counts), self.lanes), 1 << 40)
        for row, on in enumerate(map(self.on, self.counts)):
            if self.way in ("gather", "scatter"):
                found[row, on] = np.roll(range(len(on))[::-1], row)
            elif self.way == "blend":
                found[row] = np.arange(self.lanes)
            else:
                found[row] = (np.arange(self.lanes) - on[0]) * self.step
        return found

    def sizes(self) -> list[int]:
        """Return the number of elements of each row of memory."""
        if self.way == "blend":
            return [self.lanes] * len(self.counts)
        return [(len(self.on(count)) - 1) * self.step + 1 for count in self.counts]

    # --- the kernel

    def func(self) -> Func:
        """Make the kernel. Its parameters are what it reads, a table of places for each lane, and what it
        writes.

        Each row of memory is a buffer. If the number of lanes is `running`, it is a symbol, and the kernel
        does one row."""
        running, lane = self.mask == "running", Var("l")
        counts: list[Expr] = [Var("N")] if running else [*map(const, self.counts)]
        sizes: list[Expr] = [*map(const, self.sizes())]
        if running:
            sizes = [const(self.lanes) if self.way == "blend" else (counts[0] - 1) * self.step + 1]
        shape = (const(len(counts)), const(self.lanes))
        plain, table = Buffer("plain", self.other, shape), Buffer("table", I64, shape)
        rows = [Buffer(f"row{n}", self.memory, (size,)) for n, size in enumerate(sizes)]
        vectors = [
            For(lane, const(self.lanes), self._body(row, plain, table, n, lane, count), "vector")
            for n, (row, count) in enumerate(zip(rows, counts, strict=True))
        ]
        params = (*rows, table, plain) if self.loads else (plain, table, *rows)
        symbols = ((Var("N"), (const(1), const(self.lanes))),) if running else ()
        return Func(self.name, params, 1 if self.loads else len(rows), symbols, block(*vectors))

    def _body(self, memory: Buffer, plain: Buffer, table: Buffer, row: int, lane: Var, count: Expr) -> Stmt:
        first = {"last": const(self.lanes) - count, "one": count - 1, "both": count // 2}.get(self.mask)
        place: Expr = lane if first is None or self.way == "blend" else lane - first
        if self.way in ("gather", "scatter"):
            place = Load(table, (const(row), lane))
        conditions = [lane < count] if self.mask in ("first", "both", "running") else []
        if self.mask == "one":
            conditions = [eq(lane, count - 1)]
        elif first is not None:
            conditions.append(binary("ge", lane, first))
        source, at = (memory, (place * self.step,)) if self.loads else (plain, (const(row), lane))
        value = self.converted(Load(source, at))
        if self.loads or self.way == "blend":
            other = const(0, self.other) if self.loads else Load(memory, (place,))
            for condition in conditions[::-1]:
                value = select(condition, value, other)
            return Store(plain, (const(row), lane), value) if self.loads else Store(memory, (place,), value)
        stored: Stmt = Store(memory, (place * self.step,), value)
        for condition in conditions[::-1]:
            stored = If(condition, stored)
        return stored

    def converted(self, x: Expr) -> Expr:
        to = self.other if self.loads else self.memory
        if self.made == "compare":
            return x < const(MIDDLE_INT if x.dtype.is_int else MIDDLE, x.dtype)
        if self.made == "quantize":
            x = cast(I32, call("round", x))
        if self.made in ("clamp", "quantize"):
            low, high = (const(n, x.dtype) for n in self._limits(x.dtype, to))
            x = binary("max", binary("min", x, high), low)
        if x.dtype.is_int and to in SMALL_FLOATS and x.dtype.bytes > 1:
            x = binary("shr", x, const(x.dtype.bits - 8, x.dtype))
        return cast(to, x)

    def by_numpy(self, x: Array) -> Array:
        """Return converted numbers, by NumPy."""
        old, to = (self.memory, self.other) if self.loads else (self.other, self.memory)
        if self.made == "compare":
            return np.asarray(x < (MIDDLE_INT if old.is_int else MIDDLE))
        if self.made == "quantize":
            x = np.rint(x)
        if self.made == "clamp":
            x = np.clip(x, *self._limits(old, to))
        if old.is_int and to in SMALL_FLOATS and old.bytes > 1:
            x = x >> (old.bits - 8)
        wide = x.astype(np.float32) if old in SMALL_FLOATS or to in SMALL_FLOATS else x
        return wide.astype(to.numpy)

    @staticmethod
    def _limits(old: DType, to: DType) -> tuple[int, int]:
        return max(old.limits[0], to.limits[0]), min(old.limits[1], to.limits[1])

    # --- what is given and what is wanted

    def calls(self) -> list[tuple[int, list[tuple[str, int]]]]:
        """Return the kernel's calls. Each call has the symbol's value, and a place for each parameter.

        A place is an array and an offset in bytes. The arrays are `pages` (every second page can't be read),
        `plain`, `table` and `out`."""
        rows = [("pages" if self.loads else "out", at) for at in self.starts()]
        plain = "out" if self.loads else "plain"
        if self.mask != "running":
            return [
                (0, [*rows, ("table", 0), (plain, 0)] if self.loads else [(plain, 0), ("table", 0), *rows])
            ]
        found = []
        for n, (count, row) in enumerate(zip(self.counts, rows, strict=True)):
            table, own = ("table", 8 * n * self.lanes), (plain, self.other.bytes * n * self.lanes)
            found.append((count, [row, table, own] if self.loads else [own, table, row]))
        return found

    def starts(self) -> list[int]:
        """Return the offset of each row of memory, in bytes. A loaded row begins or ends at a page
        boundary."""
        if not self.loads:
            return [n * PITCH + START for n in range(len(self.counts))]
        lengths = [0 if self.mask == "last" else PAGE - self.memory.bytes * n for n in self.sizes()]
        return [(2 * n + 1) * PAGE + at for n, at in enumerate(lengths)]

    def blank(self) -> Array:
        """Return the contents of the written array before the kernel runs."""
        rows = len(self.counts)
        return np.full(rows * (self.other.bytes * self.lanes if self.loads else PITCH), GUARD, np.uint8)

    def wanted(self) -> Array:
        """Return the contents of the written array after the kernel."""
        out, places = self.blank(), self.places()
        given = numbers(self.memory if self.loads else self.other)
        plain = out.view(self.other.numpy) if self.loads else given
        plain = plain[: len(self.counts) * self.lanes].reshape(-1, self.lanes)
        for n, (start, size, count) in enumerate(zip(self.starts(), self.sizes(), self.counts, strict=True)):
            on = self.on(count)
            if self.loads:
                row = given.view(np.uint8)[start:][: size * self.memory.bytes].view(self.memory.numpy)
                plain[n] = 0
                plain[n, on] = self.by_numpy(row[places[n, on]])
            else:
                row = out[start:][: size * self.memory.bytes].view(self.memory.numpy)
                row[places[n, on]] = self.by_numpy(plain[n, on])
        return out


@cache
def numbers(dtype: DType) -> Array:
    """Make numbers of a type, as many as fill `pages`. They have the same bytes for each type but bool."""
    low, high = (0, 1) if dtype is BOOL else (LOWEST, HIGHEST)
    random = np.random.default_rng(0)
    return random.integers(low, high, (2 * MOST + 1) * PAGE, np.uint8, endpoint=True).view(dtype.numpy)


def conversions() -> Iterator[tuple[DType, DType, str]]:
    """Yield every conversion: from a type, to a type, and how."""
    for old in TYPES:
        for to in TYPES:
            yield old, to, "cast"
            if old.is_int and to.is_int and to.bytes < old.bytes:
                yield old, to, "clamp"
            if old is F32 and to.is_int and to.bytes < old.bytes:
                yield old, to, "quantize"
        if old is not BOOL:
            yield old, BOOL, "compare"


def narrowing() -> Iterator[tuple[DType, DType, str]]:
    """Yield the conversions to a narrower type or to bool, before which the value's register is or may be
    wider."""
    return ((old, to, made) for old, to, made in conversions() if to.bytes < old.bytes or to is BOOL)


def widths(on: Target, *types: DType) -> list[int]:
    """Return the numbers of lanes to try: a register's lanes of either type and of f32, and an odd number."""
    return sorted({3, *(on.machine.lanes(size) for size in (4, *(t.bytes for t in types)))})


def ways(to: DType) -> Sequence[str]:
    """Return the ways to access results of a type. For bool there is no blend, because it would load guards,
    which are no bool."""
    return WAYS if to is not BOOL else [way for way in WAYS if way != "blend"]


def case(
    way: str, mask: str, old: DType, to: DType, made: str, lanes: int, counts: Sequence[int] = ()
) -> Case:
    """Make the case of one conversion. By default it has all counts of active lanes."""
    loads = way.startswith("load") or way == "gather"
    every = tuple(counts) if counts and mask != "running" else (*range(1, lanes + 1),)
    return Case(way, mask, *((old, to) if loads else (to, old)), lanes, every, made)


def every_case(on: Target, random: np.random.Generator) -> Iterator[Case]:
    """Yield cases of every access, mask, conversion and number of lanes.

    A store after a narrowing conversion is tried with every count of active lanes. One in ten of the other
    cases is tried, with three counts."""
    wider = {*narrowing()}
    for conversion in conversions():
        for lanes in widths(on, *conversion[:2]):
            for way in ways(conversion[1]):
                for mask in MASKS:
                    if way == "store" and conversion in wider:
                        yield case(way, mask, *conversion, lanes)
                    elif random.random() < 0.1:
                        yield case(way, mask, *conversion, lanes, few(lanes, random))


def some_cases(on: Target, random: np.random.Generator, count: int) -> Iterator[Case]:
    """Yield `count` different random cases. Half of them are stores after narrowing conversions."""
    wider, every, seen = [*narrowing()], [*conversions()], set[str]()
    while len(seen) < count:
        stored = len(seen) % 2 == 0
        conversion = (wider if stored else every)[random.integers(len(wider if stored else every))]
        way, mask = "store" if stored else str(random.choice(ways(conversion[1]))), str(random.choice(MASKS))
        lanes = int(random.choice(widths(on, *conversion[:2])))
        found = case(way, mask, *conversion, lanes, few(lanes, random))
        if found.name not in seen:
            seen.add(found.name)
            yield found


def few(lanes: int, random: np.random.Generator) -> list[int]:
    """Return three counts of active lanes: one, all but one, and a random one. None is 0, because "one" and
    "last" name a lane."""
    return sorted({1, max(1, lanes - 1), int(random.integers(lanes)) + 1})
