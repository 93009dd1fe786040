"""The description of a model that is compiled ahead of time. C and object code are generated from it."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import combinations

import numpy as np

from jangin.ahead.estimates import STACK
from jangin.ahead.memory import Memory, aligned, memory_of, typical_sizes
from jangin.ahead.prepared import Prepared, prepared
from jangin.ahead.state import State, Training, kept_between
from jangin.ir.dtype import DType
from jangin.ir.expr import Expr, Var, const
from jangin.ir.graph import Array
from jangin.ir.loop import Func
from jangin.ir.plan import ALIGN, Launch, Plan, PlanBuffer
from jangin.ir.records import dataclass
from jangin.once import once
from jangin.targets.target import Target

SLACK = ALIGN - 1
"""The most bytes of working memory that are unused because the memory is aligned."""


WORD = 8
"""Weights, and arrays of a state, lie at multiples of so many bytes on microcontrollers. Their widest loads,
of f64 and i64, need no more."""


@dataclass(frozen=True)
class Quantization:
    """The real numbers that integers stand for: (integer - zero) * scale."""

    scale: float
    zero: int


@dataclass(frozen=True)
class Tensor:
    """An input or output. `field` is its name as an identifier. `shapes` has one shape for each part of the
    model. The integers of a `quantization` stand for real numbers."""

    name: str
    field: str
    dtype: DType
    shapes: tuple[tuple[Expr, ...], ...]
    quantization: Quantization | None = None


@dataclass(frozen=True)
class Part:
    """A plan, with the sizes of symbols that it is specialised for, and its memory. From the offset `aside`,
    the arena has memory that the plan doesn't use. The launches `once` run as the weights are loaded."""

    plan: Plan
    sizes: Mapping[str, int]
    memory: Memory
    aside: Expr = const(0)
    once: tuple[Launch, ...] = ()

    def with_aside(self, size: int) -> Part:
        """Return this part with an arena of `size` more bytes."""
        if not size:
            return self
        end = aligned(self.memory.arena)
        return replace(self, memory=replace(self.memory, arena=end + size), aside=end)


