"""Models compiled ahead of time for other processors give the same results, as an emulator shows."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from built import COMPILERS, STRICT, blocks_network, here, integer_network, small_network
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.ahead.emit import Emitted, emit
from jangin.ahead.source import compiler_flags
from jangin.frontends.onnx.format import OnnxFormat
from jangin.ir.dtype import BF16
from jangin.targets import resolve

pytestmark = pytest.mark.skipif(not COMPILERS, reason="no C compiler here: neither gcc nor clang")
KINDS = ("object", "c")
GNU = {"aarch64": "aarch64-linux-gnu", "riscv64": "riscv64-linux-gnu", "armv7": "arm-linux-gnueabihf"}


@pytest.mark.sampled(3)
def test_other_machines(tmp_path: Path) -> None:
    """Code for every target is made on any machine."""
    for name in ("aarch64", "riscv64"):
        made = emit(small_network(), "object", name, name="net")
        (content,) = made.files["net.o"]
        assert bytes(content[18:20]) == resolve(name).abi.elf_machine.to_bytes(2, "little")
        assert made.code and made.code > 1000


@pytest.mark.sampled(4)
@pytest.mark.parametrize("machine", GNU)
def test_other_machines_give_the_same_bits(machine: str, tmp_path: Path) -> None:
    """The code comes from an object and from C. A cross compiler builds it, and an emulator runs it."""
    emulated = "arm" if machine == "armv7" else machine
    compiler, emulator = shutil.which(f"{GNU[machine]}-gcc"), shutil.which(f"qemu-{emulated}-static")
    if compiler is None or emulator is None:
        pytest.skip(f"needs gcc-{GNU[machine]} and qemu-user-static")
    x = np.random.default_rng(2).standard_normal((1, 3, 19, 23)).astype(np.float32)
    results = []
    for kind in KINDS:
        folder = tmp_path / kind
        made = emit(small_network(), kind, machine, name="net")
        made.save(folder)
        x.tofile(folder / "x.raw")
        flags = compiler_flags(made.model.target)
        sources = sorted(f for f in made.files if f.endswith((".c", ".o")))
        command = [compiler, *STRICT, *flags, "-static", *sources, "-o", "example", "-lm", "-lpthread"]
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        run = [emulator, "./example", "x.raw", "y.raw"]
        done = subprocess.run(run, cwd=folder, capture_output=True, text=True, env={"THREADS": "2"})
        assert done.returncode == 0, done.stderr
        results.append(np.fromfile(folder / "y.raw", np.uint8))
    assert np.array_equal(*results)
    if "x86-64-v3" in here():
        want = jangin.compile(small_network(), "x86-64-v3", cache=False, threads=1)(x)
        got = results[0].view(np.float32).reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)  # sums may be in another order


def emulated(made: Emitted, x: np.ndarray, machine: str, folder: Path) -> np.ndarray:
    """Return the bytes of the result for x, by a program of these files on an Arm processor."""
    system = made.model.target.triple.partition("-")[0]
    emulated = "arm" if system == "armv7" else system
    compiler, emulator = shutil.which(f"{GNU[system]}-gcc"), shutil.which(f"qemu-{emulated}-static")
    if compiler is None or emulator is None:
        pytest.skip(f"needs gcc-{GNU[system]} and qemu-user-static")
    made.save(folder)
    x.tofile(folder / "x.raw")
    sources = sorted(f for f in made.files if f.endswith((".c", ".o")))
    command = [compiler, *STRICT, *compiler_flags(made.model.target), "-static", *sources]
    command += ["-o", "example", "-lm", "-lpthread"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    run = [emulator, "-cpu", machine, "./example", "x.raw", "y.raw"]
    assert subprocess.run(run, cwd=folder).returncode == 0
    return np.fromfile(folder / "y.raw", np.uint8)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["object", "c"])
@pytest.mark.parametrize(
    ("target", "machine", "function"),
    [("neoverse-n1", "cortex-a76", b"vdotq_s32("), ("neoverse-v1", "max", b"vusdotq_s32(")],
)
def test_dot_products_of_arm(target: str, machine: str, function: bytes, kind: str, tmp_path: Path) -> None:
    """Products of int8 with four terms an instruction are exact on an emulated processor with the
    instruction."""
    x = np.random.default_rng(2).integers(0, 256, (1, 5, 9, 11)).astype(np.uint8)
    made = emit(integer_network(), kind, target, name="net")
    if kind == "c":
        assert function in bytes(made.files["net.c"][0])
    result = emulated(made, x, machine, tmp_path)
    want = jangin.compile(integer_network(), cache=False, threads=1)(x)
    np.testing.assert_array_equal(result.view(np.int32).reshape(want.shape), want)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("channels", [5, 16, 33])
@pytest.mark.parametrize(("target", "kind"), [("armv7", "object"), ("armv7", "c"), ("cortex-a72", "object")])
def test_weights_stay_bytes_on_arm(target: str, kind: str, channels: int, tmp_path: Path) -> None:
    """Weights take a byte each. Products of -128 and -127 are the largest sums of two that fit int16."""
    random = np.random.default_rng()
    w = random.integers(-127, 128, (19, channels, 3, 3)).astype(np.int8)
    w[0], w[1] = -127, 127
    node = helper.make_node("ConvInteger", ["x", "w"], ["y"], kernel_shape=[3, 3], pads=[1] * 4)
    ends = [
        helper.make_tensor_value_info("x", TensorProto.INT8, [1, channels, 9, 11]),
        helper.make_tensor_value_info("y", TensorProto.INT32, [1, 19, 9, 11]),
    ]
    graph = helper.make_graph([node], "net", ends[:1], ends[1:], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    made = emit(model, kind, target, name="net")
    assert channels == 5 or made.weights <= 24 * (channels + 1) * 9 + 64
    x = random.integers(-128, 128, (1, channels, 9, 11)).astype(np.int8)
    x[:, :, :4] = -128
    result = emulated(made, x, "cortex-a7" if target == "armv7" else target, tmp_path)
    want = jangin.compile(model, cache=False, threads=1)(x)
    np.testing.assert_array_equal(result.view(np.int32).reshape(want.shape), want)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["object", "c"])
@pytest.mark.parametrize(("target", "machine"), [("aarch64", "cortex-a53"), ("neoverse-n1", "cortex-a76")])
def test_rounded_activations_on_arm(target: str, machine: str, kind: str, tmp_path: Path) -> None:
    """Blockwise weights of 4 and 8 bits are multiplied by activations of int8, with and without the
    instruction."""
    model, formats = blocks_network(), [OnnxFormat("int8")]
    x = np.random.default_rng(2).standard_normal((5, 70)).astype(np.float32)
    made = emit(model, kind, target, name="net", formats=formats)
    result = emulated(made, x, machine, tmp_path)
    want = jangin.compile(model, cache=False, threads=1, formats=formats)(x)
    got = result.view(np.float32).reshape(want.shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * np.abs(want).max())


@pytest.mark.parametrize("kind", ["object", "c"])
def test_programs_use_no_matrix_registers(kind: str) -> None:
    """A process must first request matrix registers from its system, so ahead-of-time code doesn't use
    them."""
    weights = numpy_helper.from_array(np.ones((64, 96), np.float32).astype(BF16.numpy).view(np.uint16), "w")
    weights.data_type = TensorProto.BFLOAT16
    ends = [
        helper.make_tensor_value_info(n, TensorProto.BFLOAT16, s)
        for n, s in (("x", (32, 64)), ("y", (32, 96)))
    ]
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"])]
    model = helper.make_model(helper.make_graph(nodes, "m", ends[:1], ends[1:], [weights]))
    launches = [n for p in emit(model, kind, "x86-64-v4-amx").model.parts for n in p.plan.launches]
    loaded = jangin.build(model, "x86-64-v4-amx", cache=False).plan.launches
    assert [any("matrix_rows" in n.template for n in made) for made in (launches, loaded)] == [False, True]
