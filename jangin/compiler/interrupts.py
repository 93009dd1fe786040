"""Ctrl-C that isn't lost.

Python drops an interrupt that comes while it runs what it calls as it frees something: a weak reference's
function, as after each import, and wherever expressions are let go of.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from _thread import start_new_thread
from collections.abc import Iterator
from contextlib import contextmanager

AGAIN = 0.02
"""Seconds after which an interrupt that was dropped is sent again: what dropped it is over then."""


@contextmanager
def kept_interrupts() -> Iterator[None]:
    """Interrupts that would be dropped come a little later."""
    before = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            start_new_thread(_again, ())  # which waits for nothing: what came here would be dropped too
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
