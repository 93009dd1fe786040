"""Prints how many of the official tests pass."""

from __future__ import annotations

from collections import Counter
from typing import Any


def pytest_terminal_summary(terminalreporter: Any) -> None:
    counts: dict[str, Counter[str]] = {}
    for outcome in ("passed", "failed", "skipped"):
        for report in terminalreporter.stats.get(outcome, ()):
            group = report.nodeid.split("::")
            if len(group) == 3 and group[1].startswith("OnnxBackend"):
                counts.setdefault(group[1], Counter())[outcome] += 1
    for name, count in sorted(counts.items()):
        kind = name.removeprefix("OnnxBackend").removesuffix("ModelTest")
        terminalreporter.write_line(
            f"ONNX {kind} tests: {count['passed']} of {count.total()} pass, "
            f"{count['skipped']} are left out for a stated reason, {count['failed']} fail"
        )
