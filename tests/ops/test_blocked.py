"""Products with weights that DequantizeLinear dequantizes by blocks keep the weights in blocks."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler.pipeline import import_model
from jangin.frontends.onnx.operators.qlinear import FEW_ROWS
from jangin.ir.graph import Array
from jangin.ops.blocks import is_blocks
from jangin.options import Options
from jangin.targets import resolve

KINDS = {
    "int4": (TensorProto.INT4, -8, 7), "uint4": (TensorProto.UINT4, 0, 15),
    "int8": (TensorProto.INT8, -128, 127), "uint8": (TensorProto.UINT8, 0, 255),
}  # fmt: skip
FLOATS = {TensorProto.FLOAT: np.float32, TensorProto.FLOAT16: np.float16}


class Blocked:
    """A product of x and weights [terms, columns]. For Gemm, the weights are transposed, and there is a bias.

    Scales and zero points are for `block` neighbours along `axis` of the weights. Axis 0 is along the
    terms."""

    def __init__(
        self, kind: str, terms: int, columns: int, block: int, *, gemm: bool = False, zeros: bool = True,
        floats: int = TensorProto.FLOAT, axis: int = 0, **settings: float,
    ) -> None:  # fmt: skip
        self.random, dtype = np.random.default_rng(0), FLOATS[floats]
        number, low, high = KINDS[kind]
        sizes = [terms, columns]
        sizes[axis] = -(-sizes[axis] // block)
        w = self.random.integers(low, high, (terms, columns), endpoint=True)
        scales = (self.random.random(sizes) * 0.02 + 0.01).astype(dtype)
        zero = self.random.integers(low, high, sizes, endpoint=True) * zeros
        self.bias = self.random.standard_normal(columns).astype(dtype) * gemm
        spread = [np.repeat(a, block, axis)[:terms, :columns].astype(np.float64) for a in (scales, zero)]
        self.weights = (w - spread[1]) * spread[0]
        if gemm:
            w, scales, zero, axis = w.T, scales.T, zero.T, 1 - axis
        held = [numpy_helper.from_array(np.ascontiguousarray(scales), "s")]
        held += [helper.make_tensor(n, number, a.shape, a.ravel()) for n, a in (("w", w), ("z", zero))]
        nodes = [
            helper.make_node(
                "DequantizeLinear", ["w", "s", *["z"] * zeros], ["d"], axis=axis, block_size=block
            )
        ]
        if gemm:
            held.append(numpy_helper.from_array(self.bias, "b"))
            nodes.append(helper.make_node("Gemm", ["x", "d", "b"], ["y"], transB=1, **settings))
        else:
            nodes.append(helper.make_node("MatMul", ["x", "d"], ["y"]))
        ends = [
            helper.make_tensor_value_info(n, floats, ["rows", d]) for n, d in (("x", terms), ("y", columns))
        ]
        graph = helper.make_graph(nodes, "blocked", ends[:1], ends[1:], held)
        self.model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
        onnx.checker.check_model(self.model)
        self.dtype = dtype

    def x(self, rows: int) -> Array:
        return self.random.standard_normal((rows, len(self.weights))).astype(self.dtype)

    def kept(self) -> bool:
        graph = import_model(self.model.SerializeToString(), Options(resolve()), until="lower")
        return any(is_blocks(n, graph) for n in graph.nodes)


CASES = {
    "int4": Blocked("int4", 256, 93, 32),
    "ragged": Blocked("uint4", 250, 93, 32),
    "gemm": Blocked("int8", 192, 67, 64, gemm=True),
    "halves": Blocked("uint8", 128, 93, 16, floats=TensorProto.FLOAT16),
    "no zero points": Blocked("int4", 130, 61, 32, gemm=True, zeros=False, floats=TensorProto.FLOAT16),
    "bytes alone": Blocked("int8", 130, 61, 13, zeros=False),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 3, 33])
@pytest.mark.parametrize("name", CASES)
def test_they_are_the_same_products(name: str, rows: int) -> None:
    case = CASES[name]
    exe = jangin.compile(case.model, None, 1, {"rows": rows}, cache=False)
    x = case.x(rows)
    want = x.astype(np.float64) @ case.weights + case.bias
    error = np.abs(np.asarray(exe(x)).astype(np.float64) - want).max() / np.abs(want).max()
    assert error <= (2e-6 if case.dtype == np.float32 else 2**-10)
    assert case.kept()
    held = max(exe.plan.constants.values(), key=lambda a: a.size)
    if rows > FEW_ROWS:
        assert held.dtype == np.float32
    else:
        assert held.dtype in (np.int32, np.int8, np.uint8), "eight of 4 bits a word, or bytes"


def test_others_are_made_floats_of() -> None:
    along_columns = Blocked("int4", 64, 96, 32, axis=1)
    doubled = Blocked("int4", 64, 33, 32, gemm=True, alpha=2.0)
    for case, factor in ((along_columns, 1), (doubled, 2)):
        assert not case.kept()
        x = case.x(3)
        want = factor * x.astype(np.float64) @ case.weights + case.bias
        got = np.asarray(jangin.compile(case.model, None, 1, {"rows": 3}, cache=False)(x))
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


def test_weights_that_are_no_constants() -> None:
    case = Blocked("int8", 64, 33, 32)
    graph = case.model.graph
    del graph.initializer[next(i for i, t in enumerate(graph.initializer) if t.name == "s")]
    graph.input.append(helper.make_tensor_value_info("s", TensorProto.FLOAT, [2, 33]))
    assert not case.kept()


def test_scales_of_another_shape_are_named() -> None:
    case = Blocked("int4", 64, 33, 32)
    scales = next(t for t in case.model.graph.initializer if t.name == "s")
    scales.CopyFrom(numpy_helper.from_array(np.ones((3, 33), np.float32), "s"))
    with pytest.raises(jangin.CompileError, match="axis 0 has 2 blocks of 32"):
        jangin.compile(case.model, cache=False)
