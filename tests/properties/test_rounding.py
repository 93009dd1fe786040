"""Rounding that a model asks for is kept. Random graphs of correctly rounded operators, and algorithms that
depend on rounding, give NumPy's bits, operator by operator.

They run on every level of this machine, in C and in the interpreter. `pytest -m slow
tests/properties/test_rounding.py` draws 300 more for each level. (tests/opencl has some for its devices.)"""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from rounding_nets import SHAPE, ExactNet, exact_net
from test_random_graphs import TARGETS, compiled

from jangin.backends.clike.dialect import C
from jangin.backends.clike.module import emit_kernels
from jangin.compiler.kernels import schedule_kernels
from jangin.compiler.pipeline import optimize
from jangin.compiler.plans import make_plan
from jangin.ir.expr import Buffer, call, select
from jangin.ir.graph import Array, Graph
from jangin.ir.interpret import run_plan, size
from jangin.ir.plan import Plan
from jangin.ops.interpret import run_graph
from jangin.ops.values import Tensor
from jangin.options import Options
from jangin.targets import Target

sys.path.insert(0, str(Path(__file__).parent.parent / "backends"))
import machine

LENGTHS = (2, 3, 4, 6, 9, 14)
"""Numbers of nodes. Short graphs show a fault clearly, and long graphs find more of them."""
SEEDS = (2008, 2010, 2053, 2059, 2060, 2096, 2116)
"""Seeds of graphs that were once wrong on some level, by joined constants, multiply-adds, or -0 in place of
0."""
Run = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]


def check(seed: int, run: Run) -> None:
    length = LENGTHS[seed % len(LENGTHS)]
    assert_same_bits(f"exact_net({seed}, {length})", run, *exact_net(seed, length))


def assert_same_bits(
    name: str, run: Run, graph: Graph, feeds: Mapping[str, Array], want: Mapping[str, Array]
) -> None:
    """Check that results have the same bits. Any two NaN count as equal."""
    results = run(graph, feeds)
    for output, array in want.items():
        got = results[output]
        assert got.dtype == array.dtype and got.shape == array.shape, name
        bits = f"u{array.itemsize}"
        wrong = np.argwhere((got.view(bits) != array.view(bits)) & ~(np.isnan(got) & np.isnan(array)))
        if len(wrong):
            at = tuple(map(int, wrong[0]))
            pytest.fail(
                f"{name}: {len(wrong)} of {array.size} of {output} differ; at {at} is {got[at]!r}, not "
                f"{array[at]!r}"
            )


def size_of(b: Buffer) -> tuple[int, ...]:
    return tuple(size(d, {}) for d in b.shape)


def on(target: Target, threads: int = 1) -> Run:
    return lambda graph, feeds: compiled(graph, Options(target, verify=True), threads).run(dict(feeds))


def planned(graph: Graph, target: Target) -> Plan:
    options = Options(target, verify=True)
    graph = optimize(graph, options)
    return make_plan(graph, schedule_kernels(graph, options), options)


def interpreted(graph: Graph, feeds: Mapping[str, Array]) -> Mapping[str, Array]:
    """Run the loop nests of the scheduled kernels in the interpreter."""
    return run_plan(planned(graph, TARGETS[-1]), feeds)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_elementwise_chains(target: Target) -> None:
    for seed in SEEDS:
        check(seed, on(target, 1 + seed % 2))


@pytest.mark.slow
@pytest.mark.parametrize("first", range(1000, 1300, 50))
@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.name)
def test_many_elementwise_chains(target: Target, first: int) -> None:
    for seed in range(first, first + 50):
        check(seed, on(target, 1 + seed % 3))


@pytest.mark.parametrize("run", [run_graph, interpreted])
def test_interpreters(run: Run) -> None:
    for seed in SEEDS:
        check(seed, run)


# --- what lives by rounding


