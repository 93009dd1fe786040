"""Packages for WebGPU: their files, and, with `-m slow`, their results in a headless browser."""

from __future__ import annotations

import json
import queue
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from built import small_network

import jangin
from jangin.ir.graph import Array, CompileError
from jangin.runtime.devices.wgsl import Range, bind

CHROMIUM = shutil.which("chromium")
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)  # fmt: skip
LIMIT = 400
"""The most seconds in which a busy machine starts the browser and runs a model."""
PAGE = """<!doctype html><script>
const say = (what) => fetch("said", { method: "POST", body: JSON.stringify(what) });
addEventListener("error", ({ message }) => say({ error: message }));
</script><script type="module">
try {
  %s
} catch (error) { await say({ error: error.message }); }
</script>"""
RUN = """
  const { load } = await import("./model.mjs");
  const { inputs } = await (await fetch("inputs.json")).json();
  let start = performance.now();
  const model = await load();
  const loaded = performance.now() - start;
  const arrays = await Promise.all(inputs.map(async ([name, kind]) =>
    new globalThis[kind](await (await fetch(name)).arrayBuffer())));
  let made, times = [];
  for (let n = 0; n < 3; n++) {
    start = performance.now();
    made = await model.run(arrays);
    times.push(performance.now() - start);
  }
  await say({ loaded, times, outputs: made.map((y) => ({
    bytes: Array.from(new Uint8Array(y.buffer)) })) });
"""


needs_linker = pytest.mark.skipif(
    not (find_spec("ziglang") or shutil.which("wasm-ld")), reason="nothing here links WebAssembly"
)


def needs_browser(test: object) -> object:
    return pytest.mark.slow(pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium isn't here")(test))


def in_browser(
    folder: Path,
    script: str,
    profile: Path,
    limit: float = LIMIT,
    before: str = "",
    flags: Sequence[str] = (),
) -> dict:
    """Run a page from a folder, and return its only JSON message. `before` is the page's text before the
    script, and `flags` are the browser's further flags."""
    answers = queue.SimpleQueue[dict]()

    class Files(SimpleHTTPRequestHandler):
        extensions_map = SimpleHTTPRequestHandler.extensions_map | {".mjs": "text/javascript"}

        def do_POST(self) -> None:
            answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    (folder / "test.html").write_text(before + PAGE % script)
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder))) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_port}/test.html"
        log = (folder / "log").open("w+")
        browser = subprocess.Popen(
            [str(CHROMIUM), *FLAGS, *flags, f"--user-data-dir={profile}", address], stderr=log, stdout=log
        )
        try:
            return answers.get(timeout=limit)
        except queue.Empty:
            log.seek(0)
            pytest.fail(f"the page said nothing in {limit} s; the browser says:\n{log.read()[-4000:]}")
        finally:
            browser.terminate()
            browser.wait(30)
            serving.shutdown()
            log.close()


def packaged(model: onnx.ModelProto, folder: Path, arrays: Sequence[Array] = ()) -> dict[str, bytes]:
    """Write a package, and its inputs beside it."""
    jangin.emit(model, "web", "webgpu", name="model").save(folder)
    kinds = {
        "f4": "Float32Array",
        "i4": "Int32Array",
        "i8": "BigInt64Array",
        "u1": "Uint8Array",
        "b1": "Uint8Array",
    }
    for n, array in enumerate(arrays):
        (folder / f"input{n}").write_bytes(np.ascontiguousarray(array).tobytes())
    listed = [(f"input{n}", kinds[a.dtype.str[1:]]) for n, a in enumerate(arrays)]
    (folder / "inputs.json").write_text(json.dumps({"inputs": listed}))
    return {f.name: f.read_bytes() for f in folder.iterdir()}


def compared(said: Mapping, want: Sequence[Array], close: float) -> None:
    assert "error" not in said, said
    for told, value in zip(said["outputs"], want, strict=True):
        got = np.array(told["bytes"], np.uint8).view(value.dtype).reshape(value.shape)
        scale = float(np.abs(value.astype(np.float64)).max())
        np.testing.assert_allclose(got, value, rtol=0, atol=close * scale)


