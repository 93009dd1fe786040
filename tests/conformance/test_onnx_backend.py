"""ONNX's own backend tests, by the official runner.

`skips.toml` has the reason for each test that is left out. Such a test is run too, and must fail as the
reason says. A test that passes must be taken off the list. The light models are in `tests/models`."""

from __future__ import annotations

import functools
import re
import tomllib
import unittest
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import interp
import numpy as np
import onnx.backend.test
import pytest
from quick_cases import OFFICIAL, pool, quickly

from jangin.ir.graph import CompileError
from jangin.onnx_backend import JanginBackend

Test = Callable[..., Any]
INTERPRETED = 1693
"""The node tests that pass by the interpreter: all but programs, and but types that it rounds less."""
SKIPS = tomllib.loads((Path(__file__).parent / "skips.toml").read_text())
KINDS = {"unsupported": CompileError, "differs": AssertionError, "uncomparable": TypeError}
"""The errors of the tests in each part of the table."""
pytestmark = pytest.mark.usefixtures("shared_kernels")


class Backend(JanginBackend):
    """A back end that raises an error for models that can't be compiled, instead of skipping them."""

    is_compatible = None  # type: ignore[assignment]


def left_out(name: str) -> tuple[type[Exception], str] | None:
    """Return the error and the reason of a test in the table, or None."""
    for kind, failure in KINDS.items():
        for entry in SKIPS.get(kind, ()):
            if re.fullmatch(entry["tests"], name):
                return failure, entry["reason"]
    return None


def expected_to_fail(test: Test, failure: type[Exception], reason: str) -> Test:
    @functools.wraps(test)
    def run(self: unittest.TestCase) -> None:
        try:
            test(self)
        except failure:
            pytest.skip(reason)
        pytest.fail(f"it passes now: take it off skips.toml ({reason})")

    return run


def cases(backend: type[JanginBackend]) -> dict[str, type[unittest.TestCase]]:
    """Return the runner's test classes: the CPU's tests of all groups except the light models."""
    with warnings.catch_warnings(), quickly():
        warnings.simplefilter("ignore")  # the tests' own expected values overflow on purpose
        groups = onnx.backend.test.BackendTest(backend, __name__).test_cases
    groups.pop("OnnxBackendRealModelTest")
    for group in groups.values():
        for name in [n for n in vars(group) if n.startswith("test_")]:
            test = getattr(group, name)
            delattr(group, name)
            short = name.removesuffix("_cpu")
            if name.endswith("_cpu"):
                entry = left_out(short)
                compiled = expected_to_fail(test, *entry) if entry else test
                setattr(group, short, pytest.mark.sampled(8)(compiled))
    return groups


globals().update(cases(Backend))


def test_every_entry_leaves_something_out() -> None:
    names = {n for g in globals().values() if isinstance(g, type) for n in vars(g) if n.startswith("test_")}
    for kind in KINDS:
        for entry in SKIPS.get(kind, ()):
            assert any(re.fullmatch(entry["tests"], n) for n in names), f"no test is called {entry['tests']}"


def test_by_the_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """All node tests but those that need more than one plan: a sample of them is compiled (see `cases`)."""
    counts = interp.counted("")
    assert counts["pass"] >= INTERPRETED, counts


@pytest.mark.parametrize("kind", ["MAX", "AVG", "LPPOOL"])
def test_expected_values_are_onnxs(kind: str) -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 5, 4, 6)).astype(np.float32)
    given = (x, x.shape, [2, 2, 3], [1, 1, 1], [4, 3, 4], kind)
    np.testing.assert_allclose(pool(*given, p=3), OFFICIAL(*given, p=3), rtol=1e-6, atol=1e-6)
