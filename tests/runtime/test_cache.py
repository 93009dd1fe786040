"""The compile cache: keys, the bound, damage, and two processes at once."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path

import pytest
from plans import chain

from jangin.compiler.cache import Cache, installed, key
from jangin.runtime.compiled import read_artifact
from jangin.tune.store import Store


def test_keys() -> None:
    assert key(["a", b"b"]) == key([b"a", "b"]) and len(key([])) == 64
    assert len({key(p) for p in ([], [""], ["ab"], ["a", "b"], ["b", "a"], ["a", "b", ""])}) == 6


def test_versions_of_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They are those of the standard library, which takes longer to import than the digest to compute."""
    for package in ("llvmlite", "numpy", "onnx"):
        assert installed(package) == version(package)
    assert installed("nothing_of_this_name") == ""
    (tmp_path / "Made_Up-1.2.3.dist-info").mkdir()
    (tmp_path / "older-4.5-py3.11.egg-info").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.syspath_prepend(str(tmp_path / "no folder"))
    assert (installed("made_up"), installed("older")) == ("1.2.3", "4.5")
    code = "import sys, jangin.compiler.cache as c; c.source_digest(); print('email' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "False\n", done.stderr


def test_get_and_put(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "c")
    name = key(["model"])
    assert cache.get(name) is None
    path = cache.put(name, lambda p: p.write_bytes(b"content"))
    assert path == cache.get(name) and path is not None and path.read_bytes() == b"content"
    assert cache.size() == 7
    assert cache.load(name, Path.read_bytes) == b"content"
    cache.discard(name)
    cache.discard(name)
    assert cache.get(name) is None


def test_artifacts_and_damage(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    made = chain()
    name = key(["m"])
    path = cache.put(name, made.save)
    assert path is not None
    found = cache.load(name, read_artifact)
    assert found is not None and found.objects == made.objects
    path.write_bytes(path.read_bytes()[:-1])
    assert cache.load(name, read_artifact) is None
    assert not path.exists()


def test_bounded_least_recently_used_first(tmp_path: Path) -> None:
    cache = Cache(tmp_path, limit=1000)
    names = [key([str(i)]) for i in range(4)]
    for i, name in enumerate(names[:3]):
        path = cache.put(name, lambda p: p.write_bytes(bytes(300)))
        assert path is not None
        os.utime(path, (i, i))
    assert cache.get(names[0]) is not None  # now newer than 1 and 2
    cache.put(names[3], lambda p: p.write_bytes(bytes(300)))
    assert [cache.path(n).exists() for n in names] == [True, False, True, True]
    # an entry that is too large is kept alone, and all others go
    cache.put(names[1], lambda p: p.write_bytes(bytes(5000)))
    assert [cache.path(n).exists() for n in names] == [False, True, False, False]
    cache.clear()
    assert cache.size() == 0


def test_unfinished_files(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    name = key(["x"])

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        cache.put(name, fail)
    assert not [p for p in tmp_path.rglob("*") if p.is_file()]
    old, new = (tmp_path / name[:2] / f"{n}.part" for n in ("old", "new"))
    old.write_bytes(b"")
    new.write_bytes(b"")
    os.utime(old, (time.time() - 7200,) * 2)
    cache.put(name, lambda p: p.write_bytes(b""))
    assert new.exists() and not old.exists()


def test_a_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    cache = Cache(tmp_path / "file")
    assert cache.put(key(["x"]), lambda p: p.write_bytes(b"")) is None
    assert cache.get(key(["x"])) is None and cache.load(key(["x"]), Path.read_bytes) is None


def test_default_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("JANGIN_CACHE_DIR", raising=False)
    assert "jangin" in str(Cache().folder)
    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path / "elsewhere"))
    assert Cache().folder == Store().path.parent == tmp_path / "elsewhere"


_PROCESS = """
import sys
from pathlib import Path
from jangin.compiler.cache import Cache, key
cache = Cache(sys.argv[1], limit=40_000)
for i in range(300):
    name = key([str(i % 17)])
    content = name.encode() * 50
    found = cache.load(name, Path.read_bytes)
    assert found in (None, content), "half an entry"
    if found is None:
        cache.put(name, lambda p: p.write_bytes(content))
"""


def test_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROCESS, str(tmp_path)]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [p.communicate(timeout=600)[1] for p in running]
    assert [p.returncode for p in running] == [0, 0], errors
    assert Cache(tmp_path).size() <= 40_000
    assert not list(tmp_path.rglob("*.part"))


def test_folders_and_entries_are_the_users_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = os.umask(0o002)  # many systems have this mask, by which new files are writable by the group
    try:
        cache, name = Cache(tmp_path / "c"), key(["x"])
        path = cache.put(name, lambda p: p.write_bytes(b"code"))
    finally:
        os.umask(old)
    assert path is not None and cache.get(name) == path
    assert [p.stat().st_mode & 0o777 for p in (cache.folder, path.parent, path)] == [0o700, 0o700, 0o600]
    for changed in (path, path.parent):
        changed.chmod(changed.stat().st_mode | 0o020)
        assert cache.get(name) is None, "another user may have changed it"
        changed.chmod(changed.stat().st_mode & ~0o020)
    monkeypatch.setattr(os, "getuid", lambda: path.stat().st_uid + 1)
    assert cache.get(name) is None and cache.load(name, Path.read_bytes) is None
    assert path.exists(), "another user's entry is left alone"
    monkeypatch.undo()
    moved = path.rename(tmp_path / "elsewhere")
    path.symlink_to(moved)
    assert cache.load(name, Path.read_bytes) is None, "a link may lead to another user's file"
