"""The code of a kernel for NVIDIA's GPUs, as compiled models store it."""

from __future__ import annotations

import struct
from dataclasses import replace
from itertools import accumulate, pairwise

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError

ROUNDS = "_rounds"
"""The end of the name of a kernel's second entry. Its launches do all rounds, and its groups wait for one
another between two rounds. A launch must have all its groups at one time (cooperative launch)."""
_HEAD = struct.Struct("<HHIIIII")
_PRODUCT, _LENGTH = b"product", struct.Struct("<I")
"""The beginning of code with a library's call. No version of NVRTC is so high."""
_OLD = struct.Struct("<HHIIII")
"""The head of kernels whose launches ask for no shared memory, of earlier versions of Jangin."""


@dataclass(frozen=True)
class Built:
    """The code of one kernel, whose name is `kernel`.

    - `architecture` is the architecture that `cubin` is for.
    - `version` is the version of NVRTC that compiled the kernel.
    - `cubin` is machine code.
    - `ptx` is text that the drivers of later devices compile.
    - `shared` is the bytes of shared memory that a launch must ask for.
    - `product` is a library's call before the kernel (`products.packed`), or empty. With a product, there may
      be no machine code."""

    kernel: str
    architecture: str
    version: tuple[int, int]
    cubin: bytes
    ptx: bytes
    shared: int = 0
    product: bytes = b""

    @property
    def packed(self) -> bytes:
        parts = self.kernel.encode(), self.architecture.encode(), self.cubin, self.ptx
        before = _PRODUCT + _LENGTH.pack(len(self.product)) + self.product if self.product else b""
        return before + _HEAD.pack(*self.version, *map(len, parts), self.shared) + b"".join(parts)

    @classmethod
    def of(cls, code: bytes) -> Built:
        """Unpack the code from the bytes that `packed` made. Raises LoadError if they are damaged."""
        try:
            if code.startswith(_PRODUCT):
                (size,) = _LENGTH.unpack_from(code, len(_PRODUCT))
                end = len(_PRODUCT) + _LENGTH.size + size
                return replace(cls.of(code[end:]), product=code[end - size : end])
            major, minor, *lengths, shared = _HEAD.unpack_from(code)
            ends = [*accumulate(lengths, initial=_HEAD.size)]
            if ends[-1] != len(code) == sum(lengths) + _OLD.size:
                ends, shared = [*accumulate(lengths, initial=_OLD.size)], 0
            if ends[-1] != len(code):
                raise LoadError(
                    f"a kernel's code is damaged: it has {len(code)} bytes, not {ends[-1]}; "
                    "compile the model again"
                )
            kernel, architecture, cubin, ptx = (code[a:b] for a, b in pairwise(ends))
            return cls(kernel.decode(), architecture.decode(), (major, minor), cubin, ptx, shared)
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}; compile the model again") from None
