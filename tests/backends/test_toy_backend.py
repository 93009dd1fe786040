"""A back end and a device from outside the package, without patching the package.

Code is the text of a kernel's loops, and the interpreter runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.backends.backend import Kernel
from jangin.ir.graph import Array, Graph
from jangin.ir.interpret import run_func
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.ir.plan import Plan, PlanBuffer
from jangin.ir.text import print_func
from jangin.passes.table import GRAPH_PASSES, Pass
from jangin.runtime.compiled import read_artifact
from jangin.runtime.device import LoadError, NativeCall, Transfer
from jangin.runtime.layout import Layout
from jangin.runtime.profile import Launches
from jangin.targets import Target
from jangin.targets.processor import Processor
from jangin.templates import rows
from jangin.templates.choose import Match

SEEN: list[str] = []
"""The graphs that the back end's own pass received."""


def look(graph: Graph, target: Target) -> Graph:
    SEEN.append(f"{target.name} {graph.name}")
    return graph


class ToyBackend:
    libraries, forks = (), True
    forms: Mapping[str, Callable[[Func, Target], str]] = MappingProxyType({})

    def templates(self, target: Target) -> Mapping[str, Match]:
        return {"rows": rows.match}

    def passes(self, target: Target) -> Sequence[Pass]:
        return [*GRAPH_PASSES, Pass("look", look)]

    def code(self, kernel: Kernel, target: Target, written: Callable[[], object]) -> bytes:
        return print_func(kernel.func).encode()

    def runner(self, plan: Plan, target: Target) -> tuple[bytes, ...]:
        return ()

    def made_by(self) -> str:
        return "Toy 1"

    def flow(self, target: Target) -> bytes:
        return b""


class ToyDevice:
    name = "toy"

    def why_not(self, target: str) -> str:
        return "" if target.startswith("toy-") else "it is no toy"

    def is_processor(self, target: str) -> bool:
        return True

    def transfer(self, target: str) -> Transfer:
        return Transfer(0.0, 0.0)

    def load(self, plan: Plan, codes: Sequence[bytes], threads: int, beside: object) -> ToyModule:
        return ToyModule(plan, [parse_func(code.decode()) for code in codes])

    def flow(self, code: bytes) -> None:
        return None


class ToyModule:
    threads, alignment = 1, 64

    def __init__(self, plan: Plan, kernels: Sequence[Func]) -> None:
        self.plan, self.kernels = plan, {k.name: k for k in kernels}

    def memory(self) -> ToyMemory:
        return ToyMemory(self)

    def native_call(self, layout: Layout) -> NativeCall:
        raise NotImplementedError


class ToyMemory:
    """A buffer of bytes for each value with memory of its own."""

    def __init__(self, module: ToyModule) -> None:
        self.module = module

    def prepare(self, layout: Layout) -> None:
        arena = (b for b in self.module.plan.buffers if b.kind == "arena")
        self.bytes = {b.name: np.empty(self.count(layout, b), np.uint8) for b in arena}

    def count(self, layout: Layout, buffer: PlanBuffer) -> int:
        return int(np.prod(layout.shapes[buffer.name], dtype=np.int64)) * buffer.dtype.bytes

    def again(self, given: Sequence[Array]) -> None:
        return None

    def run(self, layout: Layout, inputs: Sequence[Array]) -> dict[str, Array]:
        plan = self.module.plan
        made = {name: np.empty(shape, dtype) for name, shape, dtype in layout.outputs}
        given = {**dict(zip(plan.inputs, inputs, strict=True)), **plan.constants, **made}
        raw = {**self.bytes, **{n: a.reshape(-1).view(np.uint8) for n, a in given.items()}}
        arrays = {
            b.name: raw[b.base or b.name][: self.count(layout, b)]
            .view(b.dtype.numpy).reshape(layout.shapes[b.name])
            for b in plan.buffers
        }  # fmt: skip
        for launch in plan.launches:
            func = self.module.kernels[launch.kernel]
            args = {p.name: arrays[n] for p, n in zip(func.params, launch.args, strict=True)}
            sizes = map(layout.value, launch.symbols)
            run_func(func, args, {v.name: n for (v, _), n in zip(func.symbols, sizes, strict=True)})
        return made

    def read(self, layout: Layout, buffer: PlanBuffer) -> Array:
        return self.bytes[buffer.name]

    def launches(self, layout: Layout, inputs: Sequence[Array]) -> Launches:
        raise ValueError("a toy has no clock")


