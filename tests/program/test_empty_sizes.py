"""Sizes of 0, which every symbol of an input may have. An empty batch gives ONNX's result, or the run's error
names the node that can't have it. Sizes have the model's own names."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from build import body, info, model
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

import jangin

node = helper.make_node
RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]
I64 = TensorProto.INT64


def numbers(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def wanted(m: onnx.ModelProto, feeds: dict[str, Array]) -> list[Array]:
    """Return ONNX Runtime's results, or ONNX's reference results if an input is empty. ONNX Runtime divides
    by 0 for empty inputs."""
    if any(a.size == 0 for a in feeds.values()):
        return list(ReferenceEvaluator(m).run(None, feeds))
    made = onnx.ModelProto()
    made.CopyFrom(m)
    made.ir_version = 10
    session = ort.InferenceSession(made.SerializeToString(), providers=["CPUExecutionProvider"])
    found: list[Array] = session.run(None, feeds)
    return found


def classifier() -> onnx.ModelProto:
    """Make a convolutional network with a free batch and image size."""
    nodes = [
        node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]),
        node("Relu", ["c"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        node("ReduceMean", ["p", "axes"], ["f"], keepdims=0),
        node("Gemm", ["f", "v"], ["z"]),
        node("Softmax", ["z"], ["y"]),
    ]
    constants = {"w": numbers(8, 3, 3, 3), "v": numbers(8, 5), "axes": np.int64([2, 3])}
    return model(nodes, [info("x", ["n", 3, "h", 16])], ["y"], constants)


def recurrent() -> onnx.ModelProto:
    nodes = [node("LSTM", ["x", "w", "r"], ["all", "last"], hidden_size=4)]
    constants = {"w": numbers(1, 16, 3), "r": numbers(1, 16, 4)}
    return model(nodes, [info("x", [5, "n", 3])], ["all", "last"], constants)


def attention() -> onnx.ModelProto:
    """Make attention between rows, with a free batch and length."""
    nodes = [
        node("MatMul", ["x", "w"], ["q"]),
        node("Transpose", ["q"], ["k"], perm=[0, 2, 1]),
        node("MatMul", ["q", "k"], ["s"]),
        node("Softmax", ["s"], ["p"]),
        node("MatMul", ["p", "q"], ["a"]),
        node("ReduceSum", ["a", "axis"], ["y"], keepdims=0),
    ]
    constants = {"w": numbers(8, 8), "axis": np.int64([1])}
    return model(nodes, [info("x", ["n", "h", 8])], ["y"], constants)


def steps() -> onnx.ModelProto:
    """Make a model with a loop, and with sizes that depend on data."""
    inner = body(
        "inner",
        [node("Mul", ["v", "v"], ["w"]), node("Identity", ["c"], ["d"])],
        [info("i", [], I64), info("c", [], TensorProto.BOOL), info("v", ["n", 3])],
        ["d", "w"],
    )
    nodes = [
        node("Loop", ["count", "", "x"], ["y"], body=inner),
        node("NonZero", ["y"], ["z"]),
    ]
    return model(nodes, [info("x", ["n", 3]), info("count", [], I64)], ["y", "z"])


MODELS: dict[str, tuple[Callable[[], onnx.ModelProto], Callable[[int], dict[str, Array]]]] = {
    "classifier": (classifier, lambda n: {"x": numbers(n, 3, 16, 16)}),
    "recurrent": (recurrent, lambda n: {"x": numbers(5, n, 3)}),
    "attention": (attention, lambda n: {"x": numbers(n, 7, 8)}),
    "length": (attention, lambda n: {"x": numbers(2, n, 8)}),
    "steps": (steps, lambda n: {"x": numbers(n, 3), "count": np.array(4)}),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("name", MODELS)
def test_a_batch_of_nothing(name: str, threads: int, tmp_path: Path) -> None:
    """The same executable runs an empty batch before and after others, also when it is loaded from a file."""
    made, feeds_of = MODELS[name]
    m = made()
    exe = jangin.compile(m, cache=False, threads=threads)
    exe.save(tmp_path / "m.jgn")
    for run in (exe, jangin.load(tmp_path / "m.jgn")):
        for n in (0, 3, 0, 1):
            feeds = feeds_of(n)
            for got, want in zip(run.run(feeds).values(), wanted(m, feeds), strict=True):
                assert got.dtype == want.dtype
                np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)  # float32, in another order


def test_a_rank_that_follows_from_a_size() -> None:
    """Squeeze without axes removes axes of size 1. There is a variant for 1, and one for 0."""
    exe = jangin.compile(model([node("Squeeze", ["x"], ["y"])], [info("x", ["n", 3])], ["y"]), cache=False)
    assert [exe(numbers(n, 3)).shape for n in (0, 1, 2, 5)] == [(0, 3), (3,), (2, 3), (5, 3)]


REFUSED: dict[str, tuple[onnx.ModelProto, tuple[int, ...]]] = {
    "ArgMax": (model([node("ArgMax", ["x"], ["y"])], [info("x", ["n", 3])], ["y"]), (0, 3)),
    "TopK": (
        model([node("TopK", ["x", "k"], ["y", "i"])], [info("x", [2, "n"])], ["y"], {"k": np.int64([2])}),
        (2, 0),
    ),
    "Conv": (
        model([node("Conv", ["x", "w"], ["y"])], [info("x", [1, 2, "n"])], ["y"], {"w": numbers(3, 2, 3)}),
        (1, 2, 0),
    ),
    "MaxPool": (
        model([node("MaxPool", ["x"], ["y"], kernel_shape=[3])], [info("x", [1, 2, "n"])], ["y"]),
        (1, 2, 1),
    ),
    **{
        f"Pad {mode}": (
            model(
                [node("Pad", ["x", "p"], ["y"], mode=mode)], [info("x", ["n"])], ["y"],
                {"p": np.int64([2, 1])},
            ),
            (0,),
        )
        for mode in ("edge", "reflect", "wrap")
    },
    **{
        f"Resize {mode}": (
            model(
                [node("Resize", ["x", "", "", "s"], ["y"], mode=mode)], [info("x", ["b", 1, "n", 3])], ["y"],
                {"s": np.int64([2, 1, 4, 5])},
            ),
            (2, 1, 0, 3),
        )
        for mode in ("nearest", "linear", "cubic")
    },
    "GridSample": (
        model(
            [node("GridSample", ["x", "g"], ["y"], padding_mode="border")],
            [info("x", [1, 1, "n", 3])], ["y"], {"g": numbers(1, 2, 2, 2)},
        ),
        (1, 1, 0, 3),
    ),
    "RoiAlign": (
        model(
            [node("RoiAlign", ["x", "r", "b"], ["y"], output_height=2, output_width=2)],
            [info("x", [1, 1, "n", 3])], ["y"], {"r": np.float32([[0, 0, 2, 2]]), "b": np.int64([0])},
        ),
        (1, 1, 0, 3),
    ),
}  # fmt: skip


@pytest.mark.parametrize("op", REFUSED)
def test_a_node_that_cant_have_nothing_is_named(op: str) -> None:
    """Without an error, it would read memory that isn't the input's."""
    m, shape = REFUSED[op]
    exe = jangin.compile(m, cache=False)
    with pytest.raises(ValueError, match=rf"n = \d do not meet .*, which {op.split()[0]} 'y' .* needs"):
        exe(numbers(*shape))


@pytest.mark.parametrize("op", [n for n in REFUSED if n.startswith(("Pad", "Resize", "GridSample"))])
def test_a_known_size_of_nothing_is_refused(op: str) -> None:
    m, shape = REFUSED[op]
    with pytest.raises(jangin.CompileError, match=rf"{op.split()[0]} 'y'"):
        jangin.compile(m, shapes={"x": shape}, cache=False)


@pytest.mark.parametrize("mode", ["edge", "reflect", "wrap"])
def test_padding_of_no_rows(mode: str) -> None:
    """Nothing is read if another axis leaves no result, or if an empty axis isn't padded."""
    nodes, pads = [node("Pad", ["x", "p"], ["y"], mode=mode)], {"p": np.int64([0, 1, 0, 2])}
    exe = jangin.compile(model(nodes, [info("x", ["n", "m"])], ["y"], pads), cache=False)
    assert exe(numbers(0, 4)).shape == (0, 7)
    np.testing.assert_array_equal(exe(x := numbers(2, 4)), np.pad(x, [(0, 0), (1, 2)], mode))  # type: ignore[call-overload]


