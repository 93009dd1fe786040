"""Whole NNEF models: their files, fragments, variables and quantization; damaged models; writing."""

from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

import jangin
from jangin.commands.common import Settings, random_input
from jangin.commands.convert import convert
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.nnef.tensors import LENGTH, read_tensor, tensor_bytes
from jangin.frontends.nnef.writer import written
from jangin.ir.dtype import F32
from jangin.ir.expr import const
from jangin.ir.graph import CompileError
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph

nnef = pytest.importorskip("nnef", reason="nnef isn't installed: the extra `nnef` brings it")

TEXT = """
version 1.0;
extension KHR_enable_fragment_definitions, KHR_enable_operator_expressions;

fragment same<?>( x: tensor<?> ) -> ( y: tensor<?> )
{
    y = copy(x);
}

fragment scaled( x: tensor<scalar>, by: scalar = 2.0 ) -> ( y: tensor<scalar> )
{
    y = x * by;
}

fragment block( x: tensor<scalar>, filter: tensor<scalar>, times: integer )
-> ( outs: tensor<scalar>[], total: tensor<scalar> )
{
    outs = [for i in range_of([0] * times) yield relu(conv(x, filter, padding = [(1,1), (1,1)]))];
    total = add_n(outs);
}

graph net( input ) -> ( total, shifted )
{
    input = external(shape = [1, 3, 5, 7]);
    filter = variable(shape = [3, 3, 3, 3], label = 'conv1/filter');
    [a, b], total = block(same(scaled(input)), filter, times = 2);
    shifted = (b - 1.0) / 2.0 if length_of([1, 2]) == 2 else b;    # decided while parsing
}
"""
FILTER = np.random.default_rng(0).standard_normal((3, 3, 3, 3)).astype(np.float32)
X = np.random.default_rng(1).standard_normal((1, 3, 5, 7)).astype(np.float32)


def folder(at: Path, text: str = TEXT, **more: bytes) -> Path:
    (at / "conv1").mkdir(parents=True)
    (at / "graph.nnef").write_text(text)
    (at / "conv1" / "filter.dat").write_bytes(tensor_bytes(FILTER))
    for name, content in more.items():
        (at / name.replace("_", ".")).write_bytes(content)
    return at


def archive(model: Path, kind: str, *members: tarfile.TarInfo) -> bytes:
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode=kind) as made:
        for member in members:
            made.addfile(member, io.BytesIO(b"x" * member.size) if member.isfile() else None)
        for file in sorted(p for p in model.rglob("*") if p.is_file()):
            made.add(file, f"./{file.relative_to(model)}")
    return held.getvalue()


def outputs(model: Any) -> list[Any]:
    return list(run_graph(lower(table.load(model)), {"input": X}).values())


