"""16-bit floats are the bits of words, or WGSL's own on adapters that have them."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from on_adapter import NONE, run, usable
from on_dawn import NONE as ABSENT
from on_dawn import folder

import jangin
from jangin.backends.wgsl.module import shader
from jangin.ir.dtype import F8E8M0, F32, SMALL, DType
from jangin.ir.expr import Var
from jangin.ir.interpret import run_func
from jangin.ir.parse import parse_func
from jangin.ir.races import evaluated
from jangin.ir.traversal import postorder
from jangin.runtime.artifact import Artifact
from jangin.runtime.device import LoadError
from jangin.runtime.devices.webgpu import opened
from jangin.runtime.devices.wgsl import Bindings, Shader
from jangin.runtime.devices.wgsl_halves import PLAIN
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
CHAIN = """
func k(x: f16[{0}], y: f16[{0}], z: out f16[{0}], total: out f16[{0}]) {{
  block t in 3 {{ thread i in 32 {{ if t * 32 + i < {0} {{
    z[t * 32 + i] = f16({1})
    total[t * 32 + i] = f16(f32(f16(f32(x[t * 32 + i]) + f32(y[t * 32 + i]))) - f32(x[t * 32 + i]))
  }} }} }}
}}
"""
"""A kernel of one operation. A sum from which its own term is subtracted follows."""
X, Y = "f32(x[t * 32 + i])", "f32(y[t * 32 + i])"
OPERATIONS = {
    "add": f"{X} + {Y}", "sub": f"{X} - {Y}", "mul": f"{X} * {Y}", "constant": f"{X} * f32(-1.5)",
    "min": f"min({X}, {Y})", "max": f"max({X}, {Y})", "neg": f"-{X}", "abs": f"abs({X})",
    "relu": f"select({X} < f32(0.0), f32(0.0), {X})", "floor": f"floor({X})", "div": f"{X} / f32(3.0)",
    "two": f"f32(f16(f32(f16({X} * {Y})) + {Y})) * {X}", "wide": f"({X} * {Y} + {Y}) * {X}",
}  # fmt: skip
NATIVE = {
    "add": "half_add", "sub": "half_sub", "mul": "half_mul", "constant": "half_mul", "min": "half_more",
    "max": "half_more", "neg": "half_neg", "abs": "half_exact", "relu": "half_of_bits(0u)",
    "floor": "half_exact", "div": "half_rounded", "two": "half_mul", "wide": "half_rounded",
}  # fmt: skip
"""The function that makes each result. Only what is inexact in f32 is rounded in software."""
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


@pytest.mark.skipif(not ADAPTERS, reason=NONE)
@pytest.mark.parametrize("features", FORMS)
@pytest.mark.parametrize("name", OPERATIONS)
def test_arithmetic(name: str, features: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Both forms give the interpreter's bits, for all pairs of odd values and for random ones."""
    count = 91
    func, rng = parse_func(CHAIN.format(count, OPERATIONS[name])), np.random.default_rng()
    monkeypatch.setattr(opened(ADAPTERS[0]), "features", features)
    made = shader(func, WEBGPU)
    assert any(NATIVE[name] in line for line in made.body), made.body
    pairs = np.stack(np.meshgrid(VALUES, VALUES)).reshape(2, -1)
    some = rng.integers(0, 1 << 16, (2, 600), np.uint16).view(np.float16)
    many = np.concatenate([pairs, some], axis=1)
    for at in range(0, many.shape[1] - count, count):
        given = dict(zip("xy", many[:, at : at + count].copy(), strict=True))
        given |= {"z": np.zeros(count, np.float16), "total": np.zeros(count, np.float16)}
        want = {k: v.copy() for k, v in given.items()}
        with np.errstate(all="ignore"):
            run_func(func, want, {})
        got = run(func, given, {}, ADAPTERS[0], made=made)
        for output in ("z", "total"):
            np.testing.assert_array_equal(got[output], want[output])


