"""Serve a page that recognizes photographs by EfficientNet-Lite0, with WebGPU and WebAssembly.

    pip install '.[aot,images]'
    python examples/browser/run.py [--folder out] [--port 8000]

The script downloads the pretrained weights on the first run (18 MB), compiles the network, and serves the
page on this machine. Any web server can serve the folder. Photographs that are dropped on the page don't
leave the browser, nor do the camera's pictures. The page shows the time of each way to run the network.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import jangin

sys.path.insert(0, str(Path(__file__).parent.parent))
from efficientnet import build_model, class_names
from packages import CACHE


def write_page(folder: Path) -> None:
    """Write the page, the model and the names of its classes."""
    made = jangin.emit(build_model(), "web", "webgpu+wasm32", shapes={"batch": 1}, name="model")
    made.save(folder, force=True)
    (folder / "names.json").write_text(json.dumps(class_names()))
    shutil.copy(Path(__file__).parent / "index.html", folder)


class Files(SimpleHTTPRequestHandler):
    """Serves a folder, with the right type for scripts."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript", ".wasm": "application/wasm",
    }  # fmt: skip

    def log_message(self, *_: object) -> None:
        pass


def server(folder: Path, port: int = 0) -> ThreadingHTTPServer:
    """Return a server for this machine alone. Port 0 chooses any free port."""
    return ThreadingHTTPServer(("127.0.0.1", port), partial(Files, directory=str(folder)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--folder", type=Path, default=CACHE / "browser")
    parser.add_argument("--port", type=int, default=8000)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    write_page(args.folder)
    print(f"http://127.0.0.1:{args.port}/ (Ctrl-C ends it)")
    with server(args.folder, args.port) as serving:
        serving.serve_forever()


if __name__ == "__main__":
    main()
