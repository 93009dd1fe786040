"""Measure models in headless Chromium, by WebGPU, beside onnxruntime-web and TensorFlow.js.

    npm install onnxruntime-web @tensorflow/tfjs-core @tensorflow/tfjs-backend-webgpu --prefix FOLDER
    python benchmarks/browser.py --npm FOLDER/node_modules [--peers TensorFlow.js] [--models minilm] [--keep]

Each engine first loads a model in a browser of its own, with an empty profile. `first result` is the time
from the import of the engine to the end of the first run. `memory` is what the browser's processes hold after
the first run in another browser, apart from the browser's own files. Memory that they share counts once. A
busy machine doesn't change it. "With WebAssembly" is a package that computes by WebAssembly until its
shaders are compiled. Then a page loads Jangin and a peer, and runs them in turns. TensorFlow.js runs the
layers that browser_layers.py makes of a model.

Chromium runs WebGPU on the processor here (SwiftShader), so the figures say nothing of a graphics processor.
`--keep` writes benchmarks/results/browser.json, in which rows of other models stay.
benchmarks/make_models.py makes the models. Measurements stay in `--folder`, and the next call goes on there.
`--one` measures one thing more, if anything is left.
"""

from __future__ import annotations

import argparse
import json
import queue
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import Any

import browser_layers
import numpy as np
from catalogue import BRIEF, CATALOGUE, Model
from sections import FOLDER, Section, Table

import jangin

ALL = {**CATALOGUE, **BRIEF}
MODELS = ("squeezenet1_1", "mobilenetv2", "minilm", "whisper_encoder_3s", "yolov3_tiny")
OURS, SOON = "Jangin", "with WebAssembly"
PEERS = {
    "onnxruntime-web": ("onnxruntime-web", "its WebGPU provider"),
    "TensorFlow.js": ("@tensorflow/tfjs-backend-webgpu", "its WebGPU backend, with the model's layers"),
}
"""The packages of the peers, and what of them runs."""
FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--no-first-run",
    "--disable-background-networking", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader",
    "--enable-features=Vulkan",
)  # fmt: skip
LIMIT = 600
"""The most seconds for a page. SwiftShader takes tens of seconds to compile a model's shaders."""
ARRAYS = {"float32": "Float32Array", "int64": "BigInt64Array", "int32": "Int32Array"}
PAGE = """<!doctype html><script type="module">
const say = (what) => fetch("said", { method: "POST", body: JSON.stringify(what) });
const added = (src) => new Promise((onload, onerror) => {
  document.head.append(Object.assign(document.createElement("script"), { src, onload, onerror }));
});
const engines = {
  async "Jangin"() {
    const { load } = await import("./model.mjs");
    const model = await load();
    return async (arrays) => model.run(arrays);
  },
  async "with WebAssembly"() {
    const { load } = await import("./model.mjs");
    const model = await load({ wasm: "first" });
    return async (arrays) => model.run(arrays);
  },
  async "onnxruntime-web"() {
    const ort = await import("./npm/onnxruntime-web/dist/ort.webgpu.min.mjs");
    ort.env.wasm.wasmPaths = new URL("npm/onnxruntime-web/dist/", location.href).href;
    ort.env.wasm.numThreads = 1;
    const session = await ort.InferenceSession.create("model.onnx", { executionProviders: ["webgpu"] });
    const kinds = { Float32Array: "float32", BigInt64Array: "int64", Int32Array: "int32" };
    return async (arrays) => {
      const feeds = Object.fromEntries(session.inputNames.map((name, n) => [
        name, new ort.Tensor(kinds[arrays[n].constructor.name], arrays[n], asked.inputs[n][2])]));
      const made = await session.run(feeds);
      return session.outputNames.map((name) => made[name].data);
    };
  },
  async "TensorFlow.js"() {
    await added("npm/@tensorflow/tfjs-core/dist/tf-core.min.js");
    await added("npm/@tensorflow/tfjs-backend-webgpu/dist/tf-backend-webgpu.min.js");
    if (!await tf.setBackend("webgpu")) throw new Error("TensorFlow.js has no WebGPU here");
    await tf.ready();
    const { layers } = await import("./layers.mjs");
    return layers(tf, asked.inputs);
  },
};
let asked;
try {
  asked = await (await fetch("asked.json")).json();
  const arrays = await Promise.all(asked.inputs.map(async ([name, kind]) =>
    new globalThis[kind](await (await fetch(name)).arrayBuffer())));
  const said = {}, runs = {};
  for (const name of asked.engines) {
    const start = performance.now();
    runs[name] = await engines[name]();
    const loaded = performance.now() - start;
    const outputs = await runs[name](arrays);
    const first = performance.now() - start;
    said[name] = { loaded, first, times: [], outputs: outputs.map((y) => Array.from(y, Number)) };
  }
  for (let turn = 0; turn < asked.turns; turn++) {
    for (const name of asked.engines) {
      const start = performance.now();
      await runs[name](arrays);
      said[name].times.push(performance.now() - start);
    }
  }
  await say(said);
} catch (error) { await say({ error: `${error.message}\\n${error.stack}` }); }
</script>"""


