"""Products of float32 whose numbers are rounded to tf32: where the caller allows it, and nowhere else.

The mock's instruction ends a kernel that gives it a number of more bits than tf32 has (see `mock/shim.h`)."""

from __future__ import annotations

from typing import Any

import alone
import machine
import mocked
import numpy as np
import pytest
from templates.kernels import small_conv, small_matmul, workload
from test_cuda_warps import SIZES, WINDOWS, graph, needs_nvrtc, same_bits, window

from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import source
from jangin.compiler.build import build
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.arithmetic import ROUNDINGS, tf32
from jangin.ir.core import Conv, Kernel, MatMul
from jangin.ir.dtype import F32
from jangin.ir.expr import Call, Expr, const, maximum
from jangin.ir.graph import Graph
from jangin.ir.interpret import size
from jangin.ir.loop import map_stmt
from jangin.ir.parse import parse_func
from jangin.ir.products import DOT1T
from jangin.ir.traversal import loads, rewrite
from jangin.ir.verify import VerifyError, verify_func
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.devices.cuda_devices import capability
from jangin.runtime.devices.cuda_library import Error
from jangin.runtime.executable import Executable
from jangin.targets import resolve
from jangin.templates.gpu import warps

ON = resolve("cuda:sm_80")


@pytest.mark.parametrize("fn", ROUNDINGS)
def test_rounding_is_to_the_nearest_of_11_bits(fn: str) -> None:
    """Halves go away from 0, or to the even number. Infinity and every NaN stay what they are."""
    rng = np.random.default_rng(3)
    bits = rng.integers(0, 1 << 32, 10_000, np.uint32)
    special = np.array([0, 1 << 31, 0x7F800000, 0xFF800000, 0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001], np.uint32)
    halves = (bits & 0xFFFFE000) | 1 << 12
    x = np.concatenate([bits, halves, special]).view(np.float32)
    got = ROUNDINGS[fn](x)
    np.testing.assert_array_equal(np.isnan(got), np.isnan(x))
    finite = np.isfinite(x) & np.isfinite(got)
    exact = x[finite].astype(np.float64)
    unit = np.ldexp(1.0, np.maximum(np.frexp(exact)[1], -125) - 11)
    units = np.abs(exact) / unit
    want = np.copysign((np.rint(units) if fn == "tf32_even" else np.floor(units + 0.5)) * unit, exact)
    np.testing.assert_array_equal(got[finite], want)
    np.testing.assert_array_equal(got[np.isinf(x)], x[np.isinf(x)])
    over = np.isfinite(x) & np.isinf(got)
    assert (np.abs(x[over]) >= np.float32(2**128 * (1 - 2**-12))).all()


ROUNDED = """func rounded(x: f32[1024], y: out f32[1024]) {
  parallel i in 128 { vector v in 8 { y[i * 8 + v] = tf32(x[i * 8 + v]) } }
}"""
GROUPED = ROUNDED.replace("parallel i in 128 { vector v in 8 {", "block i in 128 { thread v in 8 {")


@mocked.needed
@pytest.mark.parametrize("fn, target", [("tf32", "sm_80"), ("tf32_even", "sm_80"), ("tf32_even", "sm_90a")])
def test_native_code_and_cuda_round_alike(fn: str, target: str, driver: Any) -> None:
    """From 9.0 on, one instruction rounds to even."""
    bits = np.random.default_rng(4).integers(0, 1 << 32, 1024, np.uint32)
    bits[::3] = (bits[::3] & 0xFFFFE000) | 1 << 12
    x = bits.view(np.float32)
    func, grouped = (parse_func(text.replace("tf32(", f"{fn}(")) for text in (ROUNDED, GROUPED))
    on = resolve(f"cuda:{target}")
    assert (source(grouped, on).count("to_tf32(") > 1) == (target == "sm_90a")
    native = machine.run(
        func, {"x": x, "y": np.zeros(1024, np.float32)}, {}, machine.target(machine.runnable()[0])
    )
    np.testing.assert_array_equal(native["y"], ROUNDINGS[fn](x))
    given = {"x": x, "y": np.zeros(1024, np.float32)}
    for got in alone.Program([grouped], on).run(grouped, given, {}, 128, driver):
        np.testing.assert_array_equal(got["y"], ROUNDINGS[fn](x))


def test_only_floats_of_32_bits_are_rounded() -> None:
    with pytest.raises(VerifyError, match="tf32 rounds f32, not f64"):
        verify_func(parse_func(ROUNDED.replace("f32[", "f64[")))


def products(model: Graph, **options: Any) -> list[Any]:
    """Return the attributes of an optimized model's products."""
    optimized = optimize(model, Options(**{"target": ON, "tf32": False, **options}))
    bodies = [n.of(Kernel).body for n in optimized.nodes if isinstance(n.attrs, Kernel)]
    return [n.attrs for b in bodies for n in b.nodes if isinstance(n.attrs, (Conv, MatMul))]


def test_only_the_option_allows_it() -> None:
    """A product of float32 is one of float32 by default, and on devices without the instruction."""
    model = graph("f32", 512, 512, 512, True)
    assert [p.dot for p in products(model)] == [None]
    assert [p.dot for p in products(model, tf32=True)] == [DOT1T]
    assert [p.dot for p in products(window("f32", *WINDOWS["padded"]), tf32=True)] == [DOT1T]
    for target in ("cuda:sm_75", "x86-64-v3", "webgpu"):
        options = Options(resolve(target), tf32=True)
        assert not any(
            "dot1t" in str(s.func) for s, _ in schedule_kernels(optimize(model, options), options).values()
        )
    options = Options(ON, tf32=True)
    made = schedule_kernels(optimize(model, options), options)
    assert "warps" in [s.template for s, _ in made.values()]


