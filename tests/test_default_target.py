"""`JANGIN_TARGET` names the default target of compilations, in the library and on the command line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper
from test_isolated import X, layers

import jangin
from jangin.environment import TARGET
from jangin.runtime.load import LoadError
from jangin.targets import resolve
from jangin.targets.host import host, levels_of

LOWEST = levels_of(host().triple.partition("-")[0])[-1].name
"""The level that all machines of this one's architecture run."""


def target_of(made: Any) -> str:
    artifact = getattr(made, "artifact", made)
    return str(artifact.plan.target)


def test_the_environment_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument has priority, "cpu" is this machine, and an empty name counts as none."""
    monkeypatch.setenv(TARGET, LOWEST)
    lowest = resolve(LOWEST)
    assert resolve() is lowest and resolve("cpu") == resolve("host") == host()
    assert target_of(jangin.compile(layers(1), cache=False)) == str(lowest)
    assert target_of(jangin.compile(layers(1), "cpu", cache=False)) == str(host())
    assert target_of(jangin.build(layers(1), cache=False)) == str(lowest)
    assert target_of(jangin.build(layers(1), target="neoverse-n1", cache=False)) == str(
        resolve("neoverse-n1")
    )
    assert jangin.emit(layers(1), cache=False).model.target.name == lowest.name
    monkeypatch.setenv(TARGET, "")
    assert resolve() == host()


def test_a_process_of_its_own_compiles_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TARGET, LOWEST)
    assert target_of(jangin.compile(layers(1), cache=False, isolated=True)) == str(resolve(LOWEST))


def test_a_cache_has_an_entry_for_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache entry is the same, whether the target is an argument or from the environment."""
    onnx.save(layers(1), tmp_path / "m.onnx")
    entries: list[int] = []
    for named in (LOWEST, "cpu", LOWEST):
        monkeypatch.setenv(TARGET, named)
        for given in ({}, {"target": named}):
            made = jangin.compile(tmp_path / "m.onnx", cache=tmp_path / "cache", **given)
            assert target_of(made) == str(resolve(named))
            assert np.asarray(made(X)).shape == (4, 17)
            entries.append(len([*(tmp_path / "cache").glob("??/*.jgn")]))
    assert entries == ([1, 1, 1, 1, 1, 1] if str(host()) == str(resolve(LOWEST)) else [1, 1, 2, 2, 2, 2])


def test_errors_say_where_the_name_is_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TARGET, "x86-64-v9")
    for call in (jangin.compile, jangin.build, jangin.emit):
        with pytest.raises(ValueError, match=f"{TARGET}: unknown target 'x86-64-v9'.*known: cpu, x86-64-v2"):
            call(layers(1))
    assert jangin.compile(layers(1), "cpu", cache=False)(X).shape == (4, 17)
    monkeypatch.setenv(TARGET, "wasm32")
    with pytest.raises(LoadError, match=rf"code for wasm32 \(the environment's {TARGET}\)"):
        jangin.compile(layers(1))
    with pytest.raises(ValueError, match=rf"no .jgn file is made for wasm32 \(the environment's {TARGET}\)"):
        jangin.build(layers(1))
    with pytest.raises(ValueError, match=rf"no 'c' is made for wasm32 \(the environment's {TARGET}\)"):
        jangin.emit(layers(1), "c")
    with pytest.raises(LoadError, match=r"code for wasm32: "):
        jangin.compile(layers(1), "wasm32")


@pytest.mark.sampled(2)
def test_what_calls_the_compiler_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sessions follow the variable, and so does quantization, which measures what `compile` will make."""
    monkeypatch.setenv(TARGET, LOWEST)
    proto = layers(1)
    session = jangin.InferenceSession(proto.SerializeToString())
    assert target_of(session.executable) == str(resolve(LOWEST))
    made = jangin.quantize(_product(), [{"x": X}])
    assert target_of(made.executable) == str(resolve(LOWEST))


def _product() -> onnx.ModelProto:
    w = np.random.default_rng(0).standard_normal((X.shape[1], 8)).astype(np.float32)
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in (("x", X.shape), ("y", (4, 8)))
    ]
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:],
        [onnx.numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