class _Files(SimpleHTTPRequestHandler):
    """Serves a folder, and keeps what its page says."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript", ".wasm": "application/wasm",
    }  # fmt: skip
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()

    def do_POST(self) -> None:
        self.answers.put(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def browsed(folder: Path) -> dict[str, Any]:
    """Return what a folder's page says in a new browser, with the bytes that the browser holds then.

    Raises RuntimeError with the page's error."""
    with (
        tempfile.TemporaryDirectory() as profile,
        ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder))) as serving,
    ):
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_port}/index.html"
        command = [shutil.which("chromium") or "chromium", *FLAGS, f"--user-data-dir={profile}", address]
        browser = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            said = _Files.answers.get(timeout=LIMIT)
            said["memory"] = sum(map(_held, [browser.pid, *_descendants(browser.pid)]))
        finally:
            browser.terminate()
            browser.wait(30)
            serving.shutdown()
    if "error" in said:
        raise RuntimeError(said["error"])
    return said


def _descendants(pid: int) -> list[int]:
    """Return the processes that a process started, and those that these started (Linux)."""
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _held(pid: int) -> int:
    """Return the bytes that a process holds (Linux). Its share of shared memory counts. The program's files
    don't, because other browsers on the machine would share them."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))


def packed(model: Model, folder: Path, npm: Path) -> None:
    """Write a page's files: the model for all engines, and random inputs."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(model.path, folder / "model.onnx")
    shutil.copy(Path(__file__).with_name("browser_layers.mjs"), folder / "layers.mjs")
    with tempfile.TemporaryDirectory() as own:
        plain = browser_layers.folded(model.path, model.sizes, Path(own, "model.onnx"))
    browser_layers.Layers(plain).save(folder)
    (folder / "npm").symlink_to(npm.resolve())
    paged(model, folder, "webgpu+wasm32")


def paged(model: Model, folder: Path, target: str = "webgpu") -> None:
    """Write a page's files for Jangin alone: the model, and random inputs."""
    sizes = dict(model.sizes) or None
    jangin.emit(model.path, "web", target, sizes, name="model").save(folder, force=True)
    (folder / "index.html").write_text(PAGE)
    random, listed = np.random.default_rng(0), []
    for n, given in enumerate(jangin.compile(model.path, shapes=sizes).inputs):
        shape = [int(d) for d in given.shape]
        kind = str(np.dtype(given.dtype))
        array = random.random(shape, np.float32) if kind == "float32" else np.ones(shape, kind)
        array.tofile(folder / f"input{n}")
        listed.append([f"input{n}", ARRAYS[kind], shape])
    (folder / "asked.json").write_text(json.dumps({"inputs": listed, "engines": [], "turns": 0}))


def ask(folder: Path, engines: Sequence[str], turns: int) -> dict[str, Any]:
    """Run engines in turns in one page."""
    path = folder / "asked.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "engines": list(engines), "turns": turns}))
    return browsed(folder)


def distance(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> float:
    """Return the largest difference of two engines' outputs, as a share of the largest value."""
    shares = []
    for a, b in zip(ours["outputs"], theirs["outputs"], strict=True):
        x, y = np.array(a), np.array(b)
        shares.append(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30))
    return float(np.max(shares))


def difference(model: Model, folder: Path) -> float:
    """Return how far the page's outputs are from native code's, as a share of the largest value."""
    paged(model, folder)
    said, feeds = ask(folder, [OURS], 0)[OURS], {}
    native = jangin.compile(model.path, shapes=dict(model.sizes) or None)
    for n, given in enumerate(native.inputs):
        array = np.fromfile(folder / f"input{n}", np.dtype(given.dtype))
        feeds[given.name] = array.reshape([int(d) for d in given.shape])
    expected = [y.reshape(-1) for y in native.run(feeds).values()]
    return distance(said, {"outputs": expected})


