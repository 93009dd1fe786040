"""`jangin tune --farm` on two local workers of Dask: one is killed, answers are signed, tuning goes on."""

from __future__ import annotations

import gc
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count, pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.farm import coordinator, jobs, tuning
from jangin.farm.coordinator import SchedulerGone
from jangin.farm.jobs import Job
from jangin.farm.trust import Trust
from jangin.options import Options
from jangin.tune.store import Store

SIZES = (8, 24, 40, 72)


def model() -> bytes:
    """Return products of several sizes, each a kernel of its own."""
    rng, nodes, constants = np.random.default_rng(0), [], []
    for n, (a, b) in enumerate(pairwise(SIZES)):
        weights = rng.standard_normal((a, b)).astype(np.float32)
        constants.append(numpy_helper.from_array(weights, f"w{n}"))
        nodes.append(helper.make_node("MatMul", [f"x{n}", f"w{n}"], [f"x{n + 1}"], name=f"product {n}"))
    ends = [
        helper.make_tensor_value_info(f"x{n}", TensorProto.FLOAT, [16, SIZES[n]]) for n in (0, len(SIZES) - 1)
    ]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    return bytes(made.SerializeToString())


def brief(slow: float) -> None:
    """Make a worker's races brief, with few candidates. Each takes `slow` seconds more, so that there is a
    middle in which a worker can be killed."""
    from jangin.farm import work
    from jangin.runtime.profile import Launches
    from jangin.targets.processor import Processor
    from jangin.tune import tuner

    Launches.call_seconds = lambda _: 0.0  # type: ignore[method-assign]
    Processor.least_seconds = lambda *_: 0.0  # type: ignore[method-assign]
    tuner.BATCH = 2
    tuner.SCREEN_SECONDS = tuner.RACE_SECONDS = tuner.FINAL_SECONDS = 0.0
    loop = work.loop_seconds
    work.loop_seconds = lambda: (time.sleep(slow), loop())[1]  # type: ignore[func-returns-value]


@pytest.fixture
def farm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Any]:
    """Start two workers that are devices. Noise of a busy machine is no disagreement here, and no heat."""
    pytest.importorskip("distributed", reason="dask[distributed] isn't installed")
    pytest.importorskip("cryptography", reason="cryptography isn't installed")
    from distributed import Client, LocalCluster

    monkeypatch.setenv("JANGIN_FARM_KEY", str(keys(tmp_path, "bench")))
    for module, name in ((jobs, "AGREE"), (coordinator, "THROTTLED")):
        monkeypatch.setattr(module, name, 1e9)
    monkeypatch.setattr(tuning, "BATCH", 2)
    monkeypatch.setattr(tuning, "KEEP", 0.0)
    devices = {"n_workers": 2, "threads_per_worker": 1, "resources": {"jangin-test": 1}}
    with LocalCluster(dashboard_address=None, **devices) as cluster, Client(cluster) as client:
        client.run(brief, 0.05)
        client.register_plugin(_Brief())
        yield cluster


def _Brief() -> Any:
    from distributed import WorkerPlugin

    class Plugin(WorkerPlugin):  # type: ignore[misc, unused-ignore]
        """Makes races brief in workers that are started later."""

        name = "brief"

        def setup(self, worker: Any) -> None:
            make(0.05)

    make = brief
    return Plugin()


def keys(folder: Path, name: str) -> Path:
    """Write a pair of keys, and return the private one's path. The public one is in a folder `trusted`."""
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    (folder / "trusted").mkdir(exist_ok=True)
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.PKCS8, form.NoEncryption())
    (folder / f"{name}.key").write_bytes(private)
    public = key.public_key().public_bytes(form.Encoding.PEM, form.PublicFormat.SubjectPublicKeyInfo)
    (folder / "trusted" / f"{name}.pem").write_bytes(public)
    return folder / f"{name}.key"


def tuned(cluster: Any, store: Store, trust: Path | None, budget: float = 300.0, tell: Any = None) -> Any:
    options = Options(shapes={}, threads=1, cache=str(store.path.parent))
    told = tell or (lambda *_: None)
    (place,) = tuning.tune_on(cluster.scheduler_address, model(), options, 1, budget, store, trust, told)
    assert not place.problem, place.problem
    return place


