"""Python's collector rests while a model is read, and only then."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest

from jangin.runtime.collecting import uncollected


@pytest.fixture(autouse=True)
def collecting() -> Iterator[None]:
    was = gc.isenabled()
    gc.enable()
    yield
    (gc.enable if was else gc.disable)()


def test_it_works_again_after_the_last_context_and_after_errors() -> None:
    frozen = gc.get_freeze_count()  # pytest may have frozen objects
    with pytest.raises(KeyError), uncollected():
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled() and gc.get_freeze_count() == frozen


def test_a_caller_who_turned_it_off_or_froze_objects_finds_that_unchanged() -> None:
    gc.disable()
    with uncollected():
        pass
    assert not gc.isenabled()
    gc.enable()
    before = gc.get_freeze_count()
    gc.freeze()
    frozen = gc.get_freeze_count()
    with uncollected():
        kept = [[n] for n in range(9)]
    left = gc.get_freeze_count()
    if not before:
        gc.unfreeze()
    assert kept and left == frozen > before


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_process_that_is_forked_meanwhile_collects() -> None:
    with uncollected():
        child = os.fork()
        if child == 0:
            os._exit(7 if gc.isenabled() else 8)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
