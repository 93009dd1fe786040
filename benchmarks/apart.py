"""Make a figure in a process of its own, which may crash or hang."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

SHOWN = 400
"""Characters of an error that a row keeps, some five lines of a terminal."""


def row_apart(command: Sequence[str], limit: float, what: str = "it") -> dict[str, Any]:
    """Return the row of figures that a command prints as its last line, in JSON. Whatever else happens within
    `limit` seconds becomes the row's "problem", which begins with `what`. No process of the command stays."""
    try:
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
        ) as job:
            try:
                said, errors = job.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                with suppress(ProcessLookupError):
                    os.killpg(job.pid, signal.SIGKILL)  # its compilers and checkers too
                job.communicate()
                return {"problem": f"{what} took longer than {limit:.3g} seconds"}
    except OSError as error:
        return {"problem": f"{type(error).__name__}: {str(error)[:SHOWN]}"}
    with suppress(ValueError):
        row = json.loads(said.strip().rpartition("\n")[2]) if job.returncode == 0 else None
        if isinstance(row, dict):
            return row
    last = errors.strip().rpartition("\n")[2][:SHOWN]
    return {"problem": last or f"{what} ended with status {job.returncode} and said no figure"}
