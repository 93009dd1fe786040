"""WebGPU's shaders are checked by the tests of `tests/backends`. The outcomes of ONNX's node tests are
counted."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("backends", "conformance", "instr")]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print how ONNX's node tests ended, and why some were left out."""
    counts: Counter[str] = Counter()
    for outcome in ("passed", "failed", "error", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            if "::TestNodesWebGPU::" in report.nodeid:
                counts[report.longrepr[2] if outcome == "skipped" else outcome] += 1
    if counts:
        terminalreporter.write_line(f"WebGPU: {counts.total()} of ONNX's node tests")
        for why, count in counts.most_common():
            terminalreporter.write_line(f"  {count:5} {why}")