def expected() -> list[Any]:
    padded = np.pad(X.astype(np.float64) * 2, [(0, 0), (0, 0), (1, 1), (1, 1)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
    a = np.maximum(np.einsum("ncyxij,ocij->noyx", windows, FILTER.astype(np.float64)), 0)
    return [2 * a, (a - 1) / 2]


def near(got: list[Any], wanted: list[Any]) -> None:
    for g, w in zip(got, wanted, strict=True):
        np.testing.assert_allclose(g, w, rtol=0, atol=2e-6 * np.abs(w).max())  # sums of 27 float32 products


@pytest.mark.sampled(2)
def test_folder_and_archives(tmp_path: Path) -> None:
    """The author's fragments have arrays, generics, comprehensions and conditions. A model is recognized by
    content, whatever its file is called."""
    model = folder(tmp_path / "net")
    near(outputs(model), expected())
    near(outputs(model / "graph.nnef"), expected())
    for kind in ("w", "w:gz", "w:xz"):
        near(outputs(archive(model, kind)), expected())
    path = tmp_path / "model.onnx"
    path.write_bytes(archive(model, "w:gz"))
    exe = jangin.compile(path, threads=1, cache=False)
    near(list(exe(X)), expected())
    assert "conv1/filter" in table.load(model).graph.constants


def test_a_changed_weight_is_another_model(tmp_path: Path) -> None:
    """A changed weight is seen by the cache too."""
    model = folder(tmp_path / "net")
    file = model / "graph.nnef"
    file.write_text("# a comment\n" + TEXT)
    first = jangin.compile(file, threads=1, cache=tmp_path / "cache")(X)
    (model / "conv1" / "filter.dat").write_bytes(tensor_bytes(2 * FILTER))
    second = jangin.compile(file, threads=1, cache=tmp_path / "cache")(X)
    np.testing.assert_array_equal(2 * first[0], second[0])


def test_quantization(tmp_path: Path) -> None:
    """A variable has integers, and an activation is quantized."""
    text = (
        "version 1.0; graph net( input ) -> ( y ) { input = external(shape = [1, 3, 5, 7]);"
        " filter = variable(shape = [3, 3, 3, 3], label = 'conv1/filter'); y = conv(input, filter); }"
    )
    how = "bits = 8, signed = true, symmetric = false"
    quant = (
        f'"filter": zero_point_linear_quantize(zero_point = 3, scale = 0.125, {how});\n'
        f'"y": zero_point_linear_quantize(zero_point = 0, scale = 0.5, {how});\n'
    )
    model = folder(tmp_path / "net", text, graph_quant=quant.encode())
    integers = np.random.default_rng(2).integers(-9, 9, FILTER.shape).astype(np.int8)
    content = bytearray(tensor_bytes(integers))
    content[48:52] = (3).to_bytes(4, "little")  # quantized integers
    (model / "conv1" / "filter.dat").write_bytes(bytes(content))
    (got,) = outputs(model)
    assert set(np.unique(got * 2 % 1)) == {0.0} and np.abs(got).max() <= 64


def test_quantized_inputs(tmp_path: Path) -> None:
    """Tensors that no operation gives are quantized too: an input, and a variable whose file has floats."""
    text = (
        "version 1.0; graph net( input ) -> ( y ) { input = external(shape = [1, 3, 5, 7]);"
        " filter = variable(shape = [3, 3, 3, 3], label = 'conv1/filter'); y = conv(input, filter); }"
    )
    quant = b'"input": linear_quantize(min = -1.0, max = 2.0, bits = 4);\n'
    quant += b'"filter": zero_point_linear_quantize(zero_point = 0, scale = 0.25, bits = 3, signed = true,'
    quant += b" symmetric = true);\n"
    (got,) = outputs(folder(tmp_path / "net", text, graph_quant=quant))
    x = np.round((np.clip(X.astype(np.float64), -1, 2) + 1) / 3 * 15) / 15 * 3 - 1
    w = np.clip(np.round(FILTER / 0.25), -3, 3) * 0.25
    windows = np.lib.stride_tricks.sliding_window_view(
        np.pad(x, [(0, 0), (0, 0), (1, 1), (1, 1)]), (3, 3), (2, 3)
    )
    near([got], [np.einsum("ncyxij,ocij->noyx", windows, w)])


def test_dat_round_trip() -> None:
    random = np.random.default_rng(0)
    for dtype in ("f2", "f4", "f8", "i1", "u1", "i2", "i4", "u4", "i8", "u8", "?"):
        array = (random.standard_normal((3, 1, 5)) * 9).astype(dtype)
        found, quantized = read_tensor(tensor_bytes(array), "it")
        assert found.dtype == array.dtype and np.array_equal(found, array) and not quantized
    held = io.BytesIO()
    held.write(tensor_bytes(FILTER))
    held.seek(0)
    held.seekable = lambda: False  # type: ignore[method-assign]
    np.testing.assert_array_equal(nnef.read_tensor(held), FILTER)


# -- bad input -----------------------------------------------------------------------------------

WRONG = {
    "unknown operators": (("relu(conv(", "gone(lost("), "2 operations are not supported: gone, lost"),
    "cycle": (("scaled(input)", "scaled(total)"), "total"),
    "no file": (("'conv1/filter'", "'conv2/filter'"), "has no file 'conv2/filter.dat'"),
    "a way out": (("'conv1/filter'", "'../../etc/passwd'"), "no name of a file inside"),
    "shape": (("[3, 3, 3, 3]", "[3, 3, 3, 1]"), "its file has"),
    "type": (("filter = variable(", "filter = variable<integer>("), "integer"),
    "nesting": (("scaled(input)", "(" * 100_000 + "input" + ")" * 100_000), "nested too deep"),
    "recursion": (("y = x * by", "y = scaled(x * by)"), "scaled|deep"),
    "a large constant": (("y = copy(x)", "y = constant(shape = [99999, 99999], value = [1.0])"), "constant"),
    "channels": (("shape = [1, 3, 5, 7]", "shape = [1, 4, 5, 7]"), "channels"),
    "cut short": (("shifted = (b", "\0"), "error"),
}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("what", WRONG)
def test_one_clear_error(what: str, tmp_path: Path) -> None:
    (old, new), message = WRONG[what]
    assert old in TEXT
    with pytest.raises(CompileError, match=message):
        outputs(folder(tmp_path / "net", TEXT.replace(old, new)))


def test_weights_of_another_length(tmp_path: Path) -> None:
    model = folder(tmp_path / "net")
    whole = tensor_bytes(FILTER)
    for content in (whole[:-1], whole + b"\0", whole[:50], b"", whole[:4] + b"\xff" * 100):
        (model / "conv1" / "filter.dat").write_bytes(content)
        with pytest.raises(CompileError, match="conv1/filter"):
            outputs(model)


@pytest.mark.sampled(2)
def test_archives_that_harm(tmp_path: Path) -> None:
    model = folder(tmp_path / "net")
    link, out, far = tarfile.TarInfo("link"), tarfile.TarInfo("../out"), tarfile.TarInfo("/etc/x")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    with pytest.raises(CompileError, match="no file but a link"):
        outputs(archive(model, "w:gz", link))
    with pytest.raises(CompileError):
        outputs(archive(model, "w:gz", out))
    # the archive is read in memory, where an absolute path leads nowhere
    near(outputs(archive(model, "w:gz", far)), expected())
    bomb = tarfile.TarInfo("bomb.dat")
    bomb.size = 100 << 20
    with pytest.raises(CompileError, match=r"far more|no format"):
        outputs(archive(model, "w:gz", bomb))
    whole = archive(model, "w:gz")
    for cut in (10, len(whole) // 2, len(whole) - 9):
        with pytest.raises(CompileError):
            outputs(whole[:cut])
    os.symlink("/etc/passwd", model / "away.dat")
    (model / "graph.nnef").write_text(TEXT.replace("'conv1/filter'", "'away'"))
    with pytest.raises(CompileError, match="outside"):
        outputs(model)


@pytest.mark.sampled(3)
def test_mutants(tmp_path: Path) -> None:
    """Each of some hundred mutants of weights and archives, and of some mutants of texts, loads or gives one
    CompileError."""
    random = np.random.default_rng(3)
    model = folder(tmp_path / "net")
    kept, whole, packed = (model / "graph.nnef").read_bytes(), tensor_bytes(FILTER), archive(model, "w:gz")

    def mutant(data: bytes, first: int = 0) -> bytes:
        changed = bytearray(data)
        for _ in range(random.integers(1, 4)):
            at = int(random.integers(first, len(changed)))
            changed[at : at + int(random.integers(0, 3))] = random.bytes(int(random.integers(0, 3)))
        return bytes(changed)

    def tried(source: Any) -> None:
        try:
            lower(table.load(source))
        except CompileError as error:
            assert str(error)

    for _ in range(150):
        (model / "conv1" / "filter.dat").write_bytes(mutant(whole[:LENGTH]) + whole[LENGTH:])
        tried(model)
        tried(mutant(packed))
    (model / "conv1" / "filter.dat").write_bytes(whole)
    for _ in range(40):
        (model / "graph.nnef").write_bytes(mutant(kept, 10))
        tried(model)


# -- writing -------------------------------------------------------------------------------------


def small(*extra: str) -> Any:
    random = np.random.default_rng(4)
    weights = {
        "conv/w": random.standard_normal((4, 3, 3, 3)), "scale": random.standard_normal(4) + 2,
        "shift": random.standard_normal(4), "mean": random.standard_normal(4), "var": random.random(4) + 1,
        "fc/w": random.standard_normal((5, 24)), "fc/b": random.standard_normal(5),
    }  # fmt: skip
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "conv/w"], ["c"], pads=[1, 1, 1, 1], strides=[2, 1]),
        node("BatchNormalization", ["c", "scale", "shift", "mean", "var"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], ceil_mode=1),
        node("AveragePool", ["p"], ["a"], kernel_shape=[2, 2], pads=[1, 0, 0, 1], count_include_pad=1),
        node("Concat", ["a", "a"], ["cc"], axis=2),
        node("Flatten", ["a"], ["f"]),
        node("Gemm", ["f", "fc/w", "fc/b"], ["g"], transB=1),
        node("Softplus", ["g"], ["s"]),
        *(node(op, [f"e{i - 1}" if i else "s"], [f"e{i}"]) for i, op in enumerate(extra)),
        node("Softmax", [f"e{len(extra) - 1}" if extra else "s"], ["out.1"], axis=-1),
    ]
    made = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in weights.items()]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "small", [value("x", TensorProto.FLOAT, ["batch", 3, 7, 6])],
        [value("out.1", TensorProto.FLOAT, None), value("cc", TensorProto.FLOAT, None)], made,
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["small.nnef", "small.nnef.tgz"])
def test_convert(name: str, tmp_path: Path) -> None:
    """The bits are equal, which `convert` checks itself, and again after another conversion."""
    source, output = tmp_path / "a.onnx", tmp_path / name
    source.write_bytes(small().SerializeToString())
    convert(source, Settings(cache=False), output, ["batch=2"])
    again = tmp_path / "again.nnef"
    convert(output, Settings(cache=False), again, [])
    x = np.random.default_rng(5).standard_normal((2, 3, 7, 6)).astype(np.float32)
    first = jangin.compile(source, threads=1, shapes={"batch": 2}, cache=False)(x)
    for other in (output, again):
        for a, b in zip(first, jangin.compile(other, threads=1, cache=False)(x), strict=True):
            assert a.tobytes() == b.tobytes()
    assert not list(tmp_path.glob(".convert*"))
    text = (again / "graph.nnef").read_text()
    assert "r = relu(" in text and "out_1 = reshape" not in text
    with pytest.raises(FileExistsError):
        convert(source, Settings(cache=False), output, ["batch=2"])


