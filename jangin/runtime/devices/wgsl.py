"""Compute shaders: a kernel's body in WGSL, and a head whose functions read and write memory.

A body accesses words of buffers only by these functions. So its text doesn't depend on where buffers lie.

WebGPU refuses a dispatch with more buffers than a limit, or with one range of memory in two bindings. Several
buffers of a launch then become one binding. The launch tells the word at which each buffer begins in its
binding. The driver or an emitted package decides how buffers are bound."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, field
from itertools import combinations
from typing import Any

from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.devices.wgsl_halves import ACCESS, NATIVE, PLAIN
from jangin.runtime.devices.wgsl_trees import Tree, with_subgroups

SCRATCH = "s"
"""The name of scratch memory in the names of functions, in place of a buffer's number."""
WORD = 4
"""Sizes of bindings and copies are multiples of this number of bytes, by the standard."""
ALIGNMENT = 256
"""A binding begins at a multiple of this number of bytes, by the standard."""
AXIS = 65535
"""The most groups along one axis of a dispatch, by the standard."""
SHARES = ("tasks", "first", "rounds", "share", "stride", "zero")
"""The numbers that a launch gives a shader, besides sizes and the words at which buffers begin.

- `first` is the number of the first round.
- `share` is how many tasks a group has.
- `zero` is 0, which compilers can't know."""
_ENTRY = "@builtin(workgroup_id) id: vec3<u32>, @builtin(num_workgroups) extent: vec3<u32>, "
_ENTRY += "@builtin(local_invocation_id) local: vec3<u32>"
_HEADS = {
    "r": ("fn r{0}(i: i32) -> u32", "i", ""),
    "q": ("fn q{0}(i: i32) -> vec4<u32>", "i", ""),
    "w": ("fn w{0}(i: i32, v: u32)", "i", ""),
    "t": ("fn t{0}(i: i32, v: vec4<u32>)", "i", ""),
    "e": ("fn e{0}(i: i32) -> Half", "(i >> 1u)", "let shift = (u32(i) & 1u) * 16u; "),
    "g": ("fn g{0}(i: i32, v: Half)", "(i >> 1u)", "let shift = (u32(i) & 1u) * 16u; "),
    "h": ("fn h{0}(i: i32, v: u32)", "(i >> 1u)", "let shift = (u32(i) & 1u) * 16u; "),
    "b": ("fn b{0}(i: i32, v: u32)", "(i >> 2u)", "let shift = (u32(i) & 3u) * 8u; "),
}
"""The functions for the words of buffer {0}: the beginning of the text, the word's index, and a first
step."""
READING = {"r", "q", "e"}
"""The letters of the functions that read."""
ROW = 4
"""The words that `q` reads and `t` writes. The first word's number is a multiple of this number."""
_ROWS = {
    "r": "return {m}[({i}) >> 2u][({i}) & 3];",
    "q": "return {m}[({i}) >> 2u];",
    "t": "{m}[({i}) >> 2u] = v;",
}
"""The functions' statements for the word {i} of binding {m}, which has rows. Words can't be stored there: a
device may store a row for a word."""
_PLAIN = {
    "r": "return {m}[{i}];",
    "e": "return half_of_bits(({m}[{i}] >> shift) & 0xffffu);",
    "q": "return vec4<u32>({m}[{i}], {m}[{i} + 1], {m}[{i} + 2], {m}[{i} + 3]);",
    "w": "{m}[{i}] = v;",
    "t": "{m}[{i}] = v.x; {m}[{i} + 1] = v.y; {m}[{i} + 2] = v.z; {m}[{i} + 3] = v.w;",
}
_ATOMIC = {
    "r": "return atomicLoad(&{m}[{i}]);",
    "q": "return vec4<u32>(atomicLoad(&{m}[{i}]), atomicLoad(&{m}[{i} + 1]), atomicLoad(&{m}[{i} + 2]), "
    "atomicLoad(&{m}[{i} + 3]));",
    "w": "atomicStore(&{m}[{i}], v);",
    "t": "atomicStore(&{m}[{i}], v.x); atomicStore(&{m}[{i} + 1], v.y); atomicStore(&{m}[{i} + 2], v.z); "
    "atomicStore(&{m}[{i} + 3], v.w);",
    "e": "return half_of_bits((atomicLoad(&{m}[{i}]) >> shift) & 0xffffu);",
    "g": "atomicAnd(&{m}[{i}], ~(0xffffu << shift)); atomicOr(&{m}[{i}], bits_of_half(v) << shift);",
    "h": "atomicAnd(&{m}[{i}], ~(0xffffu << shift)); atomicOr(&{m}[{i}], (v & 0xffffu) << shift);",
    "b": "atomicAnd(&{m}[{i}], ~(0xffu << shift)); atomicOr(&{m}[{i}], (v & 0xffu) << shift);",
}
"""The functions' statements if other work-items may write other parts of the word at the same time."""
_HALVES = {"e": "return {m}[{i}];", "g": "{m}[{i}] = v;"}
"""The functions' statements for the 16-bit number {i} of binding {m}."""
_ELEMENTS = {"vec4<u32>": _ROWS, "u32": _PLAIN, "atomic<u32>": _ATOMIC, "f16": _HALVES}
"""The functions' statements by the type of a binding's elements."""
F16, SUBGROUPS = "shader-f16", "subgroups"
"""WebGPU's names of the features of adapters for which shaders have another form. 16-bit floats are then
accessed and computed as they are, and a group's work-items combine values within subgroups."""
ENABLED = {F16: "f16", SUBGROUPS: "subgroups"}
"""The features' names in WGSL."""


