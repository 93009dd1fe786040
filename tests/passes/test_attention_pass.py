"""Attention as one kernel gives right results at odd and at any sizes. It is merged only where it should
be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.compiler.pipeline import optimize
from jangin.ir.core import Kernel, MatMul, Softmax
from jangin.ir.dtype import BF16
from jangin.ir.expr import const
from jangin.ir.graph import Array
from jangin.ops.attention import attention as attention_of
from jangin.ops.builder import Builder
from jangin.options import Options
from jangin.targets import resolve

Sizes = tuple[int, int, int, int, int]


def attention(
    batch: int | str, heads: int, queries: int | str, keys: int | str, width: int, *, mask: bool = True,
    constant: Mapping[str, Array] | None = None, outputs: Sequence[str] = ("y",),
) -> onnx.ModelProto:  # fmt: skip
    """Make a model of softmax(q k^T / sqrt(width) + mask) v, for tokens with their heads side by side."""
    nodes = []
    for name, perm in (("q", [0, 2, 1, 3]), ("k", [0, 2, 3, 1]), ("v", [0, 2, 1, 3])):
        nodes.append(helper.make_node("Reshape", [name, "split"], [f"{name}4"]))
        nodes.append(helper.make_node("Transpose", [f"{name}4"], [f"{name}t"], perm=perm))
    nodes.append(helper.make_node("MatMul", ["qt", "kt"], ["product"]))
    nodes.append(helper.make_node("Mul", ["product", "scale"], ["scaled"]))
    if mask:
        nodes.append(helper.make_node("Add", ["scaled", "mask"], ["masked"]))
    nodes.append(helper.make_node("Softmax", ["masked" if mask else "scaled"], ["p"], axis=-1))
    nodes.append(helper.make_node("MatMul", ["p", "vt"], ["o"]))
    nodes.append(helper.make_node("Transpose", ["o"], ["y"], perm=[0, 2, 1, 3]))
    shapes = {n: [batch, t, heads * width] for n, t in (("q", queries), ("k", keys), ("v", keys))}
    shapes |= {"mask": [batch, 1, 1, keys]} if mask else {}
    given = [n for n in shapes if n not in (constant or {})]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shapes[n]) for n in given]
    results = [helper.make_tensor_value_info(n, TensorProto.FLOAT, None) for n in outputs]
    constants = {"split": np.array([0, 0, heads, width]), "scale": np.float32(width**-0.5)}
    initializers = [
        numpy_helper.from_array(np.asarray(a), n) for n, a in {**constants, **(constant or {})}.items()
    ]
    graph = helper.make_graph(nodes, "attention", inputs, results, initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def feeds(sizes: Sizes, mask: bool = True) -> dict[str, Array]:
    batch, heads, queries, keys, width = sizes
    rng = np.random.default_rng(sum(sizes))
    shapes = {"q": queries, "k": keys, "v": keys}
    found = {n: rng.standard_normal((batch, t, heads * width)).astype(np.float32) for n, t in shapes.items()}
    if mask:
        found["mask"] = np.where(rng.random((batch, 1, 1, keys)) < 0.3, -1e4, 0).astype(np.float32)
    return found


def close(got: Array, given: Mapping[str, Array], heads: int) -> None:
    """Compare a result with float64. Some hundred f32 roundings of values of at most some units are
    allowed."""
    q, k, v = (
        given[n].astype(np.float64).reshape(*given[n].shape[:2], heads, -1).transpose(0, 2, 1, 3)
        for n in "qkv"
    )
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1]) + given.get("mask", 0)
    powers = np.exp(scores - scores.max(-1, keepdims=True))
    want = (powers / powers.sum(-1, keepdims=True)) @ v
    np.testing.assert_allclose(got, want.transpose(0, 2, 1, 3), rtol=1e-5, atol=1e-5)


def templates(model: onnx.ModelProto, target: str = "x86-64-v3") -> list[str]:
    return [x.template.split()[0] for x in jangin.build(model, target, cache=False).plan.launches]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    "sizes",
    [(1, 4, 16, 16, 8), (2, 5, 13, 29, 11), (1, 12, 197, 197, 64), (1, 4, 700, 70, 16), (3, 4, 9, 2, 3)],
)
@pytest.mark.parametrize("mask", [True, False])
def test_is_one_kernel(sizes: Sizes, mask: bool) -> None:
    model, given = attention(*sizes, mask=mask), feeds(sizes, mask)
    made = templates(model)
    assert made.count("attention") == 1 and not {"rows", "contraction"} & set(made)
    close(jangin.compile(model, cache=False).run(given)["y"], given, sizes[1])


@pytest.mark.parametrize("target", ["x86-64-v2", "x86-64-v3"])
def test_of_any_size(target: str) -> None:
    model = attention("batch", 4, "queries", "keys", 16)
    assert "attention" in templates(model, target)
    exe = jangin.compile(model, target, cache=False)
    for sizes in ((1, 4, 1, 1, 16), (2, 4, 7, 300, 16), (1, 4, 300, 7, 16), (3, 4, 64, 64, 16)):
        given = feeds(sizes)
        close(exe.run(given)["y"], given, 4)


def test_two_threads_share_the_heads() -> None:
    sizes = (1, 6, 40, 50, 8)
    given = feeds(sizes)
    one, two = (jangin.compile(attention(*sizes), threads=n, cache=False).run(given)["y"] for n in (1, 2))
    np.testing.assert_array_equal(one, two)


@pytest.mark.parametrize("why", ["few heads", "few queries", "scores are a result", "keys are constant"])
def test_is_left_alone(why: str) -> None:
    sizes = {"few heads": (1, 2, 16, 16, 8), "few queries": (1, 8, 3, 16, 8)}.get(why, (1, 8, 16, 16, 8))
    given = feeds(sizes)
    constant = {"k": given["k"]} if why == "keys are constant" else {}
    outputs = ("y", "p") if why == "scores are a result" else ("y",)
    model = attention(*sizes, constant=constant, outputs=outputs)
    assert "attention" not in templates(model)
    exe = jangin.compile(model, cache=False)
    close(exe.run({n: a for n, a in given.items() if n not in constant})["y"], given, sizes[1])


def test_queries_keys_and_values_of_one_buffer() -> None:
    tokens, heads, width = 24, 4, 8
    nodes = [helper.make_node("Split", ["qkv"], ["q", "k", "v"], axis=-1, num_outputs=3)]
    inner = attention(1, heads, tokens, tokens, width, mask=False)
    shape = [1, tokens, 3 * heads * width]
    graph = helper.make_graph(
        [*nodes, *inner.graph.node],
        "split",
        [helper.make_tensor_value_info("qkv", TensorProto.FLOAT, shape)],
        inner.graph.output,
        inner.graph.initializer,
    )
    model = helper.make_model(graph, opset_imports=inner.opset_import)
    exe = jangin.compile(model, cache=False)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    close(exe.run({"qkv": x})["y"], dict(zip("qkv", np.split(x, 3, -1), strict=True)), heads)
    assert "attention" in templates(model)


@pytest.mark.parametrize("target", ["x86-64-v4-bf16", "cuda:sm_80"])
def test_a_result_of_16_bits_is_merged_too(target: str) -> None:
    """A product of pairs, or of matrices, reads attention's result at 16 bits. Attention is one kernel even
    so."""
    b, rng = Builder("graph", {}), np.random.default_rng(0)
    q, k, v = (b.input(n, BF16, tuple(map(const, (1, 12, 128, 32)))) for n in "qkv")
    y = b.transpose(attention_of(b, q, k, v).y, (0, 2, 1, 3))
    weights = b.const(rng.standard_normal((384, 64)).astype(BF16.numpy))
    out = b.matmul(b.reshape(y, tuple(map(const, (1, 128, 384)))), weights)
    made = optimize(b.graph([out], ["y"]), Options(resolve(target)))
    bodies = [n.attrs.body.nodes for n in made.nodes if isinstance(n.attrs, Kernel)]
    assert any(isinstance(n.attrs, MatMul) and n.attrs.dot for body in bodies for n in body), "none is marked"
    merged = [body for body in bodies if any(isinstance(n.attrs, Softmax) for n in body)]
    assert [sum(isinstance(n.attrs, MatMul) for n in body) for body in merged] == [2]
