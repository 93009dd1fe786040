"""From a model to an executable: what was compiled and tuned here before, and which process compiles."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.compiler.cache import Cache, key, source_digest
from jangin.compiler.options import NONE, Extensions, Options
from jangin.compiler.source import Source
from jangin.runtime.executable import Executable
from jangin.runtime.program import ProgramExecutable, executable, host_functions
from jangin.runtime.program_artifact import checked, read_artifact
from jangin.runtime.threads import default_threads
from jangin.targets import resolve
from jangin.tune.store import Store, place_of

if TYPE_CHECKING:
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format, ModelSource
    from jangin.runtime.artifact import Artifact
    from jangin.runtime.program_artifact import ProgramArtifact

Progress = Callable[[int, int, str], None]
"""Steps done, steps in all, what is done now."""


@dataclass(frozen=True)
class Request:
    """What to compile and how, in plain values that another process can be sent: `compile`'s arguments.
    `source`: what the model was read from, where the cache was asked for it already."""

    model: ModelSource
    target: str
    threads: int
    shapes: Mapping[str, Any]
    winograd: bool
    libraries: str
    cache: bool | str | Path
    tune: float | None
    sizes: Mapping[str, int]
    source: Source | None = None

    @property
    def entries(self) -> Cache | None:
        """Where compiled models are kept, if they are."""
        return None if self.cache is False else Cache(self._folder)

    @property
    def winners(self) -> Store | None:
        """Where what tuning found is kept, if it is."""
        return None if self.cache is False else Store(self._folder)

    @property
    def _folder(self) -> str | Path | None:
        return None if isinstance(self.cache, bool) else self.cache

    def options(self) -> Options:
        """With the candidates that won on this machine."""
        options = Options(resolve(self.target), dict(self.shapes), self.winograd, self.libraries)
        return options if self.winners is None else with_winners(options, self.threads, self.winners)


def compile(
    model: ModelSource,
    target: str = "cpu",
    threads: int | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    winograd: bool = True,
    libraries: str = "never",
    operators: Sequence[CustomOperator] = (),
    formats: Sequence[Format] = (),
    cache: bool | str | Path = True,
    tune: str | float | None = None,
    sizes: Mapping[str, int] | None = None,
    progress: Progress | None = None,
    isolated: bool | None = None,
) -> Executable | ProgramExecutable:
    """Compile a model (path, bytes or message; ONNX, or of `formats`) and load it.

    `shapes` binds symbolic sizes, `winograd` allows its rounding, `libraries` other makers' kernels
    (see `Options`); `cache`: keep and reuse compiled models and what tuning found for this machine,
    True for the user's cache folder, a path for another, False for none; `tune`: seconds ("60s", "2m")
    to measure candidates first, for `sizes` of the symbols; `progress(done, total, what)`.
    `operators` are your own (see `jangin.custom`), and so are `formats`, which are asked before
    Jangin's (see `jangin.frontends.format`); a model that is compiled with some is not cached.
    `isolated`: compile in a process of its own, whose memory is the system's again when it ends; by default
    so where this process hasn't loaded the compiler yet, and never with anything of your own.
    Raises CompileError with the node, its operator and what to do about it."""
    threads = threads if threads is not None else default_threads()
    seconds = None if tune is None else parse_seconds(tune)
    request = Request(
        model, target, threads, shapes or {}, winograd, libraries, cache, seconds, sizes or {}
    )  # fmt: skip
    own = Extensions(operators, formats)
    if isolated and own:
        raise ValueError("operators and formats of your own can't go to another process: leave isolated out")
    if isolated is None:
        isolated = not own and "jangin.compiler.pipeline" not in sys.modules and _has_interpreter()
    built = None
    entries = None if own else request.entries
    if entries is not None and seconds is None:
        source = Source.of(model)
        request = replace(request, source=source)
        if source is not None:
            built = entries.load(entry_name(source, request.options()), _read)
    if built is None and isolated:
        from jangin.compiler.isolated import build_apart

        built = build_apart(request, progress)
    elif built is None:
        built, _ = build(request, progress, own)
    return executable(built, threads, host_functions(operators))


def _has_interpreter() -> bool:
    """Whether there is a Python to start: a frozen program's executable is the program."""
    return bool(sys.executable) and not getattr(sys, "frozen", False)


def build(
    request: Request,
    progress: Progress | None = None,
    own: Extensions = NONE,
    processes: int = 1,
) -> tuple[Artifact | ProgramArtifact, Path | None]:
    """Tune, if that is asked for, and compile, in this process and `processes` that it forks. Gives the file
    that the cache keeps too."""
    from jangin.compiler.pipeline import build_artifact, tune_model

    options = request.options()
    entries = None if own else request.entries
    source = request.source
    if request.tune is not None:
        found = tune_model(
            request.model, options, request.threads, request.tune, request.sizes, request.winners,
            lambda done, total, what: progress and progress(round(done), round(total), f"tune {what}"),
            own,
        )  # fmt: skip
        options = replace(options, choices={**options.choices, **found.choices})
        source = None if entries is None else Source.of(request.model)
        if entries is not None and source is not None:
            name = entry_name(source, options)
            kept = entries.load(name, _read)
            if kept is not None:
                return kept, entries.path(name)
    artifact = build_artifact(request.model, options, progress, own, processes)
    if entries is None or source is None or not source.unchanged():
        return artifact, None
    return artifact, entries.put(entry_name(source, options), artifact.save)


def _read(entry: Path) -> Artifact | ProgramArtifact:
    """An entry of the cache, whole: one that is damaged is made again."""
    return checked(read_artifact(entry))


def entry_name(source: Source, options: Options) -> str:
    """The cache's key for what a model was read from."""
    return key([source_digest(), options.key(), *source.digests])


def with_winners(options: Options, threads: int, store: Store) -> Options:
    """The options with the candidates that won on this machine: those of libraries only where tuned with
    the same `libraries`."""
    found = {
        digest: finding.candidate
        for libraries in dict.fromkeys(("never", options.libraries))
        for digest, finding in store.get(place_of(options.target, threads, libraries)).items()
        if finding.better
    }
    return replace(options, choices=found)


def parse_seconds(text: str | float) -> float:
    """Seconds of 60, "60s" or "2m". Raises ValueError for anything else, and for less than none."""
    found = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|m|)", str(text))
    if found is None:
        raise ValueError(f"a budget of {text!r} is not understood: write 60s or 2m")
    return float(found[1]) * (60.0 if found[2] == "m" else 1.0)
