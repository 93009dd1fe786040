"""ONNX models damaged at random: each gives a graph or one CompileError, never another error."""

from __future__ import annotations

import math
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import numpy as np
import onnx
import pytest
from models import classifier, info, model, node
from onnx import TensorProto, helper

import jangin
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.checks import IndexOutOfRange
from jangin.ir.graph import CompileError
from jangin.ir.interpret import size
from jangin.ir.verify import verify_graph
from jangin.ops.interpret import run_graph
from jangin.passes.table import GRAPH_PASSES
from jangin.targets import NAMED

ROUNDS = 250
PASSES = [
    p
    for p in GRAPH_PASSES
    if p.name in ("simplify", "needed", "batchnorm", "layout", "cleanup", "fold", "cse", "dce")
]


def attention() -> onnx.ModelProto:
    """Attention with masks by Where, softmax, split, slice and layer normalization. Two sizes are symbols."""
    random_ = np.random.default_rng(5)
    nodes = [
        node("LayerNormalization", "x scale", "n", axis=-1),
        node("MatMul", "n w", "qkv"),
        node("Split", "qkv", "q k v", axis=-1),
        node("Transpose", "k", "kt", perm=[0, 2, 1]),
        node("MatMul", "q kt", "scores"),
        node("Where", "mask scores low", "masked"),
        node("Softmax", "masked", "p"),
        node("MatMul", "p v", "o"),
        node("Slice", "o from to axes", "first"),
        node("ReduceMean", "first", "mean", axes=[1], keepdims=0),
        node("Cast", "mean", "y", to=TensorProto.FLOAT16),
    ]
    constants = {
        "scale": np.ones(4, np.float32), "w": random_.standard_normal((4, 12)).astype(np.float32),
        "low": np.array(-1e9, np.float32), "from": np.array([0]), "to": np.array([3]), "axes": np.array([1]),
    }  # fmt: skip
    inputs = [info("x", ["batch", "seq", 4]), info("mask", ["batch", 1, "seq"], TensorProto.BOOL)]
    return model(nodes, inputs, ["y"], constants, opset=17)


def recurrent() -> onnx.ModelProto:
    """A model with pooling, padding, resizing, top-k, scatter, cumulative sums and a branch."""
    out = helper.make_empty_tensor_value_info("out")
    branch = helper.make_graph([node("Neg", "t", "out")], "b", [], [out])
    nodes = [
        node("Pad", "x pads", "p", mode="reflect"),
        node("AveragePool", "p", "a", kernel_shape=[2, 2], strides=[1, 2], ceil_mode=1),
        node("Resize", "a - scales", "r", mode="linear"),
        node("Concat", "r r", "c", axis=1),
        node("CumSum", "c axis", "s"),
        node("TopK", "s two", "t i", axis=3),
        node("If", "yes", "u", then_branch=branch, else_branch=branch),
        node("OneHot", "i depth values", "h"),
        node("GatherElements", "u i", "y", axis=3),
    ]
    constants = {
        "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1]), "scales": np.array([1, 1, 2, 1.5], np.float32),
        "axis": np.array(1), "two": np.array([2]), "yes": np.array(True), "depth": np.array(3),
        "values": np.array([0, 1], np.float32),
    }  # fmt: skip
    return model(nodes, [info("x", [1, 2, 4, 4])], ["y", "h"], constants, opset=13)


def survives(given: onnx.ModelProto | bytes) -> bool:
    """Return whether a model compiles up to the graph passes. CompileError is the only error that it may
    raise."""
    try:
        graph = lower(load(given))
        for graph_pass in PASSES:
            graph = graph_pass.run(graph, NAMED["x86-64-v3"])
    except CompileError:
        return False
    verify_graph(graph)
    return True


Models = pytest.mark.parametrize("make", [classifier, attention, recurrent])


@Models
def test_the_whole_models_compile(make: Callable[[], onnx.ModelProto]) -> None:
    assert survives(make())


@Models
def test_damaged_bytes(make: Callable[[], onnx.ModelProto]) -> None:
    raw = make().SerializeToString()
    rng = random.Random(1)
    for _ in range(ROUNDS):
        damaged = bytearray(raw)
        for _ in range(rng.choice((1, 1, 2, 8))):
            at = rng.randrange(len(damaged))
            how = rng.randrange(4)
            if how == 0:
                damaged[at] = rng.randrange(256)
            elif how == 1:
                damaged[at] ^= 1 << rng.randrange(8)
            elif how == 2:
                del damaged[at : at + rng.randrange(1, 9)]
            else:
                damaged[at:at] = rng.randbytes(rng.randrange(1, 9))
        survives(bytes(damaged))


def damaged(make: Callable[[], onnx.ModelProto], seed: int, rounds: int) -> Iterator[onnx.ModelProto]:
    rng = random.Random(seed)
    for _ in range(rounds):
        proto = make()
        for _ in range(rng.choice((1, 1, 2, 3))):
            with suppress(IndexError, ValueError, KeyError):  # nothing can be damaged in this way
                rng.choice(DAMAGES)(rng, proto.graph)
        yield proto


