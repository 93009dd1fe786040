"""Calls of onnxruntime, made to the real one and to Jangin. Each test holds for both."""

from __future__ import annotations

import importlib
import json
import pickle
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from both_packages import W, X, both, errors
from onnx import TensorProto, helper

import jangin.onnxruntime
from jangin.ir.graph import CompileError
from jangin.onnxruntime import opening


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a model of Y = X * W and Z = -X, for X of [batch, 2]. W lies in a file beside the model."""
    x, y, z = (helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", 2]) for n in "XYZ")
    x.type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    nodes = [helper.make_node("Mul", ["X", "W"], ["Y"], "times"), helper.make_node("Neg", ["X"], ["Z"])]
    graph = helper.make_graph(nodes, "small", [x], [y, z], [onnx.numpy_helper.from_array(W, "W")])
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path = tmp_path_factory.mktemp("ort") / "small.onnx"
    beside = {"save_as_external_data": True, "location": "w.bin", "size_threshold": 0}
    onnx.save(proto, path, **beside)
    return path


@pytest.fixture(scope="module")
def sessions(model: Path) -> dict[str, Any]:
    return {m.__name__: m.InferenceSession(str(model)) for m in (onnxruntime, jangin.onnxruntime)}


@both
def test_runs_by_name(ort: ModuleType, sessions: dict[str, Any]) -> None:
    s = sessions[ort.__name__]
    y, z = s.run(None, {"X": X})
    np.testing.assert_array_equal(y, X * W)
    assert [a.tolist() for a in s.run(["Z", "Y", "Z"], {"X": X})] == [z.tolist(), y.tolist(), z.tolist()]
    assert s.run(["Y"], {"X": X.tolist()})[0].tolist() == y.tolist()
    assert s.run(["Y"], {"X": X[::2]})[0].tolist() == y[::2].tolist()
    inputs, outputs = s.get_inputs(), s.get_outputs()
    assert [(i.name, i.type, i.shape) for i in inputs] == [("X", "tensor(float)", ["batch", 2])]
    assert [o.name for o in outputs] == ["Y", "Z"]
    assert s.get_modelmeta().graph_name == "small"
    assert s.get_providers() == ["CPUExecutionProvider"]
    assert s.get_provider_options() == {"CPUExecutionProvider": {}}
    assert [m.name for m in s.get_input_memory_infos()] == ["Cpu"]
    assert s.end_profiling() == "" and s.get_overridable_initializers() == []


@both
def test_errors_of_runs(ort: ModuleType, sessions: dict[str, Any]) -> None:
    s, wrong = sessions[ort.__name__], errors(ort).InvalidArgument
    begins = r"^\[ONNXRuntimeError\] : 2 : INVALID_ARGUMENT : "
    for feeds in (
        {"X": X.astype(np.float64)},
        {"X": np.ones((3, 3), np.float32)},
        {"X": X[0]},
        {"X": X, "Q": X},
    ):
        with pytest.raises(wrong, match=begins):
            s.run(None, feeds)
    with pytest.raises(wrong, match=begins):
        s.run(["Q"], {"X": X})
    with pytest.raises(ValueError, match="X"):
        s.run(None, {})
    options = ort.RunOptions()
    options.terminate = True
    with pytest.raises(errors(ort).Fail, match="terminate flag"):
        s.run(None, {"X": X}, options)
    options.terminate = False
    s.run(None, {"X": X}, options)
    with pytest.raises(AttributeError):
        options.termnate = True


@both
def test_errors_of_opening(ort: ModuleType, model: Path, tmp_path: Path) -> None:
    with pytest.raises(errors(ort).NoSuchFile, match=r"^\[ONNXRuntimeError\] : 3 : NO_SUCHFILE"):
        ort.InferenceSession(tmp_path / "none.onnx")
    (tmp_path / "text.onnx").write_text("import this")
    with pytest.raises(errors(ort).InvalidProtobuf):
        ort.InferenceSession(tmp_path / "text.onnx")
    proto = onnx.load(model)
    proto.graph.node[1].op_type = "NoSuchOperator"
    with pytest.raises(errors(ort).InvalidGraph, match="NoSuchOperator"):
        ort.InferenceSession(proto.SerializeToString())
    with pytest.raises(TypeError, match="Unable to load from type"):
        ort.InferenceSession(3)
    options = ort.SessionOptions()
    options.set_load_cancellation_flag(True)
    with pytest.raises(errors(ort).ModelLoadCanceled):
        ort.InferenceSession(model, options)


def test_files_of_its_own_format_are_refused() -> None:
    with pytest.raises(CompileError, match=r"\(\.ort\).*give the ONNX file that it was made of"):
        jangin.onnxruntime.InferenceSession(b"\x10\0\0\0ORTM" + bytes(40))


def test_errors_are_of_jangins_kinds_too() -> None:
    inner = errors(jangin.onnxruntime)
    assert issubclass(inner.InvalidArgument, (ValueError, TypeError)) and issubclass(inner.Fail, RuntimeError)
    assert issubclass(inner.NoSuchFile, FileNotFoundError) and issubclass(inner.InvalidGraph, CompileError)
    again = pickle.loads(pickle.dumps(inner.InvalidGraph.said("x")))
    assert str(again) == "[ONNXRuntimeError] : 10 : INVALID_GRAPH : x"


@both
def test_runs_of_values(ort: ModuleType, sessions: dict[str, Any]) -> None:
    s, v = sessions[ort.__name__], ort.OrtValue.ortvalue_from_numpy(X)
    y, z = s.run_with_ort_values(None, {"X": v})
    np.testing.assert_array_equal(y.numpy(), X * W)
    assert z.data_type() == "tensor(float)"
    assert s.run(["Y"], {"X": v})[0].tolist() == (X * W).tolist()
    inner = errors(ort)
    feeds, fetches = inner.OrtValueVector(), inner.OrtValueVector()
    feeds.push_back(v._get_c_value())
    device = ort.OrtDevice.make("cpu", 0)._get_c_device()
    s.run_with_ortvaluevector(ort.RunOptions(), ["X"], feeds, ["Z"], fetches, [device])
    assert fetches[0].numpy().tolist() == (-X).tolist() and fetches.element_type_at(0) == 1


@both
def test_bound_inputs_and_outputs(ort: ModuleType, sessions: dict[str, Any]) -> None:
    s = sessions[ort.__name__]
    b, place, x = s.io_binding(), np.zeros((3, 2), np.float32), X.copy()
    b.bind_input("X", "cpu", 0, np.float32, x.shape, x.ctypes.data)
    b.bind_output("Y", "cpu", 0, np.float32, place.shape, place.ctypes.data)
    b.bind_output("Z")
    s.run_with_iobinding(b)
    np.testing.assert_array_equal(place, X * W)
    y, z = b.copy_outputs_to_cpu()
    assert y.tolist() == place.tolist() and z.tolist() == (-X).tolist()
    assert [v.shape() for v in b.get_outputs()] == [[3, 2], [3, 2]]
    x[:] = 1
    s.run_with_iobinding(b, ort.RunOptions())
    assert place.tolist() == [[2, 3]] * 3
    target = ort.OrtValue.ortvalue_from_numpy(place)
    b.clear_binding_inputs()
    b.clear_binding_outputs()
    b.bind_cpu_input("X", X)
    b.bind_ortvalue_output("Z", target)
    s.run_with_iobinding(b)
    assert place.tolist() == (-X).tolist()
    b.bind_ortvalue_output("Z", ort.OrtValue.ortvalue_from_shape_and_type([2, 2], np.float32))
    with pytest.raises(Exception, match="ONNXRuntimeError"):
        s.run_with_iobinding(b)
    with pytest.raises(RuntimeError, match="Failed to find NodeArg with name: Q"):
        b.bind_cpu_input("Q", X)
    with pytest.raises(ValueError, match="`element_type` and `shape` are to be provided"):
        b.bind_output("Y", buffer_ptr=place.ctypes.data)


@both
def test_a_run_in_the_background(ort: ModuleType, sessions: dict[str, Any]) -> None:
    done, seen = threading.Event(), list[Any]()

    def finished(results: Any, data: Any, error: str) -> None:
        seen.append((results[0].tolist() if results else None, data, bool(error)))
        done.set()

    sessions[ort.__name__].run_async(["Y"], {"X": X}, finished, "mine")
    assert done.wait(30) and seen == [((X * W).tolist(), "mine", False)]


@both
def test_a_trace(ort: ModuleType, model: Path, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.enable_profiling, options.profile_file_prefix = True, str(tmp_path / "trace")
    options.add_session_config_entry("jangin.wait", "1")  # kernels are those of the compiled model
    s = ort.InferenceSession(model, options)
    assert s.get_profiling_start_time_ns() > 0
    for _ in range(2):
        s.run(None, {"X": X})
    path = s.end_profiling()
    assert path.startswith(str(tmp_path / "trace_")) and path.endswith(".json")
    events = json.loads(Path(path).read_text())
    runs = [e for e in events if e.get("name") == "model_run"]
    nodes = [e for e in events if e.get("cat") == "Node" and e["name"].endswith("kernel_time")]
    assert len(runs) == 2 and len(nodes) >= 2 and any("times" in e["name"] or "Mul" in str(e) for e in nodes)
    assert all(e["dur"] >= 0 and e["ph"] == "X" for e in runs + nodes)
    assert all(e["args"]["provider"] == "CPUExecutionProvider" for e in nodes)


def options_of(ort: ModuleType, way: str) -> tuple[Any, Any]:
    """Return options that replace W by [5, 6], and an object that must live as long as they do."""
    options, numbers = ort.SessionOptions(), np.array([5, 6], np.float32)
    five = ort.OrtValue.ortvalue_from_numpy(numbers)
    if way == "external":
        options.add_external_initializers(["W"], [five])
    elif way == "initializer":
        options.add_initializer("W", five)
    else:
        options.add_external_initializers_from_files_in_memory(["w.bin"], [numbers], [8])
    return options, (five, numbers)


@both
@pytest.mark.parametrize("way", ["external", "initializer", "file"])
def test_initializers_are_replaced(ort: ModuleType, model: Path, way: str) -> None:
    options, _kept = options_of(ort, way)
    given = model.read_bytes() if way == "file" else model
    y, _ = ort.InferenceSession(given, options).run(None, {"X": X})
    np.testing.assert_array_equal(y, X * np.array([5, 6], np.float32))


@both
@pytest.mark.parametrize(
    "how", ["add_free_dimension_override_by_name", "add_free_dimension_override_by_denotation"]
)
def test_sizes_are_fixed(ort: ModuleType, model: Path, how: str) -> None:
    options = ort.SessionOptions()
    getattr(options, how)("batch" if how.endswith("name") else "DATA_BATCH", 3)
    assert ort.InferenceSession(model, options).get_inputs()[0].shape == [3, 2]


@both
def test_the_optimized_model_is_a_model(ort: ModuleType, model: Path, tmp_path: Path) -> None:
    options = ort.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "made.onnx")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ort.InferenceSession(onnx.load(model).SerializeToString(), options)
    (y,) = onnxruntime.InferenceSession(tmp_path / "made.onnx").run(["Y"], {"X": X})
    np.testing.assert_array_equal(y, X * W)


@both
def test_providers(ort: ModuleType, model: Path) -> None:
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
        asked = [("CUDAExecutionProvider", {"device_id": 0}), "CPUExecutionProvider"]
        assert ort.InferenceSession(model, providers=asked).get_providers() == ["CPUExecutionProvider"]
    for providers, options, text in (
        ([3], None, "must be either strings or"), (["CPUExecutionProvider"], [], "same length"),
        (["CPUExecutionProvider"], [3], "must be dicts"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=text):
            ort.InferenceSession(model, providers=providers, provider_options=options, enable_fallback=0)


def test_a_bare_name_is_one_provider(model: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        jangin.onnxruntime.InferenceSession(model, providers="CPUExecutionProvider")


@both
def test_options_by_name(ort: ModuleType) -> None:
    options = ort.SessionOptions()
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    with pytest.raises(RuntimeError, match="does not have configuration with key: none"):
        options.get_session_config_entry("none")
    with pytest.raises(AttributeError):
        options.intra_op_num_thread = 1
    options.add_provider("CPUExecutionProvider", {})
    assert options.has_providers()


def test_a_misspelt_entry_is_refused() -> None:
    options = jangin.onnxruntime.SessionOptions()
    with pytest.raises(ValueError, match=r"did you mean session\.intra_op\.allow_spinning\?"):
        options.add_session_config_entry("session.intra_op.alow_spinning", "0")
    options.add_session_config_entry("my.own.entry", "1")


@pytest.fixture
def pool() -> Iterator[None]:
    yield
    jangin.onnxruntime.set_global_thread_pool_sizes(0)


def test_threads_of_the_process(model: Path, pool: None) -> None:
    jangin.onnxruntime.set_global_thread_pool_sizes(1, 1)
    options = jangin.onnxruntime.SessionOptions()
    options.use_per_session_threads = False
    assert jangin.onnxruntime.InferenceSession(model, options).executable.threads == 1


@both
def test_what_is_said_of_the_process(ort: ModuleType) -> None:
    ort.disable_telemetry_events()
    ort.set_default_logger_severity(3)
    ort.set_default_logger_severity(2)
    ort.set_default_logger_verbosity(0)
    ort.set_seed(1)
    assert ort.get_device() == "CPU" and "Build Info" in ort.get_build_info()
    assert ort.get_ep_devices()[0].ep_name == "CPUExecutionProvider"
    assert "CPUExecutionProvider" in ort.get_available_providers()
    assert not ort.has_collective_ops()


def test_what_does_nothing_says_so() -> None:
    does_nothing = (
        "set_default_logger_severity", "set_default_logger_verbosity", "enable_telemetry_events",
        "disable_telemetry_events", "set_seed", "create_and_register_allocator", "preload_dlls",
    )  # fmt: skip
    for name in does_nothing:
        assert getattr(jangin.onnxruntime, name).__doc__.startswith("Does nothing"), name


@both
def test_a_model_is_written_as_compiled(ort: ModuleType, model: Path, tmp_path: Path) -> None:
    compiler = ort.ModelCompiler(ort.SessionOptions(), onnx.load(model).SerializeToString())
    compiler.compile_to_file(str(tmp_path / "made.onnx"))
    assert ort.InferenceSession(tmp_path / "made.onnx").run(["Z"], {"X": X})[0].tolist() == (-X).tolist()
    assert onnx.ModelProto.FromString(compiler.compile_to_bytes()).graph.name == "small"


@both
def test_onnxs_backend(ort: ModuleType, model: Path) -> None:
    backend = importlib.import_module(f"{ort.__name__}.backend")
    y, z = backend.run(onnx.load(model), [X])
    assert (y.tolist(), z.tolist()) == ((X * W).tolist(), (-X).tolist())
    assert backend.supports_device("CPU")


def small(op: str, kind: int, *names: str, dims: Any = (2,), outputs: Any = (), **attrs: Any) -> bytes:
    """Return a model of one node."""
    inputs = [helper.make_tensor_value_info(n, kind, dims) for n in names]
    made = [helper.make_tensor_value_info("y", kind, dims), *outputs]
    graph = helper.make_graph([helper.make_node(op, names, ["y"], **attrs)], "small", inputs, made)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return bytes(model.SerializeToString())


@both
def test_where_a_session_is_from(ort: ModuleType, model: Path) -> None:
    """A session has the private name of its model's path, which other packages read."""
    assert ort.InferenceSession(str(model))._model_path == str(model)
    assert ort.InferenceSession(small("Neg", TensorProto.FLOAT, "x"))._model_path is None


