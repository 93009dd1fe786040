"""Processors: the figures for estimates, templates and writers of code."""

from __future__ import annotations

from jangin.ir.records import dataclass
from jangin.targets.machine import Machine

SHARE = 2
"""A task may count on one part in SHARE of a cache. The rest is for data that pass through."""


MASKED = 32
"""Wider vectors than so many bytes come with registers for masks: AVX-512's do, and AVX2's of 32 bytes
don't."""


@dataclass(frozen=True)
class Processor(Machine):
    """A machine whose cores run one task each, with vectors and caches.

    The defaults are those of recent server cores, from the makers' optimization guides (AMD Zen 2 to 4, Intel
    Ice Lake on).
    """

    groups = False
    widest: int = 8
    """Bytes of the largest element for which there are vector instructions. Larger elements go one by one."""
    compares: bool = True
    """C compilers compare vectors rightly. Otherwise the writer of C compares one lane after another."""
    half_vectors: bool = True
    """There are instructions for half a vector. The template `window` reads it."""
    l1: int = 32 << 10
    """Bytes of level 1 data cache that a core may count on. Templates make panels fit."""
    l3: int = 8 << 20
    """Bytes of level 3 cache that a core may count on. Estimates and the tuner read it."""
    lane_operands: bool = False
    """A multiply-add takes one lane of a vector for all lanes, and takes no operand from memory. Templates
    choose register tiles by it."""
    several_loads: str = ""
    """LLVM's name of the instruction that loads `{count}` vectors of f32 and advances its address; empty if
    there is none. Templates and LLVM's writer read it."""
    several: int = 4
    """Most vectors that one such instruction loads."""
    offsets: bool = True
    """A load of one vector takes an offset beside its address, and so do loads of pairs. Templates unroll
    less without it."""
    elements: int = 0
    """Registers for elements of the rows, which multiply-adds take for all lanes; 0 if multiply-adds take
    elements from memory. Templates leave them out of register tiles."""
    short_sum: int = 32
    """Longest sum that is unrolled whole, in terms. LLVM starts too many loads of a longer sum at once,
    unless its scheduler already prevents it. `templates.tiling` reads it."""
    issue: int = 0
    """Instructions that a core issues each cycle, if this limits speed whatever their kind; else 0. Estimates
    then count instructions."""
    atomics: bool = True
    """There are atomic additions. Without them a program has one thread. `ahead` writes the API by it."""
    several_sums: bool = True
    """A vector of words may have its sums in several registers. Templates make shorter vectors without it."""
    floats: bool = True
    """There are instructions for f32. Without them `passes.precision.integers` multiplies no integers as
    f32."""
    hints: bool = True
    """Prefetch hints pay. Templates and `passes.windows.winograd` write them."""
    masks: bool = True
    """Masked loads and stores exist. Without them, LLVM writes one access an element. The template `window`
    reads it."""
    wide_products: bool = False
    """Multiply-adds of vectors take int16 and add to int32. `passes.precision.integers` and the template
    `window` use them."""
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

    def lanes(self, bytes_per_element: int) -> int:
        return super().lanes(bytes_per_element) if bytes_per_element <= self.widest else 1

    def shortest(self, size: int) -> int:
        """Return the fewest elements of `size` bytes that are worth a vector. With registers for masks, this
        is half a vector. AVX2 stores a part of a vector slowly."""
        lanes = self.lanes(size)
        return lanes // 2 if self.masks and self.vector_bytes > MASKED else lanes

    @property
    def issue_bound(self) -> bool:
        return self.issue > 0

    @property
    def peak(self) -> int:
        """Most float32 multiply-adds of a core in a cycle."""
        return self.multiply_adds * self.lanes(4)

    def rate(self, footprint: float) -> float:
        """Return the bytes a cycle at which data arrive, if `footprint` bytes were touched since their last
        use."""
        if footprint <= self.l2 / SHARE:
            return self.l2_rate
        return self.l3_rate if footprint <= self.l3 / SHARE else self.memory_rate

    def least_seconds(self, operations: float, moved: float, threads: int) -> float:
        """Return a lower bound on the seconds for so many float32 operations and bytes moved. The bytes come
        from the smallest cache that holds them. The tuner compares kernels' times to this bound."""
        cycles = max(operations / (2 * self.peak), moved / self.rate(moved))
        return cycles / (self.clock * threads)

    def between_runs(self, own: int) -> int:
        """Return the most bytes of other data that pass through the caches between two runs of a kernel.
        `own` is the bytes of its weights. If they fit the level 2 cache, only its other data are evicted."""
        return self.l3 if own > self.l2 else 4 * self.l2

    @property
    def memories(self) -> str:
        """The sizes of the three cache levels, as text. Candidates depend on these sizes, so they are part of
        the key of tuned kernels."""
        return f"{self.l1}/{self.l2}/{self.l3}"
