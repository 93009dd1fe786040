"""A compiled model of variants, loaded and ready to run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from jangin.host.table import HostFunction
from jangin.ir.expr import Var
from jangin.ir.program import IN_STEPS
from jangin.runtime.called import Called, joined
from jangin.runtime.compiled import signature
from jangin.runtime.device import Device
from jangin.runtime.executable import SHAPES, Executable
from jangin.runtime.pickled import Loaded
from jangin.runtime.profile import LaunchTime
from jangin.runtime.program_artifact import ProgramArtifact
from jangin.runtime.sizes import Evaluator, Sizes, needed, solved
from jangin.runtime.variants_artifact import VariantsArtifact, Whole, listed

if TYPE_CHECKING:
    from jangin.runtime.program import ProgramExecutable


class VariantsExecutable(Called, Loaded[VariantsArtifact]):
    """Runs a compiled model by the most specialized variant whose conditions the inputs' sizes meet: `exe(x)`
    or `exe.run({"x": x})`.

    More specialized variants come later in the list. Variants share constants and threads. Each has its own
    working memory once it runs. `outputs` has only the sizes that all variants agree on. If no variant fits,
    the first one reports why, or a `ValueError` is raised."""

    def __init__(
        self,
        artifact: VariantsArtifact,
        threads: int | None = None,
        functions: Mapping[str, HostFunction] | None = None,
        device: Device | None = None,
    ) -> None:
        self._artifact, self._given = artifact, (threads, functions, device)
        self.variants: list[Executable | ProgramExecutable] = []
        share: Executable | None = None
        for part in artifact.parts:
            variant = _whole(part, threads, functions, device, share)
            share = share or (
                variant if isinstance(variant, Executable) else next(iter(variant.segments), None)
            )
            self.variants.append(variant)
        self.inputs, self.outputs = signature(artifact)
        self._names = [s.name for s in self.inputs]
        self._dims = artifact.dims
        self._conditions = [artifact.conditions(n) for n in range(len(artifact.parts))]
        self._chosen: dict[tuple[Sizes, ...], Executable | ProgramExecutable] = {}
        self._last: Executable | None = None

    @property
    def name(self) -> str:
        return self.variants[0].name

    @property
    def threads(self) -> int:
        return self.variants[0].threads

    def release(self) -> None:
        """Drop the working memory of finished runs, in all variants."""
        for variant in self.variants:
            variant.release()

    def arena_bytes(self, **sizes: int) -> int:
        """Return the bytes of a run's intermediate memory in the variant for these sizes. Raises ValueError
        if that variant is a program."""
        part = self._fitting({Var(name): size for name, size in sizes.items()})
        if not isinstance(part, Executable):
            raise ValueError(f"{IN_STEPS}, so its working memory isn't known before a run")
        fixed = self._artifact.sizes[self.variants.index(part)]
        return part.arena_bytes(**{name: size for name, size in sizes.items() if name not in fixed})

    def __call__(self, /, *values: Any, **named: Any) -> Any:
        """Run the model. Return the output, or a tuple if there are several. Raises TypeError for a wrong
        dtype or kind of value, and ValueError for a wrong count or shape."""
        arrays = joined(self.inputs, values, named) if named else values
        return self._choose(arrays)(*arrays)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Run the model with inputs and outputs by name."""
        last = self._last
        outputs = None if last is None else last.again(feeds)
        return self.variant(feeds).run(feeds) if outputs is None else outputs

    def profile(self, feeds: Mapping[str, Any], repeats: int = 20) -> list[LaunchTime]:
        """Time each launch of the variant for these inputs, as `Executable.profile` does. Raises ValueError
        if that variant is a program."""
        part = self.variant(feeds)
        if not isinstance(part, Executable):
            raise ValueError(f"{IN_STEPS}, so its kernels can't be timed one by one")
        return part.profile(feeds, repeats)

    def variant(self, feeds: Mapping[str, Any]) -> Executable | ProgramExecutable:
        """Return the executable of the variant for these inputs."""
        return self._choose([feeds[n] for n in self._names if n in feeds])

    def _choose(self, values: Sequence[Any]) -> Executable | ProgramExecutable:
        shapes = tuple([v.shape if type(v) is np.ndarray else _shape(v) for v in values])
        variant = self._chosen.get(shapes)
        if variant is None:
            variant = self._find(shapes)
        self._last = variant if isinstance(variant, Executable) else None
        return variant

    def _find(self, shapes: tuple[Sizes, ...]) -> Executable | ProgramExecutable:
        if len(shapes) != len(self._dims):
            return self.variants[0]
        pairs = dict.fromkeys((d, s) for d, s in zip(self._dims, shapes, strict=True) if d is not None)
        if any(len(d) != len(s) for d, s in pairs):
            return self.variants[0]
        variant = self._fitting(solved([d for d, _ in pairs], [s for _, s in pairs]))
        if len(self._chosen) >= SHAPES:
            self._chosen.clear()
        self._chosen[shapes] = variant
        return variant

    def _fitting(self, sizes: Mapping[Var, int]) -> Executable | ProgramExecutable:
        """Return the last variant that takes these sizes. Return the first if it must report what is wrong.
        Raises ValueError if none takes them."""
        value = Evaluator(sizes)
        try:
            for variant, conditions in zip(reversed(self.variants), reversed(self._conditions), strict=True):
                if all(map(value, conditions)):
                    return variant
            is_program = isinstance(self._artifact.parts[0], ProgramArtifact)
            if is_program and all(map(value, self._artifact.limits(0))):
                return self.variants[0]
            unmet = " and ".join(needed(c, by) for c, by in self._conditions[0].items() if not value(c))
        except ValueError:  # a size isn't known
            return self.variants[0]
        sizes_text = ", ".join(f"{v} = {n}" for v, n in sizes.items())
        why = [f"the sizes {sizes_text} do not meet {unmet}"]
        if self._artifact.sizes[1:]:
            why.append(f"other variants are for {' or '.join(map(listed, self._artifact.sizes[1:]))}")
        at = {v.name: size for v, size in sizes.items()}.items()
        why += [str(absent) for absent in self._artifact.absent if absent.sizes.items() <= at]
        raise ValueError("; ".join(why))


def _shape(value: Any) -> Sizes:
    """Return the shape of anything that may be an array. Return () for other values, which the model then
    reports."""
    try:
        return tuple(np.shape(value) if not hasattr(value, "shape") else value.shape)
    except (TypeError, ValueError):
        return ()


def single(
    artifact: Whole | VariantsArtifact,
    threads: int | None = None,
    functions: Mapping[str, HostFunction] | None = None,
    device: Device | None = None,
) -> Executable | ProgramExecutable | VariantsExecutable:
    """Make an artefact for one device ready to run."""
    if isinstance(artifact, VariantsArtifact):
        return VariantsExecutable(artifact, threads, functions, device)
    return _whole(artifact, threads, functions, device)


def _whole(
    artifact: Whole,
    threads: int | None,
    functions: Mapping[str, HostFunction] | None,
    device: Device | None,
    share: Executable | None = None,
) -> Executable | ProgramExecutable:
    if isinstance(artifact, ProgramArtifact):
        from jangin.runtime.program import ProgramExecutable

        return ProgramExecutable(artifact, threads, functions, device, share)
    return Executable(artifact, threads, share, device)
