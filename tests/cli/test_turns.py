"""The turns of engines that are timed side by side: how many, and how many calls each has."""

from __future__ import annotations

import os
import time
from types import SimpleNamespace
from typing import Any

import pytest

from jangin.bench import measure, worker
from jangin.bench.engine import Engine
from jangin.bench.measure import LEAST_TURNS, Options, take_turns


def fake(engine: str, seconds: float) -> Any:
    """Return a worker whose calls take so long."""

    def ask(**_: Any) -> dict[str, Any]:
        time.sleep(seconds)
        return {"nanoseconds": [seconds * 1e9]}

    return SimpleNamespace(
        job=SimpleNamespace(engine=engine), process=SimpleNamespace(pid=os.getpid()), ask=ask
    )


def test_an_engine_far_behind_has_fewer_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of an engine far behind goes to the others. One that is slow alone keeps its turns."""
    monkeypatch.setattr(measure, "settle", lambda _: None)
    options = Options(rounds=6, seconds=0.001)
    turns = take_turns([fake("fast", 0.001), fake("slow", 0.02)], None, options)
    assert {e: len(t) for e, t in turns.items()} == {"fast": 6, "slow": LEAST_TURNS}
    turns = take_turns([fake("slow", 0.02), fake("slower", 0.03)], None, options)
    assert {e: len(t) for e, t in turns.items()} == {"slow": 6, "slower": 6}


def test_a_long_call_needs_no_untimed_one_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "LONG_SECONDS", 0.02)
    for seconds, untimed in ((0.03, 0), (0.001, 1)):
        calls: list[int] = []

        def call(seconds: float = seconds, calls: list[int] = calls) -> dict[str, Any]:
            calls.append(1)
            time.sleep(seconds)
            return {}

        timed = worker.turn(Engine(call, "1"), 0.005)["nanoseconds"]
        assert len(timed) == len(calls) - untimed and min(timed) >= seconds * 1e9
