"""Kernels of several results: the kernel that makes a value finds the extrema of its rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from jangin.backends.llvm.backend import LLVM
from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir import te
from jangin.ir.core import Normalize, Reduce
from jangin.ir.dtype import F32
from jangin.ir.expr import Expr, Var, const, maximum
from jangin.ir.graph import MAX_SIZE, Array, Graph
from jangin.ir.interpret import evaluate_stage, run_func
from jangin.ir.loop import For, statements
from jangin.ir.plan import Plan
from jangin.ops import activation
from jangin.ops.builder import Builder
from jangin.ops.core import CORE
from jangin.ops.interpret import run_graph
from jangin.ops.quantized import dynamic_quantize, integer_matmul
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.passes.table import GRAPH_PASSES
from jangin.runtime.executable import Executable
from jangin.targets import NAMED, Target, resolve
from jangin.templates.choose import choose
from jangin.templates.template import Workload

from .kernels import SYMBOL, SYMBOLS, assert_replayed, buffer, random_inputs

N = Var("n")
WIDTH, MADE = 400, "x86-64-v3"


def normalized(*shape: int | Expr) -> Workload:
    """Return a normalization of rows, with the least and the largest of each row."""
    x, out = buffer("x", *shape), buffer("out", *shape)
    last = len(shape) - 1
    made = CORE["normalize"].te([x], out, Normalize((last,), 1e-5, False))
    rows = tuple(const(1) if d == last else n for d, n in enumerate(out.shape))
    for i, combiner in enumerate(("min", "max"), 1):
        found = replace(out, name=f"out{i}", shape=rows)
        made += CORE["reduce"].te([out], found, Reduce(combiner, (last,), True))
    symbols = SYMBOLS if SYMBOL in shape else {}
    return Workload("k", made, (x,), symbols, (), NAMED["x86-64-v3"], 3)


@pytest.mark.parametrize(
    ("shape", "n"), [((3, 37), 0), ((2, 5, 129), 0), ((4, 7), 0), ((SYMBOL, 131), 5), ((2, SYMBOL, 33), 3)]
)
def test_rows(shape: tuple[int | Expr, ...], n: int) -> None:
    asked = normalized(*shape)
    made = choose(asked)
    assert made.template == "rows" and len(made.func.results) == 3
    assert_replayed(made, te.lower("k", asked.stages, asked.inputs, asked.symbols, 3))
    assert any(isinstance(s, For) and s.kind == "parallel" for s in statements(made.func.body))
    sizes = {str(SYMBOL): n}
    given = random_inputs(asked.inputs, sizes, 0)
    want = dict(given)
    for stage in asked.stages:
        want[stage.out.name] = evaluate_stage(stage, want, sizes)
    for p in asked.results:
        given[p.name] = np.full_like(want[p.name], np.nan)
    run_func(made.func, given, sizes)
    for p in asked.results:
        np.testing.assert_allclose(given[p.name], want[p.name], rtol=2e-5, atol=2e-5)


def test_bytes_are_those_of_all_results() -> None:
    b = Builder("net", {})
    y = b.map(lambda v: v * 2.0, b.input("x", F32, (const(20), const(WIDTH))))
    (launch,) = plan(b.graph([y, b.reduce("max", y, (1,))], ["y", "top"]), MADE).launches
    assert str(launch.bytes) == str(4 * (2 * 20 * WIDTH + 20))


def plan(graph: Graph, target: str | Target | None = None) -> Plan:
    options = Options(resolve(target), verify=True)
    fused = optimize(graph, options)
    made = make_plan(fused, schedule_kernels(fused, options), options)
    return replace(made, launches=tuple(replace(x, grain=const(1)) for x in made.launches))


def network(rows: Expr = N) -> Graph:
    """Return a normalization, a product, GELU and another product. Both products read dynamically quantized
    numbers."""
    b, rng = Builder("net", {N: (const(1), const(MAX_SIZE))} if rows is N else {}), np.random.default_rng(0)
    x = b.input("x", F32, (rows, const(WIDTH)))

    def product(x: Tensor, columns: int) -> Tensor:
        y, scale, zero = dynamic_quantize(b, x)
        w = rng.integers(-99, 99, (int(str(x.shape[-1])), columns), np.int8)
        sums = integer_matmul(b, y, b.const(w), zero)
        return b.map(lambda v, s: te.cast_body(F32, v) * s * 1e-3, sums, scale)

    hidden = b.map(activation.gelu, product(b.normalize(x, (1,), 1e-5), 520))
    return b.graph([product(hidden, 24)], ["y"])


def numbers(rows: int) -> dict[str, Array]:
    return {"x": np.random.default_rng(rows).standard_normal((rows, WIDTH), np.float32)}


@pytest.mark.parametrize(("l2", "kernels"), [(1 << 20, 8), (2 << 20, 7)])
def test_no_kernel_reads_a_normalization_for_its_range(l2: int, kernels: int) -> None:
    """Only a kernel that quantizes the normalization reads it. The product finds its own extrema if the cache
    holds whole rows. If not, one kernel finds both."""
    made = plan(network(), NAMED[MADE].with_figures(l2=l2))
    x, result, *ends = made.launches[0].args
    assert x == "x" and len(ends) == 2
    assert sum(result in launch.args for launch in made.launches) == 2
    # kernels for rows, scale and zero point, quantization and product, and the same again
    assert len(made.launches) == kernels


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("rows", [1, 7, 64])
def test_the_same_bits_as_apart(rows: int, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, x = network(), numbers(rows)
    joined = plan(graph)
    passes = [p for p in GRAPH_PASSES if p.name not in ("extrema", "scalars")]
    monkeypatch.setattr(LLVM, "passes", lambda *_: passes)
    apart = plan(graph)
    assert len(joined.launches) < len(apart.launches)
    got, want = (Executable(build(p, resolve()), threads).run(x)["y"] for p in (joined, apart))
    np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("rows", [1, 5, 40])
def test_extrema_of_what_is_written_too(rows: int) -> None:
    """The functions are exact, so that the interpreter gives the same bits. NaN is kept."""
    b = Builder("net", {N: (const(1), const(MAX_SIZE))})
    y = b.map(lambda v: maximum(v * 2.0, -1.0), b.input("x", F32, (N, const(WIDTH))))
    ends = [b.reduce(c, y, axes) for c in ("min", "max") for axes in ((0, 1), (1,))]
    graph = b.graph([y, *ends, b.map(lambda a, c: c - a, ends[0], ends[2])], list("yabcds"))
    exe = Executable(build(plan(graph), resolve()), 2)
    x = numbers(rows)
    for _ in range(2):
        want, got = run_graph(graph, x), exe.run(x)
        for name in graph.outputs:
            np.testing.assert_array_equal(got[name], want[name])
        x["x"][rows // 2, 17] = np.nan


@pytest.mark.parametrize(("shape", "axis"), [((24,), 0), ((24,), 1), ((12, 2), 1)])
def test_results_that_lie_in_a_part_of_another_value(shape: tuple[int, ...], axis: int) -> None:
    b, parts, tops, given = Builder("net", {}), list[Tensor](), list[Tensor](), dict[str, Array]()
    for n in range(2):
        given[f"x{n}"] = numbers(24 + n)["x"][:24].reshape(*shape, WIDTH)
        x = b.input(f"x{n}", F32, tuple(map(const, (*shape, WIDTH))))
        parts.append(b.normalize(x, (len(shape),), 1e-5))
        tops.append(b.reduce("max", parts[n], range(len(shape) + 1)))
    graph = b.graph([b.concat(parts, axis), *tops], ["both", "top0", "top1"])
    assert len(plan(graph, MADE).launches) == 4  # nothing copies the parts
    got, want = Executable(build(plan(graph), resolve()), 2).run(given), run_graph(graph, given)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5)
    assert got["top0"] == np.split(got["both"], 2, axis)[0].max()
