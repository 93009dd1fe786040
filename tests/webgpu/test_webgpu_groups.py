"""Shaders of every template's kernels are right, whichever work-item of a group does which part."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

import machine
import numpy as np
import pytest
from on_adapter import NONE, run, unchecked, usable
from templates.kernels import packed, random_inputs
from templates.test_gpu import KERNELS, asked

from jangin.backends.wgsl.module import shader
from jangin.ir.graph import Array
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.runtime.devices.webgpu import opened
from jangin.runtime.devices.wgsl import Shader
from jangin.targets import NAMED
from jangin.targets.webgpu import WEBGPU
from jangin.templates.gpu import warps
from jangin.templates.gpu.contraction import FEW
from jangin.templates.gpu.table import TEMPLATES
from jangin.templates.scheduled import Params

ADAPTERS = usable()
ON = next(n for n in reversed(machine.runnable()) if NAMED.get(n))
SUBGROUPS = [False, True] if ADAPTERS and "subgroup" in ADAPTERS[0].features else [False]
"""Whether work-items combine values by subgroups."""
SOME = ("product", "one-row", "softmax", "sum", "pool", "symbolic")
pytestmark = pytest.mark.skipif(not ADAPTERS, reason=NONE)


def made(name: str, n: int) -> Iterator[tuple[Func, dict[str, Array], dict[str, int]]]:
    """Yield a kernel of each template that fits, and of each form of products, with its best parameters, and
    with arguments for size `n`. Products with panels come first."""
    wanted = asked(name, WEBGPU)
    for template in filter(None, (match(wanted) for match in TEMPLATES.values())):
        forms: dict[tuple[bool, bool], Params] = {}
        for params in sorted(template.space(), key=template.estimate):
            forms.setdefault((not params.get("bk"), params.get("ty") in {f[0] for f in FEW}), params)
        for _, params in sorted(forms.items(), key=lambda form: form[0][0]):
            scheduled = template.schedule(params)
            sizes = {v.name: n for v in wanted.symbols}
            given = packed(scheduled, random_inputs(KERNELS[name][0][1], sizes, n))
            out = scheduled.func.results[0]
            shape = [sizes.get(str(d)) or int(str(d)) for d in out.shape]
            yield scheduled.func, given | {out.name: np.full(shape, np.nan, np.float32)}, sizes


def permuted(whole: Shader) -> Shader:
    """Return the shader with its parts given to other work-items: by odd multiples, from the end."""

    class Permuted(Shader):
        def text(self, *given: object, **more: object) -> str:
            plain, last = "let item = i32(local.x);", self.threads - 1
            text = super().text(*given, **more)  # type: ignore[arg-type]
            assert plain in text
            return text.replace(plain, f"let item = {last} - i32((local.x * 37u) % {self.threads}u);")

    return Permuted(**{f: getattr(whole, f) for f in Shader.__dataclass_fields__})


@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS]
)
def test_templates(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for func, given, sizes in made(name, 5):
        want = machine.run(func, given, sizes, machine.target(ON))
        whole = shader(func, WEBGPU)
        ways = [(1 << 20, whole), (1 << 20, permuted(whole)), (1, permuted(whole))]
        for by, (groups, variant) in product(SUBGROUPS if whole.trees else SUBGROUPS[:1], ways):
            monkeypatch.setattr(opened(ADAPTERS[0]), "features", {"subgroups"} if by else set())
            got = run(func, given, sizes, ADAPTERS[0], groups, made=variant)
            for output, value in want.items():
                np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=2e-6, err_msg=str(func))


@pytest.mark.parametrize(
    "name", [n if n in SOME else pytest.param(n, marks=pytest.mark.slow) for n in KERNELS]
)
def test_templates_stay_in_their_buffers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without checks of indices, kernels give the same results, and leave the guards as they are."""
    unchecked(ADAPTERS[0], monkeypatch)
    for func, given, sizes in made(name, 5):
        want = machine.run(func, given, sizes, machine.target(ON))
        got = run(func, given, sizes, ADAPTERS[0], made=permuted(shader(func, WEBGPU)))
        for output, value in want.items():
            np.testing.assert_allclose(got[output], value, rtol=1e-5, atol=2e-6, err_msg=str(func))


def test_a_store_outside_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """wgpu hides it: clamped to the binding, or left out. So the test above can fail."""
    func = parse_func(
        "func k(x: f32[64], y: out f32[64]) { block t in 1 { thread i in 64 { y[i + 1] = x[i] } } }"
    )
    given = {"x": np.ones(64, np.float32), "y": np.zeros(64, np.float32)}
    run(func, given, {}, ADAPTERS[0])
    unchecked(ADAPTERS[0], monkeypatch)
    with pytest.raises(AssertionError, match="k wrote outside y"):
        run(func, given, {}, ADAPTERS[0])


@pytest.mark.slow
def test_each_template_has_a_kernel() -> None:
    """All but `warps`, whose lanes multiply matrices together, which WGSL can't."""
    used = {
        str(match.__module__)
        for name in KERNELS
        for match in TEMPLATES.values()
        if match(asked(name, WEBGPU))
    }
    assert used == {m.__module__ for m in TEMPLATES.values()} - {warps.match.__module__}


def test_a_missing_barrier_is_found() -> None:
    """The order of work-items matters without a barrier, so that the test above can fail."""
    (func, given, sizes), *_ = made("product", 5)
    want = machine.run(func, given, sizes, machine.target(ON))
    whole = shader(func, WEBGPU)
    bare = replace(whole, body=[line for line in whole.body if "workgroupBarrier" not in line])
    assert len(bare.body) < len(whole.body)
    found = [run(func, given, sizes, ADAPTERS[0], made=v) for v in (bare, permuted(bare))]
    assert any(not np.allclose(got[n], v, rtol=1e-5) for got in found for n, v in want.items())


def test_barriers_for_what_is_exchanged() -> None:
    """A product's work-items exchange panels in shared memory alone. Those of a row of unknown length
    also read what others stored in scratch memory, so that their barriers order this too."""
    for name, stored in (("product", False), ("softmax-symbolic", True)):
        (func, _, _), *_ = made(name, 5)
        body = shader(func, WEBGPU).body
        barriers = [line for line in body if "workgroupBarrier" in line]
        assert barriers
        assert all(("storageBarrier" in line) == stored for line in barriers), name