@both
def test_text(ort: ModuleType) -> None:
    s = ort.InferenceSession(small("Identity", TensorProto.STRING, "x"))
    assert s.get_inputs()[0].type == "tensor(string)"
    given = (
        np.array(["ab", "한글"]), np.array(["ab", "한글"], object), ["ab", "한글"],
        np.array([b"ab", b"cd"], np.void),
    )  # fmt: skip
    for x in given:
        assert s.run(None, {"x": x})[0].tolist()[0] == "ab"


@both
def test_sizes_without_a_name(ort: ModuleType) -> None:
    s = ort.InferenceSession(small("Neg", TensorProto.FLOAT, "x", dims=[None, 3]))
    assert [a.shape for a in (*s.get_inputs(), *s.get_outputs())] == [[None, 3]] * 2
    assert s.run(None, {"x": np.ones((0, 3), np.float32)})[0].shape == (0, 3)
    assert s.get_modelmeta().version == 9223372036854775807


@both
def test_an_input_that_is_an_output(ort: ModuleType) -> None:
    x = np.ones(2, np.float32)
    also = [helper.make_tensor_value_info("x", TensorProto.FLOAT, (2,))]
    y, same = ort.InferenceSession(small("Neg", TensorProto.FLOAT, "x", outputs=also)).run(None, {"x": x})
    assert not np.shares_memory(same, x) and same.tolist() == [1, 1] and y.tolist() == [-1, -1]


