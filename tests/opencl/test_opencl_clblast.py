"""Products by CLBlast among a plan's own kernels give the same results from memory and from a file. They are
tried on each driver, with both kinds of schedules, and in a race with Jangin's kernels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from on_device import SIMULATOR, usable

import jangin
from jangin.compiler.pipeline import tune_model
from jangin.compiler.request import with_winners
from jangin.ir.library import Matrix, Sgemm
from jangin.options import Options
from jangin.runtime import libraries
from jangin.runtime.device import LoadError
from jangin.runtime.devices import clblast, products
from jangin.runtime.devices.opencl_devices import Found
from jangin.targets import resolve
from jangin.tune.measure import Race, Timing
from jangin.tune.store import Store, place_of

sys.path.insert(0, str(Path(__file__).parent.parent / "libraries"))
from test_libraries import CASES, Model, dense, three_by_three

DEVICES = [d for d in usable() if d.platform != SIMULATOR]
HERE = libraries.find("clblast") is not None
pytestmark = pytest.mark.skipif(
    not (DEVICES and HERE), reason="no OpenCL device here, or no CLBlast (Debian's libclblast1)"
)
ALL = [(d, kind, case) for d in DEVICES for kind in ("cpu", "gpu") for case in CASES]
QUICK = [(d, "gpu", dense) for d in DEVICES[:1]]
"""The quick tests use one device, because the driver compiles CLBlast's kernels for seconds at the first
call."""


@pytest.mark.parametrize(
    ("device", "kind", "make"),
    [c if c in QUICK else pytest.param(*c, marks=pytest.mark.slow) for c in ALL],
    ids=lambda x: x if isinstance(x, str) else getattr(x, "__name__", str(x)),
)
def test_the_same_result(device: Found, kind: str, make: Callable[[], Model], tmp_path: Path) -> None:
    model, feeds = make()
    want = jangin.compile(model, cache=False).run(feeds)["y"]
    exe = jangin.compile(model, f"opencl:{device.number}@{kind}", cache=False, libraries="clblast")
    assert exe.plan.libraries == ("clblast",)
    exe.save(tmp_path / "m.jgn")
    for made in (exe, exe, jangin.load(tmp_path / "m.jgn")):
        np.testing.assert_allclose(made.run(feeds)["y"], want, rtol=1e-4, atol=1e-4)
    profile = exe.profile(feeds, 1)
    assert all(0 < launch.seconds < 10 for launch in profile)


def test_what_no_sgemm_computes_stays_ours() -> None:
    exe = jangin.compile(three_by_three()[0], f"opencl:{DEVICES[0].number}", cache=False, libraries="clblast")
    assert exe.plan.libraries == ()


def test_a_processor_never_calls_it() -> None:
    assert jangin.compile(dense()[0], cache=False, libraries="clblast").plan.libraries == ()


def test_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = f"opencl:{DEVICES[0].number}"
    jangin.build(dense()[0], target, cache=False, libraries="clblast").save(tmp_path / "m.jgn")
    monkeypatch.setattr(clblast, "find", lambda name: None)
    clblast._functions.cache_clear()
    with pytest.raises(LoadError, match=r"CLBlast is not installed here.*libclblast1"):
        jangin.load(tmp_path / "m.jgn")


def test_descriptions_of_products() -> None:
    sgemm = Sgemm((2, 3), 4, 5, 6, Matrix(0, 7, 8, True, (1, 2)), Matrix(1, 0, 9, False, (0, 3)), 2)
    assert products.unpacked(products.packed(sgemm)) == sgemm
    for text in (b"", b"[]", b'{"outer": [1]}', products.packed(sgemm).replace(b"rows", b"lows")):
        with pytest.raises(LoadError, match="damaged"):
            products.unpacked(text)


@pytest.mark.slow
@pytest.mark.parametrize("device", DEVICES, ids=lambda d: d.platform)
def test_it_races_ours(device: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """CLBlast is timed beside Jangin's kernels and checked against them. The result is kept for this device
    and driver."""

    def won(race: Race, seconds: float, ways: list[int] | None = None) -> list[Timing]:
        measured = time(race, seconds, ways)
        return [t if n == 0 else replace(t, ratio=0.5, least=t.least / 2, high=0.6)
                for n, t in enumerate(measured)]  # fmt: skip

    time = Race.time
    monkeypatch.setattr(Race, "time", won)
    store, model = Store(tmp_path), dense()[0]
    options = Options(resolve(f"opencl:{device.number}"), libraries="clblast")
    monkeypatch.setattr("jangin.tune.tuner.BATCH", 1)
    outcome = tune_model(model, options.but(libraries="auto"), 1, 30.0, store=store)
    assert not outcome.defects
    assert any("clblast" in r.tried for r in outcome.kernels)
    found = store.get(place_of(options.target, 1, "auto", "latency"))
    assert any("clblast" in f.tried for f in found.values())
    assert with_winners(options.but(libraries="never", cache=tmp_path), 1).choices == {}
