"""OpenCL kernels are checked by the tests of `tests/backends`, and masked accesses by those of
`tests/instr`."""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("backends", "instr")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how ONNX's node tests ended on each device with each kind of schedule, and why some were left
    out."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            parts = report.nodeid.split("::")
            if len(parts) == 3 and parts[1].startswith("TestNodes"):
                why = report.longrepr[2] if outcome == "skipped" else outcome
                found[parts[1]][why] += 1
    for group, counts in sorted(found.items()):
        terminalreporter.write_line(f"{group}: {counts.total()} tests")
        for why, count in counts.most_common():
            terminalreporter.write_line(f"  {count:5} {why}")
