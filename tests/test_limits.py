"""Limits of time, memory and nodes for compiling. One clear error names the node, whichever process works.

Most tests set the clock forward. Tests that really wait have limits of a second."""

from __future__ import annotations

import pickle
import subprocess
import sys
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin import Limits
from jangin.commands.common import parse_limits
from jangin.compiler.pipeline import graph_passes
from jangin.ir import limits
from jangin.ir.graph import CompileError
from jangin.options import Options
from jangin.targets import resolve

LATE = 30.0
"""Seconds until a compilation with a limit of a second must have ended, on a busy machine."""


def model(nodes: list[onnx.NodeProto], shape: list[Any], **constants: Any) -> bytes:
    held = [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    graph = helper.make_graph(nodes, "g", [x], [helper.make_empty_tensor_value_info("y")], held)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    whole: bytes = made.SerializeToString()
    return whole


def small() -> bytes:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["a"], name="product"),
        helper.make_node("Softmax", ["a"], ["y"], name="share"),
    ]
    return model(nodes, ["n", 8], w=np.eye(8, dtype=np.float32))


def endless() -> bytes:
    """Return a transpose of so many free sizes that its kernel takes minutes."""
    sizes = [f"s{i}" for i in range(60)]
    return model([helper.make_node("Transpose", ["x"], ["y"], name="turned")], sizes)


STEPS = [
    "load",
    "lower",
    *(p.name for p in graph_passes(Options(resolve("cpu")))),
    "kernels",
    "plan",
    "compile",
]