@dataclass(frozen=True)
class Number:
    """A tensor whose Python operators make nodes."""

    net: ExactNet
    tensor: Tensor

    def of(self, body: Callable[..., object], numpy: Callable[..., Array], *others: Number | float) -> Number:
        rest = [o.tensor if isinstance(o, Number) else self.net.constant(np.float32(o)) for o in others]
        return Number(self.net, self.net.map(body, numpy, self.tensor, *rest))  # type: ignore[arg-type]

    def __add__(self, other: Number | float) -> Number:
        return self.of(lambda v, w: v + w, np.add, other)

    def __sub__(self, other: Number | float) -> Number:
        return self.of(lambda v, w: v - w, np.subtract, other)

    def __mul__(self, other: Number | float) -> Number:
        return self.of(lambda v, w: v * w, np.multiply, other)

    def __truediv__(self, other: Number | float) -> Number:
        return self.of(lambda v, w: v / w, np.divide, other)

    def __neg__(self) -> Number:
        return self.of(lambda v: -v, np.negative)

    def floor(self) -> Number:
        return self.of(partial(call, "floor"), np.floor)

    def where_below(self, bound: Number, other: Number) -> Number:
        return self.of(
            lambda v, b, w: select(v < b, v, w), lambda v, b, w: np.where(v < b, v, w), bound, other
        )

    def total(self) -> Number:
        """Return the sums of two neighbours."""
        b, shape = self.net.b, (SHAPE[0], 2, SHAPE[1] // 2, SHAPE[2])
        array = self.net.known[self.tensor.name].reshape(shape)
        total = b.reduce("sum", b.reshape(self.tensor, shape), (1,))
        return Number(self.net, self.net.keep(total, array[:, 0] + array[:, 1]))


MAGIC = 1.5 * 2.0**23


def two_sum(a: Number, b: Number) -> Number:
    """Return the rounding error of a sum (Knuth)."""
    total = a + b
    part = total - a
    return (a - (total - part)) + (b - part)


def two_product(a: Number, b: Number) -> Number:
    """Return the rounding error of a product (Dekker, Veltkamp)."""

    def halves(x: Number) -> tuple[Number, Number]:
        far = x * 4097.0
        high = far - (far - x)
        return high, x - high

    (p, q), (r, s), whole = halves(a), halves(b), a * b
    return ((p * r - whole) + p * s + q * r) + q * s


def kahan(*terms: Number) -> Number:
    """Return a sum that keeps the rounding errors of its additions (Kahan)."""
    total, lost = terms[0], terms[0] - terms[0]
    for term in terms[1:]:
        more = term - lost
        longer = total + more
        total, lost = longer, (longer - total) - more
    return total


CLASSICS: Mapping[str, Callable[[Number, Number, Number], Number]] = {
    "rounded by a large constant": lambda x, *_: (x + MAGIC) - MAGIC,
    "rounded by two large constants": lambda x, *_: (x + (MAGIC + 3)) + -MAGIC,
    "rounded to halves after a scale": lambda x, y, _: ((x * y) * 0.1 + MAGIC / 2) - MAGIC / 2,
    "out of range and back": lambda x, *_: x * 1e30 * 1e30 * 1e-30,
    "below range and back": lambda x, *_: x * 1e-30 * 1e-30 * 1e30,
    "0 added to -0": lambda x, *_: (x - x) * -1.0 + 0.0 + (-((x - x) * 1.0) + 0.0),
    "one over -0 and 0": lambda x, *_: (x * 0.0 + 0.0).of(lambda v: 1.0 / v, lambda v: 1 / v),
    "a x - a x": lambda x, y, _: x * y + (-x) * y,
    "a x - a x, chosen": lambda x, y, z: (x * y).where_below(z, z) + ((-x) * y).where_below(z, z),
    "the sum of x y and -x y": lambda x, y, _: (x * y).total(),
    "two sum": lambda x, y, _: two_sum(x, y),
    "two product": lambda x, y, _: two_product(x, y),
    "Kahan": kahan,
    "fraction": lambda x, *_: x - x.floor(),
    "quantized and back": lambda x, *_: ((x / 0.1).floor() * 0.1 + 0.3) / 0.1,
    "divided by three": lambda x, *_: x / 3.0 / 7.0,
    "x x + y y - z z": lambda x, y, z: x * x + y * y - z * z,
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", CLASSICS)
def test_what_lives_by_rounding(name: str) -> None:
    net = ExactNet(list(CLASSICS).index(name))
    x, y, z = (Number(net, t) for t in net.drawn)
    net.drawn.append(CLASSICS[name](x, y, z).tensor)
    graph, want = net.done()
    for target in (TARGETS[0], TARGETS[-1]):
        assert_same_bits(f"{name}, {target}", on(target), graph, net.feeds, want)


# --- C


@pytest.mark.sampled(2)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_c_by_any_flags(compiler: str, tmp_path: Path) -> None:
    """Compilers fuse multiplications and additions by themselves, gcc by default. The source forbids it."""
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    target = next(t for t in TARGETS if t.name == "x86-64-v3")
    kernels = [
        replace(func, name=f"n{seed}_{name}")
        for seed in SEEDS
        for name, func in planned(exact_net(seed, LENGTHS[seed % len(LENGTHS)])[0], target).kernels.items()
    ]
    source, made = tmp_path / "kernels.c", tmp_path / "kernels.so"
    source.write_text(emit_kernels(kernels, target, C()))
    options = ("-O2", f"-march={target.cpu}", "-fno-math-errno", "-shared", "-fPIC")
    done = subprocess.run(
        [compiler, *options, "-o", str(made), str(source), "-lm"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[:4000]
    library = ctypes.CDLL(str(made))
    random = np.random.default_rng(0)
    for func in kernels:
        arrays = {p.name: random.standard_normal(size_of(p)).astype(p.dtype.numpy) for p in func.params}
        address = ctypes.cast(getattr(library, func.name), ctypes.c_void_p).value
        assert address is not None
        want = machine.run(func, arrays, {}, target)
        for name, got in machine.call(address, func, arrays, {}).items():
            np.testing.assert_array_equal(got, want[name], f"{func.name} of C and of LLVM")
