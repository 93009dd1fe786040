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
    """The machine that code is made for, the back end that makes the code, and the device that runs it.
    Targets for work-groups are in `targets.gpu`.

    Estimates read figures that the last generations of server cores have in common. The figures come from the
    makers' optimization guides (AMD Zen 2 to 4, Intel Ice Lake on). A wrong figure costs speed, never
    correctness. A text after each field says its unit, its meaning and who reads it."""

    name: str
    """The users' name of the target, in options, messages and the keys of the cache."""
    triple: str
    """LLVM's triple: processor, maker, system, ABI. `runtime.abi`, `runtime.system` and LLVM read it."""
    cpu: str
    """LLVM's name of the processor, or an OpenCL device's identity."""
    features: str
    """LLVM's features, each with "+" before it, with commas between. Rows ask for some (`Row.needs`), and
    loading asks whether the machine has all."""
    vector_bytes: int
    """Bytes of a vector register. Templates, the walk and lowering divide loops by it."""
    registers: int
    """Vector registers that a kernel may fill. Templates make register tiles of them."""
    rows: tuple[Row, ...] = field(repr=False)
    """Instructions, the preferred first. Writers of kernels read them by `row` and its like."""
    l1: int = 32 << 10
    """Bytes of level 1 data cache that a core may count on. Templates make panels fit."""
    l2: int = 512 << 10
    """Bytes of level 2 cache that a core may count on. Templates make a task's blocks fit, estimates
    (`templates.cost`) say what comes from there, and tuned kernels are kept by it."""
    l3: int = 8 << 20
    """Bytes of level 3 cache that a core may count on. Estimates and the tuner read it."""
    clock: float = 3e9
    """Cycles a second. Estimates turn cycles into seconds by it."""
    word_bits: int = 64
    """Bits of a general register. The walk computes indices that are known to be small in so many."""
    lane_operands: bool = False
    """A multiply-add takes one lane of a vector for all lanes, and no element from memory. Templates choose
    register tiles by it."""
    several_loads: str = ""
    """LLVM's name of the instruction that loads `{count}` vectors of f32 and moves its address on; empty if
    there is none. Templates and LLVM's writer read it."""
    several: int = 4
    """Vectors that such an instruction loads at most."""
    offsets: bool = True
    """A load of one vector takes an offset beside its address, and so do loads of pairs. Templates unroll
    less without it."""
    elements: int = 0
    """Registers for elements of the rows, which multiply-adds take for all lanes; 0 if multiply-adds take
    elements from memory. Templates leave them out of register tiles."""
    short_sum: int = 32
    """Terms of a sum that are unrolled whole at most. LLVM loads too many terms of a longer sum at once,
    unless more than its scheduler keeps it from that. `templates.tiling` reads it."""
    issue: int = 0
    """Instructions that a core begins each cycle, if they are so few that they decide what is quick whatever
    their kind; else 0. Estimates count instructions then."""
    hints: bool = True
    """Hints to fetch data early pay. Templates and `passes.winograd` write them."""
    masks: bool = True
    """There are loads and stores of a part of a vector; LLVM would write one an element. The template
    `window` reads it."""
    wide_products: bool = False
    """Multiply-adds of vectors take int16 and add to int32. `passes.integers` and the template `window` use
    them."""
    products: tuple[Product, ...] = ()
    """The instructions that make products of small numbers, the preferred first. The tuple is empty if no
    instruction adds up several products, or takes smaller floats than it adds to. Products that multiply
    matrices come before products for single rows. The passes `bf16` and `integers` choose by the order."""
    multiply_adds: int = 2
    """Vector multiply-adds a cycle of a core, for estimates."""
    latency: int = 4
    """Cycles until the result of a multiply-add can be added to, for estimates."""
    loads: int = 2
    """Vector loads a cycle of a core, for estimates."""
    stores: int = 1
    """Vector stores a cycle of a core, for estimates."""
    l2_rate: float = 24.0
    """Bytes a cycle that stream from the level 2 cache to a core, for estimates."""
    l3_rate: float = 10.0
    """Bytes a cycle that stream from the level 3 cache to a core, for estimates."""
    memory_rate: float = 4.0
    """Bytes a cycle that stream from memory to a core, for estimates."""
    backend: str | object = "llvm"
    """The maker of the target's code: a name in `backends.backend.BACKENDS`, or a back end from outside the
    package. The type isn't known here, because back ends know targets. `backends.backend.backend_of` reads
    this field."""
    device: str | Device = "cpu"
    """The device that runs the code: a name in `runtime.device.DEVICES`, or a device from outside the
    package."""
    winograd: WinogradFigures = field(default_factory=WinogradFigures)
    """The figures that `passes.winograd` decides by."""
    fusion: FusionFigures = field(default_factory=FusionFigures)
    """The figures that the passes `layout`, `fuse`, `attention` and `separable` decide by."""
    recurrence: RecurrenceFigures = field(default_factory=RecurrenceFigures)
    """The figures that lowering of recurrent layers decides by."""
    outputs: tuple[str, ...] = field(default=("jgn", "object", "shared", "c"), repr=False)
    """The kinds of output that `jangin compile --emit` can make for the target."""
    c_flags: tuple[str, ...] = field(default=(), repr=False)
    """The options that gcc and clang are given to compile C for the target."""
    c_compiler: str = field(default="", repr=False)
    """The C compiler that `jangin compile` asks how large the code becomes; empty for none."""

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