@pytest.mark.parametrize("step", STEPS)
def test_every_step_looks_at_the_clock(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour passes when a step begins. This step or the next one ends the compilation."""
    clock, passed = time.monotonic, list[str]()

    def tell(done: int, total: int, what: str) -> None:
        passed.append(what)
        if what == step:
            monkeypatch.setattr(limits.time, "monotonic", lambda: clock() + 3600)

    with pytest.raises(
        CompileError, match=r"compiling takes more than 600 s; limits=Limits\(seconds="
    ) as error:
        jangin.compile(small(), cache=False, isolated=False, progress=tell)
    assert "in the step " in str(error.value)
    assert len({*passed[passed.index(step) :]}) <= 2, "no other step went by"


@pytest.mark.sampled(3)
def test_expressions_look_at_the_clock() -> None:
    """The limit is checked within one kernel of one node."""
    start = time.monotonic()
    with pytest.raises(CompileError, match=r"Transpose 'turned' .*, in the step kernels: .*more than 5 s"):
        jangin.compile(endless(), cache=False, isolated=False, limits=Limits(seconds=5))
    assert time.monotonic() - start < LATE


@pytest.mark.sampled(2)
@pytest.mark.parametrize("isolated", [False, True])
def test_limits_of_each_kind(isolated: bool) -> None:
    settings: dict[str, Any] = {"cache": False, "isolated": isolated}
    with pytest.raises(CompileError, match=r"Softmax 'share'.*more than 1 nodes.*; limits=Limits\(nodes="):
        jangin.compile(small(), limits=Limits(nodes=1), **settings)
    with pytest.raises(CompileError, match=r"(ConstantOfShape 'c'|Add '[dy]').*more than 32 MiB of memory"):
        jangin.compile(large(), limits=Limits(memory=32 << 20), **settings)
    with pytest.raises(CompileError, match=r"Transpose 'turned'.*more than 1 s"):
        jangin.compile(endless(), limits=Limits(seconds=1), **settings)
    x = np.ones((3, 8), np.float32)
    exe = jangin.compile(small(), limits=Limits(60, 1 << 30, 100), **settings)
    np.testing.assert_allclose(exe(x), np.full((3, 8), 1 / 8), rtol=1e-6)


def large() -> bytes:
    """Return a model that computes a constant of 64 MiB."""
    nodes = [
        helper.make_node("ConstantOfShape", ["size"], ["c"]),
        helper.make_node("Add", ["c", "one"], ["d"]),
        helper.make_node("Add", ["x", "d"], ["y"]),
    ]
    return model(nodes, [1], size=np.array([1 << 24]), one=np.float32(1))


def test_emit_and_build_have_limits() -> None:
    for make in (jangin.build, jangin.emit):
        with pytest.raises(CompileError, match="more than 1 nodes"):
            make(small(), limits=Limits(nodes=1))


@pytest.mark.parametrize("error", [MemoryError, RecursionError])
def test_what_python_has_of_memory_and_depth(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise error

    monkeypatch.setattr("jangin.compiler.kernels.make_kernel", fails)
    why = "nested too deep" if error is RecursionError else "more memory than there is"
    with pytest.raises(CompileError, match=f"'(product|share)' .*in the step kernels: .*{why}"):
        jangin.compile(small(), cache=False, isolated=False)


WORKERS = """
from functools import partial
import time
from jangin.compiler.processes.forked import Workers
from jangin.ir.errors import CompileError
from jangin.ir.limits import Limits, within
try:
    with within(Limits(seconds=1)), Workers(2, dict) as workers:
        workers.do([partial(time.sleep, n * 1000) for n in range(2)], 2, names=["a", "Conv 'c'"])
except CompileError as error:
    print(error)
"""


def test_a_worker_that_does_not_end_is_ended() -> None:
    done = subprocess.run([sys.executable, "-c", WORKERS], capture_output=True, text=True, timeout=LATE)
    assert done.stdout.startswith("Conv 'c': compiling takes more than 1 s; "), done.stderr


STUCK = """
import sys
def stuck(*_, **__):
    import time
    from jangin.ir import limits
    limits.at("Conv 'c'")
    time.sleep(1000)
class Finder:
    def find_spec(self, name, *_):
        if name == "jangin.compiler.processes.server":
            import jangin.compiler.request, jangin.ir.limits
            jangin.compiler.request.carry_out, jangin.ir.limits.GRACE = stuck, 0.5
sys.meta_path.insert(0, Finder())
"""
"""A module for a Python whose compiler doesn't look at the clock."""


def test_a_process_that_does_not_ask_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(STUCK)
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{Path(jangin.__file__).parents[1]}")
    start = time.monotonic()
    with pytest.raises(CompileError, match="Conv 'c': compiling takes longer than its limit"):
        jangin.compile(small(), cache=False, isolated=True, limits=Limits(seconds=1))
    assert time.monotonic() - start < LATE


def test_what_goes_on_elsewhere_keeps_the_end() -> None:
    budget = limits.Budget(Limits(seconds=5), 2.0, 1 << 30, 100.0)
    again = pickle.loads(pickle.dumps(budget))
    assert (again.end, again.memory) == (107.0, limits.MEMORY + 16 * (1 << 30))


@pytest.mark.parametrize("wrong", [{"seconds": 0}, {"memory": -1}, {"nodes": 0}, {"seconds": float("nan")}])
def test_what_is_no_limit(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="is no limit"):
        Limits(**wrong)


def test_limits_as_text() -> None:
    assert parse_limits("") == Limits()
    assert parse_limits("seconds=1.5,memory=2G,nodes=9") == Limits(1.5, 2 << 30, 9)
    for text in ("seconds", "hours=1", "memory=2T", "nodes=1.5", "seconds=-1"):
        with pytest.raises(ValueError, match="--limits"):
            parse_limits(text)


def hostile(op: str, shape: list[Any], inputs: int = 1, **attrs: Any) -> bytes:
    return model([helper.make_node(op, ["x"] * inputs, ["y"], **attrs)], shape)


def squared(times: int, shape: list[Any]) -> bytes:
    names = ["s", *(f"t{i}" for i in range(times - 1)), "y"]
    products = [helper.make_node("Mul", [a, a], [b]) for a, b in pairwise(names)]
    return model([helper.make_node("Shape", ["x"], ["s"]), *products], shape)


def convolved(pads: int, strides: int) -> bytes:
    node = helper.make_node("Conv", ["x", "w"], ["y"], pads=[pads] * 4, strides=[strides] * 2)
    return model([node], [1, 1, 5, 5], w=np.ones((1, 1, 3, 3), np.float32))


HOSTILE: dict[str, Callable[[], bytes]] = {
    "pads of 2**31": lambda: hostile("MaxPool", [1, 1, 5, 5], kernel_shape=[5, 5], pads=[2**31, 2, 2, 2]),
    "pads of 10**9": lambda: hostile(
        "AveragePool", [1, 3, 28, 28], kernel_shape=[3, 3], pads=[2, 10**9, 2, 2]
    ),
    "pads of 10**7": lambda: hostile(
        "AveragePool", [1, 3, 28, 28], kernel_shape=[3, 3], pads=[2, 10**7, 2, 2]
    ),
    "pads of 2**40": lambda: convolved(2**40, 2**40),
    "pads of 2**40, stride 1": lambda: convolved(2**40, 1),
    "squares": lambda: squared(40, ["n", 4]),
    "squares of known sizes": lambda: squared(40, [3, 4]),
    "a sum of 5000": lambda: hostile("Sum", [4], 5000),
    "a mean of 5000": lambda: hostile("Mean", [4], 5000),
    "a concatenation of 3000": lambda: hostile("Concat", [4], 3000, axis=0),
    "200 axes": lambda: hostile("Softmax", [1] * 200),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", HOSTILE)
def test_what_asks_for_much_is_quick(name: str) -> None:
    """A model that asks for much compiles or is refused, without reaching a limit."""
    start = time.process_time()
    try:
        jangin.compile(HOSTILE[name](), threads=1, cache=False, isolated=False)
    except CompileError as error:
        assert "limits=" not in str(error)
    assert time.process_time() - start < LATE


@pytest.mark.sampled(4)
@pytest.mark.parametrize("op", ["Sum", "Mean", "Max", "Min"])
@pytest.mark.parametrize("count", [1, 2, 31, 32, 33, 63, 64, 100])
def test_operators_of_many_inputs(op: str, count: int) -> None:
    names = [f"x{i}" for i in range(count)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT16, [3]) for n in names]
    ends = [helper.make_empty_tensor_value_info("y")]
    graph = helper.make_graph([helper.make_node(op, names, ["y"])], "g", infos, ends)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    # sums of such numbers are exact
    xs = np.random.default_rng(count).integers(-8, 9, (count, 3)).astype(np.float16)
    join = {"Sum": np.sum, "Mean": np.mean, "Max": np.max, "Min": np.min}[op]
    want = join(xs.astype(np.float32), axis=0).astype(np.float16)
    exe = jangin.compile(made, threads=1, cache=False, isolated=False)
    np.testing.assert_array_equal(exe.run(dict(zip(names, xs, strict=True)))["y"], want)