@pytest.mark.slow
def test_a_worker_that_is_killed_loses_nothing(farm: Any, tmp_path: Path) -> None:
    """All candidates are measured once or twice, the findings are stored with proofs, and a second tuning has
    nothing left to measure."""
    store, killed = Store(tmp_path / "cache"), list[int]()

    def tell(done: float, total: float, what: str) -> None:
        left = int(what.split()[0])
        if left and not killed and done > 2.0:
            killed.append(farm.workers[0].pid)
            os.kill(killed[0], signal.SIGKILL)

    place = tuned(farm, store, tmp_path / "trusted", tell=tell)
    found = place.outcome
    assert killed, "no worker was killed, so the test shows nothing"
    assert any("died" in said or "went away" in said or "lost" in said for said in place.said), place.said
    assert len(found.kernels) == len(SIZES) - 1 and not found.defects and not found.stopped
    assert all(k.tried.total() for k in found.kernels)
    stored = store.get(place.name)
    assert {*stored} == {*found.findings} and all(f.tried for f in stored.values())
    assert all(signer == "bench" for _, signer, _, _ in store.proofs(place.name))
    again = tuned(farm, store, tmp_path / "trusted")
    assert sum(k.tried.total() for k in again.outcome.kernels) == 0
    assert all(k.earlier for k in again.outcome.kernels)
    other = tmp_path / "others"
    other.mkdir()
    keys(other, "stranger")
    nothing = tuned(farm, Store(tmp_path / "other"), other / "trusted")
    assert not nothing.outcome.findings
    assert any("isn't signed by a trusted key" in said for said in nothing.said)
    assert sum("is left out" in said for said in nothing.said) == 2


def without_llvm() -> None:
    """Make a worker a board that can't compile."""
    sys.modules["llvmlite"] = None  # type: ignore[assignment]


@pytest.mark.slow
def test_boards_that_cant_compile_race_what_is_built_for_them(farm: Any, tmp_path: Path) -> None:
    """All candidates are measured on the boards, and a second tuning has nothing left to measure."""
    from distributed import Client

    with Client(farm) as client:
        client.run(without_llvm)
        place = tuned(farm, Store(tmp_path / "cache"), tmp_path / "trusted")
        loaded = client.run(lambda: "llvmlite.binding" in sys.modules)
    found = place.outcome
    assert not any(loaded.values()), "a board has compiled"
    assert "candidates are built here, because llvmlite isn't installed there" in place.said
    assert len(found.kernels) == len(SIZES) - 1 and not found.defects and not found.stopped
    assert all(k.tried.total() for k in found.kernels)
    again = tuned(farm, Store(tmp_path / "cache"), tmp_path / "trusted")
    assert sum(k.tried.total() for k in again.outcome.kernels) == 0


PRELOAD = """
import sys
sys.path[:0] = [{tests!r}]

def dask_setup(worker):
    from jangin.farm import work
    from test_farm import brief

    brief(0.05)
    race = work.race

    def logged(task, job, device):
        answer = race(task, job, device)
        with open({log!r}, "a") as file:
            print(device, job.kernel, *job.candidates, sep="|", file=file)
        return answer

    logged.__module__, logged.__qualname__ = "jangin.farm.work", "race"
    work.race = logged
"""
"""A program for workers: races are brief, and each one that has ended is a line of a log."""


WORKERS = ("board-0", "board-1")


