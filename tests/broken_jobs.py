"""Programs that give no figure when a benchmark runs them as jobs."""

from __future__ import annotations

BROKEN = {
    "import os; os.abort()": "ended with status -6 and said no figure",
    "raise MemoryError('none left')": "MemoryError: none left",
    "print('no figure')": "said no figure",
    "print(3)": "said no figure",
    "import os, time; os.fork(); time.sleep(60)": "took longer than 0.5 seconds",
}
"""Each program for Python, and a part of the problem that is told within half a second."""
