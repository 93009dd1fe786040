"""Programs that give no figure when a benchmark runs them as jobs."""

from __future__ import annotations

HANGS = "import os, time; os.fork(); time.sleep(600)"
BROKEN = {
    "import os; os.abort()": "ended with status -6 and said no figure",
    "raise MemoryError('none left')": "MemoryError: none left",
    "print('no figure')": "said no figure",
    "print(3)": "said no figure",
    HANGS: "took longer than 4 seconds",
}
"""Each program for Python, and a part of the problem that is told within its limit."""


def limit(text: str) -> float:
    """Return the seconds that each job has beside a broken program. Other jobs need some hundredths of them,
    but seconds if other programs take all processors."""
    return 4.0 if text == HANGS else 120.0
