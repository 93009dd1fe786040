"""External meters: a command that prints lines, or a function of a Python package.

Both give pairs of a timestamp and watts. A timestamp is in seconds since 1970, as `time.time()` gives it."""

from __future__ import annotations

import math
import shlex
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from pathlib import Path

from jangin.energy import plugs
from jangin.energy.source import EnergyError, Rail, Sample, Source

GROUP = "jangin.meters"
"""The entry points of packages that bring a meter."""
OTHER_CLOCK = 2.0
"""A timestamp that differs from its arrival by more seconds than this is of another machine's clock. Meters'
own delays are shorter."""
MOST_WATTS = 1e9
"""No machine draws as much. Sums of larger numbers may overflow."""
SHOWN = 60
"""Characters of a meter's command in the report, so that a sentence with it stays short."""
LONGEST_LINE = 1000
"""Characters after which a line is taken as ended, so that a meter without line breaks fills no memory."""


def meter(text: str) -> Source:
    """Return the external meter that a text names.

    - `http://PLUG`, `serial:DEVICE@BAUD` and `powermetrics` are meters of the module `plugs`.
    - The name of an entry point stands for a function without parameters that yields (timestamp, watts).
    - Any other text is a command that prints lines "timestamp watts". It is run without a shell.
    """
    if text.startswith(("http://", "https://")):
        rail = Rail("plug", resolution=plugs.PLUG_DIGIT, period=plugs.PLUG_PERIOD)
        return _source(f"plug {text}", rail, lambda: plugs.plug(text))
    kind, _, device = text.partition(":")
    if kind == "serial" and device:
        return _source(f"meter {device}", Rail("meter"), lambda: plugs.serial(device))
    if text == "powermetrics":
        command = [*plugs.POWERMETRICS]
        return _source(text, Rail("chip"), lambda: _printed(command, plugs.combined_power))
    known = {point.name: point for point in entry_points(group=GROUP)}
    if text in known:
        return _source(f"meter {text}", Rail(text), lambda: known[text].load()())
    words = shlex.split(text)
    if not words:
        raise EnergyError("an empty text is no meter: give a command or the name of an entry point")
    shown = " ".join([Path(words[0]).name, *words[1:]])[:SHOWN]
    return _source(f"meter {shown}", Rail("meter"), lambda: _printed(words))


def _source(name: str, rail: Rail, pairs: Callable[[], Iterable[tuple[float, float]]]) -> Source:
    lags = [0.0]
    return Source(name, (rail,), lambda: _aligned(pairs(), lags), lambda: lags[0])


def _pair(line: str) -> tuple[float, float]:
    stamp, watts = map(float, line.split())
    return stamp, watts


def _printed(
    command: list[str], read: Callable[[str], tuple[float, float] | None] = _pair
) -> Iterator[tuple[float, float]]:
    """Yield the pairs that a command prints. `read` converts a line to a pair, or to None if the line has
    none. Raises EnergyError when the command ends, and for a line that `read` can't convert."""
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace"
            )
        except OSError as error:
            raise EnergyError(f"the meter {command[0]!r} can't be started: {error.strerror}") from None
        assert process.stdout is not None
        output = process.stdout
        for line in iter(lambda: output.readline(LONGEST_LINE), ""):
            try:
                pair = read(line)
                if pair is not None:
                    _check(*pair)
            except ValueError:
                process.kill()
                raise EnergyError(
                    f"the meter printed {line.strip()[:80]!r}, which isn't a timestamp and watts"
                ) from None
            if pair is not None:
                yield pair
        status = process.wait()
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:]
        raise EnergyError(f"the meter ended with status {status}{f': {last[0][:200]}' if last else ''}")


def _aligned(pairs: Iterable[tuple[float, float]], lags: list[float]) -> Iterator[Sample]:
    """Yield samples with times of the monotonic clock. `lags` gets the seconds between the last timestamp and
    its arrival.

    Timestamps of another machine's clock are shifted. The first of them is taken as the time of its
    arrival."""
    shift: float | None = None
    for stamp, watts in pairs:
        _check(stamp, watts)
        now = time.time()
        lags[0] = abs(now - stamp)
        if shift is None:
            shift = now - stamp if abs(now - stamp) > OTHER_CLOCK else 0.0
        yield stamp + shift - now + time.monotonic(), (watts,)
    raise EnergyError("the meter gives no more values: check its connection, and measure again")


def _check(stamp: float, watts: float) -> None:
    """Raise ValueError for a pair that can't be a reading. NaN watts stand for a missing value."""
    if not math.isfinite(stamp) or abs(watts) > MOST_WATTS:
        raise ValueError(
            f"the meter gave {stamp!r} {watts!r}: a line must be a time in seconds and watts, both finite"
        )
