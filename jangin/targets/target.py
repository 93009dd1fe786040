"""What code is generated for: the instruction set, its registers, the caches."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING

from jangin.ir.dtype import I32, DType
from jangin.ir.products import Product
from jangin.ir.records import dataclass
from jangin.runtime.abi import Abi, abi_of
from jangin.targets.figures import FusionFigures, RecurrenceFigures, WinogradFigures
from jangin.targets.rows import Row

if TYPE_CHECKING:
    from jangin.runtime.device import Device


@dataclass(frozen=True)
class Target:
    """A CPU target. `vector_bytes`: width of a vector register; `registers`: how many there are;
    `cpu` and `features` are LLVM's; `rows`: its instructions, the preferred first. Cache sizes are
    bytes a core may count on.

    `backend` makes its code and `device` runs it: names in `backends.backend.BACKENDS` and
    `runtime.device.DEVICES`, or, from outside the package, the objects themselves. A target doesn't
    know a back end's type, as back ends know targets.

    `word_bits`: of a general register; indices that are known to be small are computed in so many.
    `lane_operands`: a multiply-add takes one lane of a vector for all lanes, rather than an element from
    memory. `several_loads`: LLVM's name of the instruction that loads `{count}` vectors of f32, up to
    `several`, and moves its address on; empty where there is none. `offsets`: a load of one vector takes an
    offset beside its address, and so do pairs. `elements`: registers for elements of the rows that wait for
    multiply-adds, which take them for all lanes; 0 where they take them from memory. `short_sum`: terms that
    are unrolled whole at most; of more LLVM loads too many at once, where nothing but its scheduler keeps it
    from that. `hints`: hints to fetch data early pay. `masks`: there are loads and stores of a part of
    a vector, where LLVM would take its elements one by one. `issue`: instructions that a core begins each
    cycle, where that are so few that they decide what is quick, whatever their kind; 0 elsewhere.

    The rest is what one core does, for estimates: cycles a second, vector multiply-adds, loads and stores
    a cycle, a multiply-add's latency in cycles, and bytes a cycle that stream from
    each level. The figures are those
    that the last generations of server cores (AMD Zen 2 to 4, Intel Ice Lake on) have in common by
    their makers' optimization guides; a wrong one costs speed, never correctness. `winograd` and `fusion` are
    what graph passes decide by, `recurrence` what lowering does.

    `wide_products`: multiply-adds of vectors take int16 and add to int32.

    `products`: what products of small numbers are made of, the preferred first; empty where no instruction
    adds up several, or takes smaller floats than it adds to. Those that multiply matrices come before what is
    for single rows.

    `outputs`: what `jangin compile --emit` can make for it; `c_flags`: what gcc and clang are given to
    compile C for it; `c_compiler`: the one that `jangin compile` asks how large the code becomes."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    rows: tuple[Row, ...] = field(repr=False)
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20
    clock: float = 3e9
    word_bits: int = 64
    lane_operands: bool = False
    several_loads: str = ""
    several: int = 4
    offsets: bool = True
    elements: int = 0
    short_sum: int = 32
    issue: int = 0
    hints: bool = True
    masks: bool = True
    wide_products: bool = False
    products: tuple[Product, ...] = ()
    multiply_adds: int = 2
    latency: int = 4
    loads: int = 2
    stores: int = 1
    l2_rate: float = 24.0
    l3_rate: float = 10.0
    memory_rate: float = 4.0
    backend: str | object = "llvm"
    device: str | Device = "cpu"
    winograd: WinogradFigures = field(default_factory=WinogradFigures)
    fusion: FusionFigures = field(default_factory=FusionFigures)
    recurrence: RecurrenceFigures = field(default_factory=RecurrenceFigures)
    outputs: tuple[str, ...] = field(default=("jgn", "object", "shared", "c"), repr=False)
    c_flags: tuple[str, ...] = field(default=(), repr=False)
    c_compiler: str = field(default="", repr=False)

    def __str__(self) -> str:
        return f"{self.triple}/{self.cpu}/{self.features}"

    @property
    def groups(self) -> bool:
        """Whether kernels are for work-groups, as `targets.gpu` makes targets."""
        return False

    @property
    def each(self) -> Sequence[Target]:
        """The targets that a model is compiled for: itself, or those that it stands for."""
        return (self,)

    @property
    def emitted(self) -> Target:
        """As programs are made for it: without matrix registers, as their process would have to ask its
        system for them first."""
        kept = [f for f in self.features.split(",") if not f.startswith("+amx-")]
        return replace(self, features=",".join(kept))

    @property
    def of_c(self) -> Target:
        """As C is made for it: without what C compilers would keep in memory, as no register holds it."""
        return replace(
            self.emitted, products=tuple(p for p in self.products if p.word is I32), wide_products=False
        )

    @property
    def abi(self) -> Abi:
        """What its code must keep to. Raises ValueError for an architecture that isn't known."""
        return abi_of(self.triple)

    @property
    def device_name(self) -> str:
        """What saved models call the device."""
        return self.device if isinstance(self.device, str) else self.device.name

    def lanes(self, bytes_per_element: int) -> int:
        """Elements of a size that one vector register holds."""
        return max(1, self.vector_bytes // bytes_per_element)

    def has(self, feature: str) -> bool:
        """Whether the processor has a feature, by LLVM's name."""
        return f"+{feature}" in self.features.split(",")

    def row(self, name: str, dtype: DType, lanes: int = 0) -> Row | None:
        """The first row for an operation on so many values of a type (0: any number) whose needs are met;
        None where there is none."""
        found = (r for r in self.rows if r.name == name and dtype in r.dtypes and r.lanes in (0, lanes))
        return self._first(found)

    def product_row(self, product: Product, lanes: int = 0, words: int = 1) -> Row | None:
        """As `row`, for what multiplies `words` of each operand in each of so many lanes."""
        found = (r for r in self.rows if r.words == words and r.lanes in (0, lanes) and r.product == product)
        return self._first(found)

    def matrix_row(self, product: Product) -> Row | None:
        """The row that multiplies the words of a product in matrix registers; None if there is none."""
        return self._first(r for r in self.rows if r.of_tiles and r.product and r.product.by_lanes == product)

    def _first(self, rows: Iterable[Row]) -> Row | None:
        return next((r for r in rows if all(map(self.has, r.needs))), None)
