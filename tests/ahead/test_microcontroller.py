"""The example for microcontrollers: a network's C, built for Cortex-M, run on emulated boards."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ahead import patches
from jangin.ahead.estimates import LAUNCH, code_bytes, layers
from jangin.ahead.model import Model
from jangin.ir.graph import Array
from jangin.ir.products import DOT4
from jangin.targets import resolve

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "microcontroller" / "run.py"
TARGETS = ("cortex-m0plus", "cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "riscv32imc", "riscv32gc")


def needs_tools(target: str) -> None:
    """Skip a test whose compiler or emulator isn't installed."""
    missing = [p for p in example().programs(target) if shutil.which(p) is None]
    if missing:
        pytest.skip(f"not installed here: {', '.join(missing)}")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("microcontroller", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7"])
def test_a_keyword_spotter(target: str, tmp_path: Path) -> None:
    """The linked flash and RAM equal the printed ones, and the answer equals this machine's."""
    needs_tools(target)
    e = example()
    model = e.keyword_spotter()
    made = jangin.emit(model, "c", target, name="model")
    firmware = e.build(made, tmp_path)
    assert (firmware.weights, firmware.code, firmware.ram) == (made.weights, made.code, made.ram)
    assert firmware.code < 16 << 10  # nothing is unrolled beyond reason
    x = np.random.default_rng().standard_normal((1, 1, 49, 10)).astype(np.float32)
    there = e.run(firmware, e.BOARDS[target], x)
    np.testing.assert_allclose(there, jangin.compile(model)(x).reshape(-1), rtol=1e-5)  # sums in other orders


def of_bytes(height: int = 9, width: int = 8) -> onnx.ModelProto:
    """Convolutions of bytes, a padded depthwise one in the middle, with odd numbers of channels. Scales are
    powers of two, so that none rounds. Some weights are -128, some inputs 255."""
    random, weights, nodes = np.random.default_rng(), [], []

    def known(name: str, value: Array) -> str:
        weights.append(numpy_helper.from_array(value, name))
        return name

    def node(op: str, *inputs: str, **attributes: object) -> str:
        nodes.append(helper.make_node(op, inputs, [made := f"v{len(nodes)}"], **attributes))
        return made

    def in_bytes(x: str, scale: float, zero: int) -> str:
        given = [known(f"{x}_scale", np.float32(scale)), known(f"{x}_zero", np.uint8(zero))]
        return node("DequantizeLinear", node("QuantizeLinear", x, *given), *given)

    x = in_bytes("x", 2.0**-4, 101)
    layers = ((10, 7, 3, 1), (10, 10, 3, 10), (5, 10, 1, 1))
    for n, (outputs, channels, kernel, groups) in enumerate(layers):
        w = random.integers(-128, 128, (outputs, channels // groups, kernel, kernel), np.int8)
        w.reshape(-1)[:2] = -128
        scale, zero = known(f"s{n}", np.float32(2.0**-9)), known(f"z{n}", np.int8(0))
        real = node("DequantizeLinear", known(f"w{n}", w), scale, zero)
        pads = [int(groups > 1)] * 4
        x = in_bytes(node("Conv", x, real, kernel_shape=[kernel] * 2, group=groups, pads=pads), 2.0**-3, 77)
    ends = (("x", [1, 7, height, width]), (x, [1, 5, height - 2, width - 2]))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "of_bytes", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS)
def test_bytes_stay_bytes(target: str, tmp_path: Path) -> None:
    """The board's results equal this machine's results to the last bit, and no weight takes two bytes. Cores
    with SMLAD multiply by it."""
    needs_tools(target)
    e, model = example(), of_bytes()
    made = jangin.emit(model, "c", target, name="model")
    firmware = e.build(made, tmp_path)
    weights = 10 * 7 * 9 + 10 * 9 + 5 * 10
    stored = sum(array.nbytes for _, array in made.model.weights.arrays)
    assert stored < 1.5 * weights, "biases and filled words aside, a byte each"
    listed = subprocess.run(
        [f"{e.tools(resolve(target))}objdump", "-d", "model.o"], cwd=tmp_path, capture_output=True, text=True
    )
    products = len(re.findall(r"\bsmlad\b", listed.stdout))
    assert products >= 16 if DOT4 in resolve(target).machine.products else products == 0
    x = np.random.default_rng().uniform(-8, 12, (1, 7, 9, 8)).astype(np.float32)
    there = e.run(firmware, e.BOARDS[target], x)
    np.testing.assert_array_equal(there, jangin.compile(model)(x).reshape(-1))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", TARGETS)
def test_a_model_in_patches_fits(target: str, tmp_path: Path) -> None:
    """With less memory than the layers take at once, the results are the same to the last bit."""
    needs_tools(target)
    e, model = example(), of_bytes(40, 24)
    room = jangin.emit(model, "c", target, name="model", ram=1 << 30).model.ram * 2 // 3
    made = jangin.emit(model, "c", target, name="model", ram=room)
    assert "patches" in made.model.patches and made.model.ram <= room
    firmware = e.build(made, tmp_path)
    x = np.random.default_rng().uniform(-8, 12, (1, 7, 40, 24)).astype(np.float32)
    there = e.run(firmware, e.BOARDS[target], x)
    np.testing.assert_array_equal(there, jangin.compile(model)(x).reshape(-1))


def pooled() -> onnx.ModelProto:
    """A quantized layer whose large result is pooled at once, so that its patches don't overlap."""
    text = """<ir_version: 8, opset_import: ["": 18]>
    g (float[1, 3, 36, 20] x) => (float[1, 12, 6, 5] y) {
        q = QuantizeLinear(x, xs, xz)
        f = DequantizeLinear(q, xs, xz)
        k = DequantizeLinear(w, ws, wz)
        c = Conv(f, k)
        r = QuantizeLinear(c, ys, xz)
        d = DequantizeLinear(r, ys, xz)
        m = MaxPool<kernel_shape = [6, 4], strides = [6, 4]>(d)
        l = Conv(m, v)
        y = Relu(l)
    }"""
    model, random = onnx.parser.parse_model(text), np.random.default_rng()
    arrays = {
        "w": random.integers(-127, 128, (12, 3, 1, 1), np.int8),
        "v": np.eye(12, dtype=np.float32)[..., None, None],
        "ws": np.float32(2**-8),
        "wz": np.int8(0),
        "xs": np.float32(2**-4),
        "xz": np.uint8(128),
        "ys": np.float32(2**-4),
    }
    model.graph.initializer.extend(numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return model


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", [t for t in TARGETS if t != "cortex-m55"])
def test_patches_that_cost_nothing_are_made_unasked(target: str, tmp_path: Path) -> None:
    """They save memory, and the results are the same to the last bit. With enough memory there are none."""
    needs_tools(target)
    e, model = example(), pooled()
    plain = jangin.emit(model, "c", target, name="model", ram=1 << 30)
    made = jangin.emit(model, "c", target, name="model")
    assert "patches" in made.model.patches and not plain.model.patches
    assert made.ram < 0.9 * plain.ram
    x = np.random.default_rng().uniform(-8, 8, (1, 3, 36, 20)).astype(np.float32)
    there = e.run(e.build(made, tmp_path), e.BOARDS[target], x)
    np.testing.assert_array_equal(there, jangin.compile(model)(x).reshape(-1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
def test_a_network_of_any_number_of_rows_has_no_patches(target: str) -> None:
    """Nothing is known of its cycles, and its C takes any size."""
    model = pooled()
    for value in (model.graph.input[0], model.graph.output[0]):
        value.type.tensor_type.shape.dim[0].dim_param = "rows"
    made = jangin.emit(model, "c", target, name="model").model
    assert not made.patches and str(made.inputs[0].shapes[0][0]) == "rows"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS)
def test_patches_unasked_hardly_cost_time(target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the estimates a run takes at most 2 % more cycles. Without patches that are quick enough there are
    none."""
    model, machine = pooled(), resolve(target)

    def cycles(made: Model) -> float:
        return sum(layer.kernel.cycles for layer in layers(made.parts[0].plan, machine))

    plain = jangin.emit(model, "c", target, name="model", ram=1 << 30).model
    made = jangin.emit(model, "c", target, name="model").model
    assert not plain.patches and cycles(made) <= 1.02 * cycles(plain)
    assert bool(made.patches) == (target != "cortex-m55"), "short rows don't fill vectors"
    monkeypatch.setattr(patches, "SLOWER", 0.5)
    none = jangin.emit(model, "c", target, name="model").model
    assert not none.patches and none.ram == plain.ram


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55"])
@pytest.mark.parametrize("sizes", [(1, 7, 5), (7, 10, 1), (2, 4, 2), (23, 130, 17)])
def test_words_of_bytes_of_any_sizes(sizes: tuple[int, int, int], target: str, tmp_path: Path) -> None:
    """Rows, terms and columns that no tile divides. Both operands begin with -128."""
    needs_tools(target)
    (rows, terms, columns), random = sizes, np.random.default_rng()
    x, y = (random.integers(-128, 128, shape, np.int8) for shape in ((rows, terms), (terms, columns)))
    x[0, 0] = y[0, 0] = -128
    types = (("x", TensorProto.INT8, [rows, terms]), ("z", TensorProto.INT32, [rows, columns]))
    given, made = (helper.make_tensor_value_info(*of) for of in types)
    product = helper.make_node("MatMulInteger", ["x", "y"], ["z"])
    graph = helper.make_graph([product], "words", [given], [made], [numpy_helper.from_array(y, "y")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    e = example()
    firmware = e.build(jangin.emit(model, "c", target, name="model"), tmp_path)
    there = e.run(firmware, e.BOARDS[target], x).view(np.int32).reshape(rows, columns)
    np.testing.assert_array_equal(there, x.astype(np.int32) @ y.astype(np.int32))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", ["cortex-m0plus", "cortex-m4", "cortex-m55", "riscv32imc"])
def test_estimates_are_near_what_the_emulator_counts(target: str, tmp_path: Path) -> None:
    """An estimate may err by half: a compiler unrolls, saves registers and shares in ways of its own."""
    needs_tools(target)
    sys.path.append(str(EXAMPLE.parents[2] / "benchmarks" / "small"))
    from counts import counted, instructions, of_model, plugin

    e, model = example(), of_bytes()
    made = jangin.emit(model, "c", target, name="model")
    firmware, board = e.build(made, tmp_path), e.BOARDS[target]
    x = np.random.default_rng().uniform(-8, 12, (1, 7, 9, 8)).astype(np.float32)
    e.run(firmware, board, x, "-plugin", f"{plugin(tmp_path)},out=counts.txt")
    code = instructions(firmware.program, f"{e.tools(resolve(target))}objdump")
    executed = sum(of_model(code, counted(tmp_path / "counts.txt")).values())
    (part,) = made.model.parts
    found = layers(part.plan, made.model.target)
    assert 0.5 < sum(x.kernel.instructions + LAUNCH for x in found) / executed < 1.5
    assert 0.5 < code_bytes(part.plan, found) / firmware.code < 1.5


@pytest.mark.parametrize("message", ["model.c:1: error: unknown type name 'i9'", ""])
def test_a_compiler_that_fails_is_told(message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files are made without the size of the code, and a warning has the compiler's message."""
    compiler = tmp_path / "arm-none-eabi-gcc"
    compiler.write_text(f'#!/bin/sh\necho "In file model.h:" >&2\necho "{message}" >&2\nexit 1\n')
    compiler.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    with pytest.warns(RuntimeWarning, match=f"(?s)arm-none-eabi-gcc doesn't compile .*{message}"):
        made = jangin.emit(of_bytes(), "c", "cortex-m4", name="model")
    assert made.code is None and made.stack is None and {"model.c", "model.h"} <= {*made.files}
