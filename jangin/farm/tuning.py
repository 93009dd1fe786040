"""`jangin tune --farm`: tune a model on the workers of a Dask cluster, apart for each kind of machine."""

from __future__ import annotations

import hashlib
import os
import pickle
import statistics
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import field, replace
from typing import Any, NamedTuple

from jangin.farm import work
from jangin.farm.coordinator import Coordinator, SchedulerGone
from jangin.farm.crossed import Builder, Chained
from jangin.farm.dask_transport import PATIENCE, Cluster, DaskTransport
from jangin.farm.jobs import Answer, Job
from jangin.farm.trust import Trust
from jangin.ir.records import dataclass
from jangin.options import Options
from jangin.runtime.threads import default_threads
from jangin.tune.measure import Timing
from jangin.tune.outcome import Outcome, Tuned
from jangin.tune.store import Finding, Store
from jangin.tune.tuner import BATCH

LIMIT = 300.0
"""Seconds after which a device hangs that does one race. Compiling candidates takes most of it on a board."""
FINALISTS = 4
"""The most devices that compare whole models at the end, each for its part of the time. Each builds the tuned
model first, so that more devices would gain little."""
KEEP = 10.0
"""Seconds between two times at which findings are stored. An interruption loses at most the findings of this
time."""

Tell = Callable[[float, float, str], object]


@dataclass
class Place:
    """One kind of machine on the farm, with its devices and the outcome of tuning on them. `about` is the
    first device's description. `said` has sentences about events. `signers` counts the winners by the owner
    of the key that signed them. `problem` is the error that ended the tuning, or ""."""

    name: str
    devices: list[str]
    about: work.About
    outcome: Outcome | None = None
    said: list[str] = field(default_factory=list)
    signers: Counter[str] = field(default_factory=Counter)
    problem: str = ""


def tune_on(
    address: str,
    model: Any,
    options: Options,
    threads: int | None,
    budget: float,
    store: Store | None,
    trust: str | os.PathLike[str] | None,
    tell: Tell,
) -> list[Place]:
    """Tune a model on a farm for about `budget` seconds, and return the outcome on each kind of machine.

    Findings are stored as they come, so that a later call goes on from them. Raises SchedulerGone if nobody
    answers at the address, and ValueError if no worker is a device."""
    data = pickle.dumps((model, options, threads))
    task = work.Task(hashlib.sha256(data).hexdigest(), data)
    believed = Trust(trust)
    cluster = Cluster(address, task, task.digest[:16])
    try:
        places = _places(cluster)
        stop = threading.Event()
        with ThreadPoolExecutor(len(places)) as pool, ThreadPoolExecutor(default_threads()) as building:
            tunings = [
                _Tuning(cluster, task, p, places, believed, store, budget, tell, stop, building)
                for p in places
            ]
            jobs = [pool.submit(tuning.run) for tuning in tunings]
            try:
                wait(jobs)
            except KeyboardInterrupt:  # only this thread gets it
                stop.set()
            return [job.result() for job in jobs]
    finally:
        cluster.close()


def _places(cluster: Cluster) -> list[Place]:
    """Return the kinds of machines among the farm's devices."""
    there = cluster.first_workers(PATIENCE)
    places: dict[tuple[str, str], Place] = {}
    for name, future in [(n, cluster.submit(n, work.about)) for n in there]:
        try:
            about: work.About = future.result(PATIENCE)
        except TimeoutError:
            raise TimeoutError(
                f"the worker {name} hasn't told what it is in {PATIENCE:.0f} s: look at its log, or stop it"
            ) from None
        places.setdefault((about.place, about.lacks), Place(about.place, [], about)).devices.append(name)
    return [*places.values()]


class _Ways(NamedTuple):
    """How devices of one kind are asked for the model's kernels, for races, and for runs of the whole
    model."""

    survey: Callable[[], list[work.Found]]
    race: Callable[[str, Job], Any]
    final: Callable[[dict[str, str], Sequence[str]], tuple[float, float]]


