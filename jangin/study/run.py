"""Run a study, or go on with it."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

from jangin.bench.engine import Job
from jangin.bench.files import Unprepared
from jangin.energy import Wanted
from jangin.options import Options
from jangin.study.host import Host
from jangin.study.measure import Asked, How, measure_group
from jangin.study.models import Models, Prepared
from jangin.study.rows import CPU, Group, Row, RowFile
from jangin.study.settings import ROWS, Settings, locked, open_folder

Progress = Callable[[float, float, str], None]
"""A function that is told the rows done, all rows, and what is being done."""


def run(
    settings: Settings, folder: Path, compiling: Options, progress: Progress, root: str = ""
) -> list[Row]:
    """Measure the missing rows of a study, and return all its rows.

    `root` is the folder of device classes for energy, by default the system's. Each row is written to
    `folder` as soon as it is measured. Raises ValueError if the folder has another study, or if a model needs
    sizes that aren't given.
    """
    settings.check()
    models = Models(folder, settings, compiling)
    _check_shapes(settings, models)
    problems = _prepare(settings, models)
    open_folder(folder, settings)
    with locked(folder):
        open_folder(folder, settings)  # another study may have begun here meanwhile
        return _measured(settings, folder, models, problems, progress, root)


def _measured(
    settings: Settings,
    folder: Path,
    models: Models,
    problems: Mapping[tuple[str, int], str],
    progress: Progress,
    root: str,
) -> list[Row]:
    """Measure the rows that are missing in a study's file, and return all rows."""
    file = RowFile(folder / ROWS)
    left = settings.left(file)
    total, done = sum(len(missing) for _, missing in left), 0
    wanted = Wanted(settings.meters, root) if settings.energy else None
    host = Host(settings.host) if settings.host and left else None
    for group, engines in left:
        label = f"{group.model}, {group.precision}, batch {group.batch}, {group.threads} threads"
        label += "" if group.device == CPU else f", {group.device}"

        def tell(share: float, what: str, count: int = len(engines), label: str = label) -> None:
            progress(done + share * count, total, f"{label}: {what}")  # noqa: B023

        problem = problems.get((group.model, group.batch))
        if problem is not None:
            for engine in engines:
                file.add(Row(**asdict(group), engine=engine, problem=problem))
        else:
            tell(0.0, "preparing")
            asked = [_asked(models, group, engine) for engine in engines]
            reference = models.reference(group.model, group.batch)
            with tempfile.TemporaryDirectory() as aside:
                own = partial(models.own_error, group)
                how = How(
                    settings.rounds, settings.seconds, settings.limit, wanted, Path(aside), host, own,
                    settings.quiet,
                )  # fmt: skip
                measure_group(group, asked, reference, how, file.add, tell)
        done += len(engines)
    return file.rows


def _prepare(settings: Settings, models: Models) -> dict[tuple[str, int], str]:
    """Make the inputs of all models, so that missing sizes are reported before the folder is made. Return the
    problems of models that can't be read or can't have a batch size, by model and batch size."""
    problems = {}
    for model, batch in dict.fromkeys((g.model, g.batch) for g in settings.groups()):
        try:
            models.inputs(model, batch)
        except Unprepared as error:
            problems[model, batch] = str(error)
    return problems


def _check_shapes(settings: Settings, models: Models) -> None:
    """Raise ValueError for a size that no model has. Models that can't be read count as having it."""
    try:
        known = set().union(*(models.symbols(m.stem) for m in settings.models))
    except Unprepared:
        return
    unknown = next((n for n in settings.shapes if n not in known), None)
    if unknown is not None:
        sizes = ", ".join(sorted(known)) or "none"
        raise ValueError(f"--shape {unknown!r} is a size of no model: the models' free sizes are {sizes}")


def _asked(models: Models, group: Group, engine: str) -> Asked:
    if models.settings.host and engine != "aot":
        return Asked(engine, None, problem="only emitted models (the engine aot) run on another machine")
    prepared: Prepared = models.prepared(group.model, group.batch)
    try:
        path, how = models.file(group, engine)
        options = models.tuned(group, path) if engine == "tuned" else models.untuned(group)
    except Unprepared as error:
        return Asked(engine, None, problem=str(error))
    job = Job(engine, group.threads, str(path), str(prepared.inputs), prepared.outputs, dict(prepared.sizes))
    return Asked(engine, replace(job, compiling=Job.packed(options.but(cache=False))), how)
