"""Executables of every kind are compiled, saved and loaded.

They are compiled with a cache, without one and with a read-only one, in this process and in one of their
own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kinds import KINDS, Kind, kind

CACHES = ("kept", "none", "not writable")
WAYS = [(cache, apart) for cache in CACHES for apart in (False, True)]
each_kind = pytest.mark.parametrize("which", KINDS, ids=lambda k: k.name)


def cache_of(what: str, folder: Path) -> Any:
    """Return the value of `cache=`."""
    if what == "none":
        return False
    if what == "not writable":
        folder = folder / "file"
        folder.touch()  # no user, not even root, can make a folder in a file
    return folder / "cache"


def check(which: Kind, cache: str, apart: bool, folder: Path) -> None:
    if which.missing:
        pytest.skip(which.missing)
    where = cache_of(cache, folder)
    if which.own and apart:
        with pytest.raises(ValueError, match="your own can't go to another process"):
            which.compiled(cache=where, isolated=True)
        return
    made = [which.compiled(cache=where, isolated=apart) for _ in range(1 if cache == "none" else 2)]
    made[0].save(folder / "model.jgn")
    loaded = which.loaded(folder / "model.jgn")
    loaded.save(folder / "again.jgn")
    assert (folder / "again.jgn").read_bytes() == (folder / "model.jgn").read_bytes()
    for exe in (*made, loaded):
        for feeds in which.feeds:
            which.check(exe, feeds)


@pytest.mark.parametrize("name", ["small types", "text"])
def test_handed_over_without_a_cache(name: str, tmp_path: Path) -> None:
    """Only the executable itself travels between processes if there is no cache, for each kind with other
    contents."""
    check(kind(name), "none", True, tmp_path)


@pytest.mark.slow
@each_kind
@pytest.mark.parametrize(("cache", "apart"), WAYS)
def test_every_way(which: Kind, cache: str, apart: bool, tmp_path: Path) -> None:
    check(which, cache, apart, tmp_path)