@dataclass
class _Tuning:
    """The tuning on one kind of machine. `pool` builds for devices that can't compile."""

    cluster: Cluster
    task: work.Task
    place: Place
    places: Sequence[Place]
    trust: Trust
    store: Store | None
    budget: float
    tell: Tell
    stop: threading.Event
    pool: ThreadPoolExecutor

    def run(self) -> Place:
        start = time.monotonic()
        try:
            self._run(start)
        except (SchedulerGone, TimeoutError, RuntimeError, OSError) as error:
            self.place.problem = str(error)
        return self.place

    def _run(self, start: float) -> None:
        known = {} if self.store is None else self.store.get(self.place.name)
        ways = self._ways()
        kernels = {k.digest: k for k in ways.survey()}
        transport = DaskTransport(self.cluster, self._is_here, ways.race, self._answer)
        coordinator = Coordinator(
            transport,
            {d: max(0.0, k.before - k.bound) for d, k in kernels.items()},
            LIMIT,
            self.place.said.append,
        )
        coordinator.add([*_jobs(kernels, known)])
        stopped = self._steps(coordinator, transport, kernels, known, start)
        findings = _findings(coordinator, kernels, known)
        before, timing = sum(k.before for k in kernels.values()), None
        won = {d: work.written(f.candidate) for d, f in findings.items() if f.better}
        if not stopped:
            trusted = [d.name for d in coordinator.known.values() if not d.out]
            before, ratio = ways.final(won, trusted) if won else (before, 1.0)
            timing = Timing(before * ratio, ratio, ratio, ratio)
            if ratio > 1:
                self.place.said.append("the whole model is slower with the winners: all stays untuned")
                findings = {
                    d: replace(f, candidate=work.read(kernels[d].first), seconds=f.untuned)
                    for d, f in findings.items()
                }
        unkept = self._keep(findings, coordinator)
        self.place.signers.update(
            a.by for v in coordinator.winners().values() for a in v.believed.values() if a.by
        )
        reports = tuple(_report(kernels[d], findings.get(d), coordinator, known.get(d)) for d in kernels)
        spent, defects = time.monotonic() - start, tuple(dict.fromkeys(_defects(coordinator)))
        ordered = tuple(sorted(reports, key=lambda r: -r.before))
        self.place.outcome = Outcome(ordered, findings, before, timing, spent, stopped, defects, unkept)
        self.place.devices = [*coordinator.known] or self.place.devices

    def _ways(self) -> _Ways:
        """Return how the devices of this kind are asked. If they can't compile, everything is built here."""
        submit, about = self.cluster.submit, self.place.about
        if not about.lacks:
            return _Ways(
                self._survey,
                lambda device, job: submit(device, work.race, job, device),
                self._final,
            )
        self.place.said.append(f"candidates are built here, because {about.lacks}")
        builder = Builder(self.task, about)

        def race(device: str, job: Job) -> Chained:
            return Chained(
                self.pool,
                lambda: builder.contests(job),
                lambda built: submit(device, work.race_built, self.cluster.send(device, built), job, device),
            )

        return _Ways(
            lambda: builder.survey(self._ask_built), race, lambda won, _: builder.final(self._ask_built, won)
        )

    def _survey(self) -> list[work.Found]:
        there = self.cluster.workers()
        preparing = [self.cluster.submit(d, work.prepare) for d in self.place.devices if d in there]
        kernels: list[work.Found] = self._ask(work.survey)
        del preparing  # until here: a future that nobody holds isn't computed
        return kernels

    def _final(self, winners: dict[str, str], trusted: Sequence[str]) -> tuple[float, float]:
        """Let some `trusted` devices compare the model with the winners and without them, each for its part
        of the time. Return the median seconds of an untuned run, and the tuned one's median share."""
        there = [d for d in trusted if d in self.cluster.workers()][:FINALISTS]
        comparing = [self.cluster.submit(d, work.final, winners, 1 / len(there)) for d in there]
        answers = []
        for device, future in zip(there, comparing, strict=True):
            try:
                answers.append(future.result(LIMIT))
            except Exception as error:  # a device that dies leaves the comparison to others, and is told
                self.place.said.append(f"{device} compared no whole model: {type(error).__name__} {error}")
        if not answers:
            answers = [self._ask(work.final, winners, 1.0)]
        before, ratio = (statistics.median(figures) for figures in zip(*answers, strict=True))
        return before, ratio

    def _answer(self, told: tuple[bytes, bytes], job: Job) -> Answer:
        return self.trust.answer(told[0], told[1], job, self.task.digest)

    def _is_here(self, device: str) -> bool:
        """Return whether a device is of this kind of machine. A new device is asked."""
        if not any(device in p.devices for p in self.places):
            try:
                about = self.cluster.submit(device, work.about).result(PATIENCE)
            except Exception as error:  # it died meanwhile, or has no Jangin that can tell; others go on
                said = f"{device} can't tell which machine it is: {type(error).__name__}: {error}"
                if said not in self.place.said:
                    self.place.said.append(said)
                return False
            for place in self.places:
                if (place.name, place.about.lacks) == (about.place, about.lacks):
                    place.devices.append(device)
        return device in self.place.devices

    def _ask_built(self, function: Callable[..., Any], built: bytes) -> Any:
        """Return what a function returns on a device that first gets some bytes."""
        return self._ask(function, built, sent=True)

    def _ask(self, function: Callable[..., Any], *given: Any, sent: bool = False) -> Any:
        """Return what a function returns on a device of this kind. If the device dies, another one is asked.
        Arguments are first `sent` to the device if they are large."""
        problem: Exception | None = None
        for _ in range(3):
            device = next((d for d in self.cluster.workers() if self._is_here(d)), None)
            if device is None:
                time.sleep(2.0)
                continue
            try:
                own = [self.cluster.send(device, g) for g in given] if sent else given
                return self.cluster.submit(device, function, *own).result(LIMIT)
            except Exception as error:  # what a model or a dying worker raises
                problem = error
        raise RuntimeError(f"no device of the farm could do it: {problem or 'none is there'}")

    def _steps(
        self, made: Coordinator, transport: DaskTransport, kernels: Mapping[str, work.Found],
        known: Mapping[str, Finding], start: float,
    ) -> bool:  # fmt: skip
        """Measure until nothing is left or the time is over. Return whether the user stopped it."""
        kept = seen = time.monotonic()
        while not self.stop.is_set():
            spent = time.monotonic() - start
            try:
                going = made.step(spent < self.budget)
                seen = time.monotonic()
            except SchedulerGone as gone:
                if time.monotonic() - seen > PATIENCE:
                    raise
                self.place.said.append(f"{gone}; waiting for it")
                transport.forget()
                made.forget()
                time.sleep(2.0)
                continue
            self.tell(min(spent, self.budget), self.budget, f"{made.left} races left")
            if not going and (not made.left or spent > self.budget or not made.can_go_on):
                return False
            if not going:
                time.sleep(0.5)  # workers start anew
            if time.monotonic() - kept > KEEP:
                kept = time.monotonic()
                self._keep(_findings(made, kernels, known), made)
        return True

    def _keep(self, findings: Mapping[str, Finding], made: Coordinator) -> str:
        if self.store is None or not findings:
            return ""
        proofs = [
            (kernel, a.by, a.proof["message"], a.proof["signature"])
            for kernel, votes in made.winners().items()
            for a in votes.believed.values()
        ]
        return self.store.try_put(self.place.name, findings) or self.store.try_prove(self.place.name, proofs)


