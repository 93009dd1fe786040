"""Every allocation of loading, running, compiling or saving may fail. The call then reports an error, and the
next call is right."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from failing import COMPILER, environment, library
from kinds import KINDS, kind

from jangin import mapped
from jangin.compiler.cache import Cache
from jangin.frontends.lower import _Lowering
from jangin.ir.errors import CompileError
from jangin.runtime.device import LoadError
from jangin.runtime.devices.opencl_devices import devices
from jangin.runtime.script import ROOM, Place, Script

HERE = Path(__file__).parent
pytestmark = [
    pytest.mark.skipif(not COMPILER, reason="no C compiler here: what makes allocations fail is in C"),
    pytest.mark.skipif(sys.platform != "linux", reason="allocations are made to fail in glibc's way"),
]
FEW = {"again": 30, "first": 20, "addressed": 10, "load": 8, "save": 6, "compile": 3}
"""The number of allocations of each action that fail in the quick suite."""
QUICK = ("counted", "text")


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


def campaign(folder: Path, jobs: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
    """Return the result of each job (see `campaign`). The process that runs the jobs must not die."""
    lines = []
    for job in jobs:
        file = folder / f"{job['kind']} {job['target']}.jgn"
        if not file.exists():
            kind(job["kind"]).compiled(target=job["target"], isolated=False).save(file)
        lines.append(
            json.dumps({"forever": False, "least": 1, "some": 0, "seed": 0, **job, "file": str(file)})
        )
    process = subprocess.Popen(
        [sys.executable, "-X", "faulthandler", HERE / "campaign.py"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=environment(library(folder)), cwd=HERE,
    )  # fmt: skip
    # the signal makes the process print where it is
    late = threading.Timer(seconds, process.send_signal, [signal.SIGABRT])
    later = threading.Timer(seconds + 30, process.kill)  # where it is can't be printed either
    late.start()
    later.start()
    said, errors = process.communicate("\n".join(lines))
    late.cancel()
    later.cancel()
    found = [json.loads(line) for line in said.splitlines()]
    assert not process.returncode, f"ended by {process.returncode} in {lines[len(found)]}: {errors[-5000:]}"
    return found


def check(folder: Path, jobs: Sequence[Mapping[str, Any]], seconds: float) -> None:
    for job, found in zip(jobs, campaign(folder, jobs, seconds), strict=True):
        print(job, found)
        assert not found["wrong"], f"{job}: " + "\n".join(found["wrong"])


def actions(name: str) -> list[str]:
    return [a for a in FEW if a != "addressed" or name == "plan"]


def least(action: str) -> int:
    """Return the size in bytes below which allocations succeed. protobuf reads a name as bytes if its small
    allocation fails."""
    return 512 if action == "compile" else 1


def drawn_seed() -> int:
    """Return the seed that JANGIN_SEED has, or a new one, and print it."""
    seed = int(os.environ.get("JANGIN_SEED", random.randrange(1 << 30)))
    print("seed", seed)
    return seed


@pytest.mark.sampled(3)
def test_some_allocations_fail(folder: Path) -> None:
    seed = drawn_seed()
    jobs = [
        {"kind": name, "action": action, "target": "cpu", "some": FEW[action], "seed": seed,
         "least": least(action)}
        for name in QUICK for action in actions(name) if action != "compile" or name == "text"
    ]  # fmt: skip
    check(folder, jobs, 120)


@pytest.mark.slow
@pytest.mark.parametrize("action", FEW)
@pytest.mark.parametrize("name", [k.name for k in KINDS])
def test_every_allocation_fails(folder: Path, name: str, action: str) -> None:
    """One allocation in ten fails during compilation, because there are thousands, each with a whole
    compilation."""
    if kind(name).missing:
        pytest.skip(kind(name).missing)
    if action not in actions(name):
        pytest.skip("only a plan of known sizes is told where arrays lie")
    job = {"kind": name, "action": action, "target": "cpu", "least": least(action)}
    check(folder, [{**job, "some": 60 if action == "compile" else 0}], 600)


@pytest.mark.slow
@pytest.mark.parametrize("action", ["first", "again", "load", "save"])
@pytest.mark.parametrize("name", [k.name for k in KINDS])
def test_memory_stays_away(folder: Path, name: str, action: str) -> None:
    """All allocations of some size fail from one on, as if a limit is met."""
    if kind(name).missing:
        pytest.skip(kind(name).missing)
    job = {"kind": name, "action": action, "target": "cpu", "forever": True}
    check(folder, [{**job, "least": size} for size in (256, 4096)], 600)


def on_opencl() -> bool:
    try:
        return bool(devices())
    except LoadError:
        return False


@pytest.mark.slow
@pytest.mark.parametrize("action", ["first", "again", "load", "save"])
@pytest.mark.parametrize("target", ["opencl", "cpu+x86-64-v2"])
@pytest.mark.parametrize("name", ["plan", "symbolic", "variants", "steps"])
def test_other_devices(folder: Path, name: str, target: str, action: str) -> None:
    """1,500 of the thousands of allocations fail during loading, drawn by the seed."""
    if target == "opencl" and not on_opencl():
        pytest.skip("no OpenCL device here")
    if target != "opencl" and name in ("steps", "variants"):
        pytest.skip("what runs on several devices at once is a plan")
    some, seed = 1500 if action == "load" else 0, drawn_seed()
    check(folder, [{"kind": name, "action": action, "target": target, "some": some, "seed": seed}], 600)


def test_room_that_was_asked_for_in_vain_is_not_asked_for_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loop that makes more slices than memory holds leaves the next run its own memory."""
    counted = kind("counted")
    exe, array = counted.compiled(isolated=False), Script._array

    def no_room_for_many(script: Script, place: Place, stack: bool) -> Any:
        if script.room > ROOM:
            raise MemoryError(f"none for {script.room}")
        return array(script, place, stack)

    few, many = counted.feeds
    few = {"start": few["start"], "x": many["x"]}
    monkeypatch.setattr(Script, "_array", no_room_for_many)
    with pytest.raises(MemoryError, match=f"none for {2 * ROOM}"):
        exe.run(many)
    counted.check(exe, few)


