"""Models whose ranks or broadcasts change at a size of 1. Each case is compiled, and a run takes the right
one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.compiled import plans
from jangin.runtime.load import executable
from jangin.runtime.variants_artifact import VariantsArtifact

FLOAT = TensorProto.FLOAT
RNG = np.random.default_rng(0)


def model(nodes, inputs, constants=(), outputs=("y",)) -> onnx.ModelProto:
    """Make a model. `inputs` has shapes by name."""
    graph = helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info(n, FLOAT, s) for n, s in inputs.items()],
        [helper.make_tensor_value_info(n, FLOAT, None) for n in outputs], list(constants),
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def pooled() -> onnx.ModelProto:
    """Return the mean of images, squeezed: PyTorch's `x.mean((2, 3), keepdim=True).squeeze()`."""
    nodes = [
        helper.make_node("ReduceMean", ["x", "axes"], ["m"], keepdims=1),
        helper.make_node("Squeeze", ["m"], ["y"]),
    ]
    axes = numpy_helper.from_array(np.array([2, 3]), "axes")
    return model(nodes, {"x": ["batch", 3, 8, 8]}, [axes])


def pictures(n: int) -> np.ndarray:
    return RNG.random((n, 3, 8, 8), np.float32)


PRODUCT = model([helper.make_node("Mul", ["x", "z"], ["y"])], {"x": ["n"], "z": ["m"]})


@pytest.mark.parametrize("n", [1, 2, 5])
def test_squeeze_of_a_symbolic_batch(n: int) -> None:
    exe = jangin.compile(pooled(), cache=False)
    x = pictures(n)
    want = x.mean((2, 3)).squeeze()
    for got in (exe(x), exe.run({"x": x})["y"]):
        assert got.shape == want.shape
        np.testing.assert_allclose(got, want, rtol=1e-6)  # a mean of 64 terms is summed in another order


def test_broadcasts_of_two_symbols() -> None:
    exe = jangin.compile(PRODUCT, cache=False)
    assert isinstance(exe, jangin.VariantsExecutable)
    for n, m in ((1, 4), (4, 1), (1, 1), (4, 4), (7, 7), (1, 9)):
        x, z = RNG.random(n, np.float32), RNG.random(m, np.float32)
        np.testing.assert_array_equal(exe(x, z), x * z)
    with pytest.raises(
        ValueError, match=r"n = 2, m = 3 do not meet .*==.*; other variants are for n = 1 or m = 1"
    ):
        exe(np.ones(2, np.float32), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="rank"):
        exe(np.ones((1, 1), np.float32), np.ones(3, np.float32))
    with pytest.raises(ValueError, match="expected 2 inputs"):
        exe(np.ones(1, np.float32))
    with pytest.raises(TypeError, match="dtype"):
        exe(np.ones(1), np.ones(3))


def test_weights_in_blocks_have_a_variant_for_one_row() -> None:
    """A variant for one row holds the same packed weights."""
    width, columns = 64, 50
    packed = RNG.integers(0, 256, (columns, 2, 16), np.uint8)
    scales = RNG.random((columns, 2), np.float32)
    settings = {"K": width, "N": columns, "bits": 4, "block_size": 32, "domain": "com.microsoft"}
    node = helper.make_node("MatMulNBits", ["x", "w", "s"], ["y"], **settings)
    known = [numpy_helper.from_array(packed, "w"), numpy_helper.from_array(scales.reshape(-1), "s")]
    product = model([node], {"x": ["n", width]}, known)
    product.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    exe = jangin.compile(product, cache=False)
    numbers = np.stack([packed & 15, packed >> 4], -1).reshape(columns, width) - 8.0
    weights = numbers * np.repeat(scales, 32, 1)
    for n in (1, 2, 33):
        x = RNG.random((n, width), np.float32)
        assert exe.variant({"x": x}) is exe.variants[n == 1]
        np.testing.assert_allclose(exe(x), x @ weights.T, rtol=1e-4, atol=1e-3)
    first, second = ([c.shape for c in p.plan.constants.values()] for p in plans(exe.artifact))
    assert first == second