def _element(letters: set[str], halves: bool) -> str:
    """Return the type of a binding's elements, given the letters of the functions that access it. With
    `halves`, 16-bit floats are elements, and need no atomic operations."""
    if halves and letters and letters <= {*_HALVES}:
        return "f16"
    if letters & {"g", "h", "b"}:
        return "atomic<u32>"
    return "vec4<u32>" if letters & {"q", "t"} and "w" not in letters else "u32"


@dataclass(frozen=True)
class Bindings:
    """How a shader's buffers are bound.

    - `of` has the number of each buffer's range of memory.
    - `counts` has the number of bindings of each range, which follow each other.
    - `words` is the number of words of each binding except the range's last."""

    of: tuple[int, ...]
    counts: tuple[int, ...]
    words: int = 0

    @classmethod
    def apart(cls, count: int) -> Bindings:
        """Return the bindings of `count` buffers that each have their own."""
        return cls(tuple(range(count)), (1,) * count)

    def access(self, letter: str, memory: str, n: int, element: str) -> str:
        """Return the text of the function that accesses a buffer's words in range `n`, whose bindings have
        this type of elements."""
        head, word, step = _HEADS[letter]
        begin, work = sum(self.counts[:n]), _ELEMENTS[element][letter]
        place = f"u.o{memory} + {word}"
        if element == "f16":
            return f"{head.format(memory)} {{ {work.format(m=f'm{begin}', i=f'2 * u.o{memory} + i')} }}"
        if self.counts[n] == 1:
            return f"{head.format(memory)} {{ {step}{work.format(m=f'm{begin}', i=place)} }}"
        lines = [f"{head.format(memory)} {{", f"  {step}let at = {place};"]
        for k in range(self.counts[n]):
            done = work.format(m=f"m{begin + k}", i=f"at - {k * self.words}")
            more, stop = k + 1 < self.counts[n], "" if letter in READING else " return;"
            lines.append(f"  if (at < {(k + 1) * self.words}) {{ {done}{stop} }}" if more else f"  {done}")
        return "\n".join([*lines, "}"])