@both
def test_sequences(ort: ModuleType) -> None:
    x = np.ones(2, np.float32)
    of_tensors = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    node = helper.make_node("SequenceConstruct", ["x", "x"], ["y"])
    taken = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2])]
    graph = helper.make_graph([node], "g", taken, [of_tensors])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    s = ort.InferenceSession(model.SerializeToString())
    assert [a.tolist() for a in s.run(None, {"x": x})[0]] == [[1, 1]] * 2
    (value,) = s.run_with_ort_values(None, {"x": ort.OrtValue.ortvalue_from_numpy(x)})
    assert value.is_tensor_sequence() and not value.is_tensor() and value.data_type() == "seq(tensor(float))"


@both
def test_missing_inputs_and_unknown_providers(ort: ModuleType, sessions: dict[str, Any]) -> None:
    s = sessions[ort.__name__]
    with pytest.raises(ValueError, match=r"Required inputs \(\['X'\]\) are missing from input feed \(\[\]\)"):
        s.run(None, {})
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="Unknown Provider Type: Nobody"):
        warnings.simplefilter("ignore")
        ort.InferenceSession(
            small("Neg", TensorProto.FLOAT, "x"), providers=["CPUExecutionProvider"]
        ).set_providers(["Nobody"])


@both
def test_which_nodes_a_provider_has(ort: ModuleType, model: Path, sessions: dict[str, Any]) -> None:
    with pytest.raises(errors(ort).Fail, match="must be set to"):
        sessions[ort.__name__].get_provider_graph_assignment_info()
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        parts = ort.InferenceSession(model, options).get_provider_graph_assignment_info()
    assert {p.ep_name for p in parts} == {"CPUExecutionProvider"}
    assert sorted((n.op_type, n.name) for p in parts for n in p.get_nodes()) == [
        ("Mul", "times"),
        ("Neg", ""),
    ]


