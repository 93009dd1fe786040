"""Measure every benchmark model against ONNX Runtime and OpenVINO, and write benchmarks/RESULTS.md.

    .venv/bin/pip install '.[bench]'
    .venv/bin/python benchmarks/run.py

The models come from benchmarks/make_models.py (which says how). `--render FILE` writes the page again
from an earlier run's figures, without measuring; `--readme` also puts the short table into README.md.
"""

from __future__ import annotations

import argparse
import json
from datetime import date
from pathlib import Path
from typing import Any

from jangin.bench.engines import TITLES
from jangin.commands.bench import bench
from jangin.commands.common import Settings

ROOT = Path(__file__).resolve().parent.parent
MODELS = ROOT / ".cache" / "models"
RESULTS = ROOT / "benchmarks" / "RESULTS.md"
TITLE = {
    "squeezenet1_1": "SqueezeNet 1.1",
    "mobilenetv2": "MobileNetV2",
    "resnet50": "ResNet-50",
    "minilm": "MiniLM-L6",
}
BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
SHAPES = {"minilm": ["batch=1", "seq=128"]}


def measure(names: list[str], threads: str, rounds: int, seconds: float) -> dict[str, Any]:
    """The figures of all models, as `jangin bench --json` writes them."""
    from jangin import bench as benchmark

    comparisons = []
    for name in names:
        path = MODELS / f"{name}.onnx"
        if not path.is_file():
            raise SystemExit(f"{path} is missing: see benchmarks/make_models.py")
        shapes = SHAPES.get(name, [])
        peers = "onnxruntime,openvino"
        comparisons += bench(
            [path], Settings(), peers, threads, rounds, seconds, shapes, [], False, "cpu", None
        )
    return benchmark.as_json(comparisons)


def render(figures: dict[str, Any], command: str) -> str:
    """The page: one line for each model and thread count."""
    machine = figures["machine"]
    versions: dict[str, str] = {}
    rows = []
    for c in figures["comparisons"]:
        results = {r["engine"]: r for r in c["results"]}
        versions |= {TITLES[e]: r["version"] for e, r in results.items() if r["version"]}
        rows.append(line(c, results))
    engines = ", ".join(f"{name} {version}" for name, version in versions.items())
    header = ["model", "threads", "Jangin, ms", "ONNX Runtime, ms", "ratio", "OpenVINO, ms", "ratio"]
    header += ["of SGEMM", "error", "compile", "arena"]
    return "\n".join(
        [
            "# Measured",
            "",
            f"{machine['processor']} ({machine['target']}), {machine['system']}, Python {machine['python']}; "
            f"{engines}; {date.today().isoformat()}.",
            "",
            f"Made by `{command}`. Single precision, batch 1. Times are medians of interleaved turns in "
            "processes of their own, with quartiles in brackets; turns during which the core ran slowly or "
            "others used the machine are left out. A ratio over 1 means that Jangin is the faster. *Of "
            "SGEMM*: the share of the speed that NumPy's matrix product (1024³) reached beside it with the "
            "same threads. *Error*: the largest difference to ONNX Runtime's output, as a share of its "
            "largest value.",
            "",
            "| " + " | ".join(header) + " |",
            "|---" * len(header) + "|",
            *rows,
            "",
        ]
    )


def short(figures: dict[str, Any]) -> str:
    """The table for README: times and how many times as fast Jangin is."""
    rows = []
    for c in figures["comparisons"]:
        times = {r["engine"]: f"{r['median']:.1f}" if r["median"] else "–" for r in c["results"]}
        ratios = {e: "" if ratio is None else f" ({ratio:.2f}×)" for e, ratio in c["ratios"].items()}
        cells = [times["jangin"], *(times[e] + ratios[e] for e in ("onnxruntime", "openvino"))]
        rows.append(f"| {TITLE.get(c['model'], c['model'])} | {c['threads']} | " + " | ".join(cells) + " |")
    machine = figures["machine"]
    return "\n".join(
        [
            f"Milliseconds a run, single precision, batch 1, on {machine['processor']} "
            f"({machine['target']}); in brackets how many times as fast Jangin is:",
            "",
            "| model | threads | Jangin | ONNX Runtime | OpenVINO |",
            "|---|---|---|---|---|",
            *rows,
        ]
    )


def line(c: dict[str, Any], results: dict[str, Any]) -> str:
    ours = results["jangin"]
    cells = [TITLE.get(c["model"], c["model"]), str(c["threads"]), timing(ours)]
    for engine in ("onnxruntime", "openvino"):
        ratio = c["ratios"].get(engine)
        cells += [timing(results[engine]), "–" if ratio is None else f"**{ratio:.2f}×**"]
    share = "–"
    if c["sgemm"] and ours["median"]:
        share = f"{c['flops'] / ours['median'] * 1e3 / c['sgemm']:.0%}"
    error = "–" if ours["error"] is None else f"{ours['error']:.0e}"
    arena = f"{ours['memory'].get('arena', 0) / 1e6:.1f} MB"
    return "| " + " | ".join([*cells, share, error, f"{ours['compile_seconds']:.1f} s", arena]) + " |"


def timing(result: dict[str, Any]) -> str:
    if result["problem"]:
        return "absent" if result["absent"] else "failed"
    return f"{result['median']:.2f} ({result['low']:.2f}–{result['high']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the benchmark models.")
    parser.add_argument("names", nargs="*", default=list(TITLE))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seconds", type=float, default=0.25)
    parser.add_argument("--json", type=Path, default=ROOT / ".cache" / "benchmarks.json")
    parser.add_argument("--render", type=Path, help="an earlier run's figures")
    parser.add_argument("--readme", action="store_true", help="fill README.md's table too")
    args = parser.parse_args()
    if args.render:
        figures = json.loads(args.render.read_text())
    else:
        figures = measure(args.names, args.threads, args.rounds, args.seconds)
        args.json.parent.mkdir(parents=True, exist_ok=True)
        args.json.write_text(json.dumps(figures, indent=1))
    page = render(figures, "python benchmarks/run.py")
    RESULTS.write_text(page)
    print(f"written to {RESULTS.relative_to(ROOT)}")
    if args.readme:
        readme = ROOT / "README.md"
        before, rest = readme.read_text().split(BEGIN)
        readme.write_text(f"{before}{BEGIN}\n{short(figures)}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    main()
