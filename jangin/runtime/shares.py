"""How a batch is shared out among devices, and the choice of the quickest way to run a model."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

TRIES = 3
"""Runs of each way, of which the quickest counts. The first run on a device allocates memory."""
ROUNDS = 4
"""Most rounds of shares that are tried at first. Each follows from the speeds measured in the one
before."""
AGAIN = 50
"""The running time between two trials of a slower way, as a multiple of the way's time. Trials therefore take
a fiftieth of the time."""

Way = tuple[int, ...] | str
"""The rows of each device, or the name of a placement."""


def shared_out(rows: int, seconds: Sequence[float], fewest: int = 1) -> tuple[int, ...]:
    """Shares of `rows` such that the last device ends soonest, given each device's `seconds` a row. A device
    takes at least `fewest` rows or none."""
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

    The first runs try them: each device alone, the placements, and shares of the `rows` (0: none) by the
    devices' measured speeds. The speeds are measured alone first and then side by side. After that the
    quickest way stays, and the others are tried again now and then, because the devices' other load may have
    changed.
    """

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
        """The quickest of each way's last runs, in seconds."""
        return {way: min(total for total, _ in runs) for way, runs in self._last.items()}

    def next(self) -> Way:
        """The way for the next run."""
        return self._left[0] if self._left else self._quickest()

    def _quickest(self) -> Way:
        seconds = self.seconds
        return min(seconds, key=seconds.__getitem__)

    def took(self, way: Way, total: float, each: Sequence[float] = ()) -> None:
        """Records a run's seconds: all of it, and each device that had rows."""
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
        """Tries the shares that the devices' speeds suggest, unless they have been tried."""
        shares = shared_out(self._rows, self._seconds, self._fewest)
        if shares in self._last:
            return False
        self._left = [shares] * TRIES
        return True

    def _try_again(self) -> None:
        """Tries the way whose last run is the longest ago, once the runs since the last trial are worth
        it."""
        quickest = self._quickest()
        way = next((w for w in self._last if w != quickest), None)
        if way is None or self._spent < AGAIN * self.seconds[way]:
            return
        self._spent, self._left = 0.0, [way]
        self._last[way] = self._last.pop(way)  # it becomes the last to be tried again
        if self._rows > 1 and len(self._seconds) > 1:
            self._try_shares()
