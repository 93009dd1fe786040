"""Executables of every kind go to other processes, and are copied, with their state."""

from __future__ import annotations

import copy
import multiprocessing
import pickle
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from kinds import KINDS, Kind, kind

import jangin

QUICK = ("variants", "own operators")
each_kind = pytest.mark.parametrize(
    "which", [pytest.param(k, marks=() if k.name in QUICK else pytest.mark.slow, id=k.name) for k in KINDS]
)


@each_kind
def test_each_kind_pickles(which: Kind) -> None:
    if which.missing:
        pytest.skip(which.missing)
    exe = which.compiled(isolated=False)
    again = [pickle.loads(pickle.dumps(exe, p)) for p in (2, 5)] + [copy.deepcopy(exe), copy.copy(exe)]
    for made in again:
        assert type(made) is type(exe) and made.threads == exe.threads
        for feeds in which.feeds:
            which.check(made, feeds)
    for feeds in which.feeds:
        which.check(exe, feeds)


def test_state_goes_along() -> None:
    which = kind("state")
    if which.missing:
        pytest.skip(which.missing)
    exe, feeds = which.compiled(isolated=False), which.feeds[0]
    exe.run(feeds)
    again = pickle.loads(pickle.dumps(exe))
    first, second = exe.run(feeds), again.run(feeds)
    np.testing.assert_array_equal(*(next(iter(found.values())) for found in (first, second)))
    np.testing.assert_allclose(next(iter(first.values())), 2 * feeds["x"])


def run_there(exe: Any, feeds: Any) -> Any:
    return exe.run(feeds)


@pytest.mark.parametrize("way", ["spawn", pytest.param("fork", marks=pytest.mark.slow)])
def test_in_another_process(way: str) -> None:
    """A spawned process gets the bytes. A forked one gets the pickled executable too."""
    which = kind("symbolic")
    exe = which.compiled(isolated=False)
    with multiprocessing.get_context(way).Pool(1) as pool:
        for feeds in which.feeds:
            which.confirm(pool.apply(run_there, (exe, feeds)), feeds)


def test_a_session_pickles(tmp_path: Any) -> None:
    which = kind("plan")
    path = tmp_path / "plan.jgn"
    which.compiled(isolated=False).save(path)
    session = pickle.loads(pickle.dumps(jangin.InferenceSession(path)))
    which.confirm(dict(enumerate(session.run(None, which.feeds[0]))), which.feeds[0])


def test_own_functions_without_a_name_are_refused() -> None:
    """pickle refuses functions without a name in the same way."""
    which = kind("own operators")
    nameless = jangin.hosted("Median", "mine", lambda x, **_: [(x.dtype, x.shape[:-1])])(lambda x: x.max(-1))
    exe = jangin.compile(which.model, operators=[which.own[0], nameless], cache=False, isolated=False)
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(exe)


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch isn't installed")
def test_a_compiled_module_says_what_pickles() -> None:
    import torch

    module = jangin.compile(
        torch.nn.Linear(4, 4), example_inputs=(torch.ones(2, 4),), cache=False, isolated=False
    )
    for act in (pickle.dumps, copy.deepcopy):
        with pytest.raises(TypeError, match="its `executable` can"):
            act(module)
    again = pickle.loads(pickle.dumps(module.executable))
    x = np.ones((2, 4), np.float32)
    np.testing.assert_array_equal(again(x), module.executable(x))
    assert "torch" in sys.modules
