"""`jangin.batch` on two workers of each engine: equal results, in order, also if a worker is killed.

Each engine runs the same data. Rows with an index beyond 3 are bad. The worker that comes to row KILLED kills
itself once."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from shutil import which
from typing import Any

import numpy as np
import onnx.parser
import pytest

import jangin

TEXT = """<ir_version: 10, opset_import: ["" : 21]>
table (float[n,3] x, int64[n] i) => (float[n,3] y, float[n] s) {
    t = Constant<value = float[4,3] {0,1,2,3,4,5,6,7,8,9,10,11}>() e = Gather<axis=0>(t, i)
    y = Add(x, e) a = Constant<value = int64[1] {1}>() s = ReduceSum<keepdims=0>(y, a) }"""
COUNT, KILLED = 200, 130
BAD = range(4, COUNT, 50)
X = np.random.default_rng(5).random((COUNT, 3)).astype(np.float32)
INDEX = np.array([9 if row in BAD else row % 4 for row in range(COUNT)])
Y = X + np.arange(12, dtype=np.float32).reshape(4, 3)[INDEX % 4]
INPUTS = {"x": ["a", "b", "c"]}


def needs(*modules: str) -> Any:
    missing = [m for m in modules if find_spec(m) is None]
    return pytest.mark.skipif(bool(missing), reason=f"{', '.join(missing)} isn't installed")


@pytest.fixture
def model() -> onnx.ModelProto:
    return onnx.parser.parse_model(TEXT)


@pytest.fixture
def frame() -> Any:
    pd = pytest.importorskip("pandas", reason="pandas isn't installed")
    columns = {name: X[:, n] for n, name in enumerate("abc")}
    return pd.DataFrame({**columns, "i": INDEX, "row": range(COUNT)})


def check(done: Any, folder: Path) -> None:
    """Check a frame of results, and that a worker was killed."""
    assert [*done.columns] == ["row", "y", "s", "problem"]
    assert done["row"].tolist() == [*range(COUNT)], "the order of rows"
    bad = done["problem"].notna().to_numpy()
    assert np.flatnonzero(bad).tolist() == [*BAD]
    assert all("index 9 is out of range" in p for p in done["problem"][bad])
    assert done["y"][bad].isna().all() and done["s"][bad].isna().all()
    np.testing.assert_array_equal(np.stack(done["y"][~bad].to_numpy()), Y[~bad])
    np.testing.assert_allclose(done["s"][~bad], Y[~bad].sum(1), rtol=1e-6)
    assert (folder / "killed").exists(), "no worker was killed, so the test shows nothing"


@pytest.fixture
def dask_client() -> Iterator[Any]:
    pytest.importorskip("distributed", reason="dask[distributed] isn't installed")
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):
        yield client


def loads(client: Any) -> list[int]:
    """Return how often each of Dask's workers has loaded a model."""

    def count() -> int:
        from jangin.runtime.rows import LOADS

        return len(LOADS)

    return sorted(client.run(count).values())


