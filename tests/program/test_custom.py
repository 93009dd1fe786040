"""A caller's own operators, as in the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from build import info, model
from onnx import helper

import jangin
from jangin.ir.expr import call


@jangin.operator("Swish", domain="mine")
def swish(b: Any, x: Any, *, beta: float = 1.0) -> Any:
    return b.map(lambda v: v / (1 + call("exp", v * -beta)), x)


@jangin.hosted("Median", domain="mine", infer=lambda x, **_: [(x.dtype, x.shape[:-1])])
def median(x: np.ndarray) -> Any:
    return np.median(x, -1).astype(x.dtype)


def test_a_tensor_expression_is_compiled_and_fused() -> None:
    nodes = [
        helper.make_node("Mul", ["x", "x"], ["s"]),
        helper.make_node("Swish", ["s"], ["y"], domain="mine", beta=2.0),
    ]
    exe = jangin.compile(model(nodes, [info("x", ["n", 5])], ["y"], domains=["mine"]), operators=[swish])
    assert isinstance(exe, jangin.Executable) and len(exe.plan.launches) == 1
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    np.testing.assert_allclose(exe(x), x * x / (1 + np.exp(-2 * x * x)), rtol=1e-5)


def test_a_numpy_function_is_hosted(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Relu", ["x"], ["r"]),
        helper.make_node("Median", ["r"], ["m"], domain="mine"),
        helper.make_node("Neg", ["m"], ["y"]),
    ]
    exe = jangin.compile(model(nodes, [info("x", ["n", 5])], ["y"], domains=["mine"]), operators=[median])
    x = np.random.default_rng(0).standard_normal((4, 5)).astype(np.float32)
    wanted = -np.median(np.maximum(x, 0), -1)
    np.testing.assert_allclose(exe(x), wanted)
    exe.save(tmp_path / "m.jgn")
    np.testing.assert_allclose(jangin.load(tmp_path / "m.jgn", operators=[median])(x), wanted)
    with pytest.raises(ValueError, match=r"calls mine.Median: give operators="):
        jangin.load(tmp_path / "m.jgn")
