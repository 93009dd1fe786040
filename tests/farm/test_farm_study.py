"""`jangin study --farm` on two local workers of Dask, of two kinds."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from test_farm import model

from jangin.farm.studies import _name, study_on
from jangin.options import Options
from jangin.study.settings import Settings


def settings(path: Path, **given: object) -> Settings:
    return Settings((path,), ("jangin",), batches=(16,), rounds=2, seconds=0.01, limit=60.0, **given)  # type: ignore[arg-type]


@pytest.mark.slow
def test_each_kind_of_device_has_a_study_that_is_resumed(tmp_path: Path) -> None:
    pytest.importorskip("distributed", reason="dask[distributed] isn't installed")
    from distributed import Client, LocalCluster, Nanny

    path = tmp_path / "net.onnx"
    path.write_bytes(model())
    kinds = {"pi": {"jangin-pi": 1}, "x86": {"jangin-x86": 1}}
    with LocalCluster(n_workers=0, dashboard_address=None) as cluster:
        for n, (kind, resources) in enumerate(kinds.items()):
            options = {"nthreads": 1, "resources": resources, "name": kind}
            cluster.worker_spec |= {n: {"cls": Nanny, "options": options}}
        cluster.sync(cluster._correct_state)
        with Client(cluster) as client:
            client.wait_for_workers(2)
        told: list[tuple[float, float]] = []
        address, report = cluster.scheduler_address, tmp_path / "report"
        rows = study_on(address, settings(path), report, Options(), lambda *t: told.append(t[:2]))
        assert {*rows} == {*kinds} and told[-1] == (2, 2)
        for kind, (row,) in rows.items():
            assert not row.problem and row.median > 0 and row.whole, row
            assert (report / kind / "rows.jsonl").is_file()
        again = study_on(address, settings(path), report, Options(), lambda *t: told.append(t[:2]))
        assert again == rows and len(told) == 2, "nothing is measured twice"
        with pytest.raises(ValueError, match="study of other settings"):
            study_on(address, settings(path, energy=True), report, Options(), lambda *_: None)


def test_models_that_devices_cant_have_are_refused(tmp_path: Path) -> None:
    onnx.save(onnx.load_from_string(model()), tmp_path / "net.onnx")
    with pytest.raises(ValueError, match="no --data"):
        study_on("", settings(tmp_path / "net.onnx", data="calib"), tmp_path, Options(), lambda *_: None)
    with pytest.raises(ValueError, match="a farm takes no folders of models"):
        study_on("", settings(tmp_path), tmp_path, Options(), lambda *_: None)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("jangin-pi4", "pi4"), ("jangin", "device"), ("jangin-../../etc", "etc"), ("jangin_a b", "_ab")],
)
def test_a_kind_is_a_folder_within_the_report(kind: str, name: str) -> None:
    assert _name(kind) == name
