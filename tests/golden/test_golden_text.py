"""What each stage makes of small models and kernels, as text before and after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from golden_models import MODELS
from templates.kernels import Built, buffer, conv, node, workload

from jangin.compiler.kernels import make_plan, schedule_kernels
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir import te
from jangin.ir.core import Softmax
from jangin.ir.graph import Graph
from jangin.ir.graph_text import print_graph
from jangin.ir.text import print_func, print_plan
from jangin.ir.verify import verify_graph
from jangin.ops.core import CORE
from jangin.options import Options
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import NAMED
from jangin.templates.choose import choose

TARGET = NAMED["x86-64-v3"]
PASSES = ("lower", *(p.name for p in GRAPH_PASSES))
Golden = Callable[[str, str, str], None]
KERNELS: dict[str, tuple[Built, str]] = {
    "conv": (conv((9, 9), 16, 16, 3), "contraction"),
    "depthwise": (conv((9, 9), 16, 16, 3, groups=16, pad=1), "window"),
    "softmax": (node(Softmax(axis=1, log=False), [buffer("x", 4, 50)]), "rows"),
}


@cache
def way(model: str) -> dict[str, Graph]:
    """The graph after its import and after each pass."""
    imported = load(MODELS[model]())
    graph = lower(imported)
    graphs = {"import": imported.graph, "lower": graph}
    for step in GRAPH_PASSES:
        graph = step.run(graph, TARGET)
        verify_graph(graph, CORE)
        graphs[step.name] = graph
    return graphs


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("name", PASSES)
def test_graph_pass(golden: Golden, name: str, model: str) -> None:
    graphs = way(model)
    order = list(graphs)
    before, after = (print_graph(graphs[n]) for n in (order[order.index(name) - 1], name))
    text = f"# before {name}\n{before}" + (f"# after {name}\n{after}" if after != before else "# unchanged\n")
    golden(name, model, text)


@pytest.mark.parametrize("name", KERNELS)
def test_schedule(golden: Golden, name: str) -> None:
    built, template = KERNELS[name]
    stages, inputs = built
    found = choose(replace(workload(built, constants=("w",), target=TARGET), name=name))
    assert found.template == template
    naive = te.lower(name, stages, inputs, {})
    steps = "".join(f"  {s}\n" for s in found.steps)
    text = (
        f"# before\n{print_func(naive)}# schedule for {TARGET.name}\n{steps}# after\n{print_func(found.func)}"
    )
    golden("schedule", name, text)


@pytest.mark.parametrize("model", MODELS)
def test_plan(golden: Golden, model: str) -> None:
    graph = way(model)[PASSES[-1]]
    options = Options(TARGET, verify=True)
    plan = make_plan(graph, schedule_kernels(graph, options), options)
    golden("plan", model, print_plan(plan))


def test_no_golden_file_is_left_over(request: pytest.FixtureRequest) -> None:
    here = Path(__file__).parent
    stages = {p: set(MODELS) for p in (*PASSES, "plan")} | {"schedule": set(KERNELS), "assembly": None}
    for path in here.glob("*/*.txt"):
        names = stages.get(path.parent.name, set())
        assert names is None or path.stem in names, f"{path.relative_to(here)} belongs to no test"