def test_what_is_the_same_everywhere(tmp_path: Path) -> None:
    """An operand that isn't read otherwise becomes one number for each element."""
    b = Builder("net", {})
    x = b.input("x", F32, (const(2), const(3)))
    y = b.map(lambda v: const(2.5, F32), x)
    for name, content in written(b.graph([y, x], ["y", "z"])).items():
        (tmp_path / name).write_bytes(content)
    given = np.ones((2, 3), np.float32)
    found = run_graph(lower(table.load(tmp_path)), {"x": given})
    np.testing.assert_array_equal(found["y"], np.full((2, 3), 2.5, np.float32), strict=True)


def test_what_nnef_cannot_say(tmp_path: Path) -> None:
    """All parts are reported at once by the author's names, and nothing is written."""
    source = tmp_path / "a.onnx"
    source.write_bytes(small("Selu", "Celu").SerializeToString())
    with pytest.raises(CompileError, match=r"NNEF can't express 2 parts:\n.*Selu 'e0'.*\n.*Celu 'e1'"):
        convert(source, Settings(cache=False), tmp_path / "b.nnef", ["batch=1"])
    with pytest.raises(CompileError, match="fixed sizes: give 'batch' by shapes="):
        written(lower(table.load(source)))
    assert list(tmp_path.iterdir()) == [source]