@dataclass(frozen=True)
class Shader:
    """A kernel as a shader.

    - `buffers` and `sizes` are how many of each the kernel is given.
    - `threads` is the number of work-items in a group.
    - `room` is the bytes that a group shares.
    - `rounds` tells if the kernel has rounds. The last size is then the number of the round.
    - `accesses` has the letters of the functions that the body calls, by buffer (a number, or SCRATCH).
    - `shared` has declarations of the memory that a group shares.
    - `helpers` has the functions that the body calls.
    - `trees` has the functions that combine the values of a group's work-items."""

    kernel: str
    buffers: int
    sizes: int
    threads: int
    room: int
    rounds: bool
    accesses: Mapping[str, str] = field(default_factory=dict)
    shared: Sequence[str] = ()
    helpers: Sequence[str] = ()
    body: Sequence[str] = ()
    trees: Sequence[Tree] = ()

    @property
    def scratch(self) -> bool:
        """Whether the kernel uses scratch memory."""
        return SCRATCH in self.accesses

    @property
    def memories(self) -> list[str]:
        """The numbers of the kernel's buffers, followed by SCRATCH if the kernel uses scratch memory."""
        return [*map(str, range(self.buffers)), *([SCRATCH] if self.scratch else [])]

    @property
    def numbers(self) -> list[str]:
        """The names of the 32-bit integers that a launch gives, in order."""
        starts = [f"o{m}" for m in self.memories]
        return [*(f"s{n}" for n in range(self.sizes)), *SHARES, *starts]

    def text(self, bindings: Bindings | None = None, features: Collection[str] = ()) -> str:
        """Return the complete shader for adapters with these features. By default each of `memories` has its
        own binding."""
        chosen = bindings or Bindings.apart(len(self.memories))
        kinds = ", ".join(f"{n}: {'u32' if n == 'zero' else 'i32'}" for n in self.numbers)
        plain = [*self.shared, *self.helpers, *(t.plain() for t in self.trees)]
        lines = [f"struct Numbers {{ {kinds} }}", *self._declared(chosen), *plain, *self._access(chosen)]
        text = "\n".join([*lines, f"@compute @workgroup_size({self.threads})", f"fn main({_ENTRY}) {{",
                          *self._begin(), *self.body, "}", ""])  # fmt: skip
        return self.form(text, chosen, features)

    def forms(self, bindings: Bindings) -> list[tuple[str, ...]]:
        """Return the features for which the shader has other forms, all combinations of them."""
        halves = any(a != b for a, b in self._halves(bindings))
        own = [f for f, has in ((F16, halves), (SUBGROUPS, self.trees)) if has]
        return [c for n in range(1, len(own) + 1) for c in combinations(own, n)]

    def form(self, text: str, bindings: Bindings, features: Collection[str]) -> str:
        """Return the form of a shader's text for adapters with these features. `text` is the form without
        features, and its integers may differ from this shader's."""
        for plain, second in self._halves(bindings) if F16 in features else ():
            assert plain in text, plain
            text = text.replace(plain, second)
        return with_subgroups(text, self.trees, _ENTRY) if self.trees and SUBGROUPS in features else text

    def _halves(self, bindings: Bindings) -> list[tuple[str, str]]:
        """Return the declarations and functions without and with WGSL's f16."""
        called = [name for name in PLAIN if PLAIN[name] in self.helpers]
        plain = [*self._declared(bindings), *self._access(bindings), *(PLAIN[n] for n in called)]
        second = [*self._declared(bindings, halves=True), *self._access(bindings, halves=True)]
        second += [NATIVE[n] for n in called]
        return [(a, b) for a, b in zip(plain, second, strict=True) if a != b]

    def _elements(self, bindings: Bindings, halves: bool) -> list[str]:
        """Return the type of the elements of each range of memory."""
        places = dict(zip(self.memories, bindings.of, strict=True))
        letters = [
            {x for m, used in self.accesses.items() if places[m] == n for x in used}
            for n in range(len(bindings.counts))
        ]
        return [
            _element(used, halves and many == 1) for used, many in zip(letters, bindings.counts, strict=True)
        ]

    def _declared(self, bindings: Bindings, *, halves: bool = False) -> list[str]:
        elements = self._elements(bindings, halves)
        arrays = [e for e, many in zip(elements, bindings.counts, strict=True) for _ in range(many)]
        lines = [
            f"@group(0) @binding({n}) var<storage, read_write> m{n}: array<{e}>;"
            for n, e in enumerate(arrays)
        ]
        return [*lines, f"@group(0) @binding({len(arrays)}) var<uniform> u: Numbers;"]

    def _access(self, bindings: Bindings, *, halves: bool = False) -> list[str]:
        """Return the functions that access buffers' words."""
        elements, places = (
            self._elements(bindings, halves),
            dict(zip(self.memories, bindings.of, strict=True)),
        )
        return [
            bindings.access(x, m, places[m], elements[places[m]])
            for m, used in self.accesses.items()
            for x in sorted(used)
        ]

    def _begin(self) -> list[str]:
        """Return the lines that set a group's tasks and the sizes, without the number of the round."""
        own = self.sizes - 1 if self.rounds else self.sizes
        return [
            "  let group = i32(id.x + id.y * extent.x);",
            "  let item = i32(local.x);",
            "  let lo = group * u.share;",
            "  let hi = min(lo + u.share, u.tasks);",
            *(f"  let s{n} = u.s{n};" for n in range(own)),
        ]

    @property
    def packed(self) -> bytes:
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, code: bytes) -> Shader:
        """Unpack the shader from the bytes that `packed` made. Raises LoadError if they are damaged, or if
        another version of Jangin made them, whose functions for 16-bit floats were different."""
        try:
            fields = json.loads(code)
            made = cls(**{**fields, "trees": [Tree(**t) for t in fields.get("trees", ())]})
            called = {ACCESS[x] for used in made.accesses.values() for x in used if x in ACCESS}
            same = all(PLAIN[name] in made.helpers for name in called)
        except (AttributeError, TypeError, ValueError) as error:
            raise LoadError(f"a kernel's code is damaged: {error}; compile the model again") from None
        if not same:
            raise LoadError(
                f"kernel {made.kernel} takes 16-bit floats as another version of Jangin did: compile the "
                "model again"
            )
        return made

    def values(self, given: Mapping[str, int]) -> list[int]:
        """Return the numbers of a launch in order. Those that `given` lacks are 0."""
        return [given.get(name, 0) for name in self.numbers]


