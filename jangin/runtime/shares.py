"""How a batch is shared out among devices, and which way of running a model is the quickest."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence

TRIES = 3
"""Runs of each way, of which the quickest counts: the first of a device allocates memory."""
ROUNDS = 4
"""The most shares that are tried at first, each after what the one before has shown."""
AGAIN = 50
"""How much longer than a way of running takes all runs take before it is tried again: a fiftieth of the time
is spent so."""

Way = tuple[int, ...] | str
"""How many rows each device takes; or the name of a placement."""


def shared_out(rows: int, seconds: Sequence[float], fewest: int = 1) -> tuple[int, ...]:
    """So many rows for devices that take so many seconds a row, that the last to end ends soonest; a device
    takes `fewest` or none."""
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
    """The ways to run inputs of the same sizes. The first runs try them: each device alone, the placements,
    and, where there are `rows` to share out (0: none), shares by the speed that the devices have shown, alone
    and then side by side. After that the quickest stays, and the others are tried again now and then: what
    else a device has to do may have changed."""

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
        """Of the quickest of each way's last runs."""
        return {way: min(total for total, _ in runs) for way, runs in self._last.items()}

    def next(self) -> Way:
        """How to run now."""
        return self._left[0] if self._left else self._quickest()

    def _quickest(self) -> Way:
        seconds = self.seconds
        return min(seconds, key=seconds.__getitem__)

    def took(self, way: Way, total: float, each: Sequence[float] = ()) -> None:
        """What a run took, in seconds: all of it, and each device that had rows."""
        settled = self.settled
        self._last.setdefault(way, deque(maxlen=TRIES)).append((total, each))
        if not isinstance(way, str):
            for d, share in enumerate(way):
                if share:  # what was tried last was tried beside the others
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
        """Try the shares that the devices' speeds ask for, unless they have been tried."""
        shares = shared_out(self._rows, self._seconds, self._fewest)
        if shares in self._last:
            return False
        self._left = [shares] * TRIES
        return True

    def _try_again(self) -> None:
        """Try the way whose last run is the longest ago, once the runs since such a trial are worth it."""
        quickest = self._quickest()
        way = next((w for w in self._last if w != quickest), None)
        if way is None or self._spent < AGAIN * self.seconds[way]:
            return
        self._spent, self._left = 0.0, [way]
        self._last[way] = self._last.pop(way)  # which makes it the last to be tried again
        if self._rows > 1 and len(self._seconds) > 1:
            self._try_shares()
