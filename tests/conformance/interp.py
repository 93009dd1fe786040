"""ONNX node tests through the front end, lowering and the interpreter: no code generation.

    python tests/conformance/interp.py [-v] [-q] [-p] [pattern]

`pattern` is a regular expression over test names. Prints failures and what is not supported,
with short reasons, and the counts. -v adds tracebacks of failures, -q leaves the reasons out, -p runs the
graph passes before fusion too.
"""

from __future__ import annotations

import re
import sys
import traceback
import warnings
from collections import Counter
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

PASSES = [
    p for p in GRAPH_PASSES if p.name in ("simplify", "batchnorm", "layout", "cleanup", "fold", "cse", "dce")
]


def check(
    model: ModelProto, inputs: list[Any], wanted: list[Any], rtol: float, atol: float, passes: bool
) -> str:
    """ "" where the model gives the wanted outputs, else what is wrong."""
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


def main(args: list[str]) -> None:
    warnings.simplefilter("ignore")
    from onnx.backend.test.loader import load_model_tests

    verbose, quiet = "-v" in args, "-q" in args
    pattern = re.compile(next((a for a in args if not a.startswith("-")), ""))
    counts: Counter[str] = Counter()
    for case in load_model_tests(kind="node"):
        if not pattern.search(case.name):
            continue
        result = reason = ""
        try:
            for inputs, outputs in case.data_sets:
                reason = reason or check(case.model, inputs, outputs, case.rtol, case.atol, "-p" in args)
            result = "FAIL" if reason else "pass"
        except CompileError as error:
            crash = error.__cause__ is not None and not isinstance(error.__cause__, CompileError)
            result, reason = "CRASH" if crash else "unsupported", str(error)
            if verbose and crash:
                traceback.print_exc()
        except Exception as error:
            result, reason = "CRASH", f"{type(error).__name__}: {error}"
            if verbose:
                traceback.print_exc()
        counts[result] += 1
        if result != "pass" and not quiet:
            print(f"{result:12} {case.name}: {reason[:300]}")
    print(dict(counts))


if __name__ == "__main__":
    main(sys.argv[1:])
