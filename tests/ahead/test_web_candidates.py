"""Packages with candidates, which a browser measures and keeps."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from test_web import in_browser, in_node, needs_browser, text_model

import jangin
from jangin.ir.graph import Array

NET = """g (float[1,8,16,16] x) => (float[1,24] y) {
  a = Conv<kernel_shape=[3,3], pads=[1,1,1,1]>(x, w0)
  b = Relu(a)
  c = Conv<kernel_shape=[1,1]>(b, w1)
  d = Relu(c)
  e = Conv<kernel_shape=[1,1]>(d, w1)
  f = ReduceMean<keepdims = 0>(e, axes)
  y = Softmax(f)
}"""


def network() -> onnx.ModelProto:
    """Return a model with three products, two of which have equal shapes and weights."""
    model, random = text_model(NET), np.random.default_rng(0)
    arrays: dict[str, Array] = {"axes": np.int64([2, 3])}
    arrays["w0"] = random.standard_normal((24, 8, 3, 3), np.float32)
    arrays["w1"] = random.standard_normal((24, 24, 1, 1), np.float32) / 5
    model.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in arrays.items())
    return model


def data(folder: Path, name: str, constant: str) -> dict[str, Any]:
    text = (folder / name).read_text()
    return json.loads(re.search(rf"^const {constant} = (.*);$", text, re.MULTILINE)[1])


def test_files(tmp_path: Path) -> None:
    """Candidates take the places of launches with equal buffers, and have their shaders and weights. The
    package itself is the same as without them, apart from the name of the module that has them."""
    jangin.emit(network(), "web", "webgpu", name="model").save(tmp_path / "plain")
    jangin.emit(network(), "web", "webgpu", name="model", candidates=True).save(tmp_path / "more")
    plain, more = ({f.name: f for f in (tmp_path / n).iterdir()} for n in ("plain", "more"))
    assert more.keys() - plain.keys() == {"model_tune.mjs", "model_tune.wgsl", "model_tune.bin"}
    for name in ("model.wgsl", "model.bin", "model.d.ts"):
        assert plain[name].read_bytes() == more[name].read_bytes()
    assert {f for f in more if f != "index.html"} - {"package.json"} == {
        *json.loads(more["package.json"].read_text())["files"]
    }
    base, tuning = (
        data(tmp_path / "more", "model.mjs", "MODEL"),
        data(tmp_path / "more", "model_tune.mjs", "TUNING"),
    )
    assert len(tuning["ways"]) == 2 and all(len(way) >= 3 for way in tuning["ways"])
    weights = dict(tuning["weights"])
    assert more["model_tune.bin"].stat().st_size == sum(weights.values())
    names = re.findall(r"^//# (.*)$", more["model_tune.wgsl"].read_text(), re.MULTILINE)
    for number, launch in (pair for way in tuning["ways"] for pair in way):
        own = base["launches"][number]
        assert launch["nodes"] == own["nodes"] and launch["shader"] in names
        for one, other in zip(own["bindings"], launch["bindings"], strict=True):
            assert one == other or (one[0].startswith("weights") and weights[other[0]] == other[2])
    for name in ("model.mjs", "model_tune.mjs"):
        if node := shutil.which("node"):
            subprocess.run([node, "--check", str(more[name])], check=True)


def test_only_for_packages() -> None:
    with pytest.raises(ValueError, match="candidates= is for the kind 'web', not for 'object'"):
        jangin.emit(network(), "object", candidates=True)


STORED = """
import { tuned } from "./model_tune.mjs";
const told = [];
const later = (request, result) => {
  queueMicrotask(() => { request.result = result; request.onsuccess?.(); });
  return request;
};
const store = { get: () => ({ result: %s }) };
const base = { close() {}, transaction() {
  const made = { objectStore: () => store };
  queueMicrotask(() => queueMicrotask(() => made.oncomplete()));
  return made;
} };
globalThis.indexedDB = { open: () => later({}, base) };
globalThis.GPUBufferUsage = {};
for (const refuses of [false, true]) {
  const device = { features: new Set(), createBuffer: () => ({}), queue: { writeBuffer() {} } };
  const model = { device, lost: null, calls: Array(9).fill("own"), launches: [], buffers: {} };
  model.guarded = (_, work) => work();
  model.fetched = async () => ({ text: async () => "", arrayBuffer: async () => new ArrayBuffer(1) });
  model.compile = async () => { if (refuses) throw new Error("refused"); return {}; };
  model.numbers = () => ({});
  model.call = () => "winner";
  told.push([await tuned(model), model.calls.filter((c) => c === "winner").length]);
}
console.log(JSON.stringify(told));
"""


@pytest.mark.skipif(not shutil.which("node"), reason="Node isn't installed, which runs the package")
def test_stored_winners_that_the_device_refuses_are_left_out(tmp_path: Path) -> None:
    """A newer driver may refuse a stored winner. The package then runs with its own kernels."""
    jangin.emit(network(), "web", "webgpu", name="model", candidates=True).save(tmp_path)
    (n, _), *_ = data(tmp_path, "model_tune.mjs", "TUNING")["ways"][0]
    taken, refused = in_node(STORED % json.dumps([[n, 0]]), tmp_path)
    assert taken == [{"from": "stored", "kernels": 1}, 1]
    assert refused == [{"from": "", "kernels": 0}, 0]


TUNES = """
  const { load } = await import("./model.mjs");
  const x = Float32Array.from({ length: 2048 }, (_, n) => Math.sin(n * n));
  const told = { tuned: [], outputs: [] };
  const run = async (options) => {
    const model = await load(options);
    told.tuned.push(model.tuned);
    told.outputs.push([...(await model.run([x]))[0]]);
    model.destroy();
  };
  const store = (work) => new Promise((resolve) => {
    indexedDB.open("jangin", 1).onsuccess = ({ target: { result } }) => {
      const request = work(result.transaction("tuned", "readwrite").objectStore("tuned"));
      request.onsuccess = () => { result.close(); resolve(request.result); };
    };
  });
  await run();
  await run({ tune: 20 });
  await run();
  const [key] = await store((s) => s.getAllKeys());
  told.key = key;
  for (const choices of %s) {
    await store((s) => s.put(choices, key));
    await run();
  }
  await run({ tune: false });
  await run({ tune: "again" });
  const adapter = await navigator.gpu.requestAdapter(), device = await adapter.requestDevice();
  setTimeout(() => device.destroy(), 20);
  await load({ device, tune: "again" }).catch((error) => { told.lost = error.message; });
  await say(told);