def test_threads_that_do_not_start_are_done_without(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(mapped, "start_new_thread", refused)
    parts = [memoryview(bytes([n]) * (mapped.BLOCK + n)) for n in range(3)]
    assert mapped.Digests(parts).wait() == [mapped.digest(p) for p in parts]
    monkeypatch.setattr(mapped, "start_new_thread", lambda *_: None)  # as if the thread ended at once
    assert mapped.Digests(parts).wait() == [mapped.digest(p) for p in parts]


def test_an_entry_that_there_is_no_memory_for_stays(tmp_path: Path) -> None:
    cache = Cache(tmp_path)
    path = cache.put("name", lambda p: p.write_bytes(b"whole"))
    assert path is not None

    def no_memory(_: Path) -> bytes:
        raise MemoryError

    assert cache.load("name", no_memory) is None
    assert cache.load("name", Path.read_bytes) == b"whole"


@pytest.mark.parametrize(("name", "operator", "nth"), [("branches", "Tanh", 1), ("variants", "Squeeze", 2)])
def test_what_there_was_no_memory_for_is_not_left_out(
    name: str, operator: str, nth: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A branch or variant that can't be right becomes an error at run time, but not for lack of memory. The
    model would otherwise stay broken, in the cache too."""
    which, lowered = kind(name), _Lowering._lowered
    calls: list[str] = []

    def no_memory(self: _Lowering, b: Any, node: Any, *given: Any) -> Any:
        calls.extend([node.op] if node.op.endswith(f".{operator}") else [])
        if node.op.endswith(f".{operator}") and len(calls) == nth:
            raise MemoryError("none")
        return lowered(self, b, node, *given)

    with monkeypatch.context() as patch:
        patch.setattr(_Lowering, "_lowered", no_memory)
        with pytest.raises(CompileError, match=f"{operator}.*more memory than there is"):
            which.compiled(isolated=False, cache=tmp_path)
    exe = which.compiled(isolated=False, cache=tmp_path)
    for feeds in which.feeds:
        which.check(exe, feeds)
