"""WebGPU as a device: names, bindings, limits, errors and saved models."""

from __future__ import annotations

import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from on_adapter import NONE, usable
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.backends.wgsl.module import shader
from jangin.ir.graph import CompileError
from jangin.ir.parse import parse_func
from jangin.runtime.device import LoadError
from jangin.runtime.devices import webgpu, webgpu_adapters
from jangin.runtime.devices.driver import DriverError
from jangin.runtime.devices.wgsl import AXIS, Shader, extent
from jangin.targets import resolve
from jangin.targets.webgpu import WEBGPU
from jangin.tune.store import place_of

ADAPTERS = usable()
needed = pytest.mark.skipif(not ADAPTERS, reason=NONE)


def floats(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def model(nodes: list[Any], shapes: dict[str, tuple[Any, ...]], outputs: list[str], **weights: Any) -> Any:
    """Return a float32 model."""
    given = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in shapes.items()]
    made = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    constants = [numpy_helper.from_array(w, n) for n, w in weights.items()]
    graph = helper.make_graph(nodes, "g", given, made, constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)


def perceptron() -> onnx.ModelProto:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["h"]),
        helper.make_node("Relu", ["h"], ["r"]),
        helper.make_node("MatMul", ["r", "v"], ["s"]),
        helper.make_node("Softmax", ["s"], ["y"]),
    ]
    return model(nodes, {"x": ("N", 20)}, ["y"], w=floats(20, 33), v=floats(33, 10))


@needed
def test_sizes_of_a_run_and_a_saved_model(tmp_path: Path) -> None:
    """One artifact serves all sizes, loads from a file, and gives native code's results."""
    file = tmp_path / "m.jgn"
    jangin.build(perceptron(), "webgpu", cache=False).save(file)
    exe, native = jangin.load(file), jangin.compile(perceptron(), cache=False)
    for rows in (3, 70, 1, 0):
        x = floats(rows, 20)
        np.testing.assert_allclose(exe(x), native(x), rtol=1e-5, atol=1e-6)


def test_code_is_made_without_an_adapter_and_is_the_same_each_time() -> None:
    plans = [jangin.build(perceptron(), "webgpu", cache=False) for _ in range(2)]
    one, other = (sorted(bytes(o) for o in a.objects) for a in plans)
    assert one == other and all(b"let " in code for code in one)


@needed
def test_names_of_adapters() -> None:
    assert resolve("webgpu") is WEBGPU
    first = ADAPTERS[0]
    for name in ("webgpu:0", f"webgpu:{first.name.split()[0].lower()}"):
        found = resolve(name)
        assert found.name == "webgpu:0" and found.cpu == first.identity
    with pytest.raises(LoadError, match=f"no WebGPU adapter is '99'; here are webgpu:0 .{first.interface}"):
        resolve("webgpu:99")
    assert "isn't here" in webgpu.DEVICE.why_not("webgpu/another/")
    assert webgpu.of("0").why_not("webgpu/another/") == ""


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says which package to install."""
    monkeypatch.setitem(sys.modules, "wgpu", None)
    webgpu_adapters._adapters.cache_clear()
    with pytest.raises(LoadError, match=r"pip install 'jangin\[webgpu\]'"):
        webgpu_adapters.adapters()
    webgpu_adapters._adapters.cache_clear()


@needed
def test_tuned_kernels_are_kept_by_adapter_and_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    places = [place_of(WEBGPU, 1, "never", "latency")]
    for change in ({"driver": "Mesa 99"}, {"name": "another"}):
        other = replace(ADAPTERS[0], **change)
        monkeypatch.setattr(webgpu_adapters, "_adapters", lambda other=other: (other,))
        places.append(place_of(WEBGPU, 1, "never", "latency"))
    monkeypatch.setattr(webgpu_adapters, "_adapters", lambda: ())
    places.append(place_of(WEBGPU, 1, "never", "latency"))
    assert len({*places}) == 4 and ADAPTERS[0].driver in places[0]


@needed
def test_devices_lists_adapters(capsys: pytest.CaptureFixture[str]) -> None:
    from jangin.commands.devices import _webgpu

    table = _webgpu()
    assert not isinstance(table, str) and next(iter(table.columns[0].cells)) == "webgpu:0"


def test_float64_is_refused_by_node() -> None:
    x = helper.make_tensor_value_info("x", TensorProto.DOUBLE, [3])
    y = helper.make_tensor_value_info("y", TensorProto.DOUBLE, None)
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"], "precise")], "g", [x], [y])
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    with pytest.raises(CompileError, match=r"webgpu has no numbers of 64 bits.*precise"):
        jangin.build(made, "webgpu", cache=False)


# --- bindings

COPY = "func k(x: f32[64], y: out f32[64]) { serial i in 64 { y[i] = x[i] + f32(1.0) } }"


def launched(parts: Any, func: Any = None, stride: int = 0) -> Any:
    """Launch a kernel that copies, on buffers that `parts` makes with a driver."""
    driver = webgpu.WebGPUDriver(ADAPTERS[0])
    kernel = driver.load(shader(func or parse_func(COPY), WEBGPU), str(WEBGPU))
    memory = parts(driver)
    kernel.set_size(1, 1)
    for n, value in enumerate([*memory, 1, 0, 1, driver.buffer(4), stride]):
        kernel.set_arg(n, value)
    return driver, kernel, memory


@needed
@pytest.mark.parametrize("places", [(0, 256), (0, 0), (256, 0)])
def test_parts_of_one_buffer(places: tuple[int, int]) -> None:
    """Overlapping parts share a binding, and other parts of one buffer don't. Both give right results."""
    x = floats(128)

    def parts(driver: Any) -> list[Any]:
        whole = driver.buffer(512, x)
        return [whole.part(at, 256) for at in places]

    driver, kernel, memory = launched(parts)
    queue, got = driver.queue(), np.empty(64, np.float32)
    kernel.enqueue(queue)
    queue.read(got, memory[1])
    queue.finish()
    first = places[0] // 4
    np.testing.assert_array_equal(got, x[first : first + 64] + np.float32(1))