def test_expand_to_a_symbol_is_as_a_broadcast() -> None:
    """Expand checks the sizes of two symbols. Once it took another symbol's size for its own without a
    check."""
    nodes = [helper.make_node("Shape", ["z"], ["s"]), helper.make_node("Expand", ["x", "s"], ["y"])]
    exe = jangin.compile(model(nodes, {"x": ["n"], "z": ["m"]}), cache=False)
    for n, m in ((1, 4), (4, 1), (1, 1), (4, 4)):
        x, z = RNG.random(n, np.float32), RNG.random(m, np.float32)
        np.testing.assert_array_equal(exe(x, z), np.broadcast_to(x, max(n, m)))
    with pytest.raises(ValueError, match="do not meet"):
        exe(np.ones(2, np.float32), np.ones(3, np.float32))


def test_a_symbol_beside_a_constant() -> None:
    """A size that meets 3 is 3 or 1."""
    three = numpy_helper.from_array(np.arange(3, dtype=np.float32), "c")
    whole = model([helper.make_node("Mul", ["x", "c"], ["y"])], {"x": ["n"]}, [three])
    exe = jangin.compile(whole, cache=False)
    for n in (1, 3):
        x = RNG.random(n, np.float32)
        np.testing.assert_array_equal(exe(x), x * np.arange(3, dtype=np.float32))
    with pytest.raises(ValueError, match="n = 2 do not meet"):
        exe(np.ones(2, np.float32))


def test_every_combination_of_two_symbols() -> None:
    exe = jangin.compile(
        model([helper.make_node("Squeeze", ["x"], ["y"])], {"x": ["a1", 1, "b1"]}), cache=False
    )
    assert len(exe.variants) == 4
    for a in (1, 2):
        for b in (1, 3):
            x = RNG.random((a, 1, b), np.float32)
            np.testing.assert_array_equal(exe(x), x.squeeze())


def test_no_variant_without_need() -> None:
    """There is no variant if 1 is no size of the symbol, if equal symbols meet, or if no output needs the
    difference."""
    for shapes in ({"batch": (2, 9)}, {"batch": 4}, {"batch": 1}):
        assert isinstance(jangin.compile(pooled(), shapes=shapes, cache=False), jangin.Executable)
    same = model([helper.make_node("Mul", ["x", "z"], ["y"])], {"x": ["n", 3], "z": ["n", 1]})
    assert isinstance(jangin.compile(same, cache=False), jangin.Executable)
    unused = [helper.make_node("Mul", ["x", "z"], ["y"]), helper.make_node("Neg", ["x"], ["w"])]
    dead = model(unused, {"x": ["n"], "z": ["m"]}, outputs=("w",))
    assert isinstance(jangin.compile(dead, cache=False), jangin.Executable)


def test_a_case_that_cannot_be_made_is_told() -> None:
    """The squeezed mean of one image is a vector, which has no axis 1."""
    nodes = [helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("Softmax", ["s"], ["y"], axis=1)]
    exe = jangin.compile(model(nodes, {"x": ["batch", 3]}), cache=False)
    assert exe(np.zeros((2, 3), np.float32)).shape == (2, 3)
    with pytest.raises(ValueError, match=r"do not meet .*; no variant for batch = 1: .*Softmax.*axis"):
        exe(np.zeros((1, 3), np.float32))
    assert "no variant for batch = 1: " in exe.explain_shapes()


def test_a_handful_at_most() -> None:
    """Only the first variant is made if there would be more than 8."""
    sizes = ["first", "second", "third", "fourth"]
    exe = jangin.compile(model([helper.make_node("Squeeze", ["x"], ["y"])], {"x": sizes}), cache=False)
    assert len(exe.variants) == 1
    told = (
        "no variant for other sizes: there would be more than 8; "
        "compile it with shapes= for what it is to run"
    )
    assert exe.explain_shapes().splitlines()[-1] == told
    assert exe(np.zeros((2, 3, 2, 3), np.float32)).shape == (2, 3, 2, 3)
    with pytest.raises(ValueError, match=f"first = 1, .* do not meet .*; {told}"):
        exe(np.zeros((1, 2, 2, 2), np.float32))


