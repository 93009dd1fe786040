"""16-bit numbers lie two in a word, or are stored as they are on adapters that have them."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from on_adapter import NONE, run, usable

import jangin
from jangin.backends.wgsl.module import shader
from jangin.ir.dtype import F8E8M0, F32, SMALL, DType
from jangin.ir.expr import Var
from jangin.ir.interpret import run_func
from jangin.ir.parse import parse_func
from jangin.ir.races import evaluated
from jangin.ir.traversal import postorder
from jangin.runtime.devices.webgpu import opened
from jangin.runtime.devices.wgsl import Bindings, Shader
from jangin.targets.small import ARGUMENT
from jangin.targets.webgpu import WEBGPU

ADAPTERS = usable()
FORMS = [
    set(),
    pytest.param(
        {"shader-f16"},
        marks=pytest.mark.skipif(
            not (ADAPTERS and "shader-f16" in ADAPTERS[0].features), reason="the adapter has no f16"
        ),
    ),
]
KERNEL = """
func k(x: f16[{0}], y: out f16[{0}], z: out f32[{0}], b: out u16[{0}]) {{
  block t in 3 {{ thread i in 32 {{ if t * 32 + i < {0} {{
    y[t * 32 + i] = f16(f32(x[t * 32 + i]) * f32(3.0))
    z[t * 32 + i] = f32(y[t * 32 + i])
    b[t * 32 + i] = u16(i)
  }} }} }}
}}
"""
VALUES = np.float16([0, -0.0, 1, -2.5, 6e-8, -6e-8, 6.1e-5, 5e-5, 65504, -65504, np.inf, -np.inf, np.nan])
"""Numbers of all kinds: subnormal and largest ones, products beyond the largest, infinities and NaN."""


@pytest.mark.skipif(not ADAPTERS, reason=NONE)
@pytest.mark.parametrize("features", FORMS)
@pytest.mark.parametrize("count", [71, 96])
def test_numbers(count: int, features: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    func, rng = parse_func(KERNEL.format(count)), np.random.default_rng()
    x = rng.standard_normal(count).astype(np.float16)
    x[: len(VALUES)] = VALUES
    given = {"x": x, "y": np.zeros_like(x), "z": x.astype(np.float32), "b": np.zeros(count, np.uint16)}
    want = {k: v.copy() for k, v in given.items()}
    run_func(func, want, {})
    monkeypatch.setattr(opened(ADAPTERS[0]), "features", features)
    got = run(func, given, {}, ADAPTERS[0])
    for name in ("y", "z", "b"):
        np.testing.assert_array_equal(got[name], want[name])


def test_texts() -> None:
    """Numbers that are stored are elements of the second form. Numbers that are only loaded lie in words in
    both."""
    made = shader(parse_func(KERNEL.format(96)), WEBGPU)
    assert made.accesses == {"0": "e", "1": "eg", "2": "w", "3": "h"}
    kinds = [re.findall(r"array<([\w<>]+)>;", made.text(features=f)) for f in ([], ["shader-f16"])]
    assert kinds == [["u32", "atomic<u32>", "u32", "atomic<u32>"], ["u32", "f16", "u32", "atomic<u32>"]]
    assert made.forms(Bindings.apart(4)) == [("shader-f16",)]
    together = Bindings((0, 1, 1, 2), (1, 1, 1))
    assert made.forms(together) == [] and made.text(together) == made.text(together, ["shader-f16"])
    assert Shader.of(made.packed).text(features=["shader-f16"]) == made.text(features=["shader-f16"])


def test_packages_have_both_forms(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float16[3,37] x) => (float16[3,37] y, float16[3,37] z)'
        " { y = Softmax(x) z = Relu(x) }"
    )
    jangin.emit(model, "web", "webgpu", name="model").save(tmp_path)
    text = (tmp_path / "model.wgsl").read_text()
    names = re.findall(r"^//# (.*)$", text, re.MULTILINE)
    assert {n.partition("+")[2] for n in names} == {
        "", "subgroups", "shader-f16", "shader-f16+subgroups"
    }  # fmt: skip
    for name, form in re.findall(r"^//# (.*)\n((?:(?!//# ).*\n)*)", text, re.MULTILINE):
        assert ("enable f16;" in form) == ("shader-f16" in name)
        assert ("enable subgroups;" in form) == ("subgroups" in name)


@pytest.mark.parametrize("dtype", [t for t in SMALL if t.kind == "f" and t is not F8E8M0], ids=str)
def test_small_floats_widen_without_subnormal_numbers(dtype: DType) -> None:
    """Devices may take subnormal float32 numbers for 0. No step of a formula makes or takes one."""
    codes = np.arange(1 << dtype.bits, dtype=np.uint8)
    x = Var(ARGUMENT, dtype)
    row = WEBGPU.row("widen", dtype)
    assert row is not None and row.expansion is not None
    values = {x: codes.view(dtype.numpy)}
    for step in postorder(row.expansion):
        if step.dtype is F32:
            size = np.abs(evaluated(step, values))
            assert not np.any((size > 0) & (size < np.finfo(np.float32).tiny)), step
    got, want = evaluated(row.expansion, values), codes.view(dtype.numpy).astype(np.float32)
    np.testing.assert_array_equal(got, want)
