"""The cost of moving a value to a queued device, measured."""

from __future__ import annotations

import math
import time

import numpy as np

from jangin.runtime.device import LoadError, Transfer
from jangin.runtime.devices.driver import Driver, DriverError
from jangin.runtime.devices.queued_faults import failed
from jangin.runtime.threads import handover

PROBE = 16 << 20
"""Bytes of the copy that measures a device's link. It takes a millisecond or more on any link, long beside
the start of a copy."""
TURNS = 5
"""The number of copies that measure a device's link. The quickest counts, because others were disturbed. Five
take some 10 ms."""


def transfer(driver: Driver) -> Transfer:
    """Measure the cost of moving a value to the device (see `runtime.device.Device.transfer`). If the device
    shares the host's memory, the cost of a byte is 0."""
    raw = np.zeros(PROBE, np.uint8)
    best = [math.inf, math.inf]
    try:
        queue, buffer = driver.queue(), driver.buffer(PROBE)
        for _ in range(TURNS):
            for n, size in enumerate((1, PROBE)):
                start = time.perf_counter()
                queue.write(buffer, raw[:size])
                queue.finish()
                best[n] = min(best[n], time.perf_counter() - start)
    except DriverError as error:
        raise LoadError(str(failed(driver, f"be given {PROBE} bytes", error))) from error
    rate = 0.0 if driver.shared else max(0.0, best[1] - best[0]) / PROBE
    return Transfer(handover() + best[0], rate)