TOY = Target(
    "toy", "toy-none-none", "toy", "", (), Processor(16, 16), backend=ToyBackend(), device=ToyDevice()
)


def network() -> onnx.ModelProto:
    """A convolution, a pool and a dense layer, of any batch."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((4, 3, 3, 3)), "b": rng.standard_normal(4),
        "d": rng.standard_normal((36, 5)), "e": rng.standard_normal(5),
    }  # fmt: skip
    nodes = [
        helper.make_node("Conv", ["x", "w", "b"], ["c"]),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("Flatten", ["p"], ["f"]),
        helper.make_node("Gemm", ["f", "d", "e"], ["g"]),
        helper.make_node("Softmax", ["g"], ["y"]),
    ]
    ends = [
        helper.make_tensor_value_info(n, TensorProto.FLOAT, ["batch", *shape])
        for n, shape in (("x", (3, 8, 8)), ("y", (5,)))
    ]
    arrays = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    graph = helper.make_graph(nodes, "network", ends[:1], ends[1:], arrays)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def branches() -> onnx.ModelProto:
    """y = x + 1 or x * 2, chosen by the input c. A device without control flow leaves such steps to
    Python."""
    value = helper.make_tensor_value_info("z", TensorProto.FLOAT, [3])
    ways = [
        helper.make_graph([helper.make_node(op, ["x", "two"], ["z"])], op, [], [value])
        for op in ("Add", "Mul")
    ]
    node = helper.make_node("If", ["c"], ["y"], then_branch=ways[0], else_branch=ways[1])
    inputs = [
        helper.make_tensor_value_info("c", TensorProto.BOOL, []),
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [3]),
    ]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])
    two = [numpy_helper.from_array(np.float32([2.0]), "two")]
    return helper.make_model(
        helper.make_graph([node], "branches", inputs, [output], two),
        opset_imports=[helper.make_opsetid("", 20)],
    )


def test_a_network_runs_saved_and_loaded_too(tmp_path: Path) -> None:
    model = network()
    exe = jangin.compile(model, TOY)
    assert SEEN == ["toy network"]
    exe.save(tmp_path / "m.jgn")
    again = jangin.load(tmp_path / "m.jgn", device=ToyDevice())
    codes = read_artifact(tmp_path / "m.jgn").objects
    assert codes and all(code.startswith(b"func k_") for code in codes)
    for batch in (1, 2):
        x = np.random.default_rng(batch).standard_normal((batch, 3, 8, 8)).astype(np.float32)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
        for run in (exe, again):  # only the order of sums differs
            np.testing.assert_allclose(run(x), expected, rtol=1e-5, atol=1e-6)


def test_branches_are_python_s() -> None:
    exe = jangin.compile(branches(), TOY)
    x = np.arange(3, dtype=np.float32)
    assert isinstance(exe, jangin.ProgramExecutable)
    np.testing.assert_array_equal(exe(np.array(True), x), x + 2)
    np.testing.assert_array_equal(exe(np.array(False), x), x * 2)


def test_a_file_says_which_device_it_is_for(tmp_path: Path) -> None:
    jangin.build(network(), TOY).save(tmp_path / "m.jgn")
    with pytest.raises(LoadError, match="device 'toy', which isn't Jangin's: give device="):
        jangin.load(tmp_path / "m.jgn")
    jangin.build(network(), "cpu", cache=False).save(tmp_path / "cpu.jgn")
    with pytest.raises(LoadError, match="for the device 'cpu', not 'toy'"):
        jangin.load(tmp_path / "cpu.jgn", device=ToyDevice())
