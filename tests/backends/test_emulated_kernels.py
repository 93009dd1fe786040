"""Random small models on emulated Arm and RISC-V processors, against ONNX's ReferenceEvaluator.

Debian's packages: gcc-aarch64-linux-gnu, gcc-arm-linux-gnueabihf and gcc-riscv64-linux-gnu, which link a
model's objects with benchmarks/arm/run.c, and qemu-user-static.
Sums of up to 600 float32 products of numbers around 1 are off by less than 1e-4.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import pytest
from casts import casts
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from repeatable import RNG

import jangin
from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.core import Conv, MatMul
from jangin.ir.dtype import F16, F32
from jangin.ir.expr import const
from jangin.ir.graph import Array
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.artifact import Artifact
from jangin.targets import resolve

pytestmark = pytest.mark.sampled(4)

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
_V = "rv64,v=true,vlen={},vext_spec=v1.0"
MACHINES = {
    "cortex-a72": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "cortex-a72"),
    "neoverse-n1": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "neoverse-n1"),
    "neoverse-v1": ("aarch64-linux-gnu-gcc", "qemu-aarch64-static", "max"),
    "cortex-a7": ("arm-linux-gnueabihf-gcc", "qemu-arm-static", "cortex-a7"),
    "riscv64-v of 128 bits": ("riscv64-linux-gnu-gcc", "qemu-riscv64-static", _V.format(128)),
    "riscv64-v of 256 bits": ("riscv64-linux-gnu-gcc", "qemu-riscv64-static", _V.format(256)),
}


def convolution() -> tuple[Any, ...]:
    """A convolution with bias and rectifier of random sizes, sometimes grouped or depthwise."""
    kernel, stride = (int(RNG.choice(n)) for n in ((1, 3, 5), (1, 2)))
    channels, size = int(RNG.integers(1, 40)), int(RNG.integers(kernel, 19))
    depthwise = kernel > 1 and RNG.random() < 0.3
    groups = channels if depthwise else int(RNG.choice((1, 1, 1, 2, 3)))
    outputs = channels if depthwise else int(RNG.integers(1, 60)) * groups
    each = 1 if depthwise else channels
    channels = each * groups
    weights = RNG.standard_normal((outputs, each, kernel, kernel), np.float32)
    node = helper.make_node(
        "Conv", ["x", "w", "b"], ["y"], strides=[stride] * 2, pads=[kernel // 2] * 4,
        group=groups,
    )  # fmt: skip
    return node, weights, RNG.standard_normal(outputs, np.float32), (1, channels, size, size + 3)


def product() -> tuple[Any, ...]:
    rows, terms, columns = (int(RNG.integers(1, n)) for n in (40, 150, 90))
    weights = RNG.standard_normal((terms, columns), np.float32)
    node = helper.make_node("Gemm", ["x", "w", "b"], ["y"])
    return node, weights, RNG.standard_normal(columns, np.float32), (rows, terms)


def model(node: Any, weights: Any, bias: Any, shape: tuple[int, ...], end: str = "Relu") -> onnx.ModelProto:
    """`end` is the operator after the bias."""
    relu = helper.make_node(end, ["y"], ["z"])
    ends = (
        helper.make_tensor_value_info("x", TensorProto.FLOAT, shape),
        helper.make_tensor_value_info("z", TensorProto.FLOAT, None),
    )
    constants = [numpy_helper.from_array(weights, "w"), numpy_helper.from_array(bias, "b")]
    return helper.make_model(helper.make_graph([node, relu], "m", ends[:1], ends[1:], constants))


def test_long_sums_over_windows_are_in_parts() -> None:
    """Sums have more than 512 terms, with a row's terms in registers."""
    weights = RNG.standard_normal((40, 24, 5, 5), np.float32)
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], pads=[2] * 4)
    proto = model(node, weights, RNG.standard_normal(40, np.float32), (1, 24, 12, 15))
    artifact = jangin.build(proto, "cortex-a72", 1, cache=False)
    assert isinstance(artifact, Artifact) and len(artifact.objects) > 1


