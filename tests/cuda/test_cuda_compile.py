"""NVIDIA's compiler takes the text, keeps everything in registers, and rounds as the text says. No GPU is
needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import test_cuda_runtime
from kernel_graphs import GRAPHS, ROWS
from templates.test_gpu import KERNELS, asked

from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import source
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.ir.expr import const
from jangin.ir.graph import MAX_SIZE, CompileError
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ops.builder import Builder
from jangin.options import Options
from jangin.targets import Target, resolve
from jangin.targets.cuda import CUDA
from jangin.templates.choose import choose
from jangin.templates.gpu.table import TEMPLATES

sys.path.insert(0, str(Path(__file__).parent.parent.parent / "benchmarks"))
from cuda_kernels import KINDS, counted
from gpu_networks import NETWORKS

SOME = ("conv 3x3 strided", "depthwise 3x3", "attention")


def _able(architecture: str) -> bool:
    try:
        return bool(nvrtc.for_architecture(architecture))
    except CompileError:
        return False


pytestmark = pytest.mark.skipif(
    not _able("sm_80"), reason="NVIDIA's compiler isn't here: pip install 'jangin[cuda]'"
)
needs_old = pytest.mark.skipif(
    not _able("sm_62"), reason="no compiler of capability 6.2 here: pip install nvidia-cuda-nvrtc-cu12"
)


def kernels(graph: str, on: Target) -> list[Func]:
    b, options = Builder("graph", {ROWS: (const(1), const(MAX_SIZE))}), Options(on)
    made = schedule_kernels(optimize(b.graph([GRAPHS[graph](b)], ["y"]), options), options)
    return [scheduled.func for scheduled, _ in made.values()]


def usage(func: Func, on: Target) -> nvrtc.Usage:
    return nvrtc.for_architecture(on.cpu).compiled(source(func, on), on.cpu).usage


@pytest.mark.parametrize("target", ["cuda:sm_80", pytest.param("cuda:sm_90a", marks=pytest.mark.slow)])
def test_nothing_is_spilled(target: str) -> None:
    on = resolve(target)
    for graph in SOME:
        for func in kernels(graph, on):
            found = usage(func, on)
            assert (found.spilled, found.stack) == (0, 0), f"{graph}: {found}\n{func}"
            assert 0 < found.registers < 255


@pytest.mark.slow
@pytest.mark.parametrize("target", [pytest.param("cuda:sm_62", marks=needs_old), *list(CUDA)[1:]])
def test_all_templates_compile(target: str) -> None:
    on = resolve(target)
    for name in KERNELS:
        found = usage(choose(asked(name, on), templates=TEMPLATES).func, on)
        assert (found.spilled, found.stack) == (0, 0), f"{name}: {found}"


@pytest.mark.slow  # each network takes half a minute
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("network", NETWORKS)
def test_networks_compile(network: str, kind: str) -> None:
    for target in ("cuda:sm_80", "cuda:sm_90a"):
        found = [*counted(network, kind, target)]
        assert found
        wrong = [k for k in found if k.usage.spilled or k.usage.stack or k.occupancy <= 0]
        assert not wrong, wrong


ROUNDED = """func rounded(x: f32[N], y: f32[N], apart: out f32[N], fused: out f32[N], quotient: out f32[N])
  symbols (N in 1..) {
  block b in N {
    thread t in 1 {
      let product = x[b] * y[b]
      apart[b] = product + x[b]
      fused[b] = fma(x[b], y[b], x[b])
      quotient[b] = x[b] / y[b]
    }
  }
}"""


def test_products_are_fused_where_they_are_written_so() -> None:
    """Quotients are rounded correctly, subnormal numbers are kept, and only `fma` becomes a multiply-add."""
    on = resolve("cuda:sm_80")
    text = source(parse_func(ROUNDED), on)
    made = nvrtc.for_architecture("sm_80").compiled(text, "sm_80").ptx.decode()
    assert made.count("fma.rn.f32") == made.count("mul.rn.f32") == made.count("add.rn.f32") > 0
    assert "div.rn.f32" in made and ".ftz" not in made and ".approx" not in made


def test_wide_accesses_where_the_alignment_is_known() -> None:
    """Four floats are accessed by one instruction if their index is a multiple of four, and else one by
    one."""
    for columns, wide in ((8, True), (7, False)):
        text = f"""func copy(x: f32[5, {columns}], y: out f32[5, {columns}]) {{
          block b in 5 {{ thread t in 1 {{ vector v in 4 {{ y[b, v] = x[b, v] * 2.0 }} }} }}
        }}"""
        on = resolve("cuda:sm_80")
        made = nvrtc.for_architecture("sm_80").compiled(source(parse_func(text), on), "sm_80").ptx.decode()
        assert bool(re.search(r"ld\.global\.(nc\.)?v4", made)) == wide == ("st.global.v4" in made)


def test_machine_code_and_text_are_built_without_a_gpu() -> None:
    """The text that is made for "sm_90a" also serves later devices."""
    from jangin import build
    from jangin.runtime.devices.cuda_code import Built

    for target, text in (("cuda:sm_86", b".target sm_86"), ("cuda:sm_90a", b".target sm_90\n")):
        made = build(test_cuda_runtime.gather(), target, cache=False)
        for built in map(Built.of, made.objects):
            assert built.cubin.startswith(b"\x7fELF") and text in built.ptx
            assert made.device == "cuda" and built.architecture == target[5:]
