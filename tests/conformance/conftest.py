"""The node tests share kernels, as models share those of the cache.

Of the kernels that they ask for, three in five are another test's too, mostly of the same operator as a
function. Each runs on its own test's inputs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from jangin.compiler.request import Request
from jangin.compiler.shared import SharedKernels


@pytest.fixture(autouse=True, scope="module")
def kernels() -> Iterator[None]:
    shared = SharedKernels()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Request, "kernels", lambda *_: shared)
        yield