@pytest.mark.sampled(16)
@pytest.mark.parametrize("make", [convolution] * 3 + [product])
@pytest.mark.parametrize("machine", MACHINES)
def test_random_kernels(machine: str, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node, weights, bias, shape = make()
    proto = model(node, weights, bias, shape, str(RNG.choice(["Relu", "Erf", "Sigmoid"])))
    x = RNG.standard_normal(shape, np.float32)
    compare(machine, proto, {"x": x}, tmp_path, monkeypatch)


@pytest.mark.parametrize("machine", MACHINES)
def test_random_attention(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads, queries, keys = (int(RNG.integers(4, n)) for n in (7, 50, 50))
    width = int(RNG.choice([8, 20, 32]))
    shapes = {n: (1, heads, keys if n in "kv" else queries, width) for n in "qkvz"}
    nodes = [
        helper.make_node("Transpose", ["k"], ["t"], perm=[0, 1, 3, 2]),
        helper.make_node("MatMul", ["q", "t"], ["s"]), helper.make_node("Softmax", ["s"], ["p"]),
        helper.make_node("MatMul", ["p", "v"], ["z"]),
    ]  # fmt: skip
    ends = {n: helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()}
    result = ends.pop("z")
    proto = helper.make_model(helper.make_graph(nodes, "m", [*ends.values()], [result]))
    inputs = {n: RNG.standard_normal(shapes[n], np.float32) for n in "qkv"}
    compare(machine, proto, inputs, tmp_path, monkeypatch)


def compare(
    machine: str, proto: onnx.ModelProto, inputs: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch
) -> None:
    """Compare a model's result on an emulated machine with the reference here."""
    got = run(machine, proto, inputs, folder, patch)
    (want,) = ReferenceEvaluator(proto).run(None, inputs)
    title = " ".join(f"{n.op_type}" for n in proto.graph.node)
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, err_msg=f"{title} {proto.graph.input}")


def run(
    machine: str, proto: onnx.ModelProto, inputs: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch
) -> Any:
    """Return the only result of a model on a machine."""
    artifact = jangin.build(proto, machine.split()[0], 1, cache=False)
    assert isinstance(artifact, Artifact)
    return execute(machine, artifact, inputs, folder, patch)


def execute(
    machine: str, artifact: Artifact, inputs: dict[str, Any], folder: Path, patch: pytest.MonkeyPatch
) -> Any:
    compiler, emulator, cpu = MACHINES[machine]
    if not (shutil.which(compiler) and shutil.which(emulator)):
        pytest.skip(f"needs {compiler} to link with and {emulator} to run with")
    patch.syspath_prepend(str(BENCHMARKS))
    for name in ("arm", "catalogue", "figures", "page", "run"):
        patch.delitem(sys.modules, name, raising=False)
    import arm

    program, image, outputs = (folder / n for n in ("program", "image", "outputs"))
    arm.link(artifact, program)
    places = arm.write_image(artifact.plan, inputs, image)
    subprocess.run([emulator, "-cpu", cpu, program, image, outputs], check=True, timeout=600)
    (got,) = arm.read_outputs(artifact.plan, places, outputs.read_bytes()).values()
    return got


@pytest.mark.parametrize("machine", MACHINES)
def test_casts(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Casts of numbers out of range give the results of x86-64, although Arm's instructions saturate."""
    model, x, want = casts()
    np.testing.assert_array_equal(run(machine, model, {"x": x}, tmp_path, monkeypatch), want)


@pytest.mark.parametrize("rows", [1, 5, 19])
@pytest.mark.parametrize("machine", MACHINES)
def test_half_precision(machine: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights are stored as halves and widened when they are multiplied, or in advance for many rows.

    Products are computed in f32 and not rounded afterwards."""
    terms, columns = (int(n) for n in RNG.integers(129, 200, 2))
    sizes = {"x": (rows, terms), "y": (rows, columns)}
    half, wide = TensorProto.FLOAT16, TensorProto.FLOAT
    w = RNG.standard_normal((terms, columns)).astype(np.float16)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half), helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=wide),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, wide, s) for n, s in sizes.items()]
    weights = [numpy_helper.from_array(w, "w")]
    proto = helper.make_model(helper.make_graph(nodes, "m", ends[:1], ends[1:], weights))
    x = RNG.standard_normal(sizes["x"], np.float32)
    exact = np.maximum(x.astype(np.float16).astype(np.float64) @ w.astype(np.float64), 0)
    got = run(machine, proto, {"x": x}, tmp_path, monkeypatch)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-4)


INTEGERS = ("cortex-a72", "neoverse-n1", "neoverse-v1")
BYTES = {TensorProto.UINT8: np.uint8, TensorProto.INT8: np.int8}


def bytes_of(kind: int, *shape: int) -> Any:
    info = np.iinfo(BYTES[kind])
    numbers = RNG.integers(info.min, info.max, shape, info.dtype, endpoint=True)
    numbers.flat[: numbers.size // 3] = RNG.choice([info.min, info.max])  # sums are as large as possible
    return numbers


@pytest.mark.sampled(16)
@pytest.mark.parametrize("layer", ["conv"] * 3 + ["product"] * 2)
@pytest.mark.parametrize("machine", INTEGERS)
def test_sums_of_integers(machine: str, layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All sums are exact, for random sizes, signs and zero points."""
    kind = int(RNG.choice([*BYTES]))
    if layer == "conv":
        node, weights, _, shape = convolution()
        w = bytes_of(TensorProto.INT8, *weights.shape)
        node = helper.make_node("ConvInteger", ["x", "w", "zero"], ["y"])
        kernel, groups = w.shape[-1], shape[1] // w.shape[1]
        attrs = {"strides": [int(RNG.choice((1, 2)))] * 2, "pads": [kernel // 2] * 4, "group": groups}
        node.attribute.extend(helper.make_attribute(n, v) for n, v in attrs.items())
    else:
        rows, terms, columns = (int(RNG.integers(1, n)) for n in (40, 150, 90))
        shape, w = (rows, terms), bytes_of(TensorProto.INT8, terms, columns)
        node = helper.make_node("MatMulInteger", ["x", "w", "zero"], ["y"])
    x, zero = bytes_of(kind, *shape), bytes_of(kind, 1)[0]
    ends = [
        helper.make_tensor_value_info("x", kind, shape),
        helper.make_tensor_value_info("y", TensorProto.INT32, None),
    ]
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.asarray(zero), "zero")]
    proto = helper.make_model(helper.make_graph([node], "m", ends[:1], ends[1:], constants))
    got = run(machine, proto, {"x": x}, tmp_path, monkeypatch)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": x})
    np.testing.assert_array_equal(got, want, err_msg=f"{node} {shape} {w.shape} {kind} {zero}")


@pytest.mark.parametrize("rows", [1, 5, 19])
def test_pairs_of_bfloat16(rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Products of bfloat16 are by BFDOT, or by BFMMLA for several rows. Inputs and outputs are f32, and sums
    are exact except for f32's rounding."""
    terms, columns = (int(n) for n in RNG.integers(129, 200, 2))
    small, wide = TensorProto.BFLOAT16, TensorProto.FLOAT
    w = RNG.standard_normal((terms, columns)).astype(ml_dtypes.bfloat16)
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=small), helper.make_node("MatMul", ["h", "w"], ["p"]),
        helper.make_node("Relu", ["p"], ["r"]), helper.make_node("Cast", ["r"], ["y"], to=wide),
    ]  # fmt: skip
    sizes = {"x": (rows, terms), "y": (rows, columns)}
    ends = [helper.make_tensor_value_info(n, wide, s) for n, s in sizes.items()]
    weights = [helper.make_tensor("w", small, w.shape, w.tobytes(), raw=True)]
    proto = helper.make_model(helper.make_graph(nodes, "m", ends[:1], ends[1:], weights))
    x = RNG.standard_normal(sizes["x"], np.float32)
    exact = np.maximum(x.astype(ml_dtypes.bfloat16).astype(np.float64) @ w.astype(np.float64), 0)
    artifact = jangin.build(proto, "neoverse-v1", 1, cache=False)
    assert isinstance(artifact, Artifact)
    words = np.int32 if rows == 1 else np.int64
    assert {a.dtype for a in artifact.plan.constants.values()} == {np.dtype(words)}, "pairs, or fours"
    got = execute("neoverse-v1", artifact, {"x": x}, tmp_path, monkeypatch)
    np.testing.assert_allclose(got, exact, rtol=1e-5, atol=1e-4)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("layer", ["a point", "a window", "a stride", "groups", "a product", "a row"])
def test_products_of_f16_are_fused(layer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """FMLAL multiplies numbers of all sizes exactly, including subnormal ones, and adds them in f32. Only the
    result is rounded to f16."""
    random, b = np.random.default_rng(seed := int(RNG.integers(1 << 30))), Builder("net", {})
    channels, outputs, size = (int(n) for n in random.integers((9, 3, 5), (70, 60, 15)))

    def numbers(*shape: int) -> Array:
        spread = np.exp2(random.integers(-16, 2, shape))
        return (random.standard_normal(shape) * spread).astype(np.float16)

    if layer in ("a product", "a row"):
        x = b.input("x", F16, (const(1 if layer == "a row" else size), const(channels)))
        weights = numbers(channels, outputs)
        y = b.matmul(x, b.const(weights))
    else:
        kernel, step, groups = {"a point": (1, 1, 1), "a stride": (3, 2, 1), "groups": (3, 1, 2)}.get(
            layer, (3, 1, 1)
        )
        x = b.input("x", F16, tuple(map(const, (1, channels * groups, size, size + 3))))
        weights = numbers(outputs * groups, channels, kernel, kernel)
        pads, ones = (kernel // 2,) * 4, (1, 1)
        y = b.conv(x, b.const(weights), strides=(step,) * 2, dilations=ones, pads=pads, groups=groups)
    graph = b.graph([y], ["out"])
    given = numbers(*(int(str(d)) for d in graph.shape("x")))
    options = Options(resolve("neoverse-v1"), winograd=False, verify=True)
    fused = optimize(graph, options)
    scheduled = schedule_kernels(fused, options)
    assert any("dot1h(" in str(kernel.func) for kernel, _ in scheduled.values())
    artifact = build(make_plan(fused, scheduled, options), options.target)
    got = execute("neoverse-v1", artifact, {"x": given}, tmp_path, monkeypatch)
    b = Builder("wide", {})
    (node,) = (n for n in graph.nodes if isinstance(n.attrs, (Conv, MatMul)))
    wide = b.input("x", F32, graph.shape("x")), b.input("w", F32, tuple(map(const, weights.shape)))
    exact = b.graph([b.node(node.attrs, wide)], ["out"])
    arrays = {"x": given.astype(np.float32), "w": weights.astype(np.float32)}
    want = run_graph(exact, arrays)["out"].astype(np.float64)
    size = run_graph(exact, {n: np.abs(a) for n, a in arrays.items()})["out"]
    near = np.spacing(np.abs(want).astype(np.float16)).astype(np.float64) / 2
    wrong = np.abs(got.astype(np.float64) - want) > near + 2.0**-20 * size
    assert not wrong.any(), (seed, got[wrong], want[wrong])


@pytest.mark.sampled(8)
@pytest.mark.parametrize("machine", MACHINES)
def test_conversions_of_halves(machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All halves are converted to f32. One step to either side is rounded back to the nearest half."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    halves = halves[np.isfinite(halves)]
    beside = [np.nextafter(halves.astype(np.float32), np.float32(to)) for to in (-np.inf, np.inf)]
    with np.errstate(over="ignore"):
        half_steps = np.spacing(halves).astype(np.float64) / 2
    between = (halves.astype(np.float64) + half_steps).astype(np.float32)
    x = np.concatenate([halves.astype(np.float32), *beside, between])
    x = x[(np.abs(x) >= np.finfo(np.float32).tiny) | (x == 0)]
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=TensorProto.FLOAT16),
        helper.make_node("Neg", ["h"], ["n"]), helper.make_node("Cast", ["n"], ["y"], to=TensorProto.FLOAT),
    ]  # fmt: skip
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, x.shape) for n in "xy"]
    proto = helper.make_model(helper.make_graph(nodes, "m", ends[:1], ends[1:]))
    got = run(machine, proto, {"x": x}, tmp_path, monkeypatch)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got, -x.astype(np.float16).astype(np.float32))
