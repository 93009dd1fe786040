"""Work in a forked process, as a test's own."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable


def in_a_fork(work: Callable[[], object], seconds: float = 60) -> None:
    """Run `work` in a forked process. Raises AssertionError unless the process ends within `seconds`, and the
    result is true. The child prints the error that `work` raises."""
    child = os.fork()
    if not child:
        status = 1
        try:
            status = 0 if work() else 2
        except BaseException:  # the child must not go on as a second run of the tests
            traceback.print_exc()
        finally:
            os._exit(status)
    deadline = time.monotonic() + seconds
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if ended == (0, 0):
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise AssertionError(f"the forked process didn't end within {seconds} seconds")
    assert ended[1] == 0, f"the forked process ended with {os.waitstatus_to_exitcode(ended[1])}"
