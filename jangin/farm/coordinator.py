"""Decides which device of a farm measures what, and whose answers count.

A coordinator has devices of one kind, whose figures may be compared. A job is a race of a kernel's
candidates, which one device measures. Another device repeats the first job of each device, every tenth of its
jobs, and each winner without its rivals. If two answers disagree, a third device decides. A device that is
outvoted is doubted, so that all its answers are repeated. At the second time it is left out, and the jobs
that it alone has answered are measured again.

This module uses no network and no clock. A `Transport` provides both.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import chain, islice
from typing import Protocol

from jangin.farm.jobs import Event, Job, Votes
from jangin.ir.records import dataclass

EACH = 20
"""One of this many jobs of a device is repeated by another device. More checks would cost measuring time, and
fewer would find a wrong device late."""
STRIKES = 2
"""A device is left out when it has been outvoted this many times. The first time may be chance."""
DEATHS = 3
"""A device is left out when it has died, hung or failed this many times. Each time costs up to the time limit
of a job."""
TRIES = 2
"""Devices that may die or hang while they do a job. Then the job's candidates are tried one by one, and a
single candidate is given up. One death may be the device's own."""
THROTTLED = 1.2
"""A device is throttled if the loop beside a race takes this factor of its usual time, the median. The loop's
best time differs by less on a cool device."""
HOT = 5
"""A device is left out when it is throttled in this many jobs in a row, because its rests don't cool it
enough."""
REST = 1.0
"""Seconds for which a device rests that is throttled twice in a row. Once may be chance. Each further rest
takes twice as long, so that a device that cools quickly loses little time."""
NEWS = 20.0
"""The longest time, in seconds, for which the coordinator waits until a job ends. Then it looks for hung
devices."""
POLL = 1.0
"""Seconds between two looks at the list of devices. Devices that have answered get new work at once, so only
new devices wait for a look."""
FRUITLESS = 0.5
"""A kernel's expected gain is multiplied by this factor for each of its jobs without a winner. Other kernels
thus soon get their turn."""


class SchedulerGone(ConnectionError):
    """The farm's scheduler doesn't answer at its address."""


class Transport(Protocol):
    """A connection to devices, with a clock. Its methods raise SchedulerGone if the connection is lost."""

    def devices(self) -> Collection[str]:
        """Return the names of the devices that are connected now."""

    def start(self, device: str, job: Job) -> None:
        """Send a job to a device, which must be idle."""

    def wait(self, seconds: float) -> Sequence[Event]:
        """Return the jobs that have ended, after at most `seconds`."""

    def restart(self, device: str) -> None:
        """End a device's job, by restarting the device. It may connect again."""

    def now(self) -> float:
        """Return the present time, in seconds of a clock that never goes back."""


@dataclass
class Device:
    """The coordinator's record of a device.

    - `out` is the reason why the device is left out, or "".
    - `job` is the job that it does since the time `since`, or None. `only` is the single candidate that it
      measures, or "" for all.
    - `alone` has the jobs that only this device has answered.
    - `answered` counts its answers, and `checked` those that another device has confirmed.
    - `strikes` counts how often it was outvoted, and `deaths` how often it died, hung or failed.
    - `hot` counts consecutive jobs in which it was throttled.
    - `loops` has the seconds of the calibration loop beside its races, without throttled ones.
    """

    name: str
    out: str = ""
    job: Job | None = None
    only: str = ""
    since: float = 0.0
    rests_until: float = 0.0
    alone: dict[Job, None] = field(default_factory=dict)
    answered: int = 0
    checked: int = 0
    strikes: int = 0
    deaths: int = 0
    hot: int = 0
    loops: list[float] = field(default_factory=list)


