"""`jangin study --farm`: a study on the workers of a Dask cluster, apart for each kind of device.

Dask gives each group of rows to an idle device of its kind, and to another one if the device dies. A kind has
a folder of its own, which is a whole study and is resumed like any other."""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import asdict, replace
from pathlib import Path
from threading import Lock
from typing import Any

from jangin.bench.report import machine
from jangin.farm.dask_transport import PATIENCE, RESOURCE, Cluster
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.study.rows import Group, Row, RowFile
from jangin.study.run import Progress, run
from jangin.study.settings import ROWS, Settings, open_folder

TRIES = 2
"""The devices that may die while they measure a group of rows. After that the rows have this problem, because
the group itself seems to be the cause."""


@dataclass(frozen=True)
class Held:
    """A study as each device receives it once: the settings, the models' files by name, and the options of
    compilations."""

    settings: Settings
    files: Mapping[str, bytes]
    compiling: Options

    def rows(self, group: Group, engines: Sequence[str]) -> list[dict[str, Any]]:
        """Measure a group on this device, and return its rows as plain data."""
        with tempfile.TemporaryDirectory() as aside:
            path = Path(aside, self.settings.model(group.model).name)
            path.write_bytes(self.files[path.name])
            only = replace(
                self.settings, models=(path,), engines=(*engines,), threads=(group.threads,),
                batches=(group.batch,), precisions=(group.precision,),
            )  # fmt: skip
            return [asdict(r) for r in run(only, Path(aside, "study"), self.compiling, lambda *_: None)]


def study_on(
    address: str, settings: Settings, folder: Path, compiling: Options, progress: Progress
) -> dict[str, list[Row]]:
    """Measure the missing rows of a study on a farm, and return all rows by kind of device. The study of each
    kind is in a folder named after the kind. Rows are missing if the scheduler goes away or the user
    interrupts the study.

    Raises SchedulerGone if no scheduler answers at the address. Raises ValueError for settings that devices
    can't have, if no worker is a device, or if a folder has another study.
    """
    settings.check()
    odd = next((m for m in settings.models if m.is_dir()), None)
    if odd is not None or settings.data:
        raise ValueError(
            "a farm takes no folders of models and no --data, which its devices don't have: leave "
            f"{odd or settings.data} out"
        )
    held = Held(settings, {m.name: m.read_bytes() for m in settings.models}, compiling)
    digest = hashlib.sha256(repr((settings, [*held.files.values()])).encode()).hexdigest()
    cluster = Cluster(address, held, digest[:16])
    try:
        kinds = sorted({resource for _, resource in cluster.first_workers(PATIENCE).values()})
        counted = _Counted(progress)
        with ThreadPoolExecutor(len(kinds)) as pool:
            jobs = {k: pool.submit(_of_kind, cluster, held, k, folder / _name(k), counted) for k in kinds}
            try:
                wait(jobs.values())
            except KeyboardInterrupt:  # what is measured is kept; closing ends the other threads' waiting
                cluster.close()
            return {_name(kind): job.result() for kind, job in jobs.items()}
    finally:
        cluster.close()


def _name(kind: str) -> str:
    """Return the name of a kind's folder."""
    return "".join(c for c in kind.removeprefix(RESOURCE).lstrip("-") if c.isalnum() or c in "-_") or "device"


def _of_kind(cluster: Cluster, held: Held, kind: str, folder: Path, progress: _Counted) -> list[Row]:
    """Measure the missing rows of a study on the devices of one kind, and return all rows."""
    there = cluster.anywhere(kind, _machine).result()
    open_folder(folder, held.settings, there)
    file = RowFile(folder / ROWS)
    left = held.settings.left(file)
    progress.add(sum(len(m) for _, m in left))
    futures = {cluster.anywhere(kind, Held.rows, *one, retries=TRIES - 1): one for one in left}
    for future in cluster.as_completed([*futures]):
        group, engines = futures[future]
        if future.status == "finished":
            rows = [Row(**told) for told in future.result()]
        elif future.status != "error":
            continue  # it was taken back with the scheduler or by the user, and is measured the next time
        else:
            problem = f"no device could do it: {future.exception()}"
            rows = [Row(**asdict(group), engine=engine, problem=problem) for engine in engines]
        for row in rows:
            file.add(row)
        progress.done(len(engines), f"{_name(kind)}: {group.model}")
    return file.rows


def _machine(held: Held) -> dict[str, Any]:
    return machine()


class _Counted:
    """Counts the rows of all kinds for one bar."""

    def __init__(self, tell: Progress) -> None:
        self._tell, self._lock, self._all, self._done = tell, Lock(), 0, 0

    def add(self, count: int) -> None:
        with self._lock:
            self._all += count

    def done(self, count: int, what: str) -> None:
        with self._lock:
            self._done += count
            self._tell(self._done, self._all, what)
