"""Products by cuBLASLt among a plan's own kernels, on mock libraries that check what they are given."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mocked
import numpy as np
import pytest

import jangin
from jangin.compiler.pipeline import tune_model
from jangin.options import Options
from jangin.runtime import libraries
from jangin.runtime.device import LoadError
from jangin.runtime.devices import cublas
from jangin.runtime.devices.cuda_code import Built
from jangin.targets import resolve
from jangin.tune.store import Store

sys.path.insert(0, str(Path(__file__).parent.parent / "libraries"))
from test_libraries import CASES, Model, dense, three_by_three

pytestmark = mocked.needed
NOT_SUPPORTED, NOT_INITIALIZED = 15, 1


@pytest.fixture
def library(driver: Any) -> Iterator[Any]:
    """Return the mock of cuBLASLt, beside the mock of the driver."""
    with mocked.beside("lib/libcublasLt.so.12") as mock:
        yield mock


@pytest.mark.parametrize(
    "make", [c if c is dense else pytest.param(c, marks=pytest.mark.slow) for c in CASES]
)
def test_the_same_result(make: Callable[[], Model], library: Any, tmp_path: Path) -> None:
    """Transposed operands, batches and operators behind a product are right, from memory and from a file."""
    model, feeds = make()
    want = jangin.compile(model, "cpu", cache=False).run(feeds)["y"]
    exe = jangin.compile(model, "cuda", cache=False, libraries="cublas")
    assert exe.plan.libraries == ("cublas",)
    exe.save(tmp_path / "m.jgn")
    for one in (exe, exe, jangin.load(tmp_path / "m.jgn")):
        np.testing.assert_allclose(one.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)
    assert all(0 < launch.seconds < 10 for launch in exe.profile(feeds, 1))


def test_nothing_is_left(library: Any) -> None:
    model, feeds = dense()
    before = library.mock_objects()
    jangin.compile(model, "cuda", cache=False, libraries="cublas").run(feeds)
    gc.collect()
    assert library.mock_objects() <= before + 1, "the library's handle stays as long as its context"


def test_only_products_are_called(library: Any) -> None:
    """A convolution of 3 x 3 stays ours. The library is named among others, and only by who wants it."""
    assert jangin.compile(three_by_three()[0], "cuda", cache=False, libraries="cublas").plan.libraries == ()
    assert jangin.compile(dense()[0], "cuda", cache=False).plan.libraries == ()
    both = jangin.compile(dense()[0], "cuda", cache=False, libraries="cublas,never")
    assert both.plan.libraries == ("cublas",)
    with pytest.raises(ValueError, match=r"libraries='cublas,more' is unknown; known: never, auto"):
        Options(resolve("cuda"), libraries="cublas,more")


def test_where_it_is_missing(library: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jangin.build(dense()[0], "cuda", cache=False, libraries="cublas").save(tmp_path / "m.jgn")
    monkeypatch.setattr(libraries, "nvidia_libraries", lambda name, *_: [])
    libraries.find.cache_clear()
    cublas._functions.cache_clear()
    with pytest.raises(ValueError, match="cuBLAS is not installed here: pip install nvidia-cublas"):
        jangin.compile(dense()[0], "cuda", cache=False, libraries="cublas")
    with pytest.raises(LoadError, match=r"to call another library: cuBLAS is not installed here"):
        jangin.load(tmp_path / "m.jgn")


@pytest.mark.parametrize(
    ("status", "said"), [(NOT_SUPPORTED, "knows no way"), (NOT_INITIALIZED, "the error 1")]
)
def test_a_library_that_refuses(library: Any, status: int, said: str) -> None:
    """The error names the kernel and the remedy."""
    built = jangin.build(dense()[0], "cuda", cache=False, libraries="cublas")
    library.mock_refuse(status)
    with pytest.raises(LoadError, match=rf'computes .*can\'t call cuBLASLt: .*{said}.*libraries="never"'):
        jangin.Executable(built)


def test_damaged_code() -> None:
    code = Built("k", "sm_80", (12, 4), b"machine", b"text", 16, b"{}").packed
    assert Built.of(code).product == b"{}" and Built.of(code).cubin == b"machine"
    for cut in range(len(code) - 8):  # shared memory's four bytes may be missing in old code
        with pytest.raises(LoadError, match="damaged"):
            Built.of(code[:cut])


@pytest.mark.slow  # the C++ compiler makes every candidate
def test_it_races_ours(library: Any, tmp_path: Path) -> None:
    model, _ = dense()
    options = Options(resolve("cuda"), libraries="auto")
    outcome = tune_model(model, options, 1, 30.0, store=Store(tmp_path))
    assert not outcome.defects
    assert any("cublas" in kernel.tried for kernel in outcome.kernels)