class Farm:
    """A scheduler and two workers, as a user starts them, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.scheduler_address = f"tcp://127.0.0.1:{self.port}"
        self.log, self._folder = folder / "races", folder
        self._preload = folder / "preload.py"
        self._preload.write_text(PRELOAD.format(tests=str(Path(__file__).parent), log=str(self.log)))
        self._running: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        flags = ["--name", "NAME", "--nthreads", "1", "--resources", "jangin-test=1", "--no-dashboard"]
        self._run("scheduler", "--host", "127.0.0.1", "--port", str(self.port), "--no-dashboard")
        for name in WORKERS:
            named = [name if f == "NAME" else f for f in flags]
            self._run("worker", self.scheduler_address, *named, "--preload", str(self._preload))

    def _run(self, *words: str) -> None:
        path = os.pathsep.join([str(Path(tuning.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
        with open(self._folder / "dask.log", "ab") as log:
            command = [sys.executable, "-m", "dask", *words]
            self._running.append(
                subprocess.Popen(
                    command, stdout=log, stderr=log, cwd=self._folder, start_new_session=True,
                    env={**os.environ, "PYTHONPATH": path},
                )
            )  # fmt: skip

    def kill(self) -> None:
        """End all processes at once, as a power cut does."""
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._running.clear()

    def wait(self) -> None:
        """Wait until the scheduler answers, which takes a while on a busy machine."""
        for _ in range(600):
            try:
                socket.create_connection(("127.0.0.1", self.port), 1.0).close()
            except OSError:
                time.sleep(0.2)
            else:
                return
        raise TimeoutError((self._folder / "dask.log").read_text())

    def ended(self) -> list[str]:
        """Return the races that have ended."""
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture
def true_farm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Farm]:
    pytest.importorskip("distributed", reason="dask[distributed] isn't installed")
    for module, name in ((jobs, "AGREE"), (coordinator, "THROTTLED")):
        monkeypatch.setattr(module, name, 1e9)
    monkeypatch.setattr(tuning, "BATCH", 2)
    farm = Farm(tmp_path)
    farm.start()
    try:
        farm.wait()
        yield farm
    finally:
        farm.kill()


@pytest.mark.slow
def test_a_scheduler_that_is_started_anew_costs_only_the_races_that_ran(
    true_farm: Farm, tmp_path: Path
) -> None:
    """The scheduler and its workers are killed in the middle, and started again at the same address.

    Each worker may have ended a race whose answer was still on its way. Such a race is measured again."""
    before = list[str]()

    def tell(done: float, total: float, what: str) -> None:
        if len(true_farm.ended()) >= 4 and not before:
            true_farm.kill()
            before.extend(true_farm.ended())
            true_farm.start()

    place = tuned(true_farm, Store(tmp_path / "cache"), None, tell=tell)
    outcome = place.outcome
    assert before, "nothing was killed, so the test shows nothing"
    assert len(outcome.kernels) == len(SIZES) - 1 and not outcome.stopped and not outcome.defects
    races = true_farm.ended()
    assert len(races) > len(before)
    again = len(races) - len({*races})
    assert again <= len(WORKERS), "more was measured again than the answers that were on their way"
    assert all(k.tried.total() for k in outcome.kernels)
    rest = tuned(true_farm, Store(tmp_path / "cache"), None)
    assert sum(k.tried.total() for k in rest.outcome.kernels) == 0, "a candidate wasn't measured"


def test_a_new_connection_takes_all_jobs_back() -> None:
    """The old connection's futures can't be asked or cancelled. Another tuning may have connected anew."""
    from jangin.farm.dask_transport import DaskTransport

    cluster = SimpleNamespace(connections=1, workers=lambda: {"board": ("address", "jangin")})
    transport = DaskTransport(cluster, lambda _: True, lambda: None, lambda *_: None)  # type: ignore[arg-type, return-value]
    assert transport.devices() == ["board"]
    cluster.connections = 2
    with pytest.raises(SchedulerGone, match="started anew"):
        transport.devices()
    assert transport.devices() == ["board"]


@pytest.mark.parametrize(
    ("slow", "best", "counted"),
    [(20, 1.05, 21), (10**9, 1.5, None)],
    ids=["other work", "heat"],
)
def test_a_slow_calibration_loop_is_repeated(
    monkeypatch: pytest.MonkeyPatch, slow: int, best: float, counted: int | None
) -> None:
    """A device that works slowly for a moment isn't hot. A hot one is slow for all repetitions."""
    from jangin.farm import work

    took = count(1)
    monkeypatch.setattr(work, "_LOOPS", [1.0, 1.0, 3.0])
    monkeypatch.setattr(work, "_one_loop", lambda: 1.5 if next(took) <= slow else 1.05)
    assert work.loop_seconds() == best and work._LOOPS[-1] == best
    assert counted is None or next(took) == counted + 1


