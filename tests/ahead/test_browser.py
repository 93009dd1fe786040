"""The example's page in a headless browser."""

from __future__ import annotations

import importlib.util
import queue
import re
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CHROMIUM = shutil.which("chromium")
LINKER = find_spec("ziglang") or shutil.which("wasm-ld")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium isn't installed here"),
    pytest.mark.skipif(not LINKER, reason="nothing links WebAssembly here: neither ziglang nor wasm-ld"),
]

WATCH = """<!doctype html><iframe src="index.html?picture=photo.jpg"></iframe><script>
  const waiting = setInterval(() => {
    const { body } = document.querySelector("iframe").contentDocument;
    if (!body?.querySelector("td")) return;
    clearInterval(waiting);
    fetch("shown", { method: "POST", body: body.innerHTML });
  }, 50);
</script>"""
"""Sends the page's contents to the server once the page has shown a result."""
LIMIT = 240
"""Seconds that a busy machine may take to start the browser and run the model."""


def what_is_shown(page: Any, folder: Path, profile: Path) -> str:
    """Return the HTML of the page with its result, which the browser sends."""
    answers = queue.SimpleQueue[str]()

    def post(handler: Any) -> None:
        answers.put(handler.rfile.read(int(handler.headers["Content-Length"])).decode())
        handler.send_response(204)
        handler.end_headers()

    with pytest.MonkeyPatch.context() as patch, page.server(folder) as serving:
        patch.setattr(page.Files, "do_POST", post, raising=False)
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={profile}"]
        address = f"http://127.0.0.1:{serving.server_port}/watch.html"
        log = (folder.parent / "log").open("w+")
        browser = subprocess.Popen([str(CHROMIUM), *options, "--enable-logging=stderr", address], stderr=log)
        try:
            return answers.get(timeout=LIMIT)
        except queue.Empty:
            log.seek(0)
            pytest.fail(f"the page showed nothing in {LIMIT} s; the browser says:\n{log.read()[-4000:]}")
        finally:
            browser.terminate()
            browser.wait(30)
            serving.shutdown()
            log.close()


def test_a_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The page shows the class of a picture of ImageNet's first, and a time."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("browser_page", EXAMPLES / "browser" / "run.py")
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, page)
    spec.loader.exec_module(page)
    from packages import package

    picture = package("foolbox==3.3.4") / "foolbox" / "data" / "imagenet_02_438.jpg"
    folder = tmp_path / "served"
    folder.mkdir()
    page.write_page(folder)
    shutil.copy(picture, folder / "photo.jpg")
    (folder / "watch.html").write_text(WATCH)
    shown = what_is_shown(page, folder, tmp_path / "profile")
    rows = re.findall(r"<tr><td>([^<]+)</td><td>([\d.]+) %</td></tr>", shown)
    assert len(rows) == 5 and rows[0][0] == page.class_names()[438] == "beaker", shown[-2000:]
    assert float(rows[0][1]) > float(rows[1][1]) > 0
    assert re.search(r'<p id="time">WebAssembly: \d+ ms</p>', shown)
