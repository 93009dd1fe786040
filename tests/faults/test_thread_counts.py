"""A number of threads may be any kind of integer. Everything else is refused at once."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kinds import Kind, kind

import jangin
from jangin.runtime.threads import MOST, default_threads

RIGHT = [1, 2, np.int64(2), np.uint8(1), np.array(2)]
WRONG = [1.5, 2.0, True, np.True_, "2", b"1", [2], Fraction(2), np.float32(2), 0, -1, MOST + 1, 1 << 40]
each_kind = pytest.mark.parametrize("which", [kind(n) for n in ("variants", "text")], ids=lambda k: k.name)


def session(which: Kind, threads: Any) -> Any:
    options = jangin.SessionOptions()
    options.intra_op_num_threads = threads
    return jangin.InferenceSession(which.model, options).executable


def ways(which: Kind, folder: Path) -> dict[str, Callable[[Any], Any]]:
    path = folder / "model.jgn"
    made = which.compiled(isolated=False)
    made.save(path)
    return {
        "compile": lambda n: jangin.compile(which.model, threads=n, cache=False, isolated=False),
        "load": lambda n: jangin.load(path, threads=n),
        "its class": lambda n: type(made)(made.artifact, n),
    }


@each_kind
def test_of_an_executable(which: Kind, tmp_path: Path) -> None:
    for make in ways(which, tmp_path).values():
        for given in RIGHT:
            exe = make(given)
            assert type(exe.threads) is int and exe.threads == int(given)
            which.check(exe, which.feeds[0])
        for given in WRONG:
            with pytest.raises((TypeError, ValueError), match=r"^threads (is how many|must be at least 1)"):
                make(given)
        assert make(None).threads == default_threads()


def test_of_a_session(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A session's count of 0 means all threads that the process may use."""
    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path))
    which = kind("plan")
    for given in RIGHT:
        assert session(which, given).threads == int(given)
    assert session(which, 0).threads == default_threads()
    for given in (w for w in WRONG if w is True or w != 0):
        with pytest.raises((TypeError, ValueError), match=r"^intra_op_num_threads (is how|must be)"):
            session(which, given)


@pytest.mark.parametrize("given", [1.5, True, 0])
def test_of_what_compiles_later(given: Any) -> None:
    """The error comes before any work."""
    model = kind("plan").model
    for act in (
        lambda: jangin.build(model, threads=given, cache=False, isolated=False),
        lambda: jangin.quantize(model, [], threads=given),
        lambda: jangin.compare(model, model, [], threads=given),
    ):
        with pytest.raises((TypeError, ValueError), match=r"^threads "):
            act()
