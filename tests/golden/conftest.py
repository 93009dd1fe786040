"""Golden files: tests/golden/<stage>/<name>.txt holds the text that a stage should give."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from pathlib import Path

import pytest

HERE = Path(__file__).parent
Golden = Callable[[str, str, str], None]


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    """`golden(stage, name, text)` compares a text with the file, or writes the file under
    `--update-golden`."""

    def check(stage: str, name: str, text: str) -> None:
        path = HERE / stage / f"{name}.txt"
        text = re.sub(r"sha256\.[0-9a-f]+", "sha256...", text)
        text = re.sub(r" as k_[0-9a-f]{24} ", " as k_... ", text)
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
            return
        known = path.read_text() if path.exists() else ""
        if text != known:
            diff = difflib.unified_diff(known.splitlines(), text.splitlines(), "golden", "now", lineterm="")
            pytest.fail(
                f"{path.relative_to(HERE.parents[1])} differs; where the change is meant, run "
                f"`pytest tests/golden --update-golden` and review its diff\n" + "\n".join(diff),
                pytrace=False,
            )

    return check