@both
def test_arguments_about_providers(ort: ModuleType) -> None:
    place = importlib.import_module(f"{ort.__name__}.capi.onnxruntime_inference_collection")
    check = place.check_and_normalize_provider_args
    assert check(None, None, ["a"]) == ([], [])
    assert check([("a", {1: 2}), "b"], None, ["a", "b"]) == (["a", "b"], [{"1": "2"}, {}])
    with pytest.warns(UserWarning, match="Duplicate"):
        assert check(["a", "a"], [{"x": 1}, {}], ["a"]) == (["a"], [{"x": "1"}])
    for providers, options in ((3, None), ([3], None), (["a"], 3), (["a"], [3]), (["a", "b"], [{}])):
        with pytest.raises(ValueError):
            check(providers, options, ["a", "b"])


@pytest.mark.sampled(2)
@both
def test_initializers_that_a_run_may_replace(ort: ModuleType) -> None:
    proto = onnx.ModelProto.FromString(small("Mul", TensorProto.FLOAT, "x", "w"))
    proto.graph.initializer.append(onnx.numpy_helper.from_array(W, "w"))
    s, x = ort.InferenceSession(proto.SerializeToString()), np.ones(2, np.float32)
    assert [i.name for i in s.get_inputs()] == ["x"]
    assert [(i.name, i.type, i.shape) for i in s.get_overridable_initializers()] == [
        ("w", "tensor(float)", [2])
    ]
    assert s.run(None, {"x": x})[0].tolist() == W.tolist()
    for _ in range(2):
        assert s.run(None, {"x": x, "w": x * 5})[0].tolist() == [5, 5]
    assert s.run(None, {"x": x})[0].tolist() == W.tolist()


def test_a_terminal_sees_what_is_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    written: list[str] = []
    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(opening, "PATIENCE", 0.0)
    monkeypatch.setattr(sys, "stderr", type("Terminal", (), {
        "isatty": lambda _: True, "write": lambda _, text: written.append(text), "flush": lambda _: None,
    })())  # fmt: skip
    options = jangin.onnxruntime.SessionOptions()
    options.add_session_config_entry("jangin.wait", "1")
    jangin.onnxruntime.InferenceSession(small("Cosh", TensorProto.FLOAT, "x", dims=(3, 11)), options)
    assert any("jangin compiles a model: " in text for text in written)
    assert not written[-1].strip(), "nothing is left on the line"