@needed
def test_more_buffers_than_a_shader_may_have() -> None:
    """Buffers within one memory become one binding. Too many separate buffers are refused by a clear
    error."""
    count = 40
    given = ", ".join(f"x{n}: f32[64]" for n in range(count))
    total = " + ".join(f"x{n}[i]" for n in range(count))
    func = parse_func(f"func k({given}, y: out f32[64]) {{ serial i in 64 {{ y[i] = {total} }} }}")
    x = floats(64 * (count + 1))

    def together(driver: Any) -> list[Any]:
        whole = driver.buffer(x.nbytes, x)
        return [whole.part(256 * n, 256) for n in range(count + 1)]

    driver, kernel, memory = launched(together, func)
    queue, got = driver.queue(), np.empty(64, np.float32)
    kernel.enqueue(queue)
    queue.read(got, memory[-1])
    queue.finish()
    want = x.reshape(-1, 64)[:count].astype(np.float64).sum(0)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    driver, kernel, memory = launched(lambda d: [d.buffer(256) for _ in range(count + 1)], func)
    with pytest.raises(DriverError, match=r"needs 41 bindings, each of at most \d+ bytes, and the device"):
        kernel.enqueue(driver.queue())


@pytest.mark.parametrize("groups", [0, 1, AXIS, AXIS + 1, 1 << 30])
def test_groups_along_two_axes(groups: int) -> None:
    across, down = extent(groups)
    assert 1 <= across <= AXIS and down <= AXIS and across * down >= groups


@needed
def test_more_groups_than_an_axis_has() -> None:
    func = parse_func("func k(y: out i32[N]) symbols (N in 1..) { block t in N { y[t] = i32(t) } }")
    driver, count = webgpu.WebGPUDriver(ADAPTERS[0]), AXIS + 7
    kernel, memory = driver.load(shader(func, WEBGPU), str(WEBGPU)), driver.buffer(4 * count)
    queue, got = driver.queue(), np.empty(count, np.int32)
    kernel.set_size(count, 1)
    for n, value in enumerate([memory, count, count, 0, 1, driver.buffer(4), 0]):
        kernel.set_arg(n, value)
    kernel.enqueue(queue)
    queue.read(got, memory)
    queue.finish()
    np.testing.assert_array_equal(got, np.arange(count))


# --- errors


@needed
def test_a_size_beyond_32_bits_is_refused_before_a_run() -> None:
    _, kernel, _ = launched(lambda d: [d.buffer(256), d.buffer(256)])
    with pytest.raises(
        DriverError, match="a size of 4294967296 is more than the 2147483647 that WGSL counts"
    ):
        kernel.set_arg(2, 1 << 32)


