"""CUDA C kernels give the bits of native code of the same loops. They run on this machine's processor, in two
orders of groups and work-items (see `mock/`)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import alone
import machine
import mocked
import numpy as np
import pytest
import test_c_kernels
from templates.kernels import packed, random_inputs
from templates.test_gpu import KERNELS, asked

from jangin.backends.cuda.backend import source
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.targets import Target, resolve
from jangin.targets.cuda import CUDA, ROWS
from jangin.templates.gpu.table import TEMPLATES

pytestmark = mocked.needed
ON = next(n for n in reversed(machine.runnable()) if n != "wide")
SOME = ("product", "softmax", "pool", "symbolic", "turned")


def made(name: str, target: Target, rng: np.random.Generator) -> list[tuple[Func, Any, dict[str, int]]]:
    """Return a kernel of each template that fits, with its best parameters and with random ones, and with
    arguments."""
    found = []
    wanted = asked(name, target)
    for match in TEMPLATES.values():
        template = match(wanted)
        if template is None:
            continue
        space = sorted(template.space(), key=template.estimate)
        for params in (space[0], space[rng.integers(len(space))]):
            scheduled = template.schedule(params)
            for n in (1, 5) if wanted.symbols else (5,):
                sizes = {v.name: n for v in wanted.symbols}
                given = packed(scheduled, random_inputs(KERNELS[name][0][1], sizes, n))
                out = scheduled.func.results[0]
                shape = [sizes.get(str(d)) or int(str(d)) for d in out.shape]
                found.append((scheduled.func, given | {out.name: np.full(shape, np.nan, np.float32)}, sizes))
    return found


def compare(cases: Sequence[tuple[Func, Any, dict[str, int]]], target: Target, mock: Any) -> None:
    named = [replace(func, name=f"k{n}") for n, (func, _, _) in enumerate(cases)]
    program = alone.Program(named, target)
    for func, (plain, given, sizes) in zip(named, cases, strict=True):
        want = machine.run(plain, given, sizes, machine.target(ON))
        for groups in (1 << 20, 2):
            for got in program.run(func, given, sizes, groups, mock):
                for name, value in want.items():
                    np.testing.assert_array_equal(got[name], value, err_msg=str(func))


@pytest.mark.sampled(3)
def test_templates(driver: Any) -> None:
    rng, on = np.random.default_rng(), resolve("cuda:sm_90a")
    compare([case for name in SOME for case in made(name, on, rng)], on, driver)


@pytest.mark.slow  # the C++ compiler takes half a second for each kernel
@pytest.mark.parametrize("target", ["cuda:sm_62", "cuda:sm_75", "cuda:sm_86"])
def test_all_templates(target: str, driver: Any) -> None:
    rng, on = np.random.default_rng(), resolve(target)
    for name in KERNELS:
        compare(made(name, on, rng), on, driver)


@pytest.mark.slow  # C++ compilers take half a minute for the kernels of operations
@pytest.mark.parametrize("module", test_c_kernels.MODULES, ids=lambda m: m.__name__)
def test_kernels_of_other_tests(module: ModuleType, driver: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels of other back ends' tests have operations, types, masks and gathers. An extremum of zeros may
    be either zero, as in its row."""
    on, ran = test_c_kernels.kernels_of(module, monkeypatch)
    of_gpu = CUDA["cuda:sm_80"]
    target = replace(on.with_figures(products=()), rows=ROWS, features=of_gpu.features, cpu=of_gpu.cpu)
    # there are many kernels
    monkeypatch.setenv("MOCK_CXX", mocked.settings()["MOCK_CXX"].replace("-O1", "-O0"))
    program = alone.Program([func for func, _, _ in ran], target)
    for func, (arrays, symbols), want in ran:
        for got in program.run(func, arrays, symbols, 2, driver):
            for name, value in want.items():
                same = (got[name] == value) | ((got[name] != got[name]) & (value != value))
                assert same.all(), f"{name} at {np.argwhere(~same)[:4].tolist()} of {func}"


ADDS = """func adds(x: T[N], y: T[N], bigger: out bool[N], sum: out T[N], product: out T[N])
  symbols (N in 1..) {
  block b in N {
    thread t in 1 {
      bigger[b] = (x[b] + T(1)) > x[b]
      sum[b] = x[b] + y[b]
      product[b] = x[b] * y[b]
    }
  }
}"""


@pytest.mark.parametrize("kind", ["i8", "u16", "i32", "i64"])
def test_integers_wrap_by_what_is_written(kind: str) -> None:
    """Integers are added without sign, because NVIDIA's compiler makes `x + 1 > x` true for any signed x."""
    text = source(parse_func(re.sub(r"\bT\b", kind, ADDS)), resolve("cuda:sm_80"))
    body = text[text.index("static void adds_body") :]
    signed = re.findall(rf"const {kind} v\d+ = v\d+ [-+*] v\d+;", body)
    assert not signed and f"(u{max(32, int(kind[1:]))})v" in body