@dataclass(frozen=True)
class Weights:
    """All constants in one block of bytes. `places` has, for each part, each constant's offset in the block
    by name. `room` is the bytes of the block with the results of launches that run once, which follow."""

    arrays: tuple[tuple[int, Array], ...]
    places: tuple[Mapping[str, int], ...]
    bytes: int
    room: int

    @classmethod
    def of(
        cls,
        constants: Sequence[Mapping[str, Array]],
        made: Sequence[Sequence[tuple[str, int]]] = (),
        to: int = ALIGN,
    ) -> Weights:
        """Return the weights of each part's constants. Equal contents are stored once. Each begins at a
        multiple of `to`. `made` has each part's results of launches that run once, with their bytes."""
        known: dict[bytes, int] = {}
        arrays, places, end = [], list[dict[str, int]](), 0
        for own in constants:
            offsets = {}
            for name, array in own.items():
                flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
                digest = hashlib.sha256(flat.data).digest()
                if digest not in known:
                    known[digest] = end
                    arrays.append((end, flat))
                    end += -(-flat.nbytes // to) * to
                offsets[name] = known[digest]
            places.append(offsets)
        room = end
        for results, offsets in zip(made, places, strict=False):
            for name, size in results:
                offsets[name] = room
                room += -(-size // to) * to
        return cls(tuple(arrays), tuple(places), end, room)

    @property
    def made(self) -> int:
        """The bytes of the results of launches that run once."""
        return self.room - self.bytes

    def chunks(self) -> list[Array]:
        """Return the bytes of the block as consecutive arrays."""
        pieces: list[Array] = []
        ends = [at for at, _ in self.arrays] + [self.bytes]
        for (at, array), end in zip(self.arrays, ends[1:], strict=True):
            pieces += [array, np.zeros(end - at - array.nbytes, np.uint8)]
        return pieces


@dataclass(frozen=True)
class Model:
    """A model that is compiled ahead of time.

    All its names begin with `prefix`. A run takes the last of the plans `parts` whose conditions its sizes
    meet. `beside` tells if the weights are in a separate file. `state` describes what is kept between runs.
    The parts of a `training` step are its functions instead. `patches` says how the first layers run in
    patches, or why they can't if the model doesn't fit. `ways` are plans with other schedules, whose
    kernels are candidates."""

    name: str
    prefix: str
    target: Target
    parts: tuple[Part, ...]
    weights: Weights
    beside: bool
    state: State | None = None
    quantization: Mapping[str, Quantization] = field(default_factory=dict)
    patches: str = ""
    ways: tuple[Plan, ...] = ()

    @classmethod
    def of(
        cls,
        name: str,
        prefix: str,
        target: Target,
        plans: Sequence[tuple[Plan, Mapping[str, int]]],
        beside: bool,
        kept: Mapping[str, str] | None = None,
        quantization: Mapping[str, Quantization] | None = None,
    ) -> Model:
        """Return the description of a model's plans. `kept` gives the inputs that are kept between runs the
        outputs that are their next values."""
        apart = target.machine.fusion.prepares
        divided = [prepared(plan) if apart else Prepared(plan) for plan, _ in plans]
        parts = tuple(
            Part(d.plan, sizes, memory_of(d.plan), once=d.launches)
            for d, (_, sizes) in zip(divided, plans, strict=True)
        )
        state, to = None, WORD if target.outputs == ("c",) else ALIGN
        if kept:
            state, sizes_aside = kept_between(kept, [p.plan for p in parts], to)
            parts = tuple(p.with_aside(size) for p, size in zip(parts, sizes_aside, strict=True))
        weights = Weights.of([d.plan.constants for d in divided], [d.sizes for d in divided], to)
        return cls(name, prefix, target, parts, weights, beside, state, quantization or {})

    @property
    def training(self) -> Training | None:
        """The state of a training step, or None for any other model."""
        return self.state if isinstance(self.state, Training) else None

    @property
    def has_workers(self) -> bool:
        """Whether JavaScript's workers do a launch's tasks: the module imports the function that calls
        them."""
        return self.target.has("atomics")

    @property
    def has_threads(self) -> bool:
        """Whether a thread pool is included, which needs a system with POSIX threads."""
        return "linux" in self.target.triple

    @once
    def symbols(self) -> tuple[str, ...]:
        """The sizes that a run is given, in order."""
        return tuple(v.name for v, _ in self.parts[0].plan.symbols)

    @once
    def inputs(self) -> tuple[Tensor, ...]:
        return self._called(range(len(self.parts)), "given")

    @once
    def outputs(self) -> tuple[Tensor, ...]:
        return self._called(range(len(self.parts)), "made")

    @once
    def structs(self) -> dict[str, tuple[Tensor, ...]]:
        """The tensors whose addresses the caller gives, by the name of the struct that holds them."""
        if self.training is None:
            return {"inputs": self.inputs, "outputs": self.outputs}
        structs = {"batch": self._called([0], "given")}
        if self.training.infers:
            structs |= {"inputs": self._called([-1], "given"), "outputs": self._called([-1], "made")}
        return structs

    def _called(self, numbers: Sequence[int], kind: str) -> tuple[Tensor, ...]:
        """Return the tensors whose addresses the caller gives, of parts by their numbers: those that are
        "given" or "made", in the caller's order."""
        return _tensors(
            [self.parts[n] for n in numbers], [self._names(n, kind) for n in numbers], self.quantization
        )

    def _names(self, number: int, kind: str) -> Sequence[str]:
        plan = self.parts[number].plan
        names = plan.inputs if kind == "given" else plan.outputs
        if self.state is None:
            return names
        entry = self.state.entries[number]
        places = entry.inputs if kind == "given" else entry.outputs
        return [n for _, n in sorted((p.at, n) for p, n in zip(places, names, strict=True) if p.kind == kind)]

    @once
    def kernels(self) -> dict[str, Func]:
        """Every kernel that is launched, by the name of its function."""
        return {
            launch.function: part.plan.kernels[launch.kernel]
            for part in self.parts
            for launch in (*part.once, *part.plan.launches)
            if not launch.is_idle
        }

    @once
    def overlapping(self) -> dict[str, set[int]]:
        """For each kernel, by the name of its function, the numbers of the parameters that lie over others in
        some launch."""
        numbers: dict[str, set[int]] = {}
        for part in self.parts:
            buffers = {b.name: b for b in part.plan.buffers}
            for launch in part.plan.launches:
                args = [buffers[buffers[a].base or a] for a in launch.args]
                for (n, a), (m, b) in combinations(enumerate(args), 2):
                    if a is not b and _meet(a, b):
                        numbers.setdefault(launch.function, set()).update((n, m))
        return numbers

    def memory_bytes(self, part: Part, sizes: Mapping[Var, int], threads: int = 1) -> int:
        """Return the bytes of arena and scratch memory that a run of a part needs, given sizes and
        threads."""
        return part.memory.bytes(sizes, threads)

    @property
    def ram(self) -> int:
        """The bytes of RAM that a run on one thread takes with its stack, without inputs and outputs."""
        state = 0 if self.state is None else self.state.size
        return self.typical_bytes()[0] + state + self.weights.made + STACK

    def typical_bytes(self) -> tuple[int, dict[str, int]]:
        """Return the most bytes of working memory that a run on one thread needs for typical sizes, and these
        sizes."""
        needs = [(self.memory_bytes(p, s) + SLACK, s) for p in self.parts for s in [typical_sizes(p.plan)]]
        most, sizes = max(needs, key=lambda f: f[0])
        return most, {v.name: n for v, n in sizes.items()}


def _meet(a: PlanBuffer, b: PlanBuffer) -> bool:
    """Return whether two buffers share bytes of an arena of known size."""
    if a.offset is None or b.offset is None:
        return False
    return a.offset < b.offset + (b.bytes or 0) and b.offset < a.offset + (a.bytes or 0)


def _tensors(
    parts: Sequence[Part], names: Sequence[Sequence[str]], quantization: Mapping[str, Quantization]
) -> tuple[Tensor, ...]:
    """Return the inputs or outputs of a model, given their names in each part."""
    tensors = []
    for n, (name, own_field) in enumerate(zip(names[0], identifiers(names[0]), strict=True)):
        buffers = [p.plan.buffer(own_names[n]) for p, own_names in zip(parts, names, strict=True)]
        shapes = tuple(b.shape for b in buffers)
        tensors.append(Tensor(name, own_field, buffers[0].dtype, shapes, quantization.get(name)))
    return tuple(tensors)


_WORDS = """
main auto break case char const continue default do double else enum extern float for goto if inline int long
register restrict return short signed sizeof static struct switch typedef union unsigned void volatile while
alignas alignof and asm bool catch class delete explicit export false friend mutable namespace new not
operator or private protected public template this throw true try typeid typename using virtual xor
"""
"""Words of C and C++ and the name of the example's file, which can't be names."""


def identifier(text: str) -> str:
    """Return a text changed to an identifier of C and C++: other characters become "_"."""
    plain = "".join(c if c.isascii() and c.isalnum() else "_" for c in text).strip("_") or "model"
    if plain[0].isdigit():
        plain = f"n{plain}"
    return f"{plain}_" if plain in _WORDS.split() else plain


def identifiers(texts: Iterable[str]) -> list[str]:
    """Return texts changed to identifiers that differ from each other."""
    distinct: dict[str, None] = {}
    for text in texts:
        name = identifier(text)
        while name in distinct:
            name += "_"
        distinct[name] = None
    return list(distinct)