@Models
def test_damaged_graphs(make: Callable[[], onnx.ModelProto]) -> None:
    survived = 0
    for proto in damaged(make, 2, ROUNDS):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # some numbers are out of range on purpose
            survived += survives(proto)
    assert survived > 0


@pytest.mark.sampled(3)
@Models
def test_graphs_that_survive_run(make: Callable[[], onnx.ModelProto]) -> None:
    """Damaged models that still compile give the interpreter's results. Top-k is left out where rounding
    could change its order."""
    random_ = np.random.default_rng(0)
    for proto in damaged(make, 3, 40):
        with suppress(CompileError):
            graph = lower(load(proto))
            sizes = {v.name: 3 for v in graph.symbols}
            shapes = {n: [size(d, sizes) for d in v.shape or ()] for n, v in graph.values.items()}
            if max(math.prod(s) for s in shapes.values()) > 10_000:
                continue
            feeds = {}
            for n in graph.inputs:
                kind = random_.standard_normal if graph.dtype(n).is_float else partial(random_.integers, 0, 2)
                feeds[n] = kind(size=shapes[n]).astype(graph.dtype(n).numpy)
            exe = jangin.compile(proto, cache=False, threads=1)
            try:
                results = exe.run(feeds)
            except IndexOutOfRange:
                with pytest.raises(IndexOutOfRange):
                    run_graph(graph, feeds)
                continue
            except ValueError as error:  # the graph can't have these sizes
                assert "do not meet" in str(error)
                continue
            for n, want in run_graph(graph, feeds).items():
                assert make is recurrent or np.allclose(results[n], want, 1e-3, 1e-4, equal_nan=True)


# --- damages ---------------------------------------------------------------------------------

NUMBERS = (0, 1, -1, 2, 3, 5, -7, 100, 1 << 31, -(1 << 31), 1 << 40, (1 << 63) - 1, -(1 << 63))


def _rewire(rng: random.Random, graph: onnx.GraphProto) -> None:
    """Replace one input of a node by another value."""
    names = ["", "nowhere", *(o for n in graph.node for o in n.output), *(t.name for t in graph.initializer)]
    target = rng.choice([n for n in graph.node if n.input])
    target.input[rng.randrange(len(target.input))] = rng.choice(names)


def _drop(rng: random.Random, graph: onnx.GraphProto) -> None:
    parts = rng.choice([graph.node, graph.initializer, graph.input, graph.output])
    if parts:
        del parts[rng.randrange(len(parts))]


def _repeat(rng: random.Random, graph: onnx.GraphProto) -> None:
    parts = rng.choice([graph.node, graph.initializer, graph.input, graph.output])
    if parts:
        parts.append(rng.choice(parts))


def _operator(rng: random.Random, graph: onnx.GraphProto) -> None:
    one, other = rng.choice(graph.node), rng.choice(graph.node)
    one.op_type = rng.choice(
        [other.op_type, "Conv", "Gather", "Reshape", "Squeeze", "Loop", "Einsum", "Tile"]
    )


def _attribute(rng: random.Random, graph: onnx.GraphProto) -> None:
    """Give an attribute another value, kind or name, or remove it."""
    owners = [n for n in graph.node if n.attribute]
    owner = rng.choice(owners)
    a = rng.choice(owner.attribute)
    how = rng.randrange(5)
    if how == 0:
        owner.attribute.remove(a)
    elif how == 1:
        a.name = rng.choice(["axis", "axes", "pads", "nothing", "opset", "kernel_shape"])
    elif how == 2:
        a.type = rng.choice([1, 2, 3, 4, 5, 6, 7, 8])
    elif a.ints:
        a.ints[rng.randrange(len(a.ints))] = rng.choice(NUMBERS)
    else:
        a.i = rng.choice(NUMBERS)


def _dims(rng: random.Random, graph: onnx.GraphProto) -> None:
    if rng.random() < 0.5:
        dims = rng.choice(graph.initializer).dims
        dims.append(rng.choice(NUMBERS)) if not dims or rng.random() < 0.3 else dims.pop()
    else:
        shape = rng.choice(graph.input).type.tensor_type.shape
        dim = rng.choice(shape.dim) if shape.dim else shape.dim.add()
        dim.dim_value = rng.choice(NUMBERS)


def _contents(rng: random.Random, graph: onnx.GraphProto) -> None:
    """Put other numbers into an integer constant: axes, sizes and counts that make no sense."""
    integers = [t for t in graph.initializer if t.data_type == TensorProto.INT64]
    if not integers:
        return
    chosen = rng.choice(integers)
    array = onnx.numpy_helper.to_array(chosen).copy()
    array.reshape(-1)[rng.randrange(array.size)] = rng.choice(NUMBERS)
    chosen.CopyFrom(onnx.numpy_helper.from_array(array, chosen.name))


def _type(rng: random.Random, graph: onnx.GraphProto) -> None:
    if rng.random() < 0.5:
        rng.choice(graph.initializer).data_type = rng.randrange(30)
    else:
        rng.choice(graph.input).type.tensor_type.elem_type = rng.randrange(30)


DAMAGES = (_rewire, _drop, _repeat, _operator, _attribute, _dims, _contents, _type)
