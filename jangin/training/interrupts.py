"""Steps that Ctrl-C doesn't interrupt."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Inside this context, Ctrl-C does nothing. At its end the usual handler is called, if there was one."""
    usual = signal.getsignal(signal.SIGINT)
    # only the main thread is interrupted; a handler that isn't Python's can't be called
    if threading.current_thread() is not threading.main_thread() or usual is None:
        yield
        return
    caught: list[tuple[Any, ...]] = []
    signal.signal(signal.SIGINT, lambda *given: caught.append(given))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, usual)
        if caught and callable(usual):
            usual(*caught[-1])
