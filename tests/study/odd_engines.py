"""Engines that fail in every way, and two that don't. A study's workers import them by `odd_engines:NAME`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jangin.bench.engine import Engine, Job
from jangin.bench.engines import ENGINES


def _made(job: Job, before: Any = lambda: None, after: Any = lambda: None) -> Engine:
    plain = ENGINES["onnxruntime"](job)

    def call() -> Mapping[str, Any]:
        before()
        found = plain.call()
        after()
        return found

    return Engine(call, "1.0")


def good(job: Job) -> Engine:
    return _made(job)


def slow(job: Job) -> Engine:
    return _made(job, lambda: time.sleep(0.005))


def working(job: Job) -> Engine:
    """Work 20 ms a call, which a meter notices by the file `busy` in the folder ENERGY_FOLDER."""
    busy = Path(os.environ["ENERGY_FOLDER"], "busy")

    def work() -> None:
        busy.touch()
        time.sleep(0.02)

    return _made(job, work, busy.unlink)


def resting(job: Job) -> Engine:
    """Take 20 ms a call without any power of its own."""
    return _made(job, lambda: time.sleep(0.02))


def mended(job: Job) -> Engine:
    """Be installed once there is a file `mended`."""
    if not Path(os.environ["ENERGY_FOLDER"], "mended").exists():
        raise ModuleNotFoundError("No module named 'mended'")
    return _made(job)


def crashing(job: Job) -> Engine:
    os.kill(os.getpid(), signal.SIGSEGV)
    raise AssertionError


def leaving(job: Job) -> Engine:
    """Crash, and leave a child that runs on."""
    _child()
    return crashing(job)


def hanging(job: Job) -> Engine:
    """Hang with a child, as in a converter that hangs."""
    _child()
    time.sleep(600)
    raise AssertionError


def _child() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(os.environ["ENERGY_FOLDER"], "child").write_text(str(child.pid))


def unreadable(job: Job) -> Engine:
    raise ValueError("no operator Conv")


def lacking(job: Job) -> Engine:
    import no_such_package_of_an_engine  # noqa: F401

    raise AssertionError


def wrong(job: Job) -> Engine:
    plain = ENGINES["onnxruntime"](job)
    return Engine(lambda: {n: a * 1.1 for n, a in plain.call().items()}, "1.0")


def no_numbers(job: Job) -> Engine:
    plain = ENGINES["onnxruntime"](job)
    return Engine(lambda: {n: a * np.nan for n, a in plain.call().items()}, "1.0")


def raising(job: Job) -> Engine:
    """Raise an exception while it is timed."""
    calls = [0]

    def count() -> None:
        calls[0] += 1
        if calls[0] > 4:
            raise RuntimeError("the device was lost")

    return _made(job, count)


def dying(job: Job) -> Engine:
    """End with status 7 while it is timed."""
    calls = [0]

    def count() -> None:
        calls[0] += 1
        if calls[0] > 4:
            os._exit(7)

    return _made(job, count)
