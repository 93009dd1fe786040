"""Written models as Netron draws them in a headless browser."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from html import unescape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from jangin.commands.common import Settings
from jangin.commands.convert import convert

netron = pytest.importorskip("netron", reason="Netron isn't installed")
CHROMIUM = shutil.which("chromium")
LIMIT = 240
"""Seconds that a busy machine may take to start the browser and draw."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium isn't installed here"),
]

WATCH = """<!doctype html><iframe src="/" width="1200" height="800"></iframe><pre id="drawn"></pre>
<img src="held"><script>
  const waiting = setInterval(() => {
    const page = document.querySelector("iframe").contentDocument;
    const boxes = [...(page?.querySelectorAll("g.node") ?? [])]
      .map((box) => box.querySelector("text").textContent);
    const message = page?.body?.classList.contains("alert") ? page.body.innerText : "";
    if (!message && (!boxes.length || page.body.classList.contains("spinner"))) return;
    clearInterval(waiting);
    document.getElementById("drawn").textContent = JSON.stringify([boxes, message]);
    fetch("done");
  }, 100);
</script>"""
"""A page that watches Netron's page in a frame. The browser takes it to be loading until something was drawn,
when the picture comes."""


@contextmanager
def served(file: Path) -> Iterator[str]:
    """Yield the address of a page that watches Netron's. Its visitor has already accepted Netron's
    cookies."""
    host, port = netron.start(str(file), address=("127.0.0.1", 0), browse=False)
    drawn = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            kind, content = "text/html", WATCH.encode()
            if self.path == "/held":
                drawn.wait(LIMIT)
            elif self.path == "/done":
                drawn.set()
            elif self.path != "/watch":
                with urllib.request.urlopen(f"http://{host}:{port}{self.path}") as answer:
                    kind, content = answer.headers["Content-Type"], answer.read()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Set-Cookie", "consent=1")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        try:
            yield f"http://127.0.0.1:{serving.server_port}/watch"
        finally:
            drawn.set()
            serving.shutdown()
            netron.stop((host, port))


def drawn(file: Path, profile: Path) -> list[str]:
    """Return the titles of the boxes that Netron draws of a file."""
    alone = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}", alone]
    with served(file) as address:
        command = [str(CHROMIUM), *options, "--dump-dom", address]
        dom = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=True).stdout
    found = re.search(r'<pre id="drawn">(.+?)</pre>', dom, re.DOTALL)
    assert found is not None, dom[-2000:]
    boxes, message = json.loads(unescape(found.group(1)))
    assert not message
    return list(boxes)


def model(path: Path) -> Path:
    node, value = helper.make_node, helper.make_tensor_value_info
    w = np.random.default_rng(0).standard_normal((4, 3, 3, 3)).astype(np.float32)
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1] * 4), node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2]),
        node("Exp", ["p"], ["y"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "net", [value("x", TensorProto.FLOAT, [1, 3, 6, 6])], [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w")],
    )  # fmt: skip
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path.write_bytes(made.SerializeToString())
    return path


def test_netron_draws_it(tmp_path: Path) -> None:
    """Netron draws a box for the input, the output and every operator, and no other. It doesn't read NNEF
    yet."""
    path = tmp_path / "b.onnx"
    convert(model(tmp_path / "a.onnx"), Settings(cache=False), path, [])
    assert drawn(path, tmp_path / "profile") == ["x", "Conv", "MaxPool", "Exp", "y"]
