"""`torch.compile` by Jangin with sizes that change from call to call gives PyTorch's results. The tests take
idioms by which people compute with sizes, also in exported programs."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import torch
from size_idioms import IDIOMS, Idiom
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv
from torch_models import near

import jangin
from jangin.frontends.torch.sizes import Sizes
from jangin.ir.expr import Expr
from jangin.ir.graph import CompileError
from jangin.runtime.sizes import Evaluator
from jangin.torch_backend import backend

KNOWN = (
    "area by 2", "adaptive average to 3", "adaptive maximum to 3", "a classifier of any image", "attention",
    "a pool as large as the image",
)  # fmt: skip
"""Idioms whose sizes Jangin must know, so that PyTorch makes a graph for each size."""
GUARDED = {
    "upsampled and cropped to a skip's size": 3, "linspace": 3, "a coordinate channel": 3,
    "tokens to a square": 3, "a graph break between": 4, "symbols from the first": 1,
    "no symbols at all": 3, "many, then none": 4,
}  # fmt: skip
"""The number of graphs that PyTorch makes because of its own guards. All other idioms have two: one for the
first call, whose sizes PyTorch takes as constants, and one for all others."""


@pytest.fixture(autouse=True)
def anew() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    with torch.no_grad():
        yield


def check(idiom: Idiom) -> int:
    """Compare all calls of an idiom with PyTorch, and return the number of graphs that PyTorch had
    compiled."""
    graphs = 0

    def counted(graph: Any, inputs: Any, **given: Any) -> Any:
        nonlocal graphs
        graphs += 1
        return backend(graph, inputs, **given)

    fast = torch.compile(idiom.function, backend=counted, options={"isolated": False}, **idiom.options)
    for args in idiom.calls():
        wanted, got = idiom.function(*args), fast(*args)
        # float32 sums are taken in another order
        torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-5)
    return graphs


@pytest.mark.slow  # two or three compilations of each idiom take minutes
@pytest.mark.parametrize("name", IDIOMS)
def test_idiom(name: str) -> None:
    assert check(IDIOMS[name]()) == (3 if name in KNOWN else GUARDED.get(name, 2))


def test_an_idiom() -> None:
    """Check one idiom, which is drawn anew in each run."""
    name = random.choice(sorted(IDIOMS))
    print(f"test_idiom[{name}] repeats it")
    check(IDIOMS[name]())


@pytest.mark.parametrize("name", ["a tenth of the rows", "times a number"])
def test_what_a_run_is_given(name: str) -> None:
    """Sizes that belong to no tensor, sizes that floats are rounded to, and numbers stay symbols."""
    assert check(IDIOMS[name]()) == 2


def test_what_must_be_known_is_fixed_alone() -> None:
    """The batch stays a symbol, even though images must have one size."""
    pool = torch.nn.AdaptiveAvgPool2d(3)
    shapes = [(2, 3, 8, 8), (4, 3, 8, 8), (5, 3, 8, 8), (5, 3, 9, 9), (7, 3, 9, 9)]
    assert check(Idiom(lambda x: pool(x) * 2, lambda: [(torch.randn(s),) for s in shapes])) == 3


def test_weights_that_change_between_sizes() -> None:
    net = torch.nn.Linear(8, 4)
    fast = torch.compile(net, backend=backend, options={"isolated": False})
    for n in (2, 3, 5, 7):
        net.weight.mul_(1.5)
        x = torch.randn(n, 8)
        near(fast(x), net(x))


def _formulas(rng: random.Random) -> Iterator[tuple[str, Callable[[Any], Any]]]:
    """Yield formulas that compute sizes by way of floats, for an int or a SymInt."""
    factors = [0.5, 1.5, 0.25, 2.0, 0.875, 0.1, 0.7, 1 / 3, 1.1, 1e-3]
    roundings: list[Callable[[Any], Any]] = [math.floor, math.ceil, math.trunc, round]
    for _ in range(60):
        c, d, e = rng.choice(factors), rng.randrange(1, 40), rng.choice([0, 1, 0.5, -0.5, 3])
        rounded, kind = rng.choice(roundings), rng.randrange(5)
        texts = [f"s * {c}", f"s / {d}", f"(s + {d}) * {c} + {e}", f"s * {c} / {d}", f"{c} * (s / {d})"]
        bodies: list[Callable[..., Any]] = [
            lambda s, c, d, e: s * c,
            lambda s, c, d, e: s / d,
            lambda s, c, d, e: (s + d) * c + e,
            lambda s, c, d, e: s * c / d,
            lambda s, c, d, e: c * (s / d),
        ]
        body = bodies[kind]
        yield (
            f"{rounded.__name__}({texts[kind]})",
            lambda s, r=rounded, b=body, c=c, d=d, e=e: r(b(s, c, d, e)),
        )


def _said(formula: Callable[[Any], Any]) -> tuple[Expr, Any] | None:
    """Return a formula of a symbol as an expression, with the symbol. None if Jangin has no expression for
    it."""
    env = ShapeEnv()
    from torch._dynamo.source import ConstantSource

    symbol = env.create_symbol(1000, ConstantSource("s"), DimDynamic.DYNAMIC)
    sizes = Sizes({}, env.var_to_range)
    var = sizes.symbol(symbol, "s")
    made = formula(env.create_symintnode(symbol, hint=1000))
    try:
        return sizes(made), var
    except CompileError:
        return None


def test_floats_of_sizes_are_what_python_computes() -> None:
    """Each formula's expression gives Python's result for sizes of all magnitudes, or there is no
    expression."""
    seed = random.randrange(1 << 32)
    rng, said = random.Random(seed), 0
    large = [rng.randrange(2, 1 << k) for k in range(8, 32) for _ in range(4)]
    sizes = [*range(2, 200), *large, (1 << 31) - 1]
    for text, formula in _formulas(rng):
        found = _said(formula)
        if found is not None:
            said += 1
            for n in sizes:
                assert Evaluator({found[1]: n})(found[0]) == formula(n), f"seed {seed}: {text} of {n}"
    assert said >= 15, f"seed {seed}"


class Sized(torch.nn.Module):
    def forward(self, x: Any) -> Any:
        y = torch.nn.functional.interpolate(x, scale_factor=1.5, mode="bilinear")
        return y, torch.arange(math.ceil(x.shape[2] / 4) * 4)


def test_exported_programs_have_them() -> None:
    height = torch.export.Dim("height", min=4, max=64)
    compiled = jangin.compile(
        Sized(), threads=1, cache=False, isolated=False, example_inputs=(torch.randn(1, 2, 8, 6),),
        dynamic_shapes=({2: height},),
    )  # fmt: skip
    for n in (4, 7, 30, 64):
        x = torch.randn(1, 2, n, 6)
        wanted = Sized()(x)
        # positions are rounded to float32
        torch.testing.assert_close(compiled(x), wanted, rtol=1e-5, atol=1e-5)
