"""For all tests: every compilation verifies its IR after each pass; `--update-golden` writes golden files;
the count of the official tests that pass is printed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from jangin.compiler import pipeline, request
from jangin.compiler.options import Options


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*/*.txt anew")


@pytest.fixture(autouse=True, scope="session")
def verified() -> Iterator[None]:
    """`jangin.compile` checks the IR between passes, and in this process, which has the compiler."""
    assert pipeline.__name__ in sys.modules
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(request, "Options", partial(Options, verify=True))
        yield


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