@pytest.mark.skipif(not ADAPTERS, reason=NONE)
@pytest.mark.parametrize("features", FORMS)
def test_model_against_float64(features: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A gated layer. Its product is summed in f32, and each operator rounds its elements to 11 bits."""
    rng = np.random.default_rng()
    w, b = (rng.standard_normal(s).astype(np.float16) for s in ((300, 40), (40,)))
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float16[7,300] x, float16[7,40] y) => (float16[7,40] z)'
        " { p = MatMul(x, w) a = Add(p, b) g = Mul(a, y) r = Relu(g) z = Sub(r, y) }"
    )
    model.graph.initializer.extend([onnx.numpy_helper.from_array(v, n) for n, v in (("w", w), ("b", b))])
    x, y = (rng.standard_normal((7, n)).astype(np.float16) for n in (300, 40))
    monkeypatch.setattr(opened(ADAPTERS[0]), "features", features)
    got = jangin.compile(model, "webgpu").run({"x": x, "y": y})["z"].astype(np.float64)
    product = x.astype(np.float64) @ w
    gated = (product + b) * y
    want = np.maximum(gated, 0) - y
    # Five operators round, each by at most half a unit in the last place of 11 bits.
    size = (np.abs(product) + np.abs(b)) * np.abs(y) + np.abs(product * y) + np.abs(y)
    assert np.all(np.abs(got - want) <= 5 * 2.0**-11 * size + 2.0**-24)


def test_texts() -> None:
    """Buffers of 16-bit floats have them as elements in the second form, if nothing else is stored there."""
    made = shader(parse_func(KERNEL.format(96)), WEBGPU)
    assert made.accesses == {"0": "e", "1": "eg", "2": "w", "3": "h"}
    kinds = [re.findall(r"array<([\w<>]+)>;", made.text(features=f)) for f in ([], ["shader-f16"])]
    assert kinds == [["u32", "atomic<u32>", "u32", "atomic<u32>"], ["f16", "f16", "u32", "atomic<u32>"]]
    assert made.forms(Bindings.apart(4)) == [("shader-f16",)]
    together = Bindings((0, 1, 1, 2), (1, 1, 1))
    assert made.text(together, ["shader-f16"]).count("array<f16>") == 1
    assert made.forms(together) == [("shader-f16",)]
    assert Shader.of(made.packed).text(features=["shader-f16"]) == made.text(features=["shader-f16"])


def older(made: Shader) -> Shader:
    """Return a shader as Jangin wrote it before `Half`: `e` gave a value, and `g` took bits."""
    return replace(made, helpers=[h for h in made.helpers if h not in PLAIN.values()])


@pytest.mark.parametrize("buffer", ["0", "1", "2"])
def test_older_code_is_refused(buffer: str) -> None:
    """A kernel from an older file names the remedy if its functions for 16-bit floats are called."""
    made = shader(parse_func(KERNEL.format(96)), WEBGPU)
    one = replace(older(made), accesses={buffer: made.accesses[buffer]})
    if buffer == "2":  # has no 16-bit floats
        assert Shader.of(one.packed).text() == one.text()
        return
    with pytest.raises(LoadError, match=r"^kernel \w+ takes .* another version .*: compile the model again$"):
        Shader.of(one.packed)


@pytest.mark.skipif(not ADAPTERS, reason=NONE)
def test_an_older_file_is_refused(tmp_path: Path) -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 8, opset_import: ["": 18]> g (float16[5] x) => (float16[5] y) { y = Add(x, x) }'
    )
    built = jangin.build(model, "webgpu", cache=False)
    assert isinstance(built, Artifact)
    objects = tuple(older(Shader.of(code)).packed for code in built.objects)
    replace(built, objects=objects).save(tmp_path / "old.jgn")
    with pytest.raises(LoadError, match="compile the model again"):
        jangin.load(tmp_path / "old.jgn")


@pytest.mark.skipif(folder() is None, reason=ABSENT)
def test_tint_takes_both_forms() -> None:
    """Chromium's compiler of shaders takes the text of each operation, of which no adapter is needed."""
    kernels = [KERNEL.format(96), *(CHAIN.format(91, text) for text in OPERATIONS.values())]
    texts = []
    for kernel in kernels:
        made = shader(parse_func(kernel), WEBGPU)
        texts += [made.text(), f"enable f16;\n{made.text(features=['shader-f16'])}"]
    program = Path(__file__).with_name("tint.mjs")
    done = subprocess.run(
        ["node", str(program), str(folder())], input=json.dumps([*texts, "fn wrong() -> f16 { return 1; }"]),
        capture_output=True, text=True, check=True, timeout=100,
    )  # fmt: skip
    *errors, wrong = json.loads(done.stdout.splitlines()[-1])
    assert errors == [[]] * len(texts) and wrong, errors


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