class Measuring:
    """The measurements of a model, which are kept in a folder. `left` names those that are missing."""

    def __init__(self, model: Model, folder: Path, npm: Path, peers: Sequence[str], turns: int) -> None:
        self.model, self.folder, self.turns = model, folder, turns
        if not (folder / "asked.json").exists():
            packed(model, folder, npm)
        self.path = folder / "said.json"
        self.said: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        wanted = [OURS, SOON, *peers, *(f"turns with {peer}" for peer in peers)]
        wanted += [f"memory of {engine}" for engine in (OURS, *peers)]
        self.left = [name for name in wanted if name not in self.said]

    def measure(self) -> None:
        """Make the next measurement, and keep it."""
        name = self.left.pop(0)
        engine, _, peer = name.removeprefix("memory of ").partition("turns with ")
        engines = [OURS, peer] if peer else [engine]
        found = ask(self.folder, engines, self.turns if peer else 0)
        if peer:
            found["far"] = distance(found[OURS], found[peer])
        self.said[name] = found
        self.path.write_text(json.dumps(self.said))

    def row(self, peer: str) -> list[str]:
        turns = self.said[f"turns with {peer}"]
        times = [float(np.median(turns[engine]["times"])) for engine in (OURS, peer)]
        began = [self.said[engine][engine]["first"] / 1e3 for engine in (OURS, peer, SOON)]
        held = [self.said[f"memory of {engine}"]["memory"] / 1e6 for engine in (OURS, peer)]
        return [
            self.model.title, *(f"{t:.0f} ms" for t in times), f"{times[1] / times[0]:.2f}×",
            *(f"{t:.1f} s" for t in began[:2]), f"{began[1] / began[0]:.2f}×", f"{began[2]:.1f} s",
            *(f"{m:.0f} MB" for m in held), f"{turns['far']:.0e}",
        ]  # fmt: skip


def arguments() -> argparse.Namespace:
    kind = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--npm", type=Path, required=True, help="the folder node_modules with the peers")
    parser.add_argument("--peers", nargs="+", default=[*PEERS], choices=[*PEERS])
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="keep measurements here, and go on with them")
    parser.add_argument("--one", action="store_true", help="measure one thing more")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/browser.json")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    rows: dict[str, list[list[str]]] = {peer: [] for peer in args.peers}
    turns = []
    with tempfile.TemporaryDirectory() as own:
        for name in args.models.split(","):
            folder = (args.folder or Path(own)) / name
            found = Measuring(ALL[name], folder, args.npm, args.peers, args.turns)
            while found.left:
                found.measure()
                if args.one:
                    return
            for peer in args.peers:
                rows[peer].append(found.row(peer))
                turns.append(len(found.said[f"turns with {peer}"][OURS]["times"]))
                print(" | ".join(rows[peer][-1]), flush=True)
    if args.keep:
        parts = kept(rows, args.npm, min(turns))
        Section("In the browser, by WebGPU", parts).save("browser")


def kept(rows: Mapping[str, Sequence[list[str]]], npm: Path, turns: int) -> list[str | Table]:
    """Return the section's parts: a text and a table for each peer. Tables of other peers stay, and so do
    rows of other models."""
    path = FOLDER / "browser.json"
    before = Section.load(path).parts if path.exists() else []
    old = {t.columns[2]: (told, t) for told, t in pairwise(before) if isinstance(t, Table)}
    parts: list[str | Table] = []
    for peer, (package, what) in PEERS.items():
        if peer not in rows:
            parts += old.get(peer, ())
            continue
        version = json.loads((npm / package / "package.json").read_text())["version"]
        told = (
            "`python benchmarks/browser.py` in headless Chromium on SwiftShader, which runs WebGPU on the "
            f"processor. The peer is {peer} {version} ({what}), in turns in one page (medians of {turns} "
            "turns or more):"
        )
        columns = [
            "model", OURS, peer, "", "first result", "theirs", "", SOON, "memory", "theirs", "difference",
        ]  # fmt: skip
        rest = old[peer][1].rows if peer in old else []
        known = {row[0]: list(row) for row in (*rest, *rows[peer])}
        titles = [ALL[name].title for name in MODELS]
        parts += [told, Table(columns, [known[title] for title in titles if title in known])]
    return parts


if __name__ == "__main__":
    main()