"""


@needs_browser
def test_a_browser_measures_and_keeps(tmp_path: Path) -> None:
    """Each candidate computes the same. Winners are kept, and a value in the browser's store that is none of
    the package's is ignored."""
    folder = tmp_path / "out"
    jangin.emit(network(), "web", "webgpu", name="model", candidates=True).save(folder)
    ways = data(folder, "model_tune.mjs", "TUNING")["ways"]
    stored = [[[n, w] for n, _ in way] for w, way in enumerate(ways)]
    said = in_browser(folder, TUNES % json.dumps([*stored, "nonsense", [[999, 0]]]), tmp_path / "profile")
    assert "error" not in said, said
    first, measured, again, *each, wrong, other, plain, anew = said["tuned"]
    assert first == plain == wrong == other == {"from": "", "kernels": 0}
    assert measured["from"] == anew["from"] == "measured"
    assert again == {"from": "stored", "kernels": measured["kernels"]}
    assert each == [{"from": "stored", "kernels": len(way)} for way in ways]
    assert "swiftshader" in said["key"]
    assert "the device is lost" in said["lost"] and "load the model again" in said["lost"]
    x = np.sin(np.arange(2048, dtype=np.float64) ** 2).astype(np.float32).reshape(1, 8, 16, 16)
    want = jangin.compile(network())(x).ravel()
    for got in said["outputs"]:
        np.testing.assert_allclose(np.float32(got), want, rtol=1e-4, atol=1e-7)
