"""Simulated boards with a clock of their own: latencies, failures, heat and lies, and the true figures."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from jangin.farm.coordinator import Coordinator
from jangin.farm.jobs import Answer, Event, Job

NOISE = 0.02
"""The standard deviation of a ratio's logarithm, as races of candidates side by side have it."""


@dataclass
class Board:
    """A board's habits, as shares of its jobs. `lies` is how often it makes its figures up."""

    speed: float = 1.0
    latency: float = 0.1
    lies: float = 0.0
    dies: float = 0.0
    hangs: float = 0.0
    heats: float = 0.0


@dataclass
class Boards:
    """A transport to simulated boards. `truth` has each kernel's ratios by candidate."""

    boards: dict[str, Board]
    truth: dict[str, dict[str, float]]
    rng: random.Random
    killers: frozenset[str] = frozenset()
    clock: float = 0.0
    jobs: int = 0
    begun: dict[str, Job] = field(default_factory=dict)
    _away: dict[str, float] = field(default_factory=dict)
    _ends: list[tuple[float, int, Event]] = field(default_factory=list)

    def devices(self) -> Collection[str]:
        return {n for n in self.boards if self._away.get(n, 0.0) <= self.clock}

    def now(self) -> float:
        return self.clock

    def start(self, device: str, job: Job) -> None:
        assert device in self.devices() and device not in self.begun, "one job at a time"
        self.begun[device] = job
        self.jobs += 1
        board, rng = self.boards[device], self.rng
        compiled = (1 + len(job.candidates)) / 7  # the untuned kernel too; a whole race has six others
        work = 2.0 * compiled * rng.uniform(0.8, 1.2) / board.speed
        end = self.clock + rng.expovariate(1 / board.latency) + work
        draw = rng.random()
        if draw < board.dies or self.killers.intersection(job.candidates):
            self._away[device] = end + rng.uniform(5, 500)
            event = Event(device, None, "died")
        elif draw < board.dies + board.hangs:
            return
        else:
            event = Event(device, self._answer(board, job))
        heapq.heappush(self._ends, (end, self.jobs, event))

    def _answer(self, board: Board, job: Job) -> Answer:
        rng = self.rng
        hot = 1.6 if rng.random() < board.heats else 1.0
        lies = rng.random() < board.lies
        ratios = tuple(
            math.exp(rng.gauss(0, 0.7) if lies else math.log(self.truth[job.kernel][c]) + rng.gauss(0, NOISE))
            for c in job.candidates
        )
        loop = 0.05 / board.speed
        return Answer(ratios, 1e-3 / board.speed, loop * rng.uniform(1, 1.05), loop * hot)

    def restart(self, device: str) -> None:
        self.begun.pop(device, None)
        self._away[device] = self.clock + 5.0

    def wait(self, seconds: float) -> Sequence[Event]:
        until = self.clock + seconds
        if not self._ends or self._ends[0][0] > until:
            self.clock = until
            return ()
        self.clock = max(self.clock, self._ends[0][0])
        found = []
        while self._ends and self._ends[0][0] <= self.clock:
            event = heapq.heappop(self._ends)[2]
            self.begun.pop(event.device, None)
            if event.answer is None or self._away.get(event.device, 0.0) <= self.clock:
                found.append(event)
        return found


def kernels(rng: random.Random, count: int, candidates: int) -> dict[str, dict[str, float]]:
    """Return ratios of candidates by kernel. The best is quicker than the second by more than noise."""
    found = {}
    for k in range(count):
        ratios = [math.exp(rng.uniform(-0.1, 1.0)) for _ in range(candidates)]
        best = 0.5 if k % 5 else 1.0  # a fifth of the kernels is best untuned
        ratios = [max(r, best * 1.15, 1.05 if best == 1.0 else 0.0) for r in ratios]
        ratios[rng.randrange(candidates)] = best * (1.0 if best < 1 else 1.1)
        found[f"kernel {k}"] = {f"{k}.{c}": r for c, r in enumerate(ratios)}
    return found


def jobs(truth: dict[str, dict[str, float]], size: int = 6) -> list[Job]:
    found = []
    for kernel, ratios in truth.items():
        names = [*ratios]
        found += [Job(kernel, tuple(names[n : n + size])) for n in range(0, len(names), size)]
    return found


def coordinator(boards: Boards, said: list[str]) -> Coordinator:
    made = Coordinator(boards, {k: 1.0 + n for n, k in enumerate(boards.truth)}, 30.0, said.append)
    made.add(jobs(boards.truth))
    return made


def finish(made: Coordinator, boards: Boards, most: float = 1e5) -> None:
    """Step until nothing is left. Raises AssertionError if that takes too long."""
    while made.step() or (made.left and any(not d.out for d in made.known.values())):
        if not boards.begun:
            boards.clock += 1.0
        assert boards.clock < most, "it doesn't come to an end"


def chosen(made: Coordinator) -> dict[str, str]:
    """Return the winners' candidates by kernel."""
    return {k: v.best()[0] for k, v in made.winners().items()}  # type: ignore[index]


def right(truth: dict[str, dict[str, float]]) -> dict[str, str]:
    best = {k: min(r, key=r.__getitem__) for k, r in truth.items()}
    return {k: c for k, c in best.items() if truth[k][c] < 0.99}
