"""Run a model that is compiled ahead of time from Python, only by ctypes, as any language would.

    jangin compile MODEL.onnx --emit shared --name model -o out
    python examples/ahead.py out/libmodel.so model batch=1 seq=16

The script prints each output's shape and first numbers, for inputs of ones. It needs only NumPy, not Jangin.
"""

from __future__ import annotations

import ctypes
import sys
import time

import numpy as np

TYPES = {"f16": "f2", "bool": "?", **{f"{k}{n}": f"{k}{n // 8}" for k in "iuf" for n in (8, 16, 32, 64)}}


class Model:
    """The functions of a model's header."""

    def __init__(self, path: str, prefix: str) -> None:
        self.library, self.prefix = ctypes.CDLL(path), prefix

    def number(self, name: str, *args: object) -> int:
        function = getattr(self.library, f"{self.prefix}_{name}")
        function.restype = ctypes.c_int64 if name.endswith("_bytes") else ctypes.c_int32
        code = function(*args)
        if code < 0:
            raise ValueError(self.text("error_text", code))
        return code

    def text(self, name: str, *args: object) -> str:
        function = getattr(self.library, f"{self.prefix}_{name}")
        function.restype = ctypes.c_char_p
        return function(*args).decode()

    def tensor(self, kind: str, index: int, sizes: object) -> np.ndarray:
        """Return an array of ones for an input or output."""
        shape = (ctypes.c_int64 * 16)()
        rank = self.number(f"{kind}_shape", index, sizes, shape)
        return np.ones(shape[:rank], TYPES[self.text(f"{kind}_type", index)])

    def fresh_state(self) -> list[ctypes.c_void_p]:
        """Return the state of a model that keeps one between runs, as before the first run."""
        if not hasattr(self.library, f"{self.prefix}_state_bytes"):
            return []
        self.memory = np.zeros(self.number("state_bytes") + 64, np.uint8)
        state = ctypes.c_void_p(self.memory.ctypes.data + -self.memory.ctypes.data % 64)
        self.number("reset", state)
        return [state]

    def run(self, threads: int = 1, **sizes: int) -> dict[str, np.ndarray]:
        names = [self.text("size_name", n) for n in range(self.number("size_count"))]
        if set(names) != set(sizes):
            raise ValueError(f"the sizes to give are: {', '.join(names) or 'none'}")
        given = (ctypes.c_int64 * max(1, len(names)))(*(sizes[n] for n in names))
        arrays = {
            kind: [self.tensor(kind, n, given) for n in range(self.number(f"{kind}_count"))]
            for kind in ("input", "output")
        }
        tables = [(ctypes.c_void_p * len(a))(*(x.ctypes.data for x in a)) for a in arrays.values()]
        arena = np.empty(self.number("arena_bytes", given, threads), np.uint8)
        place, room = ctypes.c_void_p(arena.ctypes.data), ctypes.c_int64(arena.nbytes)
        state = self.fresh_state()
        start = time.perf_counter()
        self.number("run", *state, *tables, given, place, room, threads)
        print(f"{self.text('version')}: {1e3 * (time.perf_counter() - start):.3f} ms")
        return {self.text("output_name", n): a for n, a in enumerate(arrays["output"])}


def main(path: str, prefix: str, *sizes: str) -> None:
    pairs = (text.split("=") for text in sizes)
    for name, array in Model(path, prefix).run(**{name: int(size) for name, size in pairs}).items():
        print(f"{name} {array.dtype}{list(array.shape)} {array.reshape(-1)[:5]}")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    main(*sys.argv[1:])
