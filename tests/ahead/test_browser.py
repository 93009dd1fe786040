"""The example's page in a browser without a window."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
import threading
from importlib.util import find_spec
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
CHROMIUM = shutil.which("chromium")
LINKER = find_spec("ziglang") or shutil.which("wasm-ld")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium isn't installed here"),
    pytest.mark.skipif(not LINKER, reason="nothing links WebAssembly here: neither ziglang nor wasm-ld"),
]


def test_a_photograph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the page shows of one of ImageNet's pictures: its class first, and a time."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    spec = importlib.util.spec_from_file_location("browser_page", EXAMPLES / "browser" / "run.py")
    assert spec is not None and spec.loader is not None
    page = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, page)
    spec.loader.exec_module(page)
    from packages import package

    picture = package("foolbox==3.3.4") / "foolbox" / "data" / "imagenet_02_438.jpg"
    page.write_page(tmp_path)
    shutil.copy(picture, tmp_path / "photo.jpg")
    with page.server(tmp_path) as serving:
        threading.Thread(target=serving.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{serving.server_port}/?picture=photo.jpg"
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--virtual-time-budget=60000", "--dump-dom"]
        done = subprocess.run([str(CHROMIUM), *options, address], capture_output=True, text=True, timeout=120)
        serving.shutdown()
    rows = re.findall(r"<tr><td>([^<]+)</td><td>([\d.]+) %</td></tr>", done.stdout)
    assert len(rows) == 5 and rows[0][0] == page.class_names()[438] == "beaker", done.stdout[-2000:]
    assert float(rows[0][1]) > float(rows[1][1]) > 0
    assert re.search(r'<p id="time">\d+ ms</p>', done.stdout)