@pytest.mark.parametrize("name", ["b.onnx", "b.nnef"])
def test_a_scale_inside_of_an_activation(name: str, tmp_path: Path) -> None:
    """The scale stays there. It would otherwise move into the convolution's weights, which rounds
    differently."""
    w, c = (np.random.default_rng(9).standard_normal(s).astype(np.float32) for s in ((5, 7, 1, 1), (5,)))
    node, value = helper.make_node, helper.make_tensor_value_info
    nodes = [
        node("Conv", ["x", "w", "c"], ["y"]), node("HardSigmoid", ["y"], ["z"], alpha=1 / 6),
        node("Conv", ["x", "w", "c"], ["s"]), node("HardSwish", ["s"], ["t"]), node("Mul", ["z", "t"], ["p"]),
    ]  # fmt: skip
    graph = helper.make_graph(
        nodes, "se", [value("x", TensorProto.FLOAT, [2, 7, 5, 3])], [value("p", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(w, "w"), numpy_helper.from_array(c, "c")],
    )  # fmt: skip
    source = tmp_path / "a.onnx"
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)
    source.write_bytes(model.SerializeToString())
    convert(source, Settings(cache=False), tmp_path / name, [])


def fragments() -> Any:
    """Operations that NNEF lacks: normalizations, erf, log-softmax; and resizes."""
    node, value = helper.make_node, helper.make_tensor_value_info
    w = np.random.default_rng(7).standard_normal(6).astype(np.float32)
    nodes = [
        node("LayerNormalization", ["x", "w", "w"], ["n"], epsilon=1e-3), node("Erf", ["n"], ["e"]),
        node("HardSigmoid", ["e"], ["h"], alpha=0.3, beta=0.4),
        node("LogSoftmax", ["h"], ["l"], axis=1), node("Resize", ["l", "", "f"], ["r"], mode="linear"),
        node("Resize", ["r", "", "g"], ["y"], coordinate_transformation_mode="asymmetric",
             nearest_mode="floor"),
    ]  # fmt: skip
    factors = {"f": np.float32([1, 1, 2, 3]), "g": np.float32([1, 1, 3, 1])}
    graph = helper.make_graph(
        nodes, "own", [value("x", TensorProto.FLOAT, [2, 3, 5, 6])], [value("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(a, n) for n, a in {"w": w, **factors}.items()],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_fragments_of_its_own(tmp_path: Path) -> None:
    """A fragment is read as one operation with the same bits. Expanded, as by another reader, it gives the
    same numbers."""
    source, output = tmp_path / "a.onnx", tmp_path / "b"
    source.write_bytes(fragments().SerializeToString())
    convert(source, Settings(cache=False), output, [])
    text = (output / "graph.nnef").read_text()
    for name in OWN:
        assert f"fragment {name}(" in text
    (first,) = run_graph(lower(table.load(source)), {"x": X5}).values()
    for name in OWN:
        text = text.replace(f"{name}(", f"other_{name}(")
    (output / "graph.nnef").write_text(text)
    (second,) = run_graph(lower(table.load(output)), {"x": X5}).values()
    assert "normalize" not in {n.op for n in lower(table.load(output)).nodes}
    np.testing.assert_allclose(first, second, rtol=0, atol=2e-6)


OWN = ("layer_normalization", "erf", "hard_sigmoid", "log_softmax")
X5 = np.random.default_rng(8).standard_normal((2, 3, 5, 6)).astype(np.float32)
MODELS = Path(__file__).parents[3] / ".cache" / "models"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet1_1", "mobilenetv2", "resnet18", "minilm"])
def test_round_trip_of_real_models(name: str, tmp_path: Path) -> None:
    """Converting to NNEF and back to ONNX keeps the bits. `convert` compares each step, and this test the
    first with the last."""
    source, output = MODELS / f"{name}.onnx", tmp_path / name
    if not source.exists():
        pytest.skip(f"{source} is missing: benchmarks/make_models.py makes it")
    shapes = {"batch": 1, "seq": 16} if name == "minilm" else {}
    convert(source, Settings(cache=False), output, [f"{k}={v}" for k, v in shapes.items()])
    back = tmp_path / "back.onnx"
    convert(output, Settings(cache=False), back, [])
    runs = [
        jangin.compile(source, threads=2, shapes=shapes, cache=False),
        *(jangin.compile(p, threads=2, cache=False) for p in (output, back)),
    ]
    feeds = [random_input(spec, {}, seed) for seed, spec in enumerate(runs[0].inputs)]
    first, *others = (exe(*feeds) for exe in runs)
    assert all(first.tobytes() == other.tobytes() for other in others)