def test_a_rank_goes_before_broadcasts() -> None:
    """Inputs whose sizes have no names are taken as equal, but one image is squeezed."""
    nodes = [helper.make_node("Add", ["x", "z"], ["s"]), helper.make_node("Mul", ["s", "w"], ["p"])]
    squeeze = helper.make_node("Squeeze", ["x"], ["y"])
    inputs = {"x": [None, None, 4], "z": [None, None, 4], "w": [None, None, 4]}
    whole = model([*nodes, squeeze], {**inputs, "x": [None, 1, 4]}, outputs=("p", "y"))
    exe = jangin.compile(whole, cache=False)
    assert exe.artifact.sizes == ({}, {"x_d0": 1})
    assert "no variant for other sizes" in exe.explain_shapes()
    for n in (1, 3):
        arrays = [RNG.random((n, k, 4), np.float32) for k in (1, 2, 2)]
        product, y = exe(*arrays)
        np.testing.assert_array_equal(product, (arrays[0] + arrays[1]) * arrays[2])
        assert y.shape == arrays[0].squeeze().shape


def test_programs_have_variants_too(tmp_path: Path) -> None:
    """Each case is a program, because a step that depends on data lies between."""
    nodes = [
        helper.make_node("Squeeze", ["x"], ["s"]), helper.make_node("NonZero", ["s"], ["i"]),
        helper.make_node("Cast", ["i"], ["y"], to=FLOAT),
    ]  # fmt: skip
    built = jangin.build(model(nodes, {"x": ["batch", 4]}), cache=False)
    built.save(tmp_path / "m.jgn")
    for exe in (executable(built), jangin.load(tmp_path / "m.jgn")):
        assert all(isinstance(v, jangin.ProgramExecutable) for v in exe.variants)
        for n in (1, 2, 3):
            x = (RNG.random((n, 4)) > 0.5).astype(np.float32)
            np.testing.assert_array_equal(exe(x), np.array(np.nonzero(x.squeeze()), np.float32))
        with pytest.raises(ValueError, match="rank 2"):
            exe(np.zeros(4, np.float32))


