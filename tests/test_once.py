"""A property that is computed once for each instance, in processes that fork too."""

from __future__ import annotations

import os
import threading

import pytest

from jangin.once import once


class Slow:
    def __init__(self, number: int) -> None:
        self.number, self.computed = number, 0
        self.inside, self.leave = threading.Event(), threading.Event()

    @once
    def value(self) -> int:
        """Twice the number."""
        self.computed += 1
        if not self.number:
            self.inside.set()
            assert self.leave.wait(60)
        return 2 * self.number


def test_a_value_is_computed_once() -> None:
    slow, other = Slow(3), Slow(4)
    assert (slow.value, slow.value, other.value) == (6, 6, 8)
    assert slow.computed == 1 and Slow.value.__doc__ == "Twice the number."


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no forks")
def test_a_child_that_was_forked_meanwhile_computes_it_too() -> None:
    """Python 3.11's own `cached_property` would wait in the child for the parent's thread."""
    slow = Slow(0)
    thread = threading.Thread(target=lambda: slow.value)
    thread.start()
    assert slow.inside.wait(60)
    child = os.fork()
    if child == 0:
        other = threading.Thread(target=lambda: os._exit(7 if Slow(3).value == 6 else 8), daemon=True)
        other.start()
        other.join(20)
        os._exit(9)
    slow.leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