def test_answers_of_others_and_to_other_races_dont_count(tmp_path: Path) -> None:
    pytest.importorskip("cryptography", reason="cryptography isn't installed")
    import json

    from jangin.farm.work import CONTEXT
    from jangin.runtime.signing import sign_bytes

    job = Job("k", ("a", "b"))
    told = {"task": "t", "kernel": "k", "candidates": ["a", "b"], "ratios": [0.5, None], "seconds": 1.0,
            "before": 0.1, "after": 0.1, "defects": []}  # fmt: skip
    message = json.dumps(told).encode()
    key = keys(tmp_path, "one")
    (aside := tmp_path / "aside").mkdir()
    trust, signature = Trust(tmp_path / "trusted"), sign_bytes(CONTEXT + message, key)
    assert trust.answer(message, signature, job, "t").by == "one"
    assert Trust(tmp_path / "trusted" / "one.pem").answer(message, signature, job, "t").ratios == (0.5, None)
    assert Trust(None).answer(message, b"", job, "t").by == ""
    for wrong in (
        b"",
        signature[::-1],
        sign_bytes(message, key),
        sign_bytes(CONTEXT + message, keys(aside, "two")),
    ):
        with pytest.raises(ValueError, match="isn't signed"):
            trust.answer(message, wrong, job, "t")
    with pytest.raises(ValueError, match="isn't signed"):
        trust.answer(message.replace(b"0.5", b"0.4"), signature, job, "t")
    for other, task in ((Job("j", ("a", "b")), "t"), (Job("k", ("a",)), "t"), (job, "u")):
        with pytest.raises(ValueError, match="another race"):
            trust.answer(message, signature, other, task)
    short = json.dumps({**told, "ratios": [0.5]}).encode()
    with pytest.raises(ValueError, match="lacks candidates"):
        Trust(None).answer(short, b"", job, "t")
    no_number = {**told, "ratios": [float("nan"), 1.0]}
    for strange, reason in ((no_number, "no clock"), ([], "can't be read"), ({}, "can't be read")):
        with pytest.raises(ValueError, match=reason):
            Trust(None).answer(json.dumps(strange).encode(), b"", job, "t")
    with pytest.raises(FileNotFoundError, match="no public key"):
        Trust(tmp_path / "none")


def test_a_farm_that_isnt_there_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="dask[distributed] isn't installed")
    from jangin.farm import dask_transport

    with (
        pytest.MonkeyPatch.context() as patch,
        pytest.raises(SchedulerGone, match="no Dask scheduler answers at tcp"),
    ):
        patch.setattr(dask_transport, "CONNECT", 0.5)
        tuning.tune_on("tcp://127.0.0.1:1", model(), Options(), 1, 1.0, None, None, lambda *_: None)


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize(
    ("address", "why"),
    [
        ("nonsense", "missing port"), ("tcp://", "missing port"), ("tcp://host:x", "invalid literal"),
        ("made-up://host:1", "unknown address scheme"), ("tls://127.0.0.1:1", "needs certificates"),
    ],
)  # fmt: skip
def test_an_address_that_no_scheduler_has_is_told_at_once(
    address: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No client is made, because one would wait for Dask's time limit."""
    distributed = pytest.importorskip("distributed", reason="dask[distributed] isn't installed")
    clients: list[object] = []
    monkeypatch.setattr(distributed, "Client", lambda *given, **_: clients.append(given))
    with pytest.raises(ValueError, match=f"{address}.*{why}"):
        tuning.tune_on(address, model(), Options(), 1, 1.0, None, None, lambda *_: None)
    gc.collect()
    assert not clients


def test_trusted_devices_share_the_final_comparison() -> None:
    """A device that was left out compares nothing, and one that dies leaves the comparison to others."""
    asked = []

    def submit(device: str, function: Any, winners: Any, share: float) -> Any:
        asked.append((device, share))

        def result(_: float) -> tuple[float, float]:
            if device == "b":
                raise ConnectionError("gone away")
            return (2.0, 0.5) if device == "a" else (4.0, 0.7)

        return SimpleNamespace(result=result)

    cluster = SimpleNamespace(submit=submit, workers=lambda: dict.fromkeys("abcd"))
    tuned = SimpleNamespace(cluster=cluster, place=SimpleNamespace(said=[]))
    assert tuning._Tuning._final(tuned, {"k": "won"}, ["a", "b", "c", "gone"]) == (3.0, 0.6)  # type: ignore[arg-type]
    assert asked == [(d, 1 / 3) for d in "abc"]
    assert tuned.place.said == ["b compared no whole model: ConnectionError gone away"]
