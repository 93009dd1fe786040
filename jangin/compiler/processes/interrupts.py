"""Keeps Ctrl-C from being lost.

Python drops an interrupt that arrives while it runs a callback because an object is freed. Callbacks of weak
references run after each import, and whenever expressions are released."""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 0.02
"""Seconds after which a dropped interrupt is sent again. The code that dropped it has ended by then."""


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """Inside this context, a keyboard interrupt that Python drops is sent again after `AGAIN` seconds."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            # it must not wait here, because an interrupt here would be dropped too
            start_new_thread(_again, ())
        else:
            before(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        if sys.unraisablehook is hook:
            sys.unraisablehook = before


def _again() -> None:
    time.sleep(AGAIN)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, signal.SIGINT)