def text_model(text: str) -> onnx.ModelProto:
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 18]> {text}')


# --- files


def test_a_package(tmp_path: Path) -> None:
    """The files are those of an npm package, the module is valid JavaScript, and each build gives the same
    bytes."""
    files = packaged(small_network(), tmp_path / "one")
    again = packaged(small_network(), tmp_path / "two")
    assert files == again
    assert files.keys() - {"inputs.json"} == {
        "model.mjs", "model.wgsl", "model.bin", "model.d.ts", "package.json", "index.html",
    }  # fmt: skip
    npm = json.loads(files["package.json"])
    assert npm["exports"]["."] == {"types": "./model.d.ts", "default": "./model.mjs"}
    assert not any(b"<P>" in text or b"<NAME>" in text or b"<MODEL>" in text for text in files.values())
    assert b"run(inputs: readonly [x: Float32Array | GPUBuffer]" in files["model.d.ts"]
    if node := shutil.which("node"):
        subprocess.run([node, "--check", str(tmp_path / "one" / "model.mjs")], check=True)


@pytest.mark.skipif(not shutil.which("npm"), reason="npm isn't here")
def test_npm_packs_it(tmp_path: Path) -> None:
    packaged(small_network(), tmp_path)
    done = subprocess.run(
        ["npm", "pack", "--dry-run", "--json", "--offline"], cwd=tmp_path, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    (packed,) = json.loads(done.stdout)
    names = {f["path"] for f in packed["files"]}
    assert names >= {"model.mjs", "model.wgsl", "model.bin", "model.d.ts", "package.json"}


def test_sizes_left_open_are_refused_by_name() -> None:
    model = text_model("g (float[batch, 3] x) => (float[batch, 3] y) { y = Relu(x) }")
    with pytest.raises(CompileError, match=r"the sizes batch aren't known.*--shape"):
        jangin.emit(model, "web", "webgpu")
    jangin.emit(model, "web", "webgpu", shapes={"batch": 2})


def test_only_for_webgpu() -> None:
    with pytest.raises(ValueError, match="no 'web' is made for x86-64-v2"):
        jangin.emit(small_network(), "web", "x86-64-v2")
    with pytest.raises(ValueError, match="no 'object' is made for webgpu: jgn, web can be"):
        jangin.emit(small_network(), "object", "webgpu")


def both(model: onnx.ModelProto, folder: Path) -> None:
    """Write a package for WebGPU with WebAssembly beside it."""
    jangin.emit(model, "web", "webgpu+wasm32", name="model").save(folder)


@needs_linker
def test_a_package_with_webassembly(tmp_path: Path) -> None:
    both(small_network(), tmp_path)
    names = {f.name for f in tmp_path.iterdir()}
    beside = {"model_wasm.mjs", "model_wasm.wasm", "model_wasm.bin"}
    assert names == beside | {
        "model.mjs", "model.wgsl", "model.bin", "model.d.ts", "package.json", "index.html",
    }  # fmt: skip
    assert beside <= set(json.loads((tmp_path / "package.json").read_text())["files"])
    with pytest.raises(ValueError, match=r"no 'jgn' is made|no 'object' is made"):
        jangin.emit(small_network(), "object", "webgpu+wasm32")
    with pytest.raises(ValueError, match="no 'web' is made"):
        jangin.emit(small_network(), "web", "wasm32+webgpu")


NODE = """
import { load } from "./model.mjs";
import { load as plain } from "./model_wasm.mjs";
const told = [];
const refused = async (work) => {
  try { await work(); told.push("nothing"); } catch (e) { told.push(e.message); }
};
await refused(() => load());
await refused(() => load({ wasm: "always" }));
const model = await load({ wasm: "instead" });
told.push(model.on, model.reason);
const x = new Float32Array(3 * 19 * 23).map((_, n) => Math.sin(n));
const [y] = await model.run([x]);
const [z] = await model.run([x.map((v) => -v)]);
await refused(() => model.run([]));
await refused(() => model.run([new Float32Array(5)]));
await refused(() => model.run([x], { readback: false }));
for (const other of [new Int32Array(x.length), x.buffer, new DataView(x.buffer), [...x], null, undefined]) {
  await refused(() => model.run([other]));
  await refused(async () => (await plain()).run([other]));
}
await refused(() => model.run(x));
const bytes = new Uint8Array(x.buffer);
const alike = [await model.run([bytes]), (await plain()).run([bytes])];
told.push(alike.every(([v]) => v.every((value, n) => value === y[n])));
const first = await load({ wasm: "first" });
await first.ready;
told.push(first.on, first.reason);
told.push((await first.run([x]))[0].every((v, n) => v === y[n]));
console.log(JSON.stringify({ told, y: [...y], z: [...z] }));
"""


def in_node(program: str, folder: Path) -> Any:
    """Run a program in Node, in the folder, and return the JSON that it prints."""
    (folder / "try.mjs").write_text(program)
    done = subprocess.run(["node", "try.mjs"], cwd=folder, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@needs_linker
@pytest.mark.skipif(not shutil.which("node"), reason="Node isn't installed, which runs the package")
def test_webassembly_instead_of_webgpu(tmp_path: Path) -> None:
    """Node has no WebGPU. A run's outputs are its own: a later run doesn't write over them."""
    both(small_network(), tmp_path)
    said = in_node(NODE, tmp_path)
    none, kind, on, reason, count, small, kept, *others, whole, alike = said["told"][:-3]
    first_on, first_reason, same = said["told"][-3:]
    assert "there is no WebGPU here" in none and none == reason == first_reason
    assert kind == 'wasm is "never", "instead" or "first", not "always"'
    assert on == first_on == "wasm" and same is True
    assert count == "the inputs are x, and 0 are given"
    assert "the input x is f32[1, 3, 19, 23], 5244 bytes, and the array has 20" in small
    assert "no GPUBuffers" in kept
    assert len(others) == 12 and all("give a Float32Array" in told for told in others), others
    assert "not Int32Array" in others[0] and others[1].startswith("x is Int32Array")
    assert whole == "give the inputs as an array: [x]" and alike is True
    x = np.sin(np.arange(3 * 19 * 23)).astype(np.float32).reshape(1, 3, 19, 23)
    exe = jangin.compile(small_network())
    for got, given in ((said["y"], x), (said["z"], -x)):
        np.testing.assert_allclose(np.float32(got), exe(given).ravel(), rtol=0, atol=1e-5)


def test_bindings_never_overlap() -> None:
    """Overlapping ranges become one binding. Other ranges of one memory stay separate until there are too
    many."""
    one = [Range("a", 256, at) for at in (0, 1024, 200, 300)]
    bindings, starts, parts = bind([*one, Range("b", 4)], 8, 4096)
    assert bindings.of == (0, 1, 0, 0, 2) and starts == [0, 1024, 0, 0, 0]
    assert [(p.handle, p.start, p.end) for p in parts] == [("a", 0, 560), ("a", 1024, 1280), ("b", 0, 16)]
    bindings, starts, parts = bind([Range("a", 256, 256 * n) for n in range(9)], 8, 4096)
    assert set(bindings.of) == set(starts) == {0} and parts[0].end == 9 * 256
    with pytest.raises(ValueError, match="needs 9 bindings"):
        bind([Range(n, 4) for n in range(9)], 8, 4096)


def test_large_ranges_have_several_bindings() -> None:
    bindings, _, parts = bind([Range("a", 1000), Range("b", 8)], 8, 600)
    assert bindings.counts == (2, 1) and bindings.words == 128
    assert [(p.handle, p.start, p.end) for p in parts] == [("a", 0, 512), ("a", 512, 1008), ("b", 0, 16)]


def test_packages_have_no_weights_for_winograd() -> None:
    """WebGPU's target estimates that Winograd's method never pays, whether the option allows it or not."""
    weight = np.random.default_rng().standard_normal((64, 64, 3, 3)).astype(np.float32)
    shape = [1, 64, 28, 28]
    x, y = (onnx.helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, shape) for n in "xy")
    conv = onnx.helper.make_node("Conv", ["x", "w"], ["y"], pads=[1] * 4)
    graph = onnx.helper.make_graph([conv], "g", [x], [y], [onnx.numpy_helper.from_array(weight, "w")])
    model = onnx.helper.make_model(graph, ir_version=10)
    made = [jangin.emit(model, "web", "webgpu", winograd=allowed) for allowed in (True, False)]
    assert [m.weights for m in made] == [weight.nbytes] * 2


# --- in a browser


@needs_browser
def test_a_network(tmp_path: Path) -> None:
    x = np.random.default_rng().standard_normal((1, 3, 19, 23)).astype(np.float32)
    packaged(small_network(), tmp_path / "out", [x])
    want = jangin.compile(small_network())(x)
    compared(in_browser(tmp_path / "out", RUN, tmp_path / "profile"), [want], 1e-5)


TYPES = """g (float[3, 5] x, int64[4] i, bool[7] b) => (float[4, 5] y, bool[7] n, int64[3] a, uint8[3, 5] u) {
    y = Gather(x, i)
    n = Not(b)
    a = ArgMax <axis = 1, keepdims = 0> (x)
    s = Sigmoid(x)
    u = Cast <to = 2> (s)
}"""


@needs_browser
def test_types_and_an_index_out_of_range(tmp_path: Path) -> None:
    rng = np.random.default_rng()
    given = [
        rng.standard_normal((3, 5)).astype("f4"),
        np.int64([2, 0, -1, 1]),
        rng.integers(0, 2, 7).astype(bool),
    ]
    packaged(text_model(TYPES), tmp_path / "out", given)
    exe = jangin.compile(text_model(TYPES))
    want = list(exe.run(dict(zip(["x", "i", "b"], given, strict=True))).values())
    compared(in_browser(tmp_path / "out", RUN, tmp_path / "profile"), want, 1e-6)
    np.int64([2, 3, -1, 1]).tofile(tmp_path / "out" / "input1")
    said = in_browser(tmp_path / "out", RUN, tmp_path / "profile")
    assert said["error"].startswith("Gather") and "index 3 is out of range, which is -3 to 2" in said["error"]


ERRORS = """
  const { load } = await import("./model.mjs");
  const told = [];
  const refused = async (work) => {
    try { await work(); told.push("nothing"); } catch (e) { told.push(e.message); }
  };
  const x = new Float32Array(3 * 19 * 23).fill(0.5);
  const model = await load();
  await refused(() => model.run([]));
  await refused(() => model.run([new Float32Array(5)]));
  await refused(() => load({ code: "//# k0\\nfn", weights: new Uint8Array(4) }));
  const text = await (await fetch("model.wgsl")).text();
  await refused(() => load({ code: text.replaceAll("fma(", "nothing(") }));
  await refused(() => load({ code: "//# another\\nfn" }));
  await refused(() => load({ device: {} }));
  await refused(() => model.run([new Int32Array(x.length)]));
  const gone = await load();
  gone.destroy();
  await refused(() => gone.run([x]));
  const [plain] = await model.run([x]);
  const { device } = model;
  const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
  const own = device.createBuffer({ size: x.byteLength, usage });
  device.queue.writeBuffer(own, 0, x);
  const [kept] = await model.run([own], { readback: false });
  told.push(kept instanceof GPUBuffer);
  const second = await load({ device });
  const both = await Promise.all([model.run([own]), second.run([x])]);
  told.push(both.every(([y]) => y.every((v, n) => v === plain[n])));
  setTimeout(() => device.destroy(), 0);
  await device.lost;
  await refused(() => model.run([x]));
  const again = await load();
  told.push((await again.run([x]))[0].every((v, n) => v === plain[n]));
  await say({ told });
"""


@needs_browser
def test_errors_buffers_and_lost_devices(tmp_path: Path) -> None:
    packaged(small_network(), tmp_path / "out")
    said = in_browser(tmp_path / "out", ERRORS, tmp_path / "profile")
    assert "told" in said, said
    none, small, weights, shader, another, device, kind, gone, kept, same, lost, again = said["told"]
    assert none == "the inputs are x, and 0 are given"
    assert "the input x is f32[1, 3, 19, 23], 5244 bytes, and the array has 20" in small
    assert "the weights have 4 bytes, not" in weights
    assert "is refused" in shader and "Conv" in shader
    assert "is refused: the code is another model's" in another
    assert device == "the device that is given is no GPUDevice"
    assert kind.endswith("give a Float32Array or a GPUBuffer, not Int32Array")
    assert gone.endswith("the model was destroyed; load it again")
    assert kept is True and same is True and again is True
    assert "the device is lost" in lost and "load the model again" in lost


FIRST = """
  const { load, pixels } = await import("./model.mjs");
  const { load: plain } = await import("./model_wasm.mjs");
  const x = new Float32Array(3 * 19 * 23).map((_, n) => Math.sin(n));
  const [want] = (await plain()).run([x]).map((y) => y.slice());
  const model = await load({ wasm: "first" });
  const on = [model.on];
  const [early] = await model.run([x]);
  await model.ready;
  on.push(model.on);
  const [late] = await model.run([x]);
  const [kept] = await model.run([x], { readback: false });
  const far = Math.max(...late.map((v, n) => Math.abs(v - want[n])));
  const canvas = new OffscreenCanvas(46, 19);
  const context = canvas.getContext("2d");
  for (const [style, at] of [["#f00", 0], ["#0f0", 23], ["#00f", 34]]) {
    context.fillStyle = style;
    context.fillRect(at, 0, 46, 19);
  }
  const told = { on, early: early.every((v, n) => v === want[n]), far, buffer: kept instanceof GPUBuffer };
  const normal = { mean: [0.5, 0.25, 0], std: [0.5, 0.5, 2] };
  told.picture = [...pixels(canvas, model.inputs[0], normal)];
  const bytes = { name: "b", dtype: "u8", shape: [1, 19, 46, 3] };
  told.filled = [...pixels(canvas, bytes, { bgr: true, fit: "fill" })];
  told.frame = [...pixels(new VideoFrame(canvas, { timestamp: 0 }), model.inputs[0], normal)];
  try { pixels(canvas, { name: "t", dtype: "i64", shape: [5] }); } catch (e) { told.refused = e.message; }
  told.empty = [];
  for (const nothing of [new Image(), null, undefined, new OffscreenCanvas(0, 3)]) {
    try { pixels(nothing, model.inputs[0]); } catch (e) { told.empty.push(e.message); }
  }
  await say(told);
"""


@needs_linker
@needs_browser
def test_webassembly_first_and_pictures(tmp_path: Path) -> None:
    both(small_network(), tmp_path / "out")
    said = in_browser(tmp_path / "out", FIRST, tmp_path / "profile")
    assert "error" not in said, said
    assert said["on"] == ["wasm", "webgpu"] and said["early"] and said["buffer"] and said["far"] < 1e-5
    # Columns 11.5 to 34.5 of the picture are in the middle: red until 23, then green, and blue from 34.
    middle = np.float32(said["picture"]).reshape(3, 19, 23)
    for column, colour in ((4, (1, 0, 0)), (16, (0, 1, 0))):
        want = (np.float32(colour) - np.float32([0.5, 0.25, 0])) / np.float32([0.5, 0.5, 2])
        np.testing.assert_allclose(middle[:, 9, column], want, atol=0.02)
    frame = np.float32(said["frame"])
    np.testing.assert_allclose(frame, middle.ravel(), atol=0.05)  # a video rounds colours in its own way
    whole = np.uint8(said["filled"]).reshape(19, 46, 3)
    assert [tuple(whole[9, c]) for c in (10, 28, 40)] == [(0, 0, 255), (0, 255, 0), (255, 0, 0)]
    assert "the input t is i64[5]: a picture needs f32 or u8" in said["refused"]
    assert len(said["empty"]) == 4 and all("has no pixels yet" in told for told in said["empty"])
