"""Keep how WebGPU's tests end: ONNX's node tests by wgpu and by Dawn, and whole models.

    npm install webgpu --prefix FOLDER
    python benchmarks/webgpu_tests.py --dawn FOLDER/node_modules/webgpu [--folder reports] [--save]

wgpu takes the first adapter, such as Mesa's lavapipe. Dawn takes Chromium's SwiftShader. `--folder` keeps
pytest's reports, and the next call makes only what is missing. `--save` writes
benchmarks/results/webgpu_tests.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

from sections import Section, Table

ROOT = Path(__file__).resolve().parent.parent
NODES = {"wgpu": "wgpu on an adapter", "dawn": "packages by Dawn"}
"""The reports of ONNX's node tests."""
TESTS = {
    "wgpu": ["test_webgpu_nodes.py", "-k", "TestNodesWebGPU"],
    "dawn": ["test_webgpu_nodes.py", "-k", "TestNodesDawn"],
    "models": ["test_webgpu_models.py"],
}
"""The tests of each report, in tests/webgpu."""


def report(name: str, folder: Path, dawn: Path | None) -> ElementTree.Element:
    """Run tests, and return pytest's report. A report that is there is read instead."""
    path = folder.resolve() / f"{name}.xml"
    if not path.exists():
        file, *more = TESTS[name]
        command = [
            sys.executable, "-m", "pytest", f"tests/webgpu/{file}", *more, "--all", "-m", "slow or not slow",
            f"--junitxml={path}",
        ]  # fmt: skip
        named = {"JANGIN_DAWN": str(dawn.resolve())} if dawn else {}
        subprocess.run(command, cwd=ROOT, env={**os.environ, **named})
    return ElementTree.parse(path).getroot()


def failed(case: ElementTree.Element) -> bool:
    return case.find("failure") is not None or case.find("error") is not None


def outcomes(cases: ElementTree.Element) -> Counter[str]:
    """Return how node tests ended. Skipped ones are counted by their reason."""
    counts: Counter[str] = Counter()
    for case in cases.iter("testcase"):
        if ".TestNodes" in case.get("classname", ""):
            skipped = case.find("skipped")
            why = "passed" if skipped is None else skipped.get("message", "")
            counts["failed" if failed(case) else why] += 1
    return counts


def nodes(counts: Mapping[str, Counter[str]]) -> Table:
    reasons = Counter[str]()
    for one in counts.values():
        reasons += one
    why = [name for name, _ in reasons.most_common() if name not in ("passed", "failed")]
    rows = [[name, *(f"{one[name]:,}" for one in counts.values())] for name in ("passed", *why, "failed")]
    rows.append(["all", *(f"{one.total():,}" for one in counts.values())])
    return Table(["ONNX's node tests", *(NODES[name] for name in counts)], rows)


def models(cases: ElementTree.Element) -> Table:
    rows = []
    for case in cases.iter("testcase"):
        told = {p.get("name"): p.get("value", "") for p in case.iter("property")}
        if name := told.get("model"):
            rows.append([name, "failed" if failed(case) else "passed", told.get("difference", "")])
    return Table(["model on an adapter", "", "difference to native code"], rows)


def main() -> None:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    parser.add_argument("--dawn", type=Path, help="the folder of npm's package webgpu")
    parser.add_argument("--folder", type=Path, default=Path("reports"), help="for pytest's reports")
    parser.add_argument("--save", action="store_true", help="keep the outcomes in benchmarks/results")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    ways = [w for w in NODES if w != "dawn" or args.dawn]
    counted = nodes({w: outcomes(report(w, args.folder, args.dawn)) for w in ways})
    told = (
        "`python benchmarks/webgpu_tests.py`. ONNX's official runner runs the node tests. wgpu's adapter "
        "is Mesa's lavapipe. Dawn runs npm packages on SwiftShader, and its compiler Tint sees every shader:"
    )
    whole = models(report("models", args.folder, args.dawn))
    differences = "Whole models on the adapter, with the largest difference as a share of the largest value:"
    made = Section("WebGPU's tests", [told, counted, differences, whole])
    print(*map(str, made.parts), sep="\n\n")
    if args.save:
        print(made.save("webgpu_tests"))


if __name__ == "__main__":
    main()