def test_boxes_and_scores_are_as_many() -> None:
    """The number of boxes equals the number of scores, so that no missing box is read."""
    m = model(
        [node("NonMaxSuppression", ["b", "s", "most"], ["y"])],
        [info("b", [1, "n", 4]), info("s", [1, 1, "k"])], ["y"], {"most": np.int64([3])},
    )  # fmt: skip
    exe = jangin.compile(m, cache=False)
    assert exe(numbers(1, 0, 4), numbers(1, 1, 0)).shape == (0, 3)
    with pytest.raises(ValueError, match=r"n = 0, k = 6 do not meet \(n == k\), which NonMaxSuppression"):
        exe(numbers(1, 0, 4), numbers(1, 1, 6))


def test_a_shape_of_a_result_that_nothing_reads() -> None:
    """Sizes that meet in a broadcast are equal or 1, even if only the shape of the result is used."""
    nodes = [node("Add", ["x", "y"], ["s"]), node("Shape", ["s"], ["k"]), node("Expand", ["c", "k"], ["z"])]
    m = model(nodes, [info("x", ["n"]), info("y", ["m"])], ["z"], {"c": np.float32(2)})
    exe = jangin.compile(m, cache=False)
    assert [exe(numbers(a), numbers(b)).shape for a, b in ((5, 5), (1, 5), (5, 1), (1, 1))] == [
        (5,), (5,), (5,), (1,),
    ]  # fmt: skip
    with pytest.raises(ValueError, match=r"n = 3, m = 4 do not meet \(m == n\), which Add 's'"):
        exe(numbers(3), numbers(4))


