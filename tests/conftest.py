"""For all tests: every compilation verifies its IR after each pass; `--update-golden` writes golden files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from jangin import pipeline
from jangin.options import Options


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/golden/*/*.txt anew")


@pytest.fixture(autouse=True, scope="session")
def verified() -> Iterator[None]:
    """`jangin.compile` checks the IR between passes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pipeline, "Options", partial(Options, verify=True))
        yield
