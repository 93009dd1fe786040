"""Models for WebAssembly, run by Node."""

from __future__ import annotations

import json
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import onnx
import pytest
from built import layers, small_network
from casts import casts

import jangin
from jangin.ir.graph import Array

LINKER = find_spec("ziglang") or shutil.which("wasm-ld")
pytestmark = [
    pytest.mark.skipif(not LINKER, reason="nothing links WebAssembly here: neither ziglang nor wasm-ld"),
    pytest.mark.skipif(not shutil.which("node"), reason="no Node here to run WebAssembly"),
]

RUN = """
import { load } from "./model.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const model = await load();
for (const [x, sizes] of JSON.parse(readFileSync("runs.json"))) {
  const made = model.run([new Float32Array(Uint32Array.from(x).buffer)], sizes);
  writeFileSync(1, JSON.stringify(made.map((y) => Array.from(y))) + "\\n");
}
"""


def in_node(
    model: onnx.ModelProto,
    runs: list[tuple[Array, dict[str, int]]],
    folder: Path,
    target: str = "wasm32",
    *options: str,
) -> list[list[Array]]:
    """Return the outputs of several runs of one loaded model. The options are Node's."""
    jangin.emit(model, "shared", target, name="model").save(folder)
    (folder / "runs.json").write_text(
        json.dumps([[x.reshape(-1).view(np.uint32).tolist(), s] for x, s in runs])
    )
    (folder / "run.mjs").write_text(RUN)
    command = ["node", *options, "run.mjs"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[:4000]
    return [[np.array(y, np.float32) for y in json.loads(line)] for line in done.stdout.splitlines()]


def test_a_network(tmp_path: Path) -> None:
    x = np.random.default_rng().standard_normal((1, 3, 19, 23)).astype(np.float32)
    ((y,),) = in_node(small_network(), [(x, {})], tmp_path)
    expected = jangin.compile(small_network(), "x86-64-v2")(x)  # neither target fuses products and sums
    np.testing.assert_allclose(y, expected.reshape(-1), rtol=1e-5, atol=1e-5)


RELAXED = "--experimental-wasm-relaxed-simd"
"""Node 20's option for Relaxed SIMD. Later versions have it without the option, and still take it."""


def test_relaxed_multiply_adds(tmp_path: Path) -> None:
    """Each product and its sum are rounded once or twice, as the engine likes."""
    x = np.random.default_rng().standard_normal((1, 3, 19, 23)).astype(np.float32)
    ((y,),) = in_node(small_network(), [(x, {})], tmp_path, "wasm32-relaxed", RELAXED)
    assert (tmp_path / "model.wasm").read_bytes().count(b"\xfd\x85\x02") > 20, "f32x4.relaxed_madd"
    expected = jangin.compile(small_network(), "x86-64-v2")(x)
    np.testing.assert_allclose(y, expected.reshape(-1), rtol=1e-5, atol=1e-5)


def test_integers_are_exact_with_relaxed_simd(tmp_path: Path) -> None:
    model, x = integers(), np.random.default_rng().standard_normal((1, 5, 13, 11)).astype(np.float32)
    ((y,),) = in_node(model, [(x, {})], tmp_path, "wasm32-relaxed", RELAXED)
    np.testing.assert_array_equal(y, jangin.compile(model, "x86-64-v2")(x).reshape(-1))


def test_an_engine_without_relaxed_simd_is_named(tmp_path: Path) -> None:
    """The module is one that no engine takes."""
    jangin.emit(layers(), "shared", "wasm32-relaxed", name="model").save(tmp_path)
    (tmp_path / "model.wasm").write_bytes(b"\0asm\1\0\0\0\x7f")
    (tmp_path / "run.mjs").write_text('import { load } from "./model.mjs";\nawait load();\n')
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode and "needs Relaxed SIMD" in done.stderr


def test_casts(tmp_path: Path) -> None:
    """Casts to integer types that can't hold the number don't trap, and give the results of x86-64."""
    model, x, want = casts()
    ((y,),) = in_node(model, [(x, {})], tmp_path)
    np.testing.assert_array_equal(y, want)


def integers(
    channels: int = 5,
    outputs: int = 7,
    kernel: int = 3,
    group: int = 1,
    size: tuple[int, int] = (13, 11),
    batch: int | str = 1,
) -> onnx.ModelProto:
    """A quantized convolution (QDQ) of bytes, by default with odd sizes."""
    rng = np.random.default_rng()
    (height, width), pad = size, kernel // 2
    arrays = {
        "w": rng.integers(-127, 128, (outputs, channels // group, kernel, kernel), np.int8),
        "ws": rng.uniform(0.001, 0.004, outputs).astype(np.float32),
        "wz": np.zeros(outputs, np.int8),
        "xs": np.float32(0.02),
        "xz": np.uint8(131),
        "ys": np.float32(0.05),
        "yz": np.uint8(100),
    }
    text = f"""<ir_version: 8, opset_import: ["": 18]>
    g (float[{batch}, {channels}, {height}, {width}] x) => (float[{batch}, {outputs}, {height}, {width}] y) {{
        q = QuantizeLinear(x, xs, xz)
        f = DequantizeLinear(q, xs, xz)
        k = DequantizeLinear<axis = 0>(w, ws, wz)
        c = Conv<pads = {[pad] * 4}, group = {group}>(f, k)
        r = QuantizeLinear(c, ys, yz)
        y = DequantizeLinear(r, ys, yz)
    }}"""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.extend(onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items())
    return model


def test_integers(tmp_path: Path) -> None:
    """One instruction adds products in pairs, and its results are exact."""
    model, x = integers(), np.random.default_rng().standard_normal((1, 5, 13, 11)).astype(np.float32)
    expected = jangin.compile(model, "x86-64-v2")(x)
    ((y,),) = in_node(model, [(x, {})], tmp_path)
    np.testing.assert_array_equal(y, expected.reshape(-1))


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("channels", "outputs", "kernel", "group", "size"),
    [
        pytest.param(32, 16, 3, 1, (34, 30), id="transformed as they load"),
        pytest.param(24, 20, 1, 1, (5, 6), id="pairs"),
        pytest.param(40, 40, 3, 40, (9, 7), id="by channel"),
        pytest.param(1, 16, 5, 1, (12, 9), id="one channel"),
    ],
)
def test_weights_stay_bytes(
    channels: int, outputs: int, kernel: int, group: int, size: tuple[int, int], tmp_path: Path
) -> None:
    """The weights take a byte each, however products read them, and the results stay exact."""
    model = integers(channels, outputs, kernel, group, size)
    x = np.random.default_rng().standard_normal((1, channels, *size)).astype(np.float32)
    expected = jangin.compile(model, "x86-64-v2")(x)
    ((y,),) = in_node(model, [(x, {})], tmp_path)
    np.testing.assert_array_equal(y, expected.reshape(-1))
    # besides the weights, a channel has four words: bias, factor, and sums for zero points
    assert (tmp_path / "model.bin").stat().st_size <= outputs * (channels // group * kernel**2 + 16) + 64


def test_weights_are_transformed_as_they_are_loaded(tmp_path: Path) -> None:
    """Each run reads the same transformed weights, which aren't in the file."""
    model = integers(16, 32, size=(33, 31), batch="n")
    rng = np.random.default_rng()
    runs = [(rng.standard_normal((n, 16, 33, 31)).astype(np.float32), {"n": n}) for n in (2, 1, 3)]
    emitted, here = jangin.emit(model, "shared", "wasm32", name="model"), jangin.compile(model, "x86-64-v2")
    assert emitted.model.weights.made >= 16 * 32 * 16 * 2 > emitted.weights
    assert all(len(p.once) == 1 for p in emitted.model.parts)
    for (x, _), (y,) in zip(runs, in_node(model, runs, tmp_path), strict=True):
        np.testing.assert_array_equal(y, here(x).reshape(-1))


def test_sizes_known_at_run_time(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    runs = [(rng.standard_normal((n, 24)).astype(np.float32), {"batch": n}) for n in (1, 5, 300, 2)]
    here = jangin.compile(layers())
    for (x, _), (y, z) in zip(runs, in_node(layers(), runs, tmp_path), strict=True):
        expected, same = here(x)
        np.testing.assert_allclose(y, expected.reshape(-1), rtol=1e-4, atol=1e-6)  # sums in other orders
        np.testing.assert_array_equal(z, same.reshape(-1))


STREAM = """
import { load } from "./net.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const model = await load();
for (let turn = 0; turn < 2; ++turn, model.reset())
  for (const [x, q] of JSON.parse(readFileSync("steps.json"))) {
    const made = model.run([new Float32Array(Uint32Array.from(x).buffer), Int8Array.from(q)]);
    writeFileSync(1, JSON.stringify(made.map((y) => Array.from(y))) + "\\n");
  }
"""


def test_a_stream(tmp_path: Path) -> None:
    """The module keeps the state between runs, and `reset` begins anew."""
    pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
    from streaming import steps, wake_word

    given, exe = steps(9), jangin.compile(wake_word(), "x86-64-v2", cache=False)
    jangin.emit(wake_word(), "shared", "wasm32", name="net").save(tmp_path)
    listed = [[x.reshape(-1).view(np.uint32).tolist(), q.reshape(-1).tolist()] for x, q in given]
    (tmp_path / "steps.json").write_text(json.dumps(listed))
    (tmp_path / "run.mjs").write_text(STREAM)
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[:4000]
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert found[: len(given)] == found[len(given) :]
    for (y, q), x in zip(found, given, strict=False):
        want, integers = exe(*x)
        np.testing.assert_allclose(y, want.reshape(-1), rtol=1e-5, atol=1e-5)  # sums in other orders
        np.testing.assert_array_equal(q, integers.reshape(-1))


SHARED = """
import { load } from "./model.mjs";
import { readFileSync, writeFileSync } from "node:fs";
const x = new Float32Array(new Uint8Array(readFileSync("x.raw")).buffer), all = [];
for (const threads of [1, 2, 3]) {
  const model = await load({ threads });
  for (let n = 0; n < 3; ++n) model.run([x]);
  const [y] = model.run([x]);
  all.push(Array.from(y));
  model.close();
}
writeFileSync("made.json", JSON.stringify(all));
"""


def test_workers_share_launches(tmp_path: Path) -> None:
    """Results are the same on one to three threads, of which some may have nothing to do."""
    model, x = integers(16, 24, 3, 1, (40, 36)), np.random.default_rng().standard_normal((1, 16, 40, 36))
    emitted = jangin.emit(model, "shared", "wasm32-threads", name="model")
    assert emitted.model.weights.made  # Winograd's weights
    emitted.save(tmp_path)
    x.astype(np.float32).tofile(tmp_path / "x.raw")
    (tmp_path / "run.mjs").write_text(SHARED)
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[:4000]
    expected = jangin.compile(model, "x86-64-v2")(x.astype(np.float32)).reshape(-1)
    results = json.loads((tmp_path / "made.json").read_text())
    assert len(results) == 3
    for y in results:
        np.testing.assert_array_equal(np.array(y, np.float32), expected)


PARTS = """
import { load } from "./model.mjs";
const model = await load({ threads: 3 }), told = [];
const x = new Int32Array(40000).fill(7), z = new Int32Array(40000).fill(2);
for (let n = 0; n < 4; ++n) {
  if (n == 3) model.close();
  const [y] = model.run([x, z]);
  told.push(y.every((v) => v === 3));
}
console.log(JSON.stringify(told));
"""


def test_workers_count_launches_beyond_the_largest_number(tmp_path: Path) -> None:
    """The word that counts launches begins anew with the least number. Runs after `close` take one thread."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 18]>
    g (int32[40000] x, int32[40000] z) => (int32[40000] y) { y = Div(x, z) }""")
    jangin.emit(model, "shared", "wasm32-threads", name="model").save(tmp_path)
    loader, begun = tmp_path / "model.mjs", "    this.words = words;\n"
    text = loader.read_text()
    assert text.count(begun) == 1
    loader.write_text(text.replace(begun, f"{begun}    words[TURN] = 0x7ffffffe;\n"))
    (tmp_path / "run.mjs").write_text(PARTS)
    done = subprocess.run(["node", "run.mjs"], cwd=tmp_path, capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr[:4000]
    assert json.loads(done.stdout) == [True] * 4


def test_other_kinds_are_refused() -> None:
    with pytest.raises(ValueError, match="no 'object' is made for wasm32: shared can be"):
        jangin.emit(layers(), "object", "wasm32")