@pytest.mark.slow
@needs("dask", "distributed", "pandas")
def test_dask(dask_client: Any, model: onnx.ModelProto, frame: Any, tmp_path: Path) -> None:
    """All three collections of Dask, with a worker that is killed, and each worker loads the model once."""
    import dask.array
    import dask.bag
    import dask.dataframe as dd

    def kill(part: Any, folder: Path) -> Any:
        if KILLED in part["row"].to_numpy() and not (folder / "killed").exists():
            (folder / "killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return part

    data = dd.from_pandas(frame, npartitions=8)
    data = data.map_partitions(kill, tmp_path, meta=frame.iloc[:0])
    done = jangin.batch(model, data, INPUTS, keep=["row"])
    check(done.compute(), tmp_path)
    assert max(loads(dask_client)) == 1, "a worker gets the model once"
    bag = dask.bag.from_sequence([{"x": x, "i": i} for x, i in zip(X, INDEX, strict=True)], npartitions=4)
    found = jangin.batch(model, bag).compute()
    assert [n for n, r in enumerate(found) if r["problem"]] == [*BAD]
    np.testing.assert_array_equal([r["y"] for r in found if not r["problem"]], Y[INDEX < 9])
    assert max(loads(dask_client)) == 1
    single = onnx.parser.parse_model(
        TEXT.split("table")[0] + "g (float[n,3] x) => (float[n,3] y) { y = Neg(x) }"
    )
    results = jangin.batch(single, dask.array.from_array(X, chunks=(64, 2)))
    assert [*results] == ["y", "problem"]
    np.testing.assert_array_equal(results["y"].compute(), -X)
    assert results["problem"].compute().tolist() == [None] * COUNT


@needs("dask", "pandas")
def test_dask_without_workers(model: onnx.ModelProto, frame: Any) -> None:
    """Dask's own threads run models too, and a frame without rows has no results."""
    import dask
    import dask.dataframe as dd

    data = dd.from_pandas(frame, npartitions=3)
    with dask.config.set(scheduler="threads"):
        done = jangin.batch(model, data, INPUTS).compute()
        none = jangin.batch(model, data[data["row"] < 0], INPUTS).compute()
    assert [*done.columns] == ["a", "b", "c", "i", "row", "y", "s", "problem"] == [*none.columns]
    assert done["problem"].notna().sum() == len(BAD) and not len(none)
    with pytest.raises(ValueError, match="no column 'x'"):
        jangin.batch(model, data)
    with pytest.raises(ValueError, match="no input is named 'z'"):
        jangin.batch(model, data, {"z": "a"})


@pytest.mark.slow
@needs("ray", "pandas", "pyarrow")
def test_ray(model: onnx.ModelProto, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import ray

    from jangin.batches import ray_engine

    class Killed(ray_engine.Actor):
        """Kills its process once, when it comes to a row."""

        def __call__(self, part: Any) -> Any:
            if KILLED in part["row"].to_numpy() and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__call__(part)

    monkeypatch.setattr(ray_engine, "Actor", Killed)
    monkeypatch.setenv("PYTHONPATH", str(Path(jangin.__file__).parents[1]))
    monkeypatch.setenv("RAY_raylet_start_wait_time_s", "200")  # on a busy machine it takes a minute
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    try:
        data = ray.data.from_pandas([frame[n : n + 50] for n in range(0, COUNT, 50)])
        done = jangin.batch(model, data, INPUTS, keep=["row"], workers=2)
        check(done.to_pandas(), tmp_path)
    finally:
        ray.shutdown()


@pytest.mark.slow
@needs("pyspark", "pandas", "pyarrow")
@pytest.mark.skipif(
    which("java") is None, reason="there is no Java, which Spark needs (default-jre-headless)"
)
def test_spark(model: onnx.ModelProto, frame: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pyspark.sql import SparkSession

    def kill(parts: Iterator[Any]) -> Iterator[Any]:
        for part in parts:
            if KILLED in part["row"].to_numpy() and not (tmp_path / "killed").exists():
                (tmp_path / "killed").touch()
                os.kill(os.getpid(), signal.SIGKILL)
            yield part

    monkeypatch.setenv("PYTHONPATH", str(Path(jangin.__file__).parents[1]))
    monkeypatch.setenv("PYSPARK_PYTHON", sys.executable)
    settings = {"spark.ui.enabled": "false", "spark.driver.host": "127.0.0.1"}
    builder = SparkSession.builder.master("local[2,4]")  # two workers, and four tries of a task
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    try:
        data = session.createDataFrame(frame).repartitionByRange(4, "row").sortWithinPartitions("row")
        data = data.mapInPandas(kill, data.schema)
        done = jangin.batch(model, data, INPUTS, keep=["row"])
        check(done.toPandas(), tmp_path)
        odd = TEXT.replace("float[n] s", "float[n] s, float16[n] h").replace(
            "keepdims=0>(y, a)", "keepdims=0>(y, a) h = Cast<to=10>(s)"
        )
        with pytest.raises(ValueError, match="Spark has no type for the output h float16"):
            jangin.batch(onnx.parser.parse_model(odd), data, INPUTS)
    finally:
        session.stop()