def extent(groups: int) -> tuple[int, int]:
    """Return the groups along two axes of a dispatch, which are together at least `groups`."""
    across = max(1, min(groups, AXIS))
    return across, -(-groups // across)


def launch_numbers(tasks: int, groups: int, stride: int, first: int = 0, rounds: int = 1) -> dict[str, Any]:
    """Return the numbers that a launch gives its shader to divide tasks among groups, by their names in
    `SHARES`."""
    share = -(-tasks // max(1, groups))
    return {
        "tasks": tasks,
        "share": share,
        "stride": stride,
        "first": first,
        "rounds": rounds,
    }


def words(size: int) -> int:
    """Return a number of bytes rounded up to whole words, at least one."""
    return max(WORD, -(-size // WORD) * WORD)


def rows(size: int) -> int:
    """Return a number of bytes rounded up to whole rows, at least one."""
    return max(1, -(-size // (ROW * WORD))) * ROW * WORD


class Range:
    """A range of `size` bytes from `start` on, in the memory that `handle` identifies."""

    def __init__(self, handle: Any, size: int, start: int = 0) -> None:
        self.handle, self.size, self.start = handle, size, start

    @property
    def end(self) -> int:
        return self.start + rows(self.size)


def bind(memory: Sequence[Range], most: int, largest: int) -> tuple[Bindings, list[int], list[Range]]:
    """Return how buffers are bound, where each buffer's range begins, and the memory of each binding.

    Buffers that overlap share a range. If there would be more than `most` bindings, all buffers of the same
    memory share a range. A range of more than `largest` bytes has several bindings. Raises ValueError if
    there are still too many bindings."""
    for meet in (lambda a, b: a.start < b.end and b.start < a.end, lambda a, b: True):
        shared = _joined(memory, meet)
        numbers = {n: k for k, n in enumerate(dict.fromkeys(shared))}
        ranges = [_whole([b for b, k in zip(memory, shared, strict=True) if k == n]) for n in numbers]
        windows = [_windows(r, largest) for r in ranges]
        counts = tuple(map(len, windows))
        if sum(counts) <= most:
            of = tuple(numbers[n] for n in shared)
            parts = [w for window in windows for w in window]
            return Bindings(of, counts, _window(largest) // WORD), [ranges[n].start for n in of], parts
    raise ValueError(
        f"a kernel needs {sum(counts)} bindings, each of at most {largest} bytes, and the device allows "
        f"{most}: run the model on smaller inputs, or on another device"
    )


def _whole(parts: Sequence[Range]) -> Range:
    start = min(p.start for p in parts)
    return Range(parts[0].handle, max(p.end for p in parts) - start, start)


def _window(largest: int) -> int:
    """Return the bytes of a binding after which another binding may begin."""
    return largest // ALIGNMENT * ALIGNMENT


def _windows(whole: Range, largest: int) -> list[Range]:
    """Return a range in pieces that are small enough for bindings."""
    if rows(whole.size) <= largest:
        return [whole]
    starts = range(whole.start, whole.end, _window(largest))
    return [Range(whole.handle, min(_window(largest), whole.end - at), at) for at in starts]


def _joined(memory: Sequence[Range], meet: Callable[[Range, Range], bool]) -> list[int]:
    """Return, for each buffer, the number of the first buffer that it is joined with, directly or through
    others."""
    first = list(range(len(memory)))
    for n, b in enumerate(memory):
        for k in range(n):
            if memory[k].handle == b.handle and meet(memory[k], b):
                low, high = sorted((first[k], first[n]))
                first = [low if f == high else f for f in first]
    return first
