"""The division of a batch among devices, and the choice of the quickest way to run a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

TRIES = 3
"""Runs of each way, of which the quickest counts. The first run on a device is slower, because it allocates
memory."""
ROUNDS = 4
"""The most divisions of the batch that are tried at first. Each follows from the speeds measured with the one
before."""
AGAIN = 50
"""A slower way is tried again after running for this many times the way's own time. Trials therefore take a
fiftieth of the time."""

Way = tuple[int, ...] | str
"""The rows of each device, or the name of a placement."""


def shared_out(rows: int, seconds: Sequence[float], fewest: int = 1) -> tuple[int, ...]:
    """Divide `rows` among devices so that the last device ends as early as possible, and return each device's
    rows. `seconds` has each device's time for a row. A device gets at least `fewest` rows or none."""
    shares = [0] * len(seconds)
    for _ in range(rows):
        shares[min(range(len(shares)), key=lambda d: (shares[d] + 1) * seconds[d])] += 1
    quickest = min(range(len(shares)), key=lambda d: seconds[d])
    for d, share in enumerate(shares):
        if d != quickest and share < fewest:
            shares[quickest] += share
            shares[d] = 0
    return tuple(shares)


class Trials:
    """The ways to run inputs of the same sizes, with their times.

    The first runs try each device alone, the placements named in `others`, and divisions of the `rows` (0 for
    none). Divisions follow the devices' speeds, measured alone first and then side by side.

    After that the quickest way stays. The others are tried again now and then, because the devices' other
    load may have changed."""

    def __init__(self, devices: int, rows: int, fewest: int, others: Sequence[str] = ()) -> None:
        self._rows, self._fewest = rows, fewest
        whole = max(1, rows)
        ways: list[Way] = [tuple(whole * (d == e) for e in range(devices)) for d in range(devices)]
        self._left = [w for way in (*ways, *others) for w in [way] * TRIES]
        self._rounds = ROUNDS if rows > 1 and devices > 1 else 0
        self._last: dict[Way, deque[tuple[float, Sequence[float]]]] = {}
        self._seconds = [0.0] * devices
        self._spent = 0.0

    @property
    def settled(self) -> bool:
        return not self._left and not self._rounds

    @property
    def seconds(self) -> Mapping[Way, float]:
        """The seconds of the quickest of each way's last `TRIES` runs."""
        return {way: min(total for total, _ in runs) for way, runs in self._last.items()}

    def next(self) -> Way:
        """Return the way for the next run."""
        return self._left[0] if self._left else self._quickest()

    def _quickest(self) -> Way:
        seconds = self.seconds
        return min(seconds, key=seconds.__getitem__)

    def took(self, way: Way, total: float, each: Sequence[float] = ()) -> None:
        """Record the seconds of a run: `total`, and those of each device. Choose the next trial, if one is
        due."""
        settled = self.settled
        self._last.setdefault(way, deque(maxlen=TRIES)).append((total, each))
        if not isinstance(way, str):
            for d, share in enumerate(way):
                if share:  # the last trial ran beside the other devices
                    self._seconds[d] = min(each[d] for _, each in self._last[way]) / share
        if way in self._left:
            self._left.remove(way)
        if settled:
            self._spent += total
            self._try_again()
        elif not self._left and self._rounds:
            self._rounds -= 1
            if not self._try_shares():
                self._rounds = 0

    def _try_shares(self) -> bool:
        """Have the division that the devices' speeds suggest tried next. Return False if it has been
        tried."""
        shares = shared_out(self._rows, self._seconds, self._fewest)
        if shares in self._last:
            return False
        self._left = [shares] * TRIES
        return True

    def _try_again(self) -> None:
        """Have the way that wasn't tried for the longest time tried next, if the runs since the last trial
        took long enough."""
        quickest = self._quickest()
        way = next((w for w in self._last if w != quickest), None)
        if way is None or self._spent < AGAIN * self.seconds[way]:
            return
        self._spent, self._left = 0.0, [way]
        self._last[way] = self._last.pop(way)  # it becomes the last to be tried again
        if self._rows > 1 and len(self._seconds) > 1:
            self._try_shares()
