"""Keep how WebGPU's tests end: ONNX's node tests by wgpu and by Dawn, and whole models.

    npm install webgpu --prefix FOLDER
    python benchmarks/webgpu_tests.py --dawn FOLDER/node_modules/webgpu [--folder reports] [--save]
    python benchmarks/webgpu_tests.py --only models browser --save

wgpu takes the first adapter, such as Mesa's lavapipe. Dawn and Chromium take SwiftShader. `--folder` keeps
the reports, and the next call makes what is missing or failed. Each whole model has a process of its own.
benchmarks/make_models.py makes the browser's models. `--save` writes benchmarks/results/webgpu_tests.json, in
which tables that weren't made stay.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from xml.etree import ElementTree

import browser
from sections import FOLDER, Section, Table

ROOT = Path(__file__).resolve().parent.parent
NODES = {"wgpu": "wgpu on an adapter", "dawn": "packages by Dawn"}
"""The reports of ONNX's node tests."""
TESTS = {
    "wgpu": ["test_webgpu_nodes.py", "-k", "TestNodesWebGPU"],
    "dawn": ["test_webgpu_nodes.py", "-k", "TestNodesDawn"],
}
"""The tests of each report, in tests/webgpu."""
MODELS = "tests/webgpu/test_webgpu_models.py"
LIMIT = 3600
"""The most seconds of a model's test. On a busy machine, large models take longer than other tests may."""
NODE, MODEL, PAGE = "ONNX's node tests", "model on an adapter", "model in Chromium"
TOLD = {
    NODE: "`python benchmarks/webgpu_tests.py`. ONNX's official runner runs the node tests. wgpu runs on "
    "Mesa's lavapipe. Dawn runs npm packages on SwiftShader, and its compiler Tint sees every shader:",
    MODEL: "Whole models on lavapipe, with the largest difference as a share of the largest value:",
    PAGE: "Whole models in Chromium on SwiftShader, likewise:",
}
"""The tables by the title of their first column, and what is told before them."""


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


def on_adapter(folder: Path) -> Table:
    """Run the test of each whole model that has no report yet or has failed, and return how all of them
    ended."""
    asked = [sys.executable, "-m", "pytest", MODELS, "--collect-only", "-m", "slow"]
    listed = subprocess.run([*asked, "-n", "0"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    rows = []
    for test in (line for line in listed.splitlines() if line.startswith(MODELS)):
        name = test.rpartition("[")[2].rstrip("]")
        path = folder.resolve() / f"model_{name}.xml"
        if not path.exists() or any(map(failed, ElementTree.parse(path).iter("testcase"))):
            _run([test, "-n", "0", f"--timeout={LIMIT}"], path, None)
        if not path.exists():
            rows.append([name, "not finished", ""])
            continue
        for case in ElementTree.parse(path).iter("testcase"):
            told = {p.get("name"): p.get("value", "") for p in case.iter("property")}
            rows.append([name, "failed" if failed(case) else "passed", told.get("difference", "")])
    return Table([MODEL, "", "difference to native code"], rows)


def in_chromium(folder: Path) -> Table:
    """Run each of the browser's models that has no report yet, and return the differences."""
    rows = []
    for name in browser.MODELS:
        path = folder.resolve() / f"page_{name}.json"
        if not path.exists():
            path.write_text(json.dumps(browser.difference(browser.ALL[name], folder / name)))
        rows.append([browser.ALL[name].title, f"{json.loads(path.read_text()):.0e}"])
    return Table([PAGE, "difference to native code"], rows)


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
    return Table([NODE, *(NODES[name] for name in counts)], rows)


def kept(made: Sequence[Table]) -> Section:
    """Return the section of these tables, and of others that were saved before."""
    path = FOLDER / "webgpu_tests.json"
    before = Section.load(path).parts if path.exists() else []
    tables = {t.columns[0]: t for t in (*before, *made) if isinstance(t, Table)}
    parts: list[str | Table] = []
    for title in (title for title in TOLD if title in tables):
        parts += [TOLD[title], tables[title]]
    return Section("WebGPU's tests", parts)


def main() -> None:
    kind = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=kind)
    names = [*TESTS, "models", "browser"]
    parser.add_argument("--dawn", type=Path, help="the folder of npm's package webgpu")
    parser.add_argument("--only", nargs="+", default=names, choices=names, help="these reports")
    parser.add_argument("--folder", type=Path, default=Path("reports"), help="for the reports")
    parser.add_argument("--save", action="store_true", help="keep the outcomes in benchmarks/results")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    asked = [name for name in args.only if name in NODES and (name != "dawn" or args.dawn)]
    made = [nodes({n: outcomes(report(n, args.folder, args.dawn)) for n in asked})] if asked else []
    made += [on_adapter(args.folder)] if "models" in args.only else []
    made += [in_chromium(args.folder)] if "browser" in args.only else []
    print(*map(str, made), sep="\n\n")
    if args.save:
        print(kept(made).save("webgpu_tests"))


if __name__ == "__main__":
    main()
