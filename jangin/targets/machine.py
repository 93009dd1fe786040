"""The figures that processors and GPUs have in common."""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Self

from jangin.ir.products import Product
from jangin.ir.records import dataclass
from jangin.targets.figures import FusionFigures, RecurrenceFigures, WinogradFigures


@dataclass(frozen=True)
class Machine:
    """The figures of any machine, for passes, writers of code and the tuner.

    A wrong figure costs speed, never correctness, unless its text calls it a limit. The text after each field
    gives its unit, its meaning and its readers. The kinds of machine are `targets.processor.Processor` and
    `targets.gpu.Gpu`.
    """

    groups: ClassVar[bool]
    """Whether kernels are for work-groups. Back ends choose passes and templates by it."""
    vector_bytes: int
    """Bytes that one vector access moves at most. Passes, the walk and lowering divide loops by it."""
    registers: int
    """Vectors that one thread may keep in registers. Lowering and writers of code make tiles of them."""
    clock: float = 3e9
    """Cycles a second. Estimates convert cycles to seconds with it."""
    l2: int = 512 << 10
    """Bytes of level 2 cache that a core of a processor, or a whole GPU, may count on. Templates make a
    task's blocks fit, and the tuner measures kernels whose data don't come from there."""
    index_bits: int = 64
    """Bits of a general register. The walk computes indices that are known to be small in this width.
    Processors with fewer than 64 bits get no special code for sizes of 1."""
    products: tuple[Product, ...] = ()
    """The instructions that make products of small numbers, the preferred first. The tuple is empty if no
    instruction adds up several products, or takes smaller floats than it adds to. Products that multiply
    matrices come before products for single rows. The passes `bf16` and `integers` choose by the order."""
    winograd: WinogradFigures = field(default_factory=WinogradFigures)
    """The figures for `passes.windows.winograd`."""
    fusion: FusionFigures = field(default_factory=FusionFigures)
    """The figures for the passes `layout`, `fuse`, `attention` and `separable`."""
    recurrence: RecurrenceFigures = field(default_factory=RecurrenceFigures)
    """The figures for the lowering of recurrent layers."""

    @property
    def emitted(self) -> Self:
        """The machine for standalone programs."""
        return self

    def lanes(self, bytes_per_element: int) -> int:
        """Return the number of elements of this size that one vector access moves."""
        return max(1, self.vector_bytes // bytes_per_element)

    def shortest(self, size: int) -> int:
        """Return the fewest elements of `size` bytes that are worth a vector."""
        return self.lanes(size)

    @property
    def issue_bound(self) -> bool:
        """Whether the number of instructions limits speed, whatever their kind."""
        return False

    @property
    def atomics(self) -> bool:
        """Whether there are atomic additions."""
        return True

    @property
    def floats(self) -> bool:
        """Whether there are instructions for f32."""
        return True

    @property
    def compares(self) -> bool:
        """Whether C compilers compare vectors rightly."""
        return True

    @property
    def hints(self) -> bool:
        """Whether prefetch hints pay."""
        return False

    @property
    def wide_products(self) -> bool:
        """Whether vector multiply-adds take int16 and add to int32."""
        return False