@dataclass
class Coordinator:
    """The state of one tuning on devices of one kind.

    `gaps` has the most seconds of a run that each kernel may gain. A device counts as hung if a job takes it
    longer than `limit` seconds. `say` is called with a sentence for each event, such as a device that is left
    out.
    """

    transport: Transport
    gaps: Mapping[str, float]
    limit: float
    say: Callable[[str], object]
    votes: dict[Job, Votes] = field(default_factory=dict)
    known: dict[str, Device] = field(default_factory=dict)
    given_up: list[Job] = field(default_factory=list)
    _of: dict[str, dict[Job, None]] = field(default_factory=dict)
    _open: dict[str, dict[Job, None]] = field(default_factory=dict)
    _hope: dict[str, float] = field(default_factory=dict)
    _busy: dict[str, Device] = field(default_factory=dict)
    _idle: set[str] = field(default_factory=set)
    _polled: float = float("-inf")
    _due: dict[Job, None] = field(default_factory=dict)
    _disputes: dict[Job, None] = field(default_factory=dict)
    _winners: dict[str, Votes | None] = field(default_factory=dict)

    def add(self, jobs: Sequence[Job]) -> None:
        """Add jobs to measure."""
        for job in jobs:
            self.votes[job] = Votes(job)
            self._of.setdefault(job.kernel, {})[job] = None
            self._winners.setdefault(job.kernel, None)
            self._reopen(job)

    @property
    def disputed(self) -> list[Job]:
        """The jobs whose answers disagree, and that no further device has decided yet."""
        return [*self._disputes]

    @property
    def left(self) -> int:
        """The number of jobs that no device has begun."""
        return sum(map(len, self._open.values()))

    @property
    def can_go_on(self) -> bool:
        """Whether a known device isn't left out, so that it may connect again."""
        return any(not d.out for d in self.known.values())

    def forget(self) -> None:
        """Make all running jobs open again, because the scheduler that had them is gone. No device is
        blamed."""
        for device in [*self._busy.values()]:
            job, device.job = device.job, None
            if job is not None and job in self.votes:
                votes = self.votes[job]
                votes.running.discard(device.name)
                if votes.open:
                    self._reopen(job)
                elif len(votes.answers) == 1:
                    self._due[job] = None
        self._busy.clear()

    def step(self, accepting: bool = True) -> bool:
        """Give jobs to all idle devices, and process the jobs that have ended. Return False if there was
        nothing to do.

        If not `accepting`, the time is over. Only disputed jobs and winners are then measured.
        """
        if not self._busy or self.transport.now() >= self._polled + POLL:
            self._poll()
        resting = self._hand_out(self._idle, accepting)
        if not self._busy and not (resting and self._unfinished):
            return False
        for event in self.transport.wait(NEWS):
            self._take(event)
        self._end_late()
        return True

    def _poll(self) -> None:
        """Ask which devices are connected, and make the jobs of vanished devices open again."""
        names = {*self.transport.devices()}
        for name in [n for n in self._busy if n not in names]:
            self._take(Event(name, None, "went away"))
        self._idle = names - self._busy.keys()
        self._polled = self.transport.now()

    def _hand_out(self, idle: Collection[str], accepting: bool) -> bool:
        """Give jobs to idle devices while there are any. Return whether a device rests because it was
        throttled."""
        if not idle:
            return False
        new = self.left if accepting else 0
        repeats = chain(self._disputes, self._due if accepting else ())
        idling = (self.votes[job] for job in repeats if not self.votes[job].running)
        waiting = {votes.job: votes for votes in islice(idling, len(idle) + 1)}
        if len(idle) > new + len(waiting):  # some may confirm winners
            single = (v for v in self.winners().values() if v.alone and not v.running)
            waiting |= {votes.job: votes for votes in single}
        resting = False
        for name in sorted(idle) if new or waiting else ():
            device = self.known.setdefault(name, Device(name))
            rests = device.rests_until > self.transport.now()
            resting |= rests and not device.out
            if device.out or rests:
                continue
            votes = next((v for v in waiting.values() if self._may_repeat(name, v)), None)
            if votes is None and new:
                votes, new = self._new(), new - 1
            if votes is not None:
                waiting.pop(votes.job, None)
                self._begin(device, votes)
            if not new and not waiting:
                break
        return resting

    def _may_repeat(self, name: str, votes: Votes) -> bool:
        """Return whether a device may repeat a job. It may if it hasn't measured the candidates that are
        repeated."""
        return name not in votes.answers if self._repeats_all(votes) else votes.lacks(name)

    def _repeats_all(self, votes: Votes) -> bool:
        """Return whether all candidates of a job are repeated. They are if its answers disagree, or if a
        device is checked. Otherwise only the winner is repeated."""
        return votes.job in self._disputes or votes.job in self._due or votes.open

    def _begin(self, device: Device, votes: Votes) -> None:
        device.job, device.since = votes.job, self.transport.now()
        device.only = "" if self._repeats_all(votes) else votes.alone
        self._busy[device.name] = device
        self._idle.discard(device.name)
        votes.running.add(device.name)
        self._open.get(votes.job.kernel, {}).pop(votes.job, None)
        self._due.pop(votes.job, None)
        only = Job(votes.job.kernel, (device.only,)) if device.only else votes.job
        self.transport.start(device.name, only)

    def _new(self) -> Votes:
        """Return the unstarted job that promises the largest gain."""
        kernel = max(self._open, key=self._promise)
        self._hope[kernel] *= FRUITLESS
        return self.votes[next(iter(self._open[kernel]))]

    @property
    def _unfinished(self) -> bool:
        unconfirmed = any(v.alone for v in self.winners().values())
        return bool(self.left or self._disputes or unconfirmed)

    def _promise(self, kernel: str) -> float:
        """Return the seconds that a run of the model is expected to gain by a kernel's next job."""
        return self.gaps[kernel] * self._hope[kernel] if self._open[kernel] else -1.0

    def _reopen(self, job: Job) -> None:
        self._open.setdefault(job.kernel, {})[job] = None
        self._hope.setdefault(job.kernel, 1.0)

    def _take(self, event: Event) -> None:
        device = self.known[event.device]
        job, device.job = device.job, None
        self._busy.pop(device.name, None)
        if event.answer is not None:
            self._idle.add(device.name)
        votes = self.votes.get(job) if job is not None else None
        if votes is None:
            return  # it was ended before
        votes.running.discard(device.name)
        answer = event.answer
        if answer is None:
            self._failed(device, votes, event.problem)
        elif not device.out and not self._throttled(device, answer.before, answer.after):
            if device.only:
                answer = answer.placed(votes.job, device.only, votes.answers.get(device.name))
            votes.answers[device.name] = answer
            device.answered += 1
            self._judge(votes)
        if votes.open and votes.job in self.votes:
            self._reopen(votes.job)
        elif len(votes.answers) == 1 and device.name not in votes.answers and not votes.running:
            self._due[votes.job] = None  # it was repeated in vain

    def _failed(self, device: Device, votes: Votes, problem: str) -> None:
        device.deaths += 1
        votes.failures += 1
        self.say(f"{device.name} {problem}; its race is measured again")
        if device.deaths >= DEATHS:
            self._leave_out(device, f"it failed {DEATHS} times")
        if votes.failures < TRIES or not votes.open:
            return
        del self.votes[votes.job], self._of[votes.job.kernel][votes.job]
        self._due.pop(votes.job, None)
        self._open[votes.job.kernel].pop(votes.job, None)
        if len(votes.job.candidates) > 1:
            self.add([Job(votes.job.kernel, (c,)) for c in votes.job.candidates])
        else:
            self.given_up.append(votes.job)
            self.say(f"{votes.job.candidates[0]} is given up: devices failed by it {TRIES} times")

    def _throttled(self, device: Device, *loops: float) -> bool:
        """Return whether a device was slower than usual during a race, for example because it was hot. It
        rests then."""
        usual = statistics.median(device.loops) if device.loops else min(loops)
        if max(loops) <= THROTTLED * usual:
            device.loops += loops
            device.hot = 0
            return False
        device.hot += 1
        if device.hot > 1:
            device.rests_until = self.transport.now() + REST * 2 ** (device.hot - 2)
        self.say(f"{device.name} runs at {usual / max(loops):.0%} of its usual speed: its race doesn't count")
        if device.hot >= HOT:
            self._leave_out(device, f"it was throttled {HOT} times in a row")
        return True

    def _judge(self, votes: Votes) -> None:
        """Update everything that follows from a job's new answer. A device that is outvoted is doubted or
        left out."""
        job = votes.job
        self._disputes.pop(job, None)
        for name in votes.answers:
            self.known[name].alone.pop(job, None)
        if len(votes.answers) == 1:
            device = self.known[next(iter(votes.answers))]
            device.alone[job] = None
            if device.strikes or device.answered % EACH == 1:
                self._due[job] = None
            self._challenge(votes)
            return
        self._winners.pop(job.kernel, None)
        if votes.disputed:
            self._disputes[job] = None
            self.say(f"{' and '.join(votes.answers)} disagree: another device decides")
        else:
            self._convict(votes)

    def _challenge(self, votes: Votes) -> None:
        """Make a job its kernel's winner if its best candidate is quicker than the present winner's. The
        kernel's expected gain then starts anew."""
        kernel, best = votes.job.kernel, votes.best()
        if best is None or kernel not in self._winners:
            return
        winner = self._winners[kernel]
        before = winner.best() if winner is not None else None
        if before is None or best[1] < before[1]:
            self._winners[kernel] = votes
            self._hope[kernel] = 1.0

    def _convict(self, votes: Votes) -> None:
        right = votes.agreeing
        for name in right:
            self.known[name].checked += 1
        for name in [n for n in votes.answers if n not in right]:
            device = self.known[name]
            del votes.answers[name]
            device.strikes += 1
            self._due |= device.alone
            if device.strikes >= STRIKES:
                self._leave_out(device, f"others disagreed with it {STRIKES} times")
            else:
                self.say(f"{name} disagrees with {' and '.join(right)}: all its races are repeated")

    def _leave_out(self, device: Device, reason: str) -> None:
        """Give a device no more jobs. If its answers were wrong, they are deleted, and the jobs that it alone
        has answered are measured again."""
        if device.out:
            return
        device.out = reason
        self.say(f"{device.name} is left out: {reason}")
        if device.strikes < STRIKES:
            return
        for votes in [v for v in self.votes.values() if device.name in v.answers]:
            del votes.answers[device.name]
            self._winners.pop(votes.job.kernel, None)
            self._disputes.pop(votes.job, None)
            self._due.pop(votes.job, None)
            if votes.open:
                self._reopen(votes.job)
            elif votes.answers:
                self._judge(votes)
        device.alone.clear()

    def _end_late(self) -> None:
        """End the jobs that take longer than `limit`. Busy devices are in the order in which they began."""
        while (device := next(iter(self._busy.values()), None)) is not None:
            if self.transport.now() - device.since <= self.limit:
                return
            self.transport.restart(device.name)
            self._take(Event(device.name, None, f"hung for {self.limit:.0f} s"))

    def winners(self) -> dict[str, Votes]:
        """Return, for each kernel with a winner, the answers to the job with its quickest candidate."""
        for kernel in self._of.keys() - self._winners.keys():
            self._winners[kernel] = self._winner(kernel)
        return {kernel: votes for kernel, votes in self._winners.items() if votes is not None}

    def _winner(self, kernel: str) -> Votes | None:
        candidates = [
            (best[1], n, v) for n, v in enumerate(self.of(kernel)) if (best := v.best()) is not None
        ]
        return min(candidates)[2] if candidates else None

    def of(self, kernel: str) -> Iterator[Votes]:
        """Yield the answers to each job of a kernel."""
        return (self.votes[job] for job in self._of.get(kernel, ()))

    def measured(self) -> Iterator[tuple[str, str]]:
        """Yield the (kernel, candidate) pairs that needn't be measured again. A winner that only one device
        has measured isn't among them if another device could confirm it."""
        winners = {votes.job for votes in self.winners().values()}
        there = (self.known[name] for name in self._idle | self._busy.keys() if name in self.known)
        alone = sum(not d.out for d in there) < 2
        for votes in self.votes.values():
            if votes.believed and (alone or not votes.alone or votes.job not in winners):
                yield from ((votes.job.kernel, c) for c in votes.job.candidates)
        yield from ((job.kernel, c) for job in self.given_up for c in job.candidates)
