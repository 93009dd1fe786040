"""The store of findings: findings are kept, replaced and bounded, and are for one place only. It works under
two processes, and with damaged files."""

from __future__ import annotations

import multiprocessing
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from jangin.targets import NAMED, resolve
from jangin.templates.template import Candidate
from jangin.tune import store as store_module
from jangin.tune.store import Finding, Store, place_of

V3 = NAMED["x86-64-v3"]


def finding(seconds: float = 1.0, tile: int = 4) -> Finding:
    return Finding(Candidate("window", {"tile": tile}), seconds, 2.0, frozenset({"window tile=2"}))


def test_what_is_put_is_got(tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    assert store.get("here") == {}
    store.put("here", {"a": finding(), "b": finding(3.0)})
    store.put("here", {"b": finding(1.5, 8)})
    assert store.get("here") == {"a": finding(), "b": finding(1.5, 8)}
    assert store.get("elsewhere") == {}


def test_better_is_quicker_than_untuned() -> None:
    assert finding(1.9).better
    assert not finding(2.0).better


def test_places_differ_by_all_that_changes_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    here = place_of(V3, 2, "never", "latency")
    others = [
        place_of(V3, 1, "never", "latency"), place_of(V3, 2, "auto", "latency"),
        place_of(NAMED["x86-64-v2"], 2, "never", "latency"), place_of(V3, 2, "never", "energy"),
        place_of(V3.with_figures(l3=4 << 20), 2, "never", "latency"),
    ]  # fmt: skip
    monkeypatch.setattr(store_module, "processor_name", lambda: "another")
    others.append(place_of(V3, 2, "never", "latency"))
    monkeypatch.undo()
    monkeypatch.setattr(store_module, "source_digest", lambda: "another compiler")
    others.append(place_of(V3, 2, "never", "latency"))
    assert len({here, *others}) == len(others) + 1


def test_boards_findings_serve_where_models_are_made_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board's findings don't serve if its processor has this machine's architecture."""
    store = Store(tmp_path)
    foreign = "cortex-a72" if resolve("cpu").triple.startswith("x86_64") else "x86-64-v3"
    with monkeypatch.context() as patch:
        patch.setattr("jangin.tune.store.processor_name", lambda: "a board's processor")
        for target in (foreign, "cpu"):
            store.put(place_of(resolve(target), 2, "never", "latency"), {"a": finding()})
    assert store.valid_for(resolve(foreign), 2, "never", "latency") == {"a": finding()}
    for target, threads in ((foreign, 1), ("cpu", 2)):
        assert store.valid_for(resolve(target), threads, "never", "latency") == {}


def test_the_oldest_go_beyond_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path, limit=3)
    for n in range(5):
        monkeypatch.setattr("jangin.tune.store.time.time", lambda n=n: float(n))
        store.put("here" if n % 2 else "there", {f"k{n}": finding()})
    assert sorted([*store.get("here"), *store.get("there")]) == ["k2", "k3", "k4"]


def write(folder: Path, name: str) -> None:
    for n in range(20):
        Store(folder).put("here", {f"{name}{n}": finding(), "shared": finding(tile=n)})


@pytest.mark.sampled(2)
def test_two_processes_write_at_once(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=write, args=(tmp_path, name)) for name in "ab"]
    for w in writers:
        w.start()
    for w in writers:
        w.join()
    assert [w.exitcode for w in writers] == [0, 0]
    found = Store(tmp_path).get("here")
    assert found.keys() == {"shared", *(f"{name}{n}" for name in "ab" for n in range(20))}


@pytest.mark.parametrize("content", [b"no database at all", b""])
def test_a_file_that_cannot_be_read_costs_time_only(tmp_path: Path, content: bytes) -> None:
    store = Store(tmp_path)
    store.path.write_bytes(content)
    assert store.get("here") == {}


def test_rows_that_are_malformed_are_left_out(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.put("here", {name: finding() for name in "abcdefg"})
    with closing(sqlite3.connect(store.path)) as db, db:
        for name, column, value in (
            ("a", "params", "{"), ("b", "params", "[1]"), ("c", "params", '{"tile": "x"}'),
            ("d", "seconds", "soon"), ("e", "tried", "3"), ("f", "template", b"\xff"),
        ):  # fmt: skip
            db.execute(f"UPDATE kernels SET {column} = ? WHERE kernel = ?", (value, name))
    assert store.get("here") == {"g": finding()}
    assert store.path.stat().st_mode & 0o777 == 0o600
    store.path.chmod(0o666)
    assert store.get("here") == {}, "another user may have written it"
