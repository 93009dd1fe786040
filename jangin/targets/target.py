"""What code is generated for: the instruction set, its registers, the caches."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Target:
    """A CPU target. `vector_bytes`: width of a vector register; `registers`: how many there are;
    `cpu` and `features` are LLVM's. Cache sizes are bytes a core may count on."""

    name: str
    triple: str
    cpu: str
    features: str
    vector_bytes: int
    registers: int
    fma: bool
    l1: int = 32 << 10
    l2: int = 512 << 10
    l3: int = 8 << 20

    def __str__(self) -> str:
        return f"{self.triple}/{self.cpu}/{self.features}"

    def lanes(self, bytes_per_element: int) -> int:
        """Elements of a size that one vector register holds."""
        return max(1, self.vector_bytes // bytes_per_element)
