"""Packages for WebGPU say why they can't run: without adapters, with too small limits, or after the
device was lost. In a hidden tab they run."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import test_web
from built import small_network
from test_web import in_browser, in_node, needs_browser, packaged

import jangin

GPUS = """
import { load } from "./model.mjs";
const told = [];
const limits = { maxBufferSize: 1 << 28, maxStorageBufferBindingSize: 1 << 27 };
const features = new Set();
const given = (gpu) => Object.defineProperty(globalThis, "navigator", { value: { gpu }, configurable: true });
const refused = async (gpu, options) => {
  given(gpu);
  try { await load(options); told.push("nothing"); } catch (error) { told.push(error.message); }
};
await refused(undefined);
await refused({ requestAdapter: async () => null });
await refused({ requestAdapter: async () => ({ features, limits: { ...limits, maxBufferSize: 64 } }) });
await refused({}, { device: { features, limits: { ...limits, maxStorageBufferBindingSize: 16 } } });
await refused({ requestAdapter: async () => ({ features, limits, requestDevice: async () => {
  throw new Error("the adapter was used before"); } }) });
console.log(JSON.stringify(told));
"""


@pytest.mark.skipif(not shutil.which("node"), reason="Node isn't installed, which runs the package")
def test_no_adapter_and_small_limits(tmp_path: Path) -> None:
    packaged(small_network(), tmp_path)
    none, adapter, buffer, binding, device = in_node(GPUS, tmp_path)
    assert "there is no WebGPU here" in none and "load the model's WebAssembly" in none
    assert "WebGPU has no adapter here" in adapter
    assert "the model needs maxBufferSize of" in buffer and buffer.endswith("the adapter has 64")
    assert "the model needs maxStorageBufferBindingSize of" in binding and binding.endswith("has 16")
    assert device == "the adapter was used before"


MIDDLE = """
  const { load } = await import("./model.mjs");
  const x = new Float32Array(3 * 19 * 23).map((_, n) => Math.sin(n));
  const first = await load(), told = { ends: [], wrong: 0 };
  const [want] = await first.run([x]);
  first.destroy();
  for (const wait of [null, 0, 1, 3, 8]) {
    const model = await load();
    const runs = [0, 1, 2, 3].map(() => model.run([x]));
    if (wait !== null) await new Promise((resolve) => setTimeout(resolve, wait));
    model.device.destroy();
    for (const run of await Promise.allSettled(runs)) {
      if (run.status === "rejected") told.ends.push(run.reason.message);
      else if (!run.value[0].every((v, n) => v === want[n])) told.wrong++;
    }
    await model.run([x]).then(() => told.wrong++, (error) => told.ends.push(error.message));
  }
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  device.destroy();
  await load({ device }).then(() => told.wrong++, (error) => told.ends.push(error.message));
  await say(told);
"""


@needs_browser
def test_a_device_destroyed_in_the_middle(tmp_path: Path) -> None:
    """Each run gives the right numbers, or the error of a lost device."""
    packaged(small_network(), tmp_path / "out")
    said = in_browser(tmp_path / "out", MIDDLE, tmp_path / "profile")
    assert "error" not in said, said
    assert said["wrong"] == 0 and len(said["ends"]) >= 6
    for message in said["ends"]:
        assert "the device is lost" in message and "load the model again" in message


HIDDEN = """
  const { load } = await import("./model.mjs");
  const x = new Float32Array(3 * 19 * 23).map((_, n) => Math.sin(n));
  const [model, other] = [await load(), await load()], [want] = await model.run([x]);
  const hidden = new Promise((resolve) => document.addEventListener("visibilitychange", resolve));
  const tab = window.open("about:blank", "_blank");
  await Promise.race([hidden, new Promise((resolve) => setTimeout(resolve, 20000))]);
  const told = { state: document.visibilityState, same: 0 };
  for (let n = 0; n < 5; n++) {
    const made = await Promise.all([model.run([x]), other.run([x])]);
    told.same += made.filter(([y]) => y.every((v, k) => v === want[k])).length;
  }
  const late = await load();
  told.same += (await late.run([x]))[0].every((v, k) => v === want[k]);
  tab?.close();
  await say({ ...told, want: [...want] });
"""


@needs_browser
def test_a_hidden_tab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_web, "FLAGS", (*test_web.FLAGS, "--disable-popup-blocking"))
    packaged(small_network(), tmp_path / "out")
    said = in_browser(tmp_path / "out", HIDDEN, tmp_path / "profile")
    assert said.get("state") == "hidden", said
    assert said["same"] == 11
    x = np.sin(np.arange(3 * 19 * 23)).astype(np.float32).reshape(1, 3, 19, 23)
    np.testing.assert_allclose(
        np.float32(said["want"]), jangin.compile(small_network())(x).ravel(), atol=1e-5
    )
