"""Measure models in headless Chromium, by WebGPU, beside onnxruntime-web.

    npm install onnxruntime-web --prefix FOLDER
    python benchmarks/browser.py --ort FOLDER/node_modules/onnxruntime-web/dist [--models minilm] [--keep]

Each engine first loads a model in a browser of its own, with an empty profile. `first result` is the time
from the import of the engine to the end of the first run. `memory` is what the browser's processes then hold,
and memory that they share counts once. "With WebAssembly" is a package that computes by WebAssembly until its
shaders are compiled. Then one page loads both engines and runs them in turns.

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
from pathlib import Path
from typing import Any

import numpy as np
from catalogue import BRIEF, CATALOGUE, Model
from sections import FOLDER, Section, Table

import jangin

ALL = {**CATALOGUE, **BRIEF}
MODELS = ("squeezenet1_1", "mobilenetv2", "minilm", "whisper_encoder_3s", "yolov3_tiny")
ENGINES = ("Jangin", "onnxruntime-web")
BEGUN = (*ENGINES, "with WebAssembly")
"""The ways whose first result is timed."""
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
    const ort = await import("./ort/ort.webgpu.min.mjs");
    ort.env.wasm.wasmPaths = new URL("ort/", location.href).href;
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
    """Return the bytes that a process holds (Linux). Its share of shared memory counts."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:  # it has ended
        return 0
    return sum(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))


def packed(model: Model, folder: Path, ort: Path) -> None:
    """Write a page's files: the model for both engines, and random inputs."""
    sizes = dict(model.sizes) or None
    folder.mkdir(parents=True, exist_ok=True)
    jangin.emit(model.path, "web", "webgpu+wasm32", sizes, name="model").save(folder, force=True)
    shutil.copy(model.path, folder / "model.onnx")
    (folder / "ort").symlink_to(ort.resolve())
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


def distance(said: Mapping[str, Any]) -> float:
    """Return the largest difference of the engines' outputs, as a share of the largest value."""
    ours, theirs = (said[name]["outputs"] for name in ENGINES)
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        x, y = np.array(a), np.array(b)
        worst = max(worst, float(np.abs(x - y).max() / max(np.abs(y).max(), 1e-30)))
    return worst


class Measuring:
    """The measurements of a model, which are kept in a folder. `left` names those that are missing."""

    def __init__(self, model: Model, folder: Path, ort: Path, turns: int) -> None:
        self.model, self.folder, self.turns = model, folder, turns
        if not (folder / "asked.json").exists():
            packed(model, folder, ort)
        self.path = folder / "said.json"
        self.said: dict[str, Any] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.left = [name for name in (*BEGUN, "turns") if name not in self.said]

    def measure(self) -> None:
        """Make the next measurement, and keep it."""
        name = self.left.pop(0)
        found = ask(self.folder, ENGINES, self.turns) if name == "turns" else ask(self.folder, [name], 0)
        self.said[name] = {**found, "far": distance(found)} if name == "turns" else found
        self.path.write_text(json.dumps(self.said))

    def row(self) -> list[str]:
        turns = self.said["turns"]
        times = [float(np.median(turns[engine]["times"])) for engine in ENGINES]
        began = [self.said[engine][engine]["first"] / 1e3 for engine in BEGUN]
        held = [self.said[engine]["memory"] / 1e6 for engine in ENGINES]
        return [
            self.model.title, *(f"{t:.0f} ms" for t in times), f"{times[1] / times[0]:.2f}×",
            *(f"{t:.1f} s" for t in began[:2]), f"{began[1] / began[0]:.2f}×", f"{began[2]:.1f} s",
            *(f"{m:.0f} MB" for m in held), f"{turns['far']:.0e}",
        ]  # fmt: skip


def arguments() -> argparse.Namespace:
    kind = argparse.RawTextHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--ort", type=Path, required=True, help="the folder `dist` of onnxruntime-web")
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--turns", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="keep measurements here, and go on with them")
    parser.add_argument("--one", action="store_true", help="measure one thing more")
    parser.add_argument("--keep", action="store_true", help="write benchmarks/results/browser.json")
    return parser.parse_args()


def main() -> None:
    args = arguments()
    version = json.loads((args.ort.parent / "package.json").read_text())["version"]
    columns = [
        "model", "Jangin", "onnxruntime-web", "", "first result", "theirs", "", "with WebAssembly",
        "memory", "theirs", "difference",
    ]  # fmt: skip
    rows, turns = [], []
    with tempfile.TemporaryDirectory() as own:
        for name in args.models.split(","):
            found = Measuring(ALL[name], (args.folder or Path(own)) / name, args.ort, args.turns)
            while found.left:
                found.measure()
                if args.one:
                    return
            rows.append(found.row())
            turns.append(len(found.said["turns"][ENGINES[0]]["times"]))
            print(" | ".join(rows[-1]), flush=True)
    if args.keep:
        told = (
            "`python benchmarks/browser.py` in headless Chromium on SwiftShader, which runs WebGPU on the "
            f"processor. The peer is onnxruntime-web {version} (WebGPU provider), in turns in one page "
            f"(medians of {min(turns)} turns or more):"
        )
        Section("In the browser, by WebGPU", [told, Table(columns, merged(rows))]).save("browser")


def merged(rows: Sequence[list[str]]) -> list[list[str]]:
    """Return new rows and those kept before of other models, in the order of `MODELS`."""
    path = FOLDER / "browser.json"
    before = [p for p in Section.load(path).parts if isinstance(p, Table)] if path.exists() else []
    known = {row[0]: row for row in [*(r for table in before for r in table.rows), *rows]}
    return [known[title] for title in (ALL[name].title for name in MODELS) if title in known]


if __name__ == "__main__":
    main()