def _jobs(kernels: Mapping[str, work.Found], known: Mapping[str, Finding]) -> Iterator[Job]:
    """Yield races of the candidates that no earlier tuning has measured."""
    for digest, kernel in kernels.items():
        tried = known[digest].tried if digest in known else frozenset()
        left = [c for c in kernel.candidates if str(work.read(c)) not in tried]
        for n in range(0, len(left), BATCH):
            yield Job(digest, tuple(left[n : n + BATCH]))


def _findings(
    made: Coordinator, kernels: Mapping[str, work.Found], known: Mapping[str, Finding]
) -> dict[str, Finding]:
    """Return the best candidate of each kernel by its digest. It is this tuning's winner, or an earlier
    tuning's if that is quicker."""
    tried: dict[str, set[str]] = defaultdict(set)
    for digest, candidate in made.measured():
        tried[digest].add(str(work.read(candidate)))
    winners = {d: won for d, votes in made.winners().items() if (won := votes.best()) is not None}
    findings = {}
    for digest in tried.keys() | winners.keys():
        kernel, earlier = kernels[digest], known.get(digest)
        untuned = kernel.before / kernel.launches
        finding = earlier or Finding(work.read(kernel.first), untuned, untuned)
        if digest in winners and winners[digest][1] < finding.seconds / finding.untuned:
            best, ratio = winners[digest]
            finding = Finding(work.read(best), untuned * ratio, untuned)
        findings[digest] = replace(
            finding, tried=finding.tried | (earlier.tried if earlier else frozenset()) | tried[digest]
        )
    return findings


def _report(kernel: work.Found, finding: Finding | None, made: Coordinator, earlier: Finding | None) -> Tuned:
    first = work.read(kernel.first)
    measured = [c for v in made.of(kernel.digest) if v.believed for c in v.job.candidates]
    best, gain = (finding.candidate, finding.seconds / finding.untuned) if finding else (first, 1.0)
    tried = Counter(work.read(c).template for c in measured)
    before = len(earlier.tried) if earlier else 0
    return Tuned(
        kernel.name, kernel.sources, kernel.launches, kernel.before, kernel.bound, first, best, gain, tried,
        before, kernel.pruned,
    )  # fmt: skip


def _defects(made: Coordinator) -> Iterator[str]:
    for votes in made.votes.values():
        for answer in votes.believed.values():
            yield from answer.defects
