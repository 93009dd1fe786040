"""ONNX node tests through the front end, lowering and the interpreter: no code generation.

    python tests/conformance/interp.py [-q] [-p] [pattern]

`pattern` is a regular expression over test names. The command prints failures and unsupported tests, with
short reasons, and the counts. -q leaves the reasons out, and -p runs the graph passes before fusion too.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable
from typing import Any

from onnx import ModelProto, TensorProto, numpy_helper
from onnx.backend.test.runner import Runner

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.graph import CompileError
from jangin.onnx_backend import specialised
from jangin.ops.interpret import run_graph
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import NAMED

Told = Callable[[str, str, str], None]
PASSES = [
    p
    for p in GRAPH_PASSES
    if p.name in ("simplify", "needed", "batchnorm", "layout", "cleanup", "fold", "cse", "dce")
]


def check(
    model: ModelProto, inputs: list[Any], wanted: list[Any], rtol: float, atol: float, passes: bool
) -> str:
    """Return "" if the model gives the wanted outputs, else the error."""
    arrays = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in inputs]
    references = [numpy_helper.to_array(x) if isinstance(x, TensorProto) else x for x in wanted]
    given = dict(zip([i.name for i in model.graph.input], arrays, strict=False))
    try:
        graph = lower(load(model))
    except CompileError:
        graph = specialised(lambda m: lower(load(m)), model, given)
    for graph_pass in PASSES if passes else ():
        graph = graph_pass.run(graph, NAMED["x86-64-v3"])
    outputs = list(run_graph(graph, {n: given[n] for n in graph.inputs}).values())
    try:
        Runner.assert_similar_outputs(references, outputs, rtol, atol)
    except AssertionError as error:
        return " ".join(str(error).split())[:200]
    return ""


def counted(pattern: str, told: Told = lambda *_: None, passes: bool = False) -> Counter[str]:
    """How many tests pass, fail, crash or are unsupported. `told` gets each result, name and reason."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tests' own expected values overflow on purpose
        from onnx.backend.test.loader import load_model_tests

        cases = [case for case in load_model_tests(kind="node") if re.search(pattern, case.name)]
        counts: Counter[str] = Counter()
        for case in cases:
            result, reason = outcome(case, passes)
            counts[result] += 1
            told(result, case.name, reason)
    return counts


def outcome(case: Any, passes: bool) -> tuple[str, str]:
    """The result of one test, and its reason."""
    reason = ""
    try:
        for inputs, outputs in case.data_sets:
            reason = reason or check(case.model, inputs, outputs, case.rtol, case.atol, passes)
        return "FAIL" if reason else "pass", reason
    except CompileError as error:
        crash = error.__cause__ is not None and not isinstance(error.__cause__, CompileError)
        return "CRASH" if crash else "unsupported", str(error)
    except Exception as error:
        return "CRASH", f"{type(error).__name__}: {error}"


def main(args: list[str]) -> None:
    def told(result: str, name: str, reason: str) -> None:
        if result != "pass" and "-q" not in args:
            print(f"{result:12} {name}: {reason[:300]}")

    print(dict(counted(next((a for a in args if not a.startswith("-")), ""), told, "-p" in args)))


if __name__ == "__main__":
    main(sys.argv[1:])