def test_a_branch_that_is_not_taken_asks_for_nothing() -> None:
    """A condition in a branch holds only if the branch is taken."""
    branches = {
        name: helper.make_graph(
            [helper.make_node(op, ["x", "z"] if op == "Mul" else ["x"], [name])], name, [],
            [helper.make_tensor_value_info(name, FLOAT, None)],
        )
        for name, op in (("then", "Mul"), ("orelse", "Neg"))
    }  # fmt: skip
    nodes = [
        helper.make_node("ReduceSum", ["c"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["b"], to=TensorProto.BOOL),
        helper.make_node("If", ["b"], ["y"], then_branch=branches["then"], else_branch=branches["orelse"]),
    ]  # fmt: skip
    exe = jangin.compile(model(nodes, {"x": ["n"], "z": ["m"], "c": [2]}), cache=False)
    off, on = np.zeros(2, np.float32), np.ones(2, np.float32)
    for n, m in ((1, 4), (4, 1), (4, 4)):
        x, z = RNG.random(n, np.float32), RNG.random(m, np.float32)
        np.testing.assert_array_equal(exe(x, z, on), x * z)
        np.testing.assert_array_equal(exe(x, z, off), -x)
    np.testing.assert_array_equal(exe(np.ones(2, np.float32), np.ones(3, np.float32), off), -np.ones(2))


def test_constants_are_there_once(tmp_path: Path) -> None:
    """Constants of equal content are stored once, in memory and in the file. Both cases compute the same."""
    weights = RNG.random((4000, 64), np.float32)
    nodes = [
        helper.make_node("Cast", ["x"], ["i"], to=TensorProto.INT64),
        helper.make_node("Gather", ["w", "i"], ["g"]),
        helper.make_node("Squeeze", ["g"], ["y"]),
    ]  # fmt: skip
    whole = model(nodes, {"x": ["batch"]}, [numpy_helper.from_array(weights, "w")])
    built = jangin.build(whole, cache=False)
    assert isinstance(built, VariantsArtifact)
    built.save(tmp_path / "m.jgn")
    one = jangin.build(whole, shapes={"batch": 1}, cache=False)
    one.save(tmp_path / "one.jgn")
    spare = (tmp_path / "m.jgn").stat().st_size - (tmp_path / "one.jgn").stat().st_size
    assert 0 < spare < weights.nbytes // 4  # the second case adds code and a plan, but no weights
    exe = jangin.load(tmp_path / "m.jgn")
    for made in (built, exe.artifact):
        first, second = (max(p.plan.constants.values(), key=np.size) for p in plans(made))
        assert first.nbytes == weights.nbytes and np.shares_memory(first, second)
    for n in (1, 3):
        np.testing.assert_array_equal(exe(np.arange(n, dtype=np.float32)), weights[:n].squeeze())


def test_saved_equal_and_whole(tmp_path: Path) -> None:
    """Equal variants give equal files, which load as they were. A changed bit is found."""
    path, again = tmp_path / "m.jgn", tmp_path / "n.jgn"
    built = jangin.build(pooled(), cache=False)
    built.save(path)
    loaded = jangin.load(path)
    loaded.save(again)
    assert path.read_bytes() == again.read_bytes()
    assert loaded.explain_shapes() == executable(built).explain_shapes()
    assert loaded(pictures(1)).shape == (3,) and loaded(pictures(2)).shape == (2, 3)
    data = path.read_bytes()
    for at in range(0, len(data), max(1, len(data) // 50)):
        broken = bytearray(data)
        broken[at] ^= 1
        path.write_bytes(broken)
        try:
            exe = jangin.load(path)
        except ArtifactError:
            continue
        assert exe(pictures(1)).shape == (3,)  # the changed byte lies between parts, and nothing reads it
    path.write_bytes(data[:-64])
    with pytest.raises(ArtifactError, match="cut short"):
        jangin.load(path)


def test_the_cache_keeps_variants(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    onnx.save(pooled(), path)
    first = jangin.compile(path, cache=tmp_path / "cache")
    (entry,) = (tmp_path / "cache").rglob("*.jgn")
    made = entry.stat().st_ino
    second = jangin.compile(path, cache=tmp_path / "cache")
    assert entry.stat().st_ino == made  # the entry isn't written again
    x = pictures(1)
    np.testing.assert_array_equal(first(x), second(x))


def test_a_session_runs_every_batch(tmp_path: Path) -> None:
    session = jangin.InferenceSession(pooled().SerializeToString())
    for n in (1, 2):
        (got,) = session.run(None, {"x": pictures(n)})
        assert got.shape == ((3,) if n == 1 else (n, 3))
    assert session.get_inputs()[0].shape == ["batch", 3, 8, 8]
    assert (session.get_outputs()[0].type, session.get_outputs()[0].shape) == ("tensor(float)", [])
    both = jangin.compile(PRODUCT, cache=False)
    assert both.outputs[0].shape == ("?",)
    batched = model(
        [helper.make_node("Squeeze", ["x"], ["y"]), helper.make_node("Neg", ["x"], ["w"])],
        {"x": ["batch", 3]}, outputs=("y", "w"),
    )  # fmt: skip
    assert jangin.compile(batched, cache=False).outputs[1].shape == ("batch", 3)


def test_memory_and_time_are_of_the_variant() -> None:
    exe = jangin.compile(pooled(), cache=False)
    assert exe.arena_bytes(batch=1) <= exe.arena_bytes(batch=64)
    assert len(exe.profile({"x": pictures(1)}, repeats=2)) >= 1
    assert exe.variant({"x": pictures(1)}).plan.is_static
    with pytest.raises(ValueError, match="give each of the sizes"):
        exe.arena_bytes()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("batch", [1, 4])
def test_tuning_measures_the_variant_of_its_sizes(batch: int) -> None:
    """The variant for the given sizes is tuned. A batch of 1 can't run in the general variant."""
    exe = jangin.compile(pooled(), cache=False, tune=0.2, sizes={"batch": batch})
    assert exe(pictures(batch)).shape == pictures(batch).mean((2, 3)).squeeze().shape
