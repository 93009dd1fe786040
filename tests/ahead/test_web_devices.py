"""A package whose device is shared, lost in the middle, or used where no page is seen."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from built import small_network
from test_web import in_browser, needs_browser, packaged, text_model

import jangin

OTHER = "g (float[1,3,19,23] x) => (float[1,3,19,23] y) { a = Mul(x, x) y = Add(a, x) }"
TOGETHER = """
  const { load } = await import("./model.mjs");
  const { load: another } = await import("./other/model.mjs");
  const x = new Float32Array(await (await fetch("input0")).arrayBuffer());
  const device = await (await navigator.gpu.requestAdapter()).requestDevice();
  const models = await Promise.all([load({ device }), another({ device })]);
  const alone = [];
  for (const model of models) alone.push((await model.run([x]))[0]);
  const made = await Promise.all([...Array(12).keys()].map((n) => models[n % 2].run([x])));
  const same = made.every(([y], n) => y.every((v, k) => v === alone[n % 2][k]));
  const outputs = alone.map((y) => ({ bytes: Array.from(new Uint8Array(y.buffer)) }));
  await say({ same, count: made.length, outputs });
"""
LOST = """
  const { load } = await import("./model.mjs");
  const x = new Float32Array(await (await fetch("input0")).arrayBuffer());
  const opened = async () => (await navigator.gpu.requestAdapter()).requestDevice();
  const [want] = await (await load()).run([x]);
  const told = { errors: [], wrong: 0, right: 0 };
  for (let before = 0; before < 4; before++) {
    const device = await opened();
    const model = await load({ device });
    const runs = [...Array(8).keys()].map(() => model.run([x]));
    for (let n = 0; n < before; n++) await runs[n];
    device.destroy();
    for (const one of await Promise.allSettled(runs)) {
      if (one.status === "rejected") told.errors.push(one.reason.message);
      else if (one.value[0].every((v, n) => v === want[n])) told.right++;
      else told.wrong++;
    }
    told.errors.push(await model.run([x]).then(() => "it ran", (e) => e.message));
  }
  const device = await opened();
  const loading = load({ device });
  device.destroy();
  told.loading = await loading.then(() => "it is loaded", (e) => e.message);
  await say(told);
"""
WORKER = """
  const code = `
    import { load } from "${new URL("./model.mjs", location.href)}";
    onmessage = async ({ data }) => {
      try {
        const model = await load();
        postMessage({ y: (await model.run([data]))[0] });
      } catch (error) { postMessage({ error: error.message }); }
    };
  `;
  const x = new Float32Array(await (await fetch("input0")).arrayBuffer());
  const address = URL.createObjectURL(new Blob([code], { type: "text/javascript" }));
  const worker = new Worker(address, { type: "module" });
  const answer = new Promise((done) => { worker.onmessage = (e) => done(e.data); });
  worker.postMessage(x);
  const found = await answer;
  if (found.error) throw new Error(found.error);
  await say({ outputs: [{ bytes: Array.from(new Uint8Array(found.y.buffer)) }] });
"""


def given() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((1, 3, 19, 23), np.float32)


def outputs(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    (found,) = jangin.compile(model).run({"x": x}).values()
    return found


def near(said: dict, number: int, want: np.ndarray) -> None:
    got = np.array(said["outputs"][number]["bytes"], np.uint8).view(np.float32).reshape(want.shape)
    np.testing.assert_allclose(got, want, rtol=0, atol=1e-5 * float(np.abs(want).max()))


@needs_browser
def test_two_models_on_one_device(tmp_path: Path) -> None:
    """Runs of two models that share a device mix freely, with the same bits as alone."""
    x, other = given(), text_model(OTHER)
    packaged(small_network(), tmp_path / "out", [x])
    packaged(other, tmp_path / "out" / "other")
    said = in_browser(tmp_path / "out", TOGETHER, tmp_path / "profile")
    assert said.get("same") is True and said["count"] == 12, said
    near(said, 0, outputs(small_network(), x))
    near(said, 1, outputs(other, x))


@needs_browser
def test_a_device_lost_in_the_middle(tmp_path: Path) -> None:
    """Each run on a device that is lost gives the right numbers, or one error with the remedy. So does
    loading."""
    packaged(small_network(), tmp_path / "out", [given()])
    said = in_browser(tmp_path / "out", LOST, tmp_path / "profile")
    assert said.get("wrong") == 0, said
    assert said["right"] + len(said["errors"]) == 4 * 9
    assert said["right"] >= 6 and len(said["errors"]) >= 4
    for message in (*said["errors"], said["loading"]):
        assert "the device is lost" in message and "load the model again" in message, said


@needs_browser
def test_where_no_page_is_seen(tmp_path: Path) -> None:
    """A worker, which has no page, runs a model. Pages in the background slow down timers and stop frames,
    and the module waits for neither."""
    x = given()
    packaged(small_network(), tmp_path / "out", [x])
    said = in_browser(tmp_path / "out", WORKER, tmp_path / "profile")
    assert "error" not in said, said
    near(said, 0, outputs(small_network(), x))


def test_nothing_waits_for_timers_or_frames(tmp_path: Path) -> None:
    module = packaged(small_network(), tmp_path / "out")["model.mjs"].decode()
    for word in ("setTimeout", "setInterval", "requestAnimationFrame", "requestIdleCallback", "document."):
        assert word not in module
