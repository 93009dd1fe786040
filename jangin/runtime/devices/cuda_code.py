"""The code of a kernel for NVIDIA's GPUs, as compiled models store it."""

from __future__ import annotations

import struct
from itertools import accumulate, pairwise

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError

_HEAD = struct.Struct("<HHIIII")


@dataclass(frozen=True)
class Built:
    """The code of one kernel, whose name is `kernel`.

    - `architecture` is the architecture that `cubin` is for.
    - `version` is the version of NVRTC that compiled the kernel.
    - `cubin` is machine code.
    - `ptx` is text that the drivers of later devices compile."""

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
        """Unpack the code from the bytes that `packed` made. Raises LoadError if they are damaged."""
        try:
            major, minor, *lengths = _HEAD.unpack_from(code)
            ends = [*accumulate(lengths, initial=_HEAD.size)]
            if ends[-1] != len(code):
                raise LoadError(f"a kernel's code is damaged: it has {len(code)} bytes, not {ends[-1]}")
            kernel, architecture, cubin, ptx = (code[a:b] for a, b in pairwise(ends))
            return cls(kernel.decode(), architecture.decode(), (major, minor), cubin, ptx)
        except (struct.error, UnicodeDecodeError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}") from None
