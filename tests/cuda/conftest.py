"""CUDA kernels are also checked by the tests of `tests/backends`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path[:0] = [str(Path(__file__).parent.parent / name) for name in ("backends", "cuda")]

import mocked  # noqa: E402


@pytest.fixture
def driver() -> Iterator[Any]:
    """Replace NVIDIA's driver by the mock, and remove it after the test."""
    with mocked.mocked() as library:
        yield library
