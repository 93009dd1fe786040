"""Meters that Jangin reads itself: plugs of Shelly and Tasmota, serial lines, and macOS's powermetrics."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

from jangin.energy.source import EnergyError
from jangin.runtime.system.sensors import serial_line

PLUGS: Sequence[tuple[str, tuple[str | int, ...]]] = (
    ("/rpc/Switch.GetStatus?id=0", ("apower",)),
    ("/rpc/PM1.GetStatus?id=0", ("apower",)),
    ("/rpc/EM.GetStatus?id=0", ("total_act_power",)),
    ("/status", ("meters", 0, "power")),
    ("/status", ("emeters", 0, "power")),
    ("/cm?cmnd=Status%208", ("StatusSNS", "ENERGY", "Power")),
)
"""The pages of plugs, and where in them the watts are. Shelly's plugs since the second generation come first,
then its meters without a switch and its meters of three phases, its first generation, and Tasmota."""
MISSES = 4
"""The requests in a row that a plug may leave unanswered, each of them a gap. Wireless networks lose single
answers."""
PLUG_INTERVAL, PLUG_PERIOD, PLUG_DIGIT = 0.25, 1.0, 0.1
"""Seconds between two requests, seconds between two updates of a plug, and the last digit of its watts. They
are those of usual plugs; more requests would only load the network."""
PATIENCE = 5.0
"""The seconds that a plug may take to answer. A plug on a weak wireless network answers late."""
POWERMETRICS = ("powermetrics", "--samplers", "cpu_power", "-i", "100")
"""The command that prints the power of a Mac's chip ten times a second. Only root may run it."""
COMBINED = re.compile(r"Combined Power[^:]*:\s*([0-9.]+)\s*mW")
BAUD = 115200
"""The usual speed of a serial line of microcontrollers, in bits a second. A device's name with @BAUD gives
another."""


def plug(address: str) -> Iterator[tuple[float, float]]:
    """Yield the time and the watts that a power plug reports by HTTP. Raises EnergyError for an unknown kind
    of plug, and if the plug stops answering."""
    base = address.rstrip("/")
    known = next(((page, path) for page, path in PLUGS if _watts(base + page, path) is not None), None)
    if known is None:
        raise EnergyError(
            f"{address} answers neither as a plug of Shelly nor as one of Tasmota: is it on, and is "
            "its address right?"
        )
    missed = 0
    while missed <= MISSES:
        before = time.time()
        watts = _watts(base + known[0], known[1])
        missed = missed + 1 if watts is None else 0
        if watts is not None:
            yield (before + time.time()) / 2, watts
        time.sleep(PLUG_INTERVAL)
    raise EnergyError(f"the plug {address} answers no more")


def _watts(page: str, path: tuple[str | int, ...]) -> float | None:
    """Return the number at a path of keys in a JSON page, or None if there is no number. A list of numbers,
    one for each of a plug's sockets, is added."""
    import urllib.request  # takes as long to import as NumPy, and few meters are plugs

    try:
        with urllib.request.urlopen(page, timeout=PATIENCE) as answer:
            value: Any = json.load(answer)
        for key in path:
            value = value[key]
        return float(sum(value) if isinstance(value, list) else value)
    except (OSError, ValueError, LookupError, TypeError):
        return None


def combined_power(line: str) -> tuple[float, float] | None:
    """Return the time and the watts in a line of macOS's powermetrics, or None if the line has no combined
    power."""
    told = COMBINED.search(line)
    return (time.time(), float(told[1]) / 1e3) if told else None


def serial(place: str) -> Iterator[tuple[float, float]]:
    """Yield the time and the watts of a meter on a serial line, named DEVICE or DEVICE@BAUD. Each line of its
    text has watts, or volts and amperes. An incomplete first line is ignored. Raises EnergyError for a line
    that can't be opened, and for any other text."""
    device, _, speed = place.partition("@")
    try:
        line = serial_line(device, int(speed or BAUD))
    except (OSError, ValueError) as error:
        raise EnergyError(f"the serial line {device!r} can't be opened: {error}") from None
    with os.fdopen(line, "rb", buffering=0) as opened:
        rest, first = b"", True
        while data := _received(opened.fileno()):
            *lines, rest = (rest + data).split(b"\n")
            now = time.time()
            for text in lines:
                watts = _sent(text)
                if watts is not None:
                    yield now, watts
                elif not first:
                    shown = text.decode(errors="replace").strip()[:80]
                    raise EnergyError(f"{device} sent {shown!r}, no watts and no volts and amperes")
                first = False
        raise EnergyError(f"the serial line {device} ended")


def _sent(text: bytes) -> float | None:
    """Return the watts in a meter's line, which has watts, or volts and amperes. Return None for any other
    text."""
    try:
        one, *others = map(float, text.split())
        (factor,) = others or [1.0]
    except ValueError:
        return None
    return one * factor


def _received(line: int) -> bytes:
    try:
        return os.read(line, 4096)
    except OSError:  # the other end is gone
        return b""
