"""How a batch is shared out among devices, and which way of running a model is the quickest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

TRIES = 3
"""Runs of each way, of which the quickest counts: the first of a device allocates memory."""
ROUNDS = 4
"""The most shares that are tried, each after what the one before has shown."""

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
    and then side by side. After that the quickest stays."""

    def __init__(self, devices: int, rows: int, fewest: int, others: Sequence[str] = ()) -> None:
        self._rows, self._fewest = rows, fewest
        whole = max(1, rows)
        ways: list[Way] = [tuple(whole * (d == e) for e in range(devices)) for d in range(devices)]
        self._left = [w for way in (*ways, *others) for w in [way] * TRIES]
        self._rounds = ROUNDS if rows > 1 and devices > 1 else 0
        self._total: dict[Way, float] = {}
        self._each: dict[Way, list[float]] = {}
        self._seconds = [0.0] * devices

    @property
    def settled(self) -> bool:
        return not self._left and not self._rounds

    @property
    def seconds(self) -> Mapping[Way, float]:
        """Of the quickest run of each way that was tried."""
        return self._total

    def next(self) -> Way:
        """How to run now."""
        return self._left[0] if self._left else min(self._total, key=lambda way: self._total[way])

    def took(self, way: Way, total: float, each: Sequence[float] = ()) -> None:
        """What a run took, in seconds: all of it, and each device that had rows."""
        if self.settled:
            return
        self._total[way] = min(total, self._total.get(way, total))
        if not isinstance(way, str):
            least = [min(a, b) for a, b in zip(each, self._each.get(way, each), strict=True)]
            self._each[way] = least
            for d, share in enumerate(way):
                if share:  # what was tried last was tried beside the others
                    self._seconds[d] = least[d] / share
        if way in self._left:
            self._left.remove(way)
        if not self._left and self._rounds:
            shares = shared_out(self._rows, self._seconds, self._fewest)
            known = shares in self._total
            self._rounds = 0 if known else self._rounds - 1
            self._left = [] if known else [shares] * TRIES
