"""Keep a machine quiet while engines are timed, by a command of its owner."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

END_SECONDS = 60.0
"""The seconds that the command may take to end once its input has ended. It is killed then, so that a faulty
command doesn't stop the study."""


@contextmanager
def quiet(command: str) -> Iterator[None]:
    """Inside this context, a command keeps the machine quiet. Nothing is run if `command` is "".

    The command makes the machine quiet, prints a line, and waits until its input ends. It may take any time
    before it prints. Raises ValueError if it can't be started, or ends without a line.
    """
    words = shlex.split(command)
    if not words:
        yield
        return
    try:
        process = subprocess.Popen(
            words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )
    except OSError as error:
        raise ValueError(f"--quiet {command!r} can't be started: {error.strerror}") from None
    with process:
        assert process.stdin is not None and process.stdout is not None
        try:
            if not process.stdout.readline():
                status = process.wait()
                raise ValueError(
                    f"--quiet {command!r} ended with status {status} before it printed a line: it prints one "
                    "when the machine is quiet, and ends when its input ends"
                )
            yield
        finally:
            process.stdin.close()
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
