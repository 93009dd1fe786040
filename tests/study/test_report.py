"""The report of invented rows: figures, Markdown, CSV, and the page in a browser."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
import subprocess
from dataclasses import replace
from html import unescape
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from jangin.bench.engines import DEVICE_MULTIPLIERS, MULTIPLIERS, STUDIED
from jangin.study import report
from jangin.study.page import COLOURS, plots
from jangin.study.products import Product, by_name
from jangin.study.rows import Row
from jangin.study.settings import Settings, open_folder
from jangin.study.tables import Table, as_csv, tables

CHROMIUM = shutil.which("chromium")
ENGINES = ("jangin", "onnxruntime", "openvino", "mine:engine")
LONG = "a-network-with-a-name-that-is-rather-long-for-a-narrow-screen"


def rows(energy: bool = True) -> list[Row]:
    """Return rows of two models: Jangin 2 ms, ONNX Runtime 4 ms, OpenVINO 1 ms for the second model only."""
    found = []
    for model, times in (("net", (2.0, 4.0)), (LONG, (2.0, 4.0, 1.0))):
        for threads in (1, 2):
            for engine, ms in zip(ENGINES, times, strict=False):
                ms /= threads
                joules = 1e-3 * ms * (2 if engine == "openvino" else 0.5)
                used: dict[str, Any] = {
                    "source": "RAPL", "joules": joules, "low": 0.9 * joules, "high": 1.1 * joules,
                    "gross": 2 * joules, "watts": 20.0, "idle": 10.0, "windows": 5, "seconds": 1.0,
                    "calls": 99, "doubt": 0.01, "net_doubt": 0.02, "warning": "", "cost": 0.004,
                    "rails": {"package-0": 18.0, "package-0 dram": 2.0},
                    "power": [[n / 10, 20 + n % 3] for n in range(50)],
                }  # fmt: skip
                found.append(
                    Row(model, "float32", 1, threads, engine, "1.2", median=ms, p95=1.1 * ms, p99=1.2 * ms,
                        low=0.95 * ms, high=1.05 * ms, calls=100, kept=5, turns=5, first=0.5,
                        peak_bytes=50_000_000, error=1e-6, reference="ONNX Runtime in float64",
                        how="made by jangin convert from .tflite", energy=used if energy else {},
                        no_energy="" if energy else "no source")
                )  # fmt: skip
            found.append(Row(model, "float32", 1, threads, "mine:engine", problem="no <operator> | Conv"))
    return found


def folder_of_study(tmp_path: Path, energy: bool = True) -> Path:
    model = tmp_path / "net.onnx"
    model.write_bytes(b"")
    open_folder(tmp_path / "report", Settings((model,), ENGINES, energy=energy))
    return tmp_path / "report"


def by_title(found: list[Table]) -> dict[str, dict[str, tuple[str, ...]]]:
    return {t.title: {r[0]: r[1:] for r in t.rows} for t in found}


def test_speed_ups_savings_and_the_best() -> None:
    found = by_title(tables(rows(), ENGINES, "onnxruntime", {}))
    one = f"{LONG}, float32, batch 1, 1 thread"
    speed, saving = (found[f"{n} over ONNX Runtime"] for n in ("Speed-up", "Energy saving"))
    assert speed[one] == ("2.00×", "1.00×", "4.00×") and saving[one] == ("2.00×", "1.00×", "1.00×")
    assert speed["geometric mean"] == ("2.00×", "1.00×", "4.00×")
    assert speed["cases in the mean"] == ("4", "4", "2")
    assert speed["net, float32, batch 1, 2 threads"] == ("2.00×", "1.00×", "")
    assert found["Best engine by time"][one] == ("OpenVINO", "2.00×", "4.00×")
    assert found["Best engine by energy"][one][0] == "Jangin"
    assert found["Milliseconds a call"][one] == ("2", "4", "1")
    assert found["Millijoules a call"][one][0] == "1 (0.9–1.1); 2"
    assert found["Engines without figures"][one] == ("mine:engine", "no <operator> | Conv")


def test_products_have_a_table_and_a_plot_of_their_own() -> None:
    """A product of 100 x 100 in 0.1 ms is 20 GFLOP/s. Means over models don't count it. The plot has the
    square products alone."""
    products = by_name([Product(100, 100, 100), Product(200, 200, 200), Product(8, 50, 1000)])
    made = [
        Row(name, "float32", 1, 1, e, median=product.work / s / 1e6)
        for name, product in products.items()
        for e, s in (("jangin", 20.0), ("openblas", 30.0), ("onnxruntime", 10.0))
    ]
    given = [*rows(), *made]
    found = by_title(tables(given, ENGINES, "onnxruntime", products))
    label = "product-100, float32, batch 1, 1 thread"
    assert found["GFLOP/s of matrix products"][label] == ("20.0", "30.0", "10.0")
    assert found["GFLOP/s of matrix products"]["product-8x50x1000, float32, batch 1, 1 thread"][1] == "30.0"
    assert found["Speed-up over ONNX Runtime"]["geometric mean"] == ("2.00×", "1.00×", "4.00×")
    *_, plot = plots(given, ENGINES, products)
    assert plot["title"] == "Square matrix products, 1 thread" and plot["log"]
    lines = {line["name"]: (line["x"], line["y"]) for line in plot["data"]}
    assert lines["OpenBLAS"][0] == [100, 200] and lines["OpenBLAS"][1] == pytest.approx([30, 30])


def test_tensorflow_lite_is_a_baseline_beside_the_chosen_one() -> None:
    given = [Row("net", "float32", 1, 1, e, median=ms) for e, ms in (("jangin", 2.0), ("litert", 6.0))]
    found = by_title(tables(given, ("jangin", "litert"), "jangin", {}))
    assert found["Speed-up over LiteRT"]["net, float32, batch 1, 1 thread"] == ("3.00×", "1.00×")
    assert [t for t in found if "Speed-up" in t] == ["Speed-up over Jangin", "Speed-up over LiteRT"]


def test_shares_of_operators() -> None:
    row = Row("net", "float32", 1, 1, "jangin", median=2.0, layers={"Add": 0.001, "Conv+Relu": 0.003})
    found = by_title(tables([row, replace(row, engine="mnn", layers={})], ("jangin", "mnn"), "mnn", {}))
    assert found["Time by operator"] == {
        "net, float32, batch 1, 1 thread": ("Jangin", "Conv+Relu 75%, Add 25%")
    }


@pytest.mark.parametrize(("slow", "axis"), [(50.0, "milliseconds"), (70.0, "milliseconds, logarithmic")])
def test_bars_of_very_different_lengths_have_a_logarithmic_axis(slow: float, axis: str) -> None:
    given = [Row("net", "float32", 1, 1, e, median=ms) for e, ms in (("jangin", 2.0), ("im2col", slow))]
    plot = plots(given, ("jangin", "im2col"), {})[0]
    assert plot["axis"] == axis and (plot["to"] is not None) == axis.endswith("logarithmic")
    if plot["to"] is not None:
        assert 10 ** plot["from"] == pytest.approx(1.0) and 10 ** plot["to"] == pytest.approx(84.0)


def test_each_engine_has_a_colour_of_its_own() -> None:
    """The ninth engine had the colour of the first."""
    engines = {*STUDIED, *MULTIPLIERS, *chain(*DEVICE_MULTIPLIERS.values())}
    assert len({*COLOURS}) == len(COLOURS) >= len(engines)


def test_without_energy_no_table_speaks_of_joules(tmp_path: Path) -> None:
    found = report_of(tmp_path, rows(energy=False))
    assert not re.search("joule|watt", (found / "report.md").read_text().lower())
    assert "Energy wasn't measured: no source." in (found / "report.md").read_text()


def report_of(tmp_path: Path, given: list[Row]) -> Path:
    pytest.importorskip("plotly", reason="Plotly isn't installed (the extra `study`)")
    folder = folder_of_study(tmp_path)
    report.write(folder, given, ENGINES, "onnxruntime")
    return folder


def test_markdown_and_csv_have_everything(tmp_path: Path) -> None:
    text = (report_of(tmp_path, rows()) / "report.md").read_text()
    for block in text.split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.replace("\\|", "").count("|") for line in lines}) <= 1, block
    assert "no &lt;operator> \\| Conv" in text and "<" not in text, "a viewer of Markdown takes HTML as it is"
    read = [*csv.DictReader(io.StringIO(as_csv(rows())))]
    assert [(r["engine"], r["threads"]) for r in read] == [(r.engine, str(r.threads)) for r in rows()]
    assert float(read[0]["median"]) == 2.0 and float(read[0]["energy_joules"]) == pytest.approx(1e-3)
    assert read[2]["problem"] == "no <operator> | Conv" and read[2]["energy_joules"] == ""


def test_rows_of_a_study_in_parts_stand_in_the_order_of_its_settings() -> None:
    record = {"models": {"net": "", LONG: ""}, "precisions": ["float32"], "batches": [1], "threads": [1, 2],
              "devices": ["cpu"], "engines": [*ENGINES, "mine:engine"]}  # fmt: skip
    assert report.ordered(record, rows()[::-1]) == rows()


def test_a_report_without_plotly_has_its_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = folder_of_study(tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "plotly.offline", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'jangin\[study\]'"):
        report.write(folder, rows(), ENGINES, "onnxruntime")
    assert (folder / "report.md").exists() and (folder / "rows.csv").exists()


def test_the_page_needs_nothing_else(tmp_path: Path) -> None:
    """No script, style or picture is fetched. Names are escaped."""
    page = (report_of(tmp_path, rows()) / "index.html").read_text()
    own = re.sub(r"<script>.*?</script>", "", page, flags=re.DOTALL)
    assert not re.search(r"(src|href)=|url\(|@import", own)
    assert "no &lt;operator&gt; | Conv" in page and "no <operator>" not in page


LOOK = """
<pre id="looked"></pre><script>
addEventListener("load", () => setTimeout(() => {
  const root = document.documentElement, plots = [...document.querySelectorAll(".plot")];
  const wide = [...document.querySelectorAll("body *")].filter(e => {
    if (e.closest(".wide") && !e.matches(".wide")) return false;
    if (e.closest(".js-plotly-plot, #js-plotly-tester")) return false;  // the second measures texts unseen
    const box = e.getBoundingClientRect();
    return box.width && (box.left < -1 || box.right > innerWidth + 1);
  });
  const texts = plots.flatMap(p => {
    const area = p.getBoundingClientRect();
    return [...p.querySelectorAll("svg text")].filter(t => {
      const box = t.getBoundingClientRect();
      return box.width && getComputedStyle(t).opacity !== "0" &&
        (box.left < area.left - 1 || box.right > area.right + 1);
    }).map(t => t.textContent);
  });
  const names = [...document.querySelectorAll("#plot0 .ytick text")].map(t => t.getBoundingClientRect());
  const crossed = names.filter(a => names.some(b => a.top < b.top && b.top < a.bottom - 1)).length;
  const luma = text => { const [r, g, b] = text.match(/\\d+/g).map(Number); return (r + g + b) / 3; };
  const ink = document.querySelector(".plot svg text.legendtext");
  const boxes = [...document.querySelectorAll("#threads input")];
  const bars = () => document.querySelectorAll("#plot0 .bars .point").length;
  const before = bars();
  boxes[0].click();
  const paths = plots.map(p => [...p.querySelectorAll(".point path, .js-line")].filter(
    s => s.getBoundingClientRect().width > 1).length);
  const looked = { width: innerWidth, scroll: root.scrollWidth, wide: wide.map(e => e.outerHTML.slice(0, 80)),
    texts, names: names.length, crossed, paths, before, after: bars(),
    ground: luma(getComputedStyle(document.body).backgroundColor), ink: luma(getComputedStyle(ink).fill) };
  document.getElementById("looked").textContent = JSON.stringify(looked);
}, 500));
</script>"""
"""A script that looks at the page, and leaves out the bars of one thread."""


def test_parquet_has_the_columns_of_csv(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow isn't installed (the extra `parquet`)")
    given = rows()
    read = parquet.read_table(report_of(tmp_path, given) / "rows.parquet").to_pylist()
    assert [*read[0]] == as_csv(given).splitlines()[0].split(",")
    assert [r["median"] for r in read] == [r.median for r in given]
    assert read[0]["energy_joules"] == given[0].joules and read[2]["energy_joules"] is None


def test_the_pareto_frontier_of_a_model() -> None:
    """OpenVINO is the quickest and takes the most joules. One thread of Jangin takes as many as two do."""
    (table,) = (t for t in tables(rows(), ENGINES, "onnxruntime", {}) if t.title == "Pareto frontier")
    of_net = [line for line in table.rows if line[0] == "net, batch 1"]
    assert [line[1:4] for line in of_net] == [("Jangin, float32, 2 threads", "1", "0.5")]
    of_long = [line[1] for line in table.rows if line[0] != "net, batch 1"]
    assert of_long == ["OpenVINO, float32, 2 threads", "Jangin, float32, 2 threads"]


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="Debian's chromium isn't installed here")
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [360, 1280])
def test_in_a_browser(tmp_path: Path, width: int, dark: bool) -> None:
    """The page is in a frame, because Chromium's own window isn't narrower than 500 pixels."""
    page = report_of(tmp_path, rows()) / "looked.html"
    page.write_text((page.parent / "index.html").read_text() + LOOK)
    outer = page.with_name("outer.html")
    outer.write_text(
        f'<iframe src="looked.html" style="border:0;width:{width}px;height:900px"></iframe>'
        '<pre id="out"></pre>'
        '<script>setInterval(() => { const found = document.querySelector("iframe").contentDocument'
        '?.getElementById("looked"); if (found) document.getElementById("out").textContent = '
        "found.textContent; }, 50);</script>"
    )
    options = [
        "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
        "--allow-file-access-from-files", "--window-size=1400,1000", "--virtual-time-budget=20000",
        *(["--blink-settings=preferredColorScheme=0"] if dark else []),
    ]  # fmt: skip
    command = [str(CHROMIUM), *options, "--dump-dom", outer.as_uri()]
    dom = subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout
    found = re.search(r'<pre id="out">(.+?)</pre>', dom)
    assert found is not None, dom[-2000:]
    looked = json.loads(unescape(found.group(1)))
    assert looked["width"] == width and looked["scroll"] <= width
    assert looked["wide"] == [] and looked["texts"] == []
    assert (looked["names"], looked["crossed"]) == (4, 0), "names of bars lie over one another"
    assert len(looked["paths"]) == 6 and all(looked["paths"])
    assert (looked["before"], looked["after"]) == (10, 5)
    assert (
        (looked["ground"] < 60 < 180 < looked["ink"])
        if dark
        else (looked["ink"] < 60 < 180 < looked["ground"])
    )
