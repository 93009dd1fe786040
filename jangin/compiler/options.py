"""Everything that changes what a compilation gives, in one frozen value: part of every cache key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any

from jangin.ir.records import dataclass

if TYPE_CHECKING:
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format
    from jangin.targets.target import Target
    from jangin.templates.template import Candidate

Shapes = Mapping[str, int | tuple[int, int] | Sequence[int | None]]
LIBRARIES = ("never", "auto", "openblas", "onednn", "clblast")


@dataclass(frozen=True)
class Options:
    """`shapes` binds sizes: {"batch": 1} a symbol, {"seq": (1, 512)} its inclusive range,
    {"image": (1, 3, 224, 224)} a whole input. `winograd`: 3 x 3 convolutions may be computed by
    Winograd's method, with errors up to 1e-5 of the output's largest value. `libraries`: which other makers'
    kernels compete with ours in tuning ("never": none; "auto": all that are here; "openblas" or "onednn" on
    processors, "clblast" on OpenCL devices: that one). Untuned kernels are ours, or of a library that is
    asked for by name wherever it can.
    `unchecked`: an index that is out of range at run time is taken for the nearest that is in range (and an
    update at it left out), where else the run fails.
    `bf16`: products of bfloat16, and of float16, may be made by a processor's instructions for them, which
    read what is rounded to 16 bits where the model says, and take subnormal numbers of bfloat16 for 0; else
    they are products of f32.
    `formats`: Jangin's own with settings, such as `GgufFormat(cache="int8")`, which are asked first.
    `verify` checks the IR after every pass; it changes no result, so it is in no key. `choices`: the
    candidates that tuning found for kernels, by digest (see `kernels.kernel_workload`)."""

    target: Target
    shapes: Mapping[str, Any] = field(default_factory=dict)
    winograd: bool = True
    libraries: str = "never"
    unchecked: bool = False
    formats: Sequence[Format] = ()
    choices: Mapping[str, Candidate] = field(default_factory=dict)
    bf16: bool = True
    verify: bool = field(default=False, compare=False)

    def __post_init__(self) -> None:
        if self.libraries not in LIBRARIES:
            raise ValueError(f"libraries={self.libraries!r} is unknown; known: {', '.join(LIBRARIES)}")

    @property
    def parts(self) -> list[Options]:
        """Those of each device, where the target is several, whose choices begin with the device's number."""
        if len(self.target.each) == 1:
            return [self]
        return [
            replace(
                self,
                target=target,
                choices={k.partition(" ")[2]: c for k, c in self.choices.items() if k.startswith(f"{n} ")},
            )
            for n, target in enumerate(self.target.each)
        ]

    def of_parts(self, choices: Sequence[Mapping[str, Candidate]]) -> Options:
        """With the choices of each of `parts`."""
        if len(self.target.each) == 1:
            return replace(self, choices=choices[0])
        numbered = {f"{n} {k}": c for n, own in enumerate(choices) for k, c in own.items()}
        return replace(self, choices=numbered)

    def key(self) -> str:
        """A text that differs where the results do."""
        choices = sorted((digest, str(c)) for digest, c in self.choices.items())
        bound = sorted(self.shapes.items())
        flags = f"{self.winograd} {self.libraries} {self.unchecked} {list(self.formats)} {self.bf16}"
        return f"{self.target!r} {bound!r} {flags} {choices}"


@dataclass(frozen=True)
class Extensions:
    """What a caller adds for one model: no part of a cache's key, and never sent to another process.
    `target`: one that is no name's."""

    operators: Sequence[CustomOperator] = ()
    formats: Sequence[Format] = ()
    target: Target | None = None

    def __bool__(self) -> bool:
        return bool(self.operators or self.formats or self.target)


NONE = Extensions()
"""Nothing added."""
