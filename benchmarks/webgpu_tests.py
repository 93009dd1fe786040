"""Keep how WebGPU's tests end: ONNX's node tests by wgpu and by Dawn, and whole models.

    npm install webgpu --prefix FOLDER
    python benchmarks/webgpu_tests.py --dawn FOLDER/node_modules/webgpu [--folder reports] [--save]

wgpu takes the first adapter, such as Mesa's lavapipe. Dawn takes Chromium's SwiftShader. `--folder` keeps
pytest's reports, and the next call makes what is missing or failed. `--save` writes
benchmarks/results/webgpu_tests.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
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
    """Run tests, and return pytest's report. If there is one already, only what failed in it runs again."""
    path, (file, *more) = folder.resolve() / f"{name}.xml", TESTS[name]
    if not path.exists():
        _run([f"tests/webgpu/{file}", *more], path, dawn)
        return ElementTree.parse(path).getroot()
    whole = ElementTree.parse(path)
    if wrong := [case for case in whole.iter("testcase") if failed(case)]:
        again = folder.resolve() / f"{name}_again.xml"
        _run([f"tests/webgpu/{file}::{_test(case)}" for case in wrong], again, dawn)
        made = {_test(case): case for case in ElementTree.parse(again).iter("testcase")}
        for suite in whole.iter("testsuite"):
            for n, case in enumerate(suite):
                if case.tag == "testcase":
                    suite[n] = made.get(_test(case), case)
        whole.write(path)
    return whole.getroot()


def _run(tests: Sequence[str], path: Path, dawn: Path | None) -> None:
    command = [
        sys.executable, "-m", "pytest", *tests, "--all", "-m", "slow or not slow", f"--junitxml={path}",
    ]  # fmt: skip
    named = {"JANGIN_DAWN": str(dawn.resolve())} if dawn else {}
    subprocess.run(command, cwd=ROOT, env={**os.environ, **named})


def _test(case: ElementTree.Element) -> str:
    """Return the test's class and name, as pytest takes them after the file."""
    place = case.get("classname", "").rpartition(".")[2]
    return f"{place}::{case.get('name')}" if place.startswith("Test") else str(case.get("name"))


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
    parser.add_argument("--only", nargs="+", default=[*TESTS], choices=[*TESTS], help="these reports")
    parser.add_argument("--folder", type=Path, default=Path("reports"), help="for pytest's reports")
    parser.add_argument("--save", action="store_true", help="keep the outcomes in benchmarks/results")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    names = [name for name in args.only if name != "dawn" or args.dawn]
    reports = {name: report(name, args.folder, args.dawn) for name in names}
    parts: list[str | Table] = []
    if counted := {name: outcomes(reports[name]) for name in names if name in NODES}:
        told = (
            "`python benchmarks/webgpu_tests.py`. ONNX's official runner runs the node tests. wgpu runs on "
            "Mesa's lavapipe. Dawn runs npm packages on SwiftShader, and its compiler Tint sees every shader:"
        )
        parts += [told, nodes(counted)]
    if "models" in reports:
        told = "Whole models on the adapter, with the largest difference as a share of the largest value:"
        parts += [told, models(reports["models"])]
    made = Section("WebGPU's tests", parts)
    print(*map(str, made.parts), sep="\n\n")
    if args.save:
        print(made.save("webgpu_tests"))


if __name__ == "__main__":
    main()