def test_sizes_that_are_divided_by() -> None:
    """A size divided by itself is 1 for any size, as it was when no size could be 0."""
    nodes = [
        node("Shape", ["x"], ["n"], start=0, end=1),
        node("Div", ["n", "n"], ["one"]),
        node("Tile", ["w", "one"], ["y"]),
    ]
    exe = jangin.compile(model(nodes, [info("x", ["n"])], ["y"], {"w": numbers(4)}), cache=False)
    assert exe.outputs[0].shape == (4,)


@pytest.mark.parametrize("name", ["n", "x0", "batch size", "_n", "in", "Größe", "past + 1", "a.b"])
def test_the_models_own_names(name: str, tmp_path: Path) -> None:
    """The model's names are in shapes, in errors, in `shapes=`, and in a loaded file."""
    m = model([node("MatMul", ["x", "w"], ["y"])], [info("x", [name, 3])], ["y"], {"w": numbers(3, 2)})
    exe = jangin.compile(m, cache=False, shapes={name: (0, 4)})
    exe.save(tmp_path / "m.jgn")
    exe = jangin.load(tmp_path / "m.jgn")
    assert exe.inputs[0].shape == (name, 3) and exe.outputs[0].shape == (name, 2)
    assert exe.arena_bytes(**{name: 3}) == 0
    with pytest.raises(ValueError, match="is 5, but may be 0 to 4") as error:
        exe(numbers(5, 3))
    assert name in str(error.value)
    with pytest.raises(jangin.CompileError, match="shapes has 'other'") as refused:
        jangin.compile(m, cache=False, shapes={"other": 3})
    assert str(refused.value).endswith(f": x, {name}")
    wrong = model([node("Conv", ["x", "w"], ["y"])], [info("x", [1, name, 3])], ["y"], {"w": numbers(2, 3)})
    with pytest.raises(jangin.CompileError, match="Conv 'y'") as named:
        jangin.compile(wrong, cache=False)
    assert "f32[1, " in str(named.value) and f"_{name}" not in str(named.value)
