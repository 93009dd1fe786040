"""Products of int8 activations with block-quantized weights are NumPy's integers, for every type of blocks,
on every level of x86-64 that runs here. Unknown settings are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from compared import error
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner

import jangin
from jangin.cli import app
from jangin.commands.common import formats_of
from jangin.compiler.pipeline import build_kernels, optimize
from jangin.frontends.gguf.blocks import LAYOUTS, product
from jangin.frontends.gguf.format import GgufFormat
from jangin.frontends.onnx.format import OnnxFormat
from jangin.ir.dtype import F32
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ops.blocks import Rounding, matmul_blocks
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.executable import Executable
from jangin.runtime.processor import why_not
from jangin.targets import NAMED

pytestmark = pytest.mark.sampled(3)

LEVELS = [n for n, t in NAMED.items() if n.startswith("x86") and not why_not(str(t))]
ALLOWED = 1e-6
"""The largest difference, as a share of the largest value. Sums of f32 are taken in another order."""
COLUMNS = 37


def half(a: Array) -> Array:
    return a.astype(np.float16).astype(np.float32)


class Rounded:
    """Activations quantized by blocks of `block` numbers: whole numbers times factors."""

    def __init__(self, x: Array, block: int, halves: bool) -> None:
        whole = np.pad(x, [(0, 0), (0, -x.shape[1] % block)]).reshape(len(x), -1, block)
        factor = np.abs(whole).max(-1) / np.float32(127)
        turned = np.where(factor > 0, 1 / np.where(factor > 0, factor, 1), 0).astype(np.float32)
        self.numbers = np.rint(whole * turned[..., None])
        self.factor = half(factor) if halves else factor
        self.sums = factor * self.numbers.sum(-1, dtype=np.float32)
        self.values = (self.numbers * self.factor[..., None].astype(np.float64)).reshape(len(x), -1)
        self.values = self.values[:, : x.shape[1]]


def cases(rng: np.random.Generator, width: int) -> Sequence[Array]:
    """Return rows of numbers of all sizes, with a block of zeros among them."""
    found = [rng.standard_normal((rows, width)).astype(np.float32) for rows in (1, 2, 5, 33)]
    found[1][0, : width // 2] = 0
    found[2] *= np.exp(rng.uniform(-6, 6, (5, width))).astype(np.float32)
    return found


def run(graph: Graph, x: Array, level: str) -> Array:
    options = Options(NAMED[level], verify=True)
    return np.asarray(Executable(build_kernels(optimize(graph, options), options), threads=1)(x))


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", LAYOUTS)
def test_ggml_types(kind: str) -> None:
    """Random blocks with finite scales. In Q8_1, the product of the factor and the sum, which the offset
    multiplies, is rounded to f16 by itself."""
    gguf = pytest.importorskip("gguf", reason="gguf is not installed (see the extra `gguf`)")
    layout, rng, width = LAYOUTS[kind], np.random.default_rng(), 512
    blocks = rng.integers(0, 256, (COLUMNS, width // layout.size, layout.bytes)).astype(np.uint8)
    places = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}.get(kind, (0, 2))
    scales = [rng.uniform(-0.1, 0.1, blocks.shape[:2]).astype("<f2") for _ in places]
    for at, scale in zip(places, scales, strict=True):
        blocks[:, :, at : at + 2] = scale[..., None].view(np.uint8)
    data = blocks.reshape(COLUMNS, -1)
    weights = gguf.quants.dequantize(data, gguf.GGMLQuantizationType[kind]).astype(np.float64)
    for x in cases(rng, width):
        rounded = Rounded(x, layout.size, layout.size == 32)
        want = rounded.values @ weights.T
        if kind in ("Q4_1", "Q5_1"):
            exact = rounded.factor * rounded.numbers.sum(-1)
            want += (half(rounded.sums) - exact) @ scales[1].astype(np.float64).T
        b = Builder("m", {})
        given = b.input("x", F32, tuple(map(const, x.shape)))
        graph = b.graph([product(b, given, b.const(data), kind, width, True)], ["y"])
        assert error(run_graph(graph, {"x": x})["y"], want) < ALLOWED
        for level in LEVELS:
            assert error(run(graph, x, level), want) < ALLOWED, (level, x.shape)


@pytest.mark.sampled(24)
@pytest.mark.parametrize(("width", "block"), [(62, 32), (40, 16), (31, 8), (27, 9), (320, 128)])
@pytest.mark.parametrize(("low", "high"), [(-8, 7), (0, 15), (-128, 127), (0, 255), (0, 127)])
def test_odd_sizes(width: int, block: int, low: int, high: int) -> None:
    """Rows end within a block, and blocks end within a word. Unsigned numbers have offsets."""
    rng = np.random.default_rng()
    numbers = rng.integers(low, high, (COLUMNS, width), endpoint=True).astype(np.int16)
    numbers[0, :2] = low, high
    stored = numbers.astype(np.int8 if low else np.uint8)
    scales = rng.standard_normal((2 - (low < 0), COLUMNS, -(-width // block))).astype(np.float32)
    spread = np.repeat(scales.astype(np.float64), block, 2)[:, :, :width]
    weights = numbers * spread[0] + spread[1:].sum(0)
    for x in cases(rng, width):
        want = Rounded(x, block, False).values @ weights.T
        b = Builder("m", {})
        given = b.input("x", F32, tuple(map(const, x.shape)))
        parts = [*scales, None]
        graph = b.graph([matmul_blocks(b, given, stored, parts[0], parts[1], block, Rounding(block))], ["y"])
        assert error(run_graph(graph, {"x": x})["y"], want) < ALLOWED
        for level in LEVELS:
            assert error(run(graph, x, level), want) < ALLOWED, (level, x.shape)


def test_a_number_that_is_none_stays_so() -> None:
    b = Builder("m", {})
    given = b.input("x", F32, (const(3), const(64)))
    ones = np.ones((COLUMNS, 64), np.int8)
    graph = b.graph(
        [matmul_blocks(b, given, ones, ones[:, :2].astype(np.float32), None, 32, Rounding(32))], ["y"]
    )
    x = np.ones((3, 64), np.float32)
    x[1, 5] = np.nan
    found = run(graph, x, LEVELS[-1])
    assert np.isnan(found[1]).all() and error(found[::2], np.full((2, COLUMNS), 64.0)) < ALLOWED


def nbits(bits: int, level: int, zeros: bool, rows: int | str = "rows") -> tuple[onnx.ModelProto, Array]:
    """Return a MatMulNBits of an accuracy level, and its weights in float64."""
    rng, width, block = np.random.default_rng(bits), 96, 32
    numbers = rng.integers(0, 1 << bits, (COLUMNS, width)).astype(np.uint8)
    scales = rng.standard_normal((COLUMNS, width // block)).astype(np.float32)
    zero = rng.integers(0, 1 << bits, (COLUMNS, 4)).astype(np.uint8)
    held = {"w": numbers, "z": zero}
    if bits == 4:
        held = {n: a[:, ::2] | a[:, 1::2] << 4 for n, a in held.items()}
    held["w"] = held["w"].reshape(COLUMNS, width // block, -1)
    held["z"] = np.ascontiguousarray(held["z"][:, : 2 if bits == 4 else 3]).ravel()
    held["s"] = scales.ravel()
    names = ["x", "w", "s", *["z"] * zeros]
    settings = {"K": width, "N": COLUMNS, "bits": bits, "block_size": block, "accuracy_level": level}
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **settings)
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, [rows, d])
        for n, d in (("x", width), ("y", COLUMNS))
    ]
    graph = helper.make_graph(
        [node], "m", ends[:1], ends[1:], [numpy_helper.from_array(held[n], n) for n in names[1:]]
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    less = zero[:, :3].astype(np.float64) if zeros else np.full((COLUMNS, 3), 1 << (bits - 1))
    weights = (numbers - np.repeat(less, block, 1)) * np.repeat(scales.astype(np.float64), block, 1)
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), weights


@pytest.mark.sampled(12)
@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("level", [0, 1, 4])
def test_levels_of_onnx(bits: int, level: int, zeros: bool) -> None:
    """Products are of float32 unless the caller asks for int8. Even then they are, if the model asks for
    float32."""
    model, weights = nbits(bits, level, zeros)
    x = np.random.default_rng().standard_normal((5, weights.shape[1])).astype(np.float32)
    exact, rounded = x @ weights.T, Rounded(x, 32, False).values @ weights.T
    plain = jangin.compile(model, threads=1, cache=False)(x)
    asked = jangin.compile(model, threads=1, cache=False, formats=[OnnxFormat("int8")])(x)
    assert error(plain, exact) < ALLOWED
    assert error(asked, exact if level == 1 else rounded) < ALLOWED


def test_as_onnx_runtime() -> None:
    ort = pytest.importorskip("onnxruntime")
    model, weights = nbits(4, 4, False)
    x = np.random.default_rng().standard_normal((5, weights.shape[1])).astype(np.float32)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    asked = jangin.compile(model, threads=1, cache=False, formats=[OnnxFormat("int8")])(x)
    assert error(asked, session.run(None, {"x": x})[0]) < 1e-3, "one number may be rounded to the other side"


@pytest.mark.parametrize("make", [GgufFormat, OnnxFormat])
def test_other_types_are_refused(make: type[GgufFormat] | type[OnnxFormat]) -> None:
    with pytest.raises(ValueError, match="activations='int4' is unknown; known: float32, int8"):
        make(activations="int4")


def test_the_command_line(tmp_path: Path) -> None:
    model, _ = nbits(4, 0, False)
    path = tmp_path / "m.onnx"
    onnx.save(model, path)
    assert formats_of(path, "", "int8") == (OnnxFormat("int8"),)
    given = ["compile", str(path), "--activations", "int8", "-o", str(tmp_path / "m.jgn")]
    done = CliRunner().invoke(app, ["--no-cache", *given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    x = np.random.default_rng().standard_normal((2, 96)).astype(np.float32)
    want = jangin.compile(model, threads=1, cache=False, formats=[OnnxFormat("int8")])(x)
    np.testing.assert_array_equal(jangin.load(tmp_path / "m.jgn", threads=1)(x), want)


def test_the_compile_cache_tells_them_apart(tmp_path: Path) -> None:
    model, weights = nbits(4, 0, False, rows=3)
    x = np.random.default_rng().standard_normal((3, weights.shape[1])).astype(np.float32)
    found = [
        jangin.compile(model, threads=1, cache=tmp_path, formats=[OnnxFormat(kind)])(x)
        for kind in ("float32", "int8", "float32", "int8")
    ]
    assert not np.array_equal(*found[:2])
    np.testing.assert_array_equal(found[:2], found[2:])
