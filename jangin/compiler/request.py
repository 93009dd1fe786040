"""A request to the compiler, and how one process carries it out: it tunes, compiles and fills the cache."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.compiler.cache import TUNED, Cache, key, source_digest
from jangin.compiler.source import Source
from jangin.ir.limits import within
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.runtime.compiled import checked, read_artifact
from jangin.runtime.threads import counted

if TYPE_CHECKING:
    from jangin.compiler.account import Account
    from jangin.compiler.processes.forked import Workers
    from jangin.compiler.shared import SharedKernels
    from jangin.frontends.format import ModelSource
    from jangin.runtime.compiled import Compiled
    from jangin.tune.store import Store

Progress = Callable[[int, int, str], None]
"""Called with the steps done, all steps, and the current step's name."""


@dataclass(frozen=True)
class Request:
    """A model and the options of its compilation, in values that can be pickled for another process. `source`
    is the model's source, if the caller has hashed it to look in the cache."""

    model: ModelSource
    asked: Options
    source: Source | None = None

    @property
    def threads(self) -> int:
        return counted(self.asked.threads)

    @property
    def budget(self) -> float | None:
        """Seconds of tuning; None without tuning."""
        return None if self.asked.tune is None else parse_seconds(self.asked.tune)

    @property
    def entries(self) -> Cache | None:
        """The cache of compiled models; None if it is turned off."""
        return None if self.asked.cache is False else Cache(folder_of(self.asked))

    def kernels(self, known: Mapping[str, bytes] | None = None) -> SharedKernels:
        """Return the kernels that models share. They come from the cache's folder, and from `known`, which
        holds pickled kernels of this process."""
        from jangin.compiler.shared import SharedKernels

        return SharedKernels.of(self.asked.cache, known)

    def options(self) -> Options:
        """Return the options, with the tuned candidates of this machine."""
        return with_winners(self.asked, self.threads)


def folder_of(options: Options) -> str | Path | None:
    """Return the folder of the cache, or None for the user's default folder."""
    return None if isinstance(options.cache, bool) else options.cache


def winners_of(options: Options) -> Store | None:
    """Return the store of tuned candidates, or None if the cache is turned off."""
    if options.cache is False:
        return None
    from jangin.tune.store import Store

    return Store(folder_of(options))


def carry_out(
    request: Request,
    progress: Progress | None = None,
    workers: Workers | None = None,
    account: Account | None = None,
    shared: SharedKernels | None = None,
) -> tuple[Compiled, Path | None]:
    """Tune if the request has a budget, and compile, in this process and with `workers`. Return the compiled
    model, and the cache's file that holds it, or None.

    `account` gets the seconds of each new kernel. `shared` replaces the request's own shared kernels, if more
    kernels are known."""
    options = request.options()
    own = options.own
    entries = None if own else request.entries
    source = request.source
    with within(options.limits, request.budget or 0.0):
        if request.budget is not None:
            options = _tuned(request, options, progress)
            source = None if entries is None else Source.of(request.model)
            if entries is not None and source is not None:
                name = entry_name(source, options)
                kept = entries.load(name, read_entry)
                if kept is not None:
                    return kept, entries.path(name)
        if shared is None and not own:
            shared = request.kernels()
        artifact = _built(request, options, progress, workers, shared, account)
    if entries is None or source is None or not source.unchanged():
        return artifact, None
    return artifact, entries.put(entry_name(source, options), artifact.save)


def _built(request: Request, options: Options, *more: Any) -> Compiled:
    from jangin.compiler.pipeline import build_artifact

    if len(options.target.each) == 1:
        return build_artifact(request.model, options, *more)
    from jangin.compiler.several import build_several

    return build_several(request.model, options, request.threads, *more)


def _tuned(request: Request, options: Options, progress: Progress | None) -> Options:
    """Tune the model, and return the options with the chosen candidates. Each device gets an equal part of
    the time."""
    from jangin.compiler.pipeline import tune_model

    budget = request.budget
    assert budget is not None
    parts = options.parts
    choices = []
    for part, count in zip(parts, _threads(parts, request.threads), strict=True):
        outcome = tune_model(
            request.model, part, count, budget / len(parts), winners_of(options),
            lambda done, total, what: progress and progress(round(done), round(total), f"tune {what}"),
        )  # fmt: skip
        choices.append({**part.choices, **outcome.choices})
    return options.of_parts(choices)


def _threads(parts: Sequence[Options], threads: int) -> list[int]:
    """Return the number of threads that each device will run on."""
    if len(parts) == 1:
        return [threads]
    from jangin.runtime.device import threads_of

    return threads_of([(p.target.device_name, str(p.target)) for p in parts], threads)


def read_entry(entry: Path) -> Compiled:
    """Read an entry of the cache, and check it fully. Raises an exception if it is damaged."""
    return checked(read_artifact(entry))


def entry_name(source: Source, options: Options) -> str:
    """Return the cache's key for a model's source and the options."""
    return key([source_digest(), options.key(), *source.digests])


def with_winners(options: Options, threads: int) -> Options:
    """Return the options with the candidates that were better than the default, by the options' objective.
    They were measured on this machine, or by a farm if the target is another architecture's.

    A candidate from a library counts only if it was tuned with the same `libraries` option."""
    if options.cache is False or not os.path.lexists(Cache(folder_of(options)).folder / TUNED):
        return options  # reading them imports many modules
    store = winners_of(options)
    assert store is not None

    parts, objective = options.parts, options.objective
    return options.of_parts(
        [
            dict(part.choices)
            | {
                digest: finding.candidate
                for libraries in dict.fromkeys(("never", options.libraries))
                for digest, finding in store.valid_for(part.target, count, libraries, objective).items()
                if finding.better
            }
            for part, count in zip(parts, _threads(parts, threads), strict=True)
        ]
    )


def parse_seconds(text: str | float) -> float:
    """Return the seconds in a text such as 60, "60s" or "2m". Raises ValueError for any other text, and for
    negative numbers."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?)\s*(s|m|)", str(text))
    if match is None:
        raise ValueError(f"a budget of {text!r} is not understood: write 60s or 2m")
    return float(match[1]) * (60.0 if match[2] == "m" else 1.0)
