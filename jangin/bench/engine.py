"""The job of a benchmark worker, and the interface of an engine."""

from __future__ import annotations

import pickle
from base64 import b85decode, b85encode
from collections.abc import Callable, Mapping
from dataclasses import field

from jangin.bench.arrays import load_arrays
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.options import Options


@dataclass(frozen=True)
class Job:
    """A worker's job.

    `inputs` is an .npz file with the model's inputs in order. `outputs` are the names of the outputs in
    order. `shapes` fixes the model's size symbols; the symbols stay symbolic if `shapes` is empty.
    `compiling` is the text that `packed` makes of the options of Jangin's compilation."""

    engine: str
    threads: int
    model: str = ""
    inputs: str = ""
    outputs: tuple[str, ...] = ()
    shapes: Mapping[str, int] = field(default_factory=dict)
    compiling: str = ""

    @staticmethod
    def packed(options: Options) -> str:
        return b85encode(pickle.dumps(options)).decode()

    @property
    def options(self) -> Options:
        options: Options = pickle.loads(b85decode(self.compiling))
        return options

    def feeds(self) -> dict[str, Array]:
        return load_arrays(self.inputs)


@dataclass(frozen=True)
class Engine:
    """A compiled model in one engine. `call()` runs the model once and returns its outputs by name.

    `work` is the operations of a call, for engines that measure the machine. `memory` is the bytes that the
    engine planned, by kind. `save(path)` writes the compiled model, if the engine can. `libraries` are other
    makers' libraries that the compiled model calls. `layers()` returns the seconds of a run by operator, if
    the engine can tell them."""

    call: Callable[[], Mapping[str, Array]]
    version: str
    compile_seconds: float = 0.0
    work: float = 0.0
    memory: Mapping[str, int] = field(default_factory=dict)
    save: Callable[[str], None] | None = None
    libraries: tuple[str, ...] = ()
    layers: Callable[[], Mapping[str, float]] | None = None
