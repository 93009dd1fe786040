"""The memory of large outputs is used again, but never while an array reads it."""

from __future__ import annotations

import numpy as np
import pytest
from plans import chain

from jangin.runtime.arrays import address
from jangin.runtime.devices import cpu
from jangin.runtime.executable import Executable
from jangin.runtime.outputs import Outputs, aligned

FLOAT = np.dtype(np.float32)


def test_memory_comes_back_with_the_last_view() -> None:
    outputs = Outputs()
    first = outputs.array("y", (4, 6), FLOAT)
    at, part = address(first), first[1:, ::2].T
    del first
    second = outputs.array("y", (4, 6), FLOAT)
    assert address(second) != at
    del part
    assert address(outputs.array("y", (23,), FLOAT)) == at


def test_memory_that_does_not_fit_is_not_used() -> None:
    outputs = Outputs()
    outputs.array("y", (10,), FLOAT)
    for size in (11, 5, 0):
        assert outputs.array("y", (size,), FLOAT).shape == (size,)
    kept = outputs.array("z", (2, 3), np.dtype(np.int64))
    assert kept.flags.c_contiguous and kept.flags.writeable and kept.dtype == np.int64


def test_large_outputs_begin_at_a_cache_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "MANY_LINES", 1)
    exe = Executable(chain(), 2)
    x = np.random.default_rng(1).standard_normal(1000).astype(np.float32)
    kept = [exe(x) for _ in range(5)]
    assert all(address(y) % 64 == 0 for y in kept) and len({address(y) for y in kept}) == 5
    for shape in ((3, 0), (7,), (2, 5)):
        assert aligned(shape, FLOAT).shape == shape and aligned(shape, FLOAT).flags.writeable


def test_results_that_are_kept_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "LARGE", 1)
    exe = Executable(chain(), 2)
    given = [np.random.default_rng(n).standard_normal(1000).astype(np.float32) for n in range(4)]
    kept = [exe(x)[3:] for x in given]
    places = {address(exe(x)) for x in given}
    assert len(places) == 1 and not places & {address(y) - 12 for y in kept}
    for x, y in zip(given, kept, strict=True):
        np.testing.assert_array_equal(y, ((x * 2 + 1) * 3 + 5)[3:])
