"""Building for machines other than this one: an object for each, saved, and refused where it can't run."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler import pipeline
from jangin.runtime.abi import ABIS
from jangin.runtime.compiled import read_artifact
from jangin.runtime.device import LoadError
from jangin.runtime.system.processor import architecture
from jangin.targets import NAMED
from jangin.targets.x86 import V3

ELSEWHERE = sorted(
    t.name for t in NAMED.values() if t.triple.split("-")[0] != architecture() and "jgn" in t.outputs
)


def layer() -> onnx.ModelProto:
    """y = Relu(x w), of any batch."""
    rng = np.random.default_rng(0)
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, ["b", s]) for n, s in (("x", 24), ("y", 40))]
    weights = [numpy_helper.from_array(rng.standard_normal((24, 40)).astype(np.float32), "w")]
    return helper.make_model(helper.make_graph(nodes, "layer", ends[:1], ends[1:], weights))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_objects_of_other_architectures(name: str, tmp_path: Path) -> None:
    """All objects of a file are the architecture's, and an error tells why this machine can't load them."""
    made = jangin.build(layer(), name, cache=False)
    made.save(tmp_path / "m.jgn")
    again = read_artifact(tmp_path / "m.jgn")
    abi = ABIS[NAMED[name].triple.split("-")[0]]
    machines = {struct.unpack_from("<H", o, 18)[0] for o in again.objects}
    assert machines == {abi.elf_machine} and len(again.objects) == 3
    with pytest.raises(LoadError, match=f"it is for {NAMED[name].triple.split('-')[0]}, this machine is"):
        jangin.load(tmp_path / "m.jgn")


def test_code_that_cannot_run_is_refused_before_any_work(monkeypatch: pytest.MonkeyPatch) -> None:
    lacking = replace(V3, name="v3-and-more", features=f"{V3.features},+avx10.2-512")
    assert jangin.build(layer(), lacking, cache=False).device == "cpu"
    for part in ("build_artifact", "tune_model"):
        monkeypatch.setattr(pipeline, part, lambda *_: pytest.fail("it was compiled"))
    with pytest.raises(LoadError, match=r"v3-and-more.*lacks avx10\.2-512.*jangin\.build"):
        jangin.compile(layer(), lacking, cache=False)
    with pytest.raises(LoadError, match="lacks"):
        jangin.build(layer(), lacking, cache=False, tune=1)


def test_targets_without_object_files_are_refused() -> None:
    with pytest.raises(ValueError, match=r"no \.jgn file is made for cortex-m4: jangin\.emit\(kind='c'\)"):
        jangin.build(layer(), "cortex-m4")


def test_unknown_targets_are_told_the_nearest() -> None:
    with pytest.raises(ValueError, match="'x86-64-v5', did you mean x86-64-v4 or x86-64-v3"):
        jangin.build(layer(), "x86-64-v5")
    with pytest.raises(ValueError, match="unknown target 'abacus'; known: cpu, x86-64-v2"):
        jangin.build(layer(), "abacus")


def test_a_target_of_ones_own_is_not_cached(tmp_path: Path) -> None:
    """The cache key doesn't have a custom target's rows. Another target of the same name would get the first
    one's code."""
    for target, kept in ((replace(NAMED["x86-64-v2"]), 0), ("x86-64-v2", 1)):
        jangin.build(layer(), target, cache=tmp_path)
        assert len([*tmp_path.rglob("*.jgn")]) == kept