@needed
def test_a_buffer_of_several_bindings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Words, and parts of words, lie in whichever binding has them."""
    func = parse_func(
        "func k(x: f32[1000], y: out f32[1000], z: out u8[1000]) {"
        " serial i in 1000 { y[999 - i] = x[i] * f32(2.0) z[999 - i] = u8(i % 251) } }"
    )
    monkeypatch.setattr(webgpu.opened(ADAPTERS[0]), "most_bytes", 600)
    x = floats(1000)
    driver, kernel, memory = launched(lambda d: [d.buffer(4000, x), d.buffer(4000), d.buffer(1000)], func)
    if driver.opened.most_buffers < 18:
        pytest.skip("the adapter gives a shader too few buffers")
    queue, y, z = driver.queue(), np.empty(1000, np.float32), np.empty(1000, np.uint8)
    kernel.enqueue(queue)
    queue.read(y, memory[1])
    queue.read(z, memory[2])
    queue.finish()
    np.testing.assert_array_equal(y, 2 * x[::-1])
    np.testing.assert_array_equal(z, (np.arange(1000) % 251).astype(np.uint8)[::-1])


@needed
def test_a_binding_too_large_names_the_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    node = helper.make_node("Relu", ["x"], ["y"], "large")
    exe = jangin.compile(model([node], {"x": ("N",)}, ["y"]), "webgpu", cache=False)
    monkeypatch.setattr(webgpu.opened(ADAPTERS[0]), "most_bytes", 256)
    with pytest.raises(RuntimeError, match=r"run the kernel .*large.*bindings, each of at most 256"):
        exe(np.zeros(10000, np.float32))


@needed
def test_a_refused_shader_names_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.jgn"
    jangin.build(perceptron(), "webgpu", cache=False).save(file)
    text = Shader.text
    monkeypatch.setattr(Shader, "text", lambda self, *a: text(self, *a).replace("fma(", "nothing("))
    with pytest.raises(
        LoadError, match=r"the kernel .* which computes .*MatMul.* refuses the shader: .*nothing"
    ):
        jangin.load(file)


@needed
def test_a_lost_device_is_said_and_the_next_load_works(tmp_path: Path) -> None:
    x, file = floats(4, 20), tmp_path / "m.jgn"
    jangin.build(perceptron(), "webgpu", cache=False).save(file)
    exe = jangin.load(file)
    want = exe(x)
    webgpu.opened(ADAPTERS[0]).device.destroy()
    with pytest.raises(RuntimeError, match=r"the device is lost: load the model again"):
        exe(x)
    np.testing.assert_array_equal(jangin.load(file)(x), want)


@needed
@pytest.mark.timeout(60)
def test_a_device_destroyed_while_a_run_waits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu's thread, which tells the end of the wait, ends with the device. The run ends nevertheless."""
    file = tmp_path / "m.jgn"
    jangin.build(perceptron(), "webgpu", cache=False).save(file)
    exe, device = jangin.load(file), webgpu.opened(ADAPTERS[0]).device
    poller = device._poller
    begin = type(device.create_buffer(size=4, usage=9)).map_async

    def destroyed(*args: Any, **given: Any) -> Any:
        poller._poll_func = lambda block: None  # it doesn't meet the end
        promise = begin(*args, **given)
        device.destroy()
        return promise

    monkeypatch.setattr(type(device.create_buffer(size=4, usage=9)), "map_async", destroyed)
    with pytest.raises(RuntimeError, match="the device is lost"):
        exe(floats(4, 20))


@needed
def test_a_device_destroyed_in_the_middle_of_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each run gives the right numbers or the error, and the next load works, also without a failed run.

    The device isn't destroyed between the end of commands and their submission: wgpu-native ends the process
    then (`handle_error_fatal` in wgpuQueueSubmit)."""
    from jangin.runtime.devices.webgpu_objects import Queue  # it needs wgpu

    x, file, submitting, submit = floats(64, 20), tmp_path / "m.jgn", threading.Lock(), Queue._submit

    def submitted(queue: Queue) -> None:
        with submitting:
            submit(queue)

    def destroy(device: Any) -> None:
        with submitting:
            device.destroy()

    monkeypatch.setattr(Queue, "_submit", submitted)
    jangin.build(perceptron(), "webgpu", cache=False).save(file)
    want = jangin.load(file)(x)
    for wait in (0.0, 0.002, 0.01):
        exe = jangin.load(file)
        threading.Timer(wait, destroy, [webgpu.opened(ADAPTERS[0]).device]).start()
        with pytest.raises(RuntimeError, match="the device is lost: load the model again"):
            for _ in range(1000):
                np.testing.assert_array_equal(exe(x), want)
        np.testing.assert_array_equal(jangin.load(file)(x), want)
    webgpu.opened(ADAPTERS[0]).device.destroy()
    np.testing.assert_array_equal(jangin.load(file)(x), want)


@needed
def test_no_adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "m.jgn"
    jangin.build(perceptron(), "webgpu", cache=False).save(file)
    monkeypatch.setattr(webgpu_adapters, "_adapters", lambda: ())
    with pytest.raises(LoadError, match=r"no WebGPU adapter here.*install the driver of your GPU"):
        jangin.load(file)
    with pytest.raises(LoadError, match="no WebGPU adapter here"):
        resolve("webgpu:0")


@needed
def test_too_large_for_the_adapter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A buffer beyond the adapter's limit is refused before work, by name. The next run goes on."""
    node = helper.make_node("Relu", ["x"], ["y"], "large")
    exe = jangin.compile(model([node], {"x": ("N",)}, ["y"]), "webgpu", cache=False)
    limits = tuple((n, 4096 if n == webgpu.BUFFER else v) for n, v in ADAPTERS[0].limits)
    small = replace(ADAPTERS[0], limits=limits)
    monkeypatch.setattr(webgpu_adapters, "_adapters", lambda: (small,))
    exe = jangin.compile(model([node], {"x": ("N",)}, ["y"]), "webgpu", cache=False)
    with pytest.raises(MemoryError, match=r"takes 8000 bytes, but a buffer of .* may have 4096"):
        exe(np.ones(2000, np.float32))
    np.testing.assert_array_equal(exe(-np.ones(7, np.float32)), np.zeros(7, np.float32))


