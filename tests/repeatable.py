"""Random tests can be repeated. If a test has no seed of its own, its numbers come from the test's name and
from one seed for all tests.

This seed differs in each run. A failure prints it, and `--seed` sets it."""

from __future__ import annotations

import random
import secrets
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

WORD = 1 << 32
"""The limit of seeds, from NumPy's and PyTorch's old generators."""


class Numbers:
    """Random generators for the running test. `own` is NumPy's `default_rng`, which makes them."""

    def __init__(self) -> None:
        self.seed = self.count = 0
        self.test = ""
        self.own = np.random.default_rng

    def default_rng(self, seed: Any = None) -> np.random.Generator:
        """Return a generator, as NumPy's function does. Without a seed, a test's generators all differ, and
        are the same when it is repeated."""
        if seed is not None:
            return self.own(seed)
        self.count += 1
        return self.own([self.seed, zlib.crc32(self.test.encode()), self.count])

    def begin(self, test: str) -> None:
        self.test, self.count = test, 0
        self.rng = self.default_rng()
        random.seed(f"{self.seed} {test}")
        number = (self.seed + zlib.crc32(test.encode())) % WORD
        np.random.seed(number)
        if "torch" in sys.modules:
            sys.modules["torch"].manual_seed(number)


class _OfTest:
    def __getattr__(self, name: str) -> Any:
        return getattr(NUMBERS.rng, name)


NUMBERS = Numbers()
RNG: Any = _OfTest()
"""The random generator of the running test, for its helpers."""


@contextmanager
def repeated_by(call: str) -> Iterator[None]:
    """Add to an error the call that makes its case again."""
    try:
        yield
    except Exception as error:
        error.add_note(f"Again: {call}")
        raise


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--seed", type=int, help="what tests draw, as a failure prints it (default: another)")


def configure(config: pytest.Config) -> None:
    """Draw the seed. The processes of xdist get it from the first one."""
    if config.option.seed is None:
        config.option.seed = getattr(config, "workerinput", {}).get("seed")
    if config.option.seed is None:
        config.option.seed = secrets.randbelow(WORD)
    NUMBERS.seed = config.option.seed
    NUMBERS.begin("")
    np.random.default_rng = NUMBERS.default_rng  # type: ignore[assignment]


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Give a process of xdist the seed, so that all of them draw the same cases."""
    node.workerinput["seed"] = node.config.option.seed


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    NUMBERS.begin(item.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report: Any = yield
    if report.failed:
        report.sections.append(("What repeats the numbers drawn", f"--seed {item.config.option.seed}"))
    return report  # type: ignore[return-value]
