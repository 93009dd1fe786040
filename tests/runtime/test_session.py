"""`InferenceSession`, as code written for ONNX Runtime uses it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from plans import N, affine, buffer, chain, compiled, launch, plan

import jangin
from jangin.ir.dtype import BF16, BOOL, I64
from jangin.onnxruntime import InferenceSession, RunOptions, SessionOptions, said
from jangin.runtime.executable import Executable


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    seen: list[dict[str, Any]] = []

    def compile_(model: Any, **options: Any) -> Executable:
        seen.append({"model": model, **options})
        made = plan(
            [
                buffer("x", "input", N, 2),
                buffer("k", "constant", 1, dtype=I64),
                buffer("y", "output", N, 2),
            ],
            [launch("double", ["x", "y"], N * 2)],
            outputs=["y", "k"],
            constants={"k": np.array([3])},
            symbols=[(N, (1, 9))],
        )
        return Executable(compiled(made, [affine("double", 2.0, 0.0)]), options["threads"])

    monkeypatch.setitem(vars(jangin), "compile", compile_)
    return seen


def test_common_use(calls: list[dict[str, Any]]) -> None:
    options = SessionOptions()
    options.intra_op_num_threads = 1
    options.graph_optimization_level = 99
    options.add_free_dimension_override_by_name("batch", 4)
    session = InferenceSession("m.onnx", options, providers=[("CPUExecutionProvider", {})])
    assert calls == [{"model": "m.onnx", "threads": 1, "shapes": {"batch": 4}, "wait": False}]
    (only,) = session.get_inputs()
    assert (only.name, only.type, only.shape) == ("x", "tensor(float)", ["n", 2])
    assert [(o.name, o.type, o.shape) for o in session.get_outputs()] == [
        ("y", "tensor(float)", ["n", 2]),
        ("k", "tensor(int64)", [1]),
    ]
    x = np.ones((3, 2), np.float32)
    y, k = session.run(None, {"x": x})
    np.testing.assert_array_equal(y, x * 2)
    assert k.tolist() == [3]
    assert [a.tolist() for a in session.run(["k"], {"x": x})] == [[3]]
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert session.get_modelmeta().graph_name == "test"


def test_what_a_model_says_of_itself_is_kept(tmp_path: Path) -> None:
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2])
    y = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Neg", ["x"], ["y"])], "minus", [x], [y])
    model = onnx.helper.make_model(graph, producer_name="tests", doc_string="negates")
    onnx.helper.set_model_props(model, {"labels": "a\nb"})
    jangin.compile(model, cache=False).save(tmp_path / "m.jgn")
    meta = InferenceSession(tmp_path / "m.jgn").get_modelmeta()
    assert (meta.graph_name, meta.producer_name, meta.description) == ("minus", "tests", "negates")
    assert meta.custom_metadata_map == {"labels": "a\nb"}


def test_onnx_runtimes_options_are_taken(tmp_path: Path) -> None:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    chain().save(tmp_path / "m.jgn")
    assert InferenceSession(tmp_path / "m.jgn", options).executable.threads == 1


def test_errors(calls: list[dict[str, Any]]) -> None:
    with pytest.warns(UserWarning, match="'CUDAExecutionProvider' is not in available provider names"):
        session = InferenceSession(b"model", providers=["CUDAExecutionProvider"])
    assert session.get_providers() == ["CPUExecutionProvider"]
    assert calls[0]["threads"] is None
    with pytest.raises(ValueError, match="no output is named 'z'; the outputs are"):
        session.run(["z"], {"x": np.ones((3, 2), np.float32)})
    with pytest.raises(ValueError, match="missing input 'x'"):
        session.run(None, {})


def test_compiled_file(tmp_path: Path, calls: list[dict[str, Any]]) -> None:
    chain().save(tmp_path / "m.jgn")
    session = InferenceSession(tmp_path / "m.jgn")
    assert not calls
    assert session.run(None, {"x": np.ones(1000, np.float32)})[0][0] == 14


def test_type_names(calls: list[dict[str, Any]]) -> None:
    del calls
    made = plan([buffer("a", "input", dtype=BF16), buffer("b", "input", dtype=BOOL)], [], outputs=["a", "b"])
    session = InferenceSession.__new__(InferenceSession)
    session._executable = Executable(compiled(made, []), 1)
    assert [i.type for i in session.get_inputs()] == ["tensor(bfloat16)", "tensor(bool)"]


@pytest.mark.parametrize(
    ("name", "near"),
    [("providrs", "providers"), ("session_options", "sess_options"), ("provider_option", "provider_options")],
)
def test_a_misspelt_argument_is_refused(calls: list[dict[str, Any]], name: str, near: str) -> None:
    with pytest.raises(TypeError, match=f"takes no argument '{name}': did you mean {near}"):
        InferenceSession(b"model", **{name: ["CPUExecutionProvider"]})
    with pytest.raises(TypeError, match="takes no argument 'zzz'; there are disabled_optimizers, enable_"):
        InferenceSession(b"model", zzz=1)
    assert not calls


def test_a_misspelt_option_is_refused() -> None:
    with pytest.raises(
        AttributeError, match="no option 'intra_op_thread': did you mean intra_op_num_threads"
    ):
        SessionOptions().intra_op_thread = 1
    with pytest.raises(AttributeError, match="RunOptions has no option 'logidd': did you mean logid"):
        RunOptions().logidd = "x"


def test_options_without_effect_are_named_once(
    calls: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(said, "_SAID", set())
    options = SessionOptions(intra_op_num_threads=1, enable_mem_pattern=False)
    options.add_session_config_entry("session.dynamic_block_base", "4")
    with pytest.warns(UserWarning, match="in Jangin: enable_mem_pattern, session.dynamic_block_base$"):
        session = InferenceSession(b"model", options)
    feeds = {"x": np.ones((3, 2), np.float32)}
    with pytest.warns(UserWarning, match="in Jangin: only_execute_path_to_fetches$"):
        session.run(None, feeds, RunOptions(logid="a", only_execute_path_to_fetches=True))
    theirs = onnxruntime.SessionOptions()
    theirs.execution_mode = onnxruntime.ExecutionMode.ORT_PARALLEL
    providers = ["CPUExecutionProvider"]
    with pytest.warns(UserWarning, match="Jangin: execution_mode, provider_options, disabled_optimizers"):
        InferenceSession(b"m", theirs, providers, [{"a": 1}], disabled_optimizers=["x"], enable_fallback=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        InferenceSession(b"m", onnxruntime.SessionOptions(), providers, [{}])
        # this option was named before, so that there is no second warning
        InferenceSession(b"model", options)
        session.run(None, feeds, RunOptions())
