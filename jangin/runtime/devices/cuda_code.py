"""A kernel's code for NVIDIA's GPUs, as compiled models have it."""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError

_HEAD = struct.Struct("<HHIIII")


@dataclass(frozen=True)
class Built:
    """`kernel`: its name; `architecture`: what `cubin` is for, NVIDIA's machine code. `ptx` is text that the
    drivers of later devices compile. `version`: NVRTC's."""

    kernel: str
    architecture: str
    version: tuple[int, int]
    cubin: bytes
    ptx: bytes

    @property
    def packed(self) -> bytes:
        parts = self.kernel.encode(), self.architecture.encode(), self.cubin, self.ptx
        return _HEAD.pack(*self.version, *map(len, parts)) + b"".join(parts)

    @classmethod
    def of(cls, code: bytes) -> Built:
        """The code that was packed. Raises LoadError."""
        try:
            major, minor, *lengths = _HEAD.unpack_from(code)
            ends = [*accumulate(lengths, initial=_HEAD.size)]
            if ends[-1] != len(code):
                raise LoadError(f"a kernel's code is damaged: it has {len(code)} bytes, not {ends[-1]}")
            kernel, architecture, cubin, ptx = (code[a:b] for a, b in pairwise(ends))
            return cls(kernel.decode(), architecture.decode(), (major, minor), cubin, ptx)
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}") from None
