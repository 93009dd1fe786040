"""Options and types that programs rarely use, for the real onnxruntime and for Jangin alike."""

from __future__ import annotations

import importlib
import json
import warnings
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import onnxruntime
import pytest
from own_models import write_models

import jangin.onnxruntime

X = np.arange(1, 7, dtype=np.float32).reshape(3, 2)
FILE = "session.optimized_model_external_initializers_file_name"
SIZE = "session.optimized_model_external_initializers_min_size_in_bytes"
both = pytest.mark.parametrize("ort", [onnxruntime, jangin.onnxruntime], ids=["onnxruntime", "jangin"])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@both
def test_types_of_maps(ort: ModuleType, models: Path) -> None:
    def types(name: str) -> list[str]:
        session = ort.InferenceSession(models / f"{name}.onnx")
        return [v.type for v in (*session.get_inputs(), *session.get_outputs())]

    assert types("zipmap_stringfloat") == ["tensor(float)", "seq(map(string,tensor(float)))"]
    assert types("zipmap_int64float") == ["tensor(float)", "seq(map(int64,tensor(float)))"]
    assert types("pipeline_vectorize") == ["map(int64,tensor(float))", "tensor(float)"]


@both
@pytest.mark.parametrize(("size", "beside"), [("100", True), ("2000", False)])
def test_initializers_are_written_beside_the_model(
    ort: ModuleType, models: Path, tmp_path: Path, size: str, beside: bool
) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "made.onnx")
    options.add_session_config_entry(FILE, "made.bin")
    options.add_session_config_entry(SIZE, size)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ort.InferenceSession(models / "model_with_orig_ext_data.onnx", options)
    written = onnx.load(tmp_path / "made.onnx", load_external_data=False)
    assert [t.data_location == 1 for t in written.graph.initializer] == [beside]
    x = np.eye(3, 16, dtype=np.float32)
    (want,) = onnxruntime.InferenceSession(models / "model_with_orig_ext_data.onnx").run(None, {"X": x})
    (got,) = onnxruntime.InferenceSession(tmp_path / "made.onnx").run(None, {"X": x})
    np.testing.assert_array_equal(got, want)


@both
def test_options_in_the_model(
    ort: ModuleType, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    path = models / "model_with_valid_ort_config_json.onnx"
    assert ort.InferenceSession(path).get_session_options().intra_op_num_threads == 0
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    session = ort.InferenceSession(path)
    found = session.get_session_options()
    assert (found.inter_op_num_threads, found.intra_op_num_threads, found.enable_profiling) == (5, 2, True)
    assert json.loads(Path(session.end_profiling()).read_text())
    assert ort.InferenceSession(models / "mul_1.onnx").get_session_options().intra_op_num_threads == 0


@both
def test_wrong_options_in_the_model(ort: ModuleType, models: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORT_LOAD_CONFIG_FROM_MODEL", "1")
    proto = onnx.load(models / "mul_1.onnx")
    for text in ("{", '{"session_options": {"intra_op_num_threads": "many"}}'):
        onnx.helper.set_model_props(proto, {"ort_config": text})
        with pytest.raises(RuntimeError, match=r"ort_config|in the model file"):
            ort.InferenceSession(proto.SerializeToString())


@both
def test_the_inner_session_takes_inputs_first(ort: ModuleType, models: Path) -> None:
    session = ort.InferenceSession(models / "mul_1.onnx")
    inner = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_pybind11_state")
    given = ort.OrtValue.ortvalue_from_numpy(X)._get_c_value()
    made = session._sess.run_with_ort_values({"X": given}, ["Y"], inner.RunOptions())
    assert isinstance(made, inner.OrtValueVector)
    np.testing.assert_array_equal(made[0].numpy(), X * X)


@both
def test_the_backend(ort: ModuleType, models: Path) -> None:
    backend = importlib.import_module(f"{ort.__name__}.backend.backend").OnnxRuntimeBackend
    rep = importlib.import_module(f"{ort.__name__}.backend.backend_rep").OnnxRuntimeBackendRep
    path = str(models / "mul_1.onnx")
    session = ort.InferenceSession(path)
    for model in (path, Path(path).read_bytes(), onnx.load(path), session, rep(session)):
        prepared = backend.prepare(model, "CPU", intra_op_num_threads=1, of_another_engine=3)
        assert isinstance(prepared, rep)
        np.testing.assert_array_equal(prepared.run(X, logid="x")[0], X * X)
        np.testing.assert_array_equal(prepared.run([X])[0], X * X)
    np.testing.assert_array_equal(backend.run_model(onnx.load(path), X)[0], X * X)
    assert backend.supports_device("CPU") and backend.is_compatible(None)
    with pytest.raises(RuntimeError, match="Incompatible device"):
        backend.prepare(path, "GPU")
    with pytest.raises(RuntimeError, match="not permitted"):
        backend.prepare(path, enable_profiling=True)
    with pytest.raises(RuntimeError, match="inputs"):
        backend.prepare(str(models / "alloc_tensor_reuse.onnx")).run(X)
