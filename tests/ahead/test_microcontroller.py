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
from jangin.ir.graph import Array

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "microcontroller" / "run.py"
MISSING = [p for p in ("arm-none-eabi-gcc", "qemu-system-arm") if shutil.which(p) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed here: {', '.join(MISSING)}")


def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("microcontroller", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7"])
def test_a_keyword_spotter(target: str, tmp_path: Path) -> None:
    """The linked flash and RAM equal the printed ones, and the answer equals this machine's."""
    e = example()
    model = e.keyword_spotter()
    made = jangin.emit(model, "c", target, name="model")
    firmware = e.build(made, tmp_path)
    assert (firmware.weights, firmware.code, firmware.ram) == (made.weights, made.code, made.ram)
    assert firmware.code < 16 << 10  # nothing is unrolled beyond reason
    x = np.random.default_rng().standard_normal((1, 1, 49, 10)).astype(np.float32)
    there = e.run(firmware, e.BOARDS[target], x)
    np.testing.assert_allclose(there, jangin.compile(model)(x).reshape(-1), rtol=1e-5)  # sums in other orders


def of_bytes() -> onnx.ModelProto:
    """Two convolutions of bytes with odd numbers of channels. Scales are powers of two, so that no result is
    rounded.

    Some weights are -128, and some inputs 255."""
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
    for n, (outputs, channels, kernel) in enumerate(((10, 7, 3), (5, 10, 1))):
        w = random.integers(-128, 128, (outputs, channels, kernel, kernel), np.int8)
        w.reshape(-1)[:2] = -128
        scale, zero = known(f"s{n}", np.float32(2.0**-9)), known(f"z{n}", np.int8(0))
        real = node("DequantizeLinear", known(f"w{n}", w), scale, zero)
        x = in_bytes(node("Conv", x, real, kernel_shape=[kernel] * 2), 2.0**-3, 77)
    ends = (("x", [1, 7, 9, 8]), (x, [1, 5, 7, 6]))
    given, made = (helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in ends)
    graph = helper.make_graph(nodes, "of_bytes", [given], [made], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m7"])
def test_products_of_bytes_are_by_smlad(target: str, tmp_path: Path) -> None:
    """The board's results equal this machine's results to the last bit."""
    e, model = example(), of_bytes()
    made = jangin.emit(model, "c", target, name="model")
    firmware = e.build(made, tmp_path)
    listed = subprocess.run(
        ["arm-none-eabi-objdump", "-d", "model.o"], cwd=tmp_path, capture_output=True, text=True
    )
    assert len(re.findall(r"\bsmlad\b", listed.stdout)) >= 16, "tiles of both layers"
    x = np.random.default_rng().uniform(-8, 12, (1, 7, 9, 8)).astype(np.float32)
    there = e.run(firmware, e.BOARDS[target], x)
    np.testing.assert_array_equal(there, jangin.compile(model)(x).reshape(-1))