@pytest.mark.parametrize("sizes", WINDOWS)
def test_convolutions_are_right(sizes: str) -> None:
    """Numbers of few bits aren't changed by rounding, and their sums are exact."""
    model = window("f32", *WINDOWS[sizes])
    rng = np.random.default_rng(5)
    shapes = {n: [size(d, {}) for d in model.shape(n)] for n in model.inputs}
    arrays = {n: rng.integers(-8, 9, shape) / 4 for n, shape in shapes.items()}
    (exact,) = run_graph(window("f64", *WINDOWS[sizes]), arrays).values()
    optimized = optimize(model, Options(ON, tf32=True))
    (got,) = run_graph(optimized, {n: a.astype(np.float32) for n, a in arrays.items()}).values()
    np.testing.assert_array_equal(got, exact.astype(np.float32))


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_products_have_the_bits_of_native_code(sizes: tuple[int, int, int, bool], driver: Any) -> None:
    same_bits(graph("f32", *sizes), driver, tf32=True)


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
@pytest.mark.parametrize("sizes", WINDOWS)
def test_convolutions_have_the_bits_of_native_code(sizes: str, driver: Any) -> None:
    same_bits(window("f32", *WINDOWS[sizes]), driver, tf32=True)


@mocked.needed
@pytest.mark.slow  # the C++ compiler takes seconds for each kernel
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
def test_numbers_stored_rounded_are_copied_as_they_are(target: str, driver: Any) -> None:
    """The second product copies beside its work. The mock's instruction checks that the numbers are tf32."""
    on, rng = resolve(f"cuda:{target}"), np.random.default_rng(7)
    driver.mock_device(*capability(on.cpu), 1 << 30)
    b = Builder("net", {})
    x = b.input("x", F32, (const(130), const(512)))
    w, v = (b.const(rng.standard_normal(s).astype(np.float32) / 16) for s in ((512, 512), (512, 264)))
    hidden = b.map(lambda n: maximum(n, const(0.0, F32)), b.matmul(x, w))
    model, options = b.graph([b.matmul(hidden, v)], ["y"]), Options(on, tf32=True, verify=True)
    optimized = optimize(model, options)
    assert [p.dot.ready for p in products(model, target=on, tf32=True)] == [False, True]
    made = schedule_kernels(optimized, options)
    assert [s.template for s, _ in made.values()] == ["warps"] * 2
    given = rng.standard_normal((130, 512)).astype(np.float32)
    (want,) = run_graph(optimized, {"x": given}).values()
    exe = Executable(build(make_plan(optimized, made, options), on))
    # 512 sums of numbers below 8, each rounded by at most 2^-24 of itself, and a number that rounds otherwise
    np.testing.assert_allclose(exe(given), want, atol=512 * 8 * 2**-24 + 2**-11)


@mocked.needed
@pytest.mark.parametrize("panel", ["left", "right"])
def test_numbers_that_are_not_rounded_end_a_kernel(panel: str, driver: Any) -> None:
    """A copy without rounding is noticed, in either operand."""
    template = warps.match(workload(small_matmul(DOT1T, 32, 32, 32), target=ON))
    assert template is not None
    func = template.schedule(min(template.space(), key=template.estimate)).func
    text = source(func, ON)
    assert "mma_tf32(" in text and "load_matrices<4, false>(" in text
    rng = np.random.default_rng(6)
    arrays = {p.name: rng.standard_normal((32, 32)).astype(np.float32) for p in func.params}
    want = tf32(arrays["x"]).astype(np.float64) @ tf32(arrays["w"])
    for got in alone.Program([func], ON).run(func, arrays, {}, 1, driver):
        # 32 sums of numbers below 40, each rounded by at most 2^-24 of itself
        np.testing.assert_allclose(got["out"], want, atol=32 * 40 * 2**-24)

    def bare(e: Expr) -> Expr | None:
        return e.args[0] if isinstance(e, Call) and e.fn == "tf32" else None

    body = map_stmt(func.body, lambda e: rewrite(e, bare) if _reads(e, panel) else e)
    with pytest.raises(Error, match="CUDA_ERROR_MISALIGNED_ADDRESS"):  # the mock's word for a trap
        alone.Program([func.with_body(body)], ON).run(func, arrays, {}, 1, driver)


def _reads(e: Expr, panel: str) -> bool:
    """Return whether an expression reads what becomes a panel."""
    names = {n.buffer.name for n in loads(e)}
    return bool(names & {"x" if panel == "left" else "w", f"{panel}.next"})


@needs_nvrtc
@pytest.mark.slow  # NVIDIA's compiler takes half a second for each kernel
@pytest.mark.sampled(1)
@pytest.mark.parametrize("target", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["whole", "odd", "window", "strided", "odd channels"])
def test_nothing_is_spilled(target: str, name: str) -> None:
    built = {
        "whole": small_matmul(DOT1T, 512, 512, 512),
        "odd": small_matmul(DOT1T, 333, 341, 331),
        "window": small_conv(DOT1T, (28, 28), 64, 64, 3, batch=4),
        "strided": small_conv(DOT1T, (57, 55), 40, 72, 3, 2),
        "odd channels": small_conv(DOT1T, (20, 20), 6, 30, 3, 1),
    }[name]
    on = resolve(f"cuda:{target}")
    compiler = nvrtc.for_architecture(on.cpu)
    template = warps.match(workload(built, constants=["w"] if name != "odd channels" else [], target=on))
    assert template is not None
    for params in template.space():
        usage = compiler.compiled(source(template.schedule(params).func, on), on.cpu).usage
        assert (usage.spilled, usage.stack) == (0, 0), (params, usage)
