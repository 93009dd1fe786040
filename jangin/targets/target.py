"""Targets: an instruction set, an ABI, a machine, a back end and a device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from jangin.ir.dtype import I8, I32, DType
from jangin.ir.products import Product
from jangin.ir.records import dataclass
from jangin.runtime.abi import Abi, abi_of
from jangin.targets.gpu import Gpu
from jangin.targets.processor import Processor
from jangin.targets.rows import Row

if TYPE_CHECKING:
    from typing import Self

    from jangin.runtime.device import Device


@dataclass(frozen=True)
class Target:
    """The machine that code is made for, the back end that makes the code, and the device that runs it.

    The text after each field gives its unit, its meaning and its readers.
    """

    name: str
    """The users' name of the target, in options, messages and the keys of the cache."""
    triple: str
    """LLVM's triple: processor, maker, system, ABI. `runtime.abi`, `runtime.system` and LLVM read it."""
    cpu: str
    """LLVM's name of the processor, or an OpenCL device's identity."""
    features: str
    """LLVM's features, each with "+" before it, with commas between. Rows ask for some (`Row.needs`), and
    loading asks whether the machine has all."""
    rows: tuple[Row, ...] = field(repr=False)
    """Instructions, the preferred first. Writers of kernels read them by `row` and its like."""
    machine: Processor | Gpu
    """The figures of the machine, which choose between kernels for a processor and kernels for
    work-groups. Templates, passes, writers of code and the tuner read them."""
    backend: str | object = "llvm"
    """The maker of the target's code: a name in `backends.backend.BACKENDS`, or a back end from outside the
    package. The type isn't known here, because back ends know targets. `backends.backend.backend_of` reads
    this field."""
    device: str | Device = "cpu"
    """The device that runs the code: a name in `runtime.device.DEVICES`, or a device from outside the
    package."""
    outputs: tuple[str, ...] = field(default=("jgn", "object", "shared", "c"), repr=False)
    """The kinds of output that `jangin compile --emit` can make for the target."""
    c_flags: tuple[str, ...] = field(default=(), repr=False)
    """The options that gcc and clang are given to compile C for the target."""
    c_figures: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    """Figures of the machine, by name, that differ for C."""
    c_compiler: str = field(default="", repr=False)
    """The C compiler that `jangin compile` asks how large the code becomes; empty for none."""
    c_library: tuple[str, ...] = field(default=(), repr=False)
    """The options with which this compiler finds a C library, if it finds none without them."""

    def __str__(self) -> str:
        return f"{self.triple}/{self.cpu}/{self.features}"

    @property
    def groups(self) -> bool:
        """Whether kernels are for work-groups."""
        return self.machine.groups

    @property
    def processor(self) -> Processor:
        """The machine, which must be a processor. Raises TypeError for one that runs work-groups."""
        if isinstance(self.machine, Processor):
            return self.machine
        raise TypeError(f"{self.name} has no figures of a processor: its kernels are for work-groups")

    @property
    def gpu(self) -> Gpu:
        """The machine, which must run work-groups. Raises TypeError for a processor."""
        if isinstance(self.machine, Gpu):
            return self.machine
        raise TypeError(f"{self.name} has no figures of a GPU: its kernels are for a processor")

    def with_figures(self, **figures: Any) -> Self:
        """Return the same target with other figures of its machine, given by name."""
        return replace(self, machine=replace(self.machine, **figures))

    @property
    def is_microcontroller(self) -> bool:
        """Whether C alone is made for the target, which its own compiler takes."""
        return self.outputs == ("c",)

    @property
    def each(self) -> Sequence[Target]:
        """The targets that a model is compiled for: itself, or the parts of a target of several devices."""
        return (self,)

    @property
    def emitted(self) -> Target:
        """The target for standalone programs: without matrix registers, because a process must first ask its
        system for them. See also `Machine.emitted`."""
        kept = [f for f in self.features.split(",") if not f.startswith("+amx-")]
        return replace(self, features=",".join(kept), machine=self.machine.emitted)

    @property
    def of_c(self) -> Target:
        """The target for C: without products in 64-bit words and wide products, because C compilers would
        keep them in memory."""
        products = tuple(p for p in self.machine.products if p.word in (I8, I32))
        figures = {"products": products, "wide_products": False, **dict(self.c_figures)}
        return self.emitted.with_figures(**figures)

    @property
    def abi(self) -> Abi:
        """The ABI that the target's code follows. Raises ValueError for an unknown architecture."""
        return abi_of(self.triple)

    @property
    def device_name(self) -> str:
        """The device's name in saved models."""
        return self.device if isinstance(self.device, str) else self.device.name

    def has(self, feature: str) -> bool:
        """Return whether the processor has a feature, by LLVM's name."""
        return f"+{feature}" in self.features.split(",")

    def row(self, name: str, dtype: DType, lanes: int = 0) -> Row | None:
        """Return the first instruction row for an operation on `lanes` values of a type whose needs this
        target meets. 0 lanes stand for any number. Return None if there is none."""
        fitting = (r for r in self.rows if r.name == name and dtype in r.dtypes and r.lanes in (0, lanes))
        return self._first(fitting)

    def product_row(self, product: Product, lanes: int = 0, words: int = 1) -> Row | None:
        """Return the instruction row that adds a product of `words` words of each operand in each of `lanes`
        lanes. Return None if there is none."""
        fitting = (
            r for r in self.rows if r.words == words and r.lanes in (0, lanes) and r.product == product
        )
        return self._first(fitting)

    def matrix_row(self, product: Product) -> Row | None:
        """Return the instruction row that multiplies the words of a product in matrix registers, or None if
        there is none."""
        return self._first(r for r in self.rows if r.of_tiles and r.product and r.product.by_lanes == product)

    @property
    def fragment_rows(self) -> Sequence[Row]:
        """The rows that multiply matrices which the lanes of a warp share."""
        return [r for r in self.rows if r.fragments and all(map(self.has, r.needs))]

    def _first(self, rows: Iterable[Row]) -> Row | None:
        return next((r for r in rows if all(map(self.has, r.needs))), None)