@needed
def test_two_models_on_one_device() -> None:
    one = jangin.compile(perceptron(), "webgpu", cache=False)
    node = helper.make_node("Relu", ["x"], ["y"])
    other = jangin.compile(model([node], {"x": (5, 7)}, ["y"]), "webgpu", cache=False)
    x, z = floats(6, 20), floats(5, 7)
    want = one(x)
    for _ in range(3):
        np.testing.assert_array_equal(other(z), np.maximum(z, 0))
        np.testing.assert_array_equal(one(x), want)


CANCELLED = (
    "z = Sub(x, x)", "a = Neg(x) z = Add(a, x)", "a = Neg(x) z = Add(x, a)", "a = Mul(x, m) z = Add(a, x)",
    "a = Add(x, y) b = Neg(a) z = Add(b, a)", "r = Relu(x) z = Sub(r, r)", "a = Mul(x, y) z = Sub(a, a)",
    "z = Mul(x, o)", "z = Mul(o, x)", "z = Div(o, x)", "a = Mul(x, o) z = Add(a, y)",
    "a = Mul(x, o) z = Sub(y, a)",
)  # fmt: skip
"""Models whose results compilers may take for 0, with the constants 0 (o) and -1 (m)."""


@needed
@pytest.mark.parametrize("dtype", ["float", "float16"])
@pytest.mark.parametrize("text", CANCELLED)
def test_infinities_and_nan_do_not_cancel(text: str, dtype: str) -> None:
    kind = np.dtype("f2" if dtype == "float16" else "f4")
    values = np.array([1, -2.5, np.inf, np.nan, -np.inf, 0], kind)
    x, y = (np.resize(a.ravel(), 40) for a in np.meshgrid(values, values))
    made = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 18]> g ({dtype}[40] x, {dtype}[40] y) => ({dtype}[40] z) '
        f"{{{text}}}"
    )
    for name, value in (("o", 0), ("m", -1)):
        made.graph.initializer.append(numpy_helper.from_array(np.array([value], kind), name))
    got, want = (jangin.compile(made, target).run({"x": x, "y": y})["z"] for target in ("webgpu", "cpu"))
    np.testing.assert_array_equal(got, want)


@needed
def test_damaged_code() -> None:
    with pytest.raises(LoadError, match="a kernel's code is damaged"):
        Shader.of(b"{")


@needed
def test_times_of_kernels_are_the_devices() -> None:
    """A kernel takes no longer by the device's clock than by the host's, which waits for it. Its iterations
    need one another's results, so each takes more than a cycle of 10 GHz."""
    func = parse_func(
        "func k(y: out f32[1]) symbols (N in 1..) { y[0] = f32(1.0)"
        " serial i in N { y[0] = y[0] * f32(0.5) + f32(0.5) } }"
    )
    driver = webgpu.WebGPUDriver(ADAPTERS[0])
    kernel, memory = driver.load(shader(func, WEBGPU), str(WEBGPU)), driver.buffer(4)
    kernel.set_size(1, 1)
    queue, count = driver.queue(timed=True), 60_000
    for n, value in enumerate([memory, count, 1, 0, 1, driver.buffer(4), 0]):
        kernel.set_arg(n, value)
    began = time.perf_counter()
    taken = kernel.seconds(queue)
    assert count * 1e-10 < taken <= time.perf_counter() - began
