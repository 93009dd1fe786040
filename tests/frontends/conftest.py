"""For tests of formats: damaged files, cut off or with bytes changed, each of which must give a model or one
clear error."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import jangin
from jangin.frontends.format import ModelSource
from jangin.frontends.lower import lower
from jangin.frontends.table import load

LONGEST = 3000
"""Characters of an error that a person still reads."""


@pytest.fixture(params=[pytest.param(40, id="quick"), pytest.param(1000, id="many", marks=pytest.mark.slow)])
def refused(request: pytest.FixtureRequest) -> Callable[[ModelSource, list[Path]], float]:
    """The share of a file's damaged versions that aren't read; see `_refused`."""
    return lambda model, files: _refused(model, files, request.param) / request.param / len(files)


def damaged(data: bytes, rounds: int) -> Iterator[bytes]:
    """Every second one cut off; three bytes changed, most of them near the start, where structure is."""
    rng = np.random.default_rng(0)
    for n in range(rounds):
        some = bytearray(data[: rng.integers(1, len(data))] if n % 2 else data)
        reach = len(some) if n % 3 else min(len(some), 2000)
        for at in rng.integers(0, reach, 3):
            some[at] = rng.integers(0, 256)
        yield bytes(some)


def _refused(model: ModelSource, files: list[Path], rounds: int) -> int:
    """How many damaged versions of the files, one at a time, aren't read; any error but CompileError is a
    defect and raised."""
    count = 0
    for file in files:
        whole = file.read_bytes()
        for some in damaged(whole, rounds):
            file.write_bytes(some)
            try:
                lower(load(model))
            except jangin.CompileError as error:
                count += 1
                assert len(str(error)) < LONGEST
        file.write_bytes(whole)
    return count
