"""The compile cache's key of a model covers all bytes that are read, wherever they lie, and nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

import jangin
from jangin.compiler.source import Source
from jangin.frontends.onnx import file as onnx_file
from jangin.frontends.onnx.file import locations
from jangin.mapped import BLOCK, digest

W = np.arange(16, dtype=np.float32)
X = np.ones((1, 4), np.float32)


def external(location: str) -> TensorProto:
    tensor = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4, 4], data_location=1)
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", location
    return tensor


def product(location: str) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    graph = helper.make_graph([node], "g", ends[:1], ends[1:], [external(location)])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)


def in_a_folder(folder: Path, location: str = "w.bin", scale: float = 1.0) -> Path:
    (folder / location).parent.mkdir(parents=True, exist_ok=True)
    (folder / location).write_bytes((W * scale).tobytes())
    onnx.save(product(location), folder / "m.onnx")
    return folder / "m.onnx"


def change_in_place(weights: Path) -> None:
    """Write other contents of the same size to the same inode, and set the times back."""
    status = weights.stat()
    with open(weights, "r+b") as file:
        file.write((W * 10).tobytes())
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns))


def replace_it(weights: Path) -> None:
    weights.write_bytes((W * 10).tobytes())


@pytest.mark.parametrize("location", ["w.bin", "sub/w.bin"])
@pytest.mark.parametrize("change", [change_in_place, replace_it])
def test_other_weights_are_another_model(
    tmp_path: Path, location: str, change: Callable[[Path], None]
) -> None:
    path, cache = in_a_folder(tmp_path, location), tmp_path / "cache"
    before = jangin.compile(path, cache=cache)(X)
    change(tmp_path / location)
    np.testing.assert_array_equal(jangin.compile(path, cache=cache)(X), before * 10)
    assert len([*cache.rglob("*.jgn")]) == 2


def test_two_folders_of_one_size_and_time(tmp_path: Path) -> None:
    found = []
    for scale in (1, 7):
        path = in_a_folder(tmp_path / str(scale), scale=scale)
        for p in path.parent.iterdir():
            os.utime(p, (1, 1))
        found.append(jangin.compile(path, cache=tmp_path / "cache")(X))
    np.testing.assert_array_equal(found[1], found[0] * 7)


def test_other_files_beside_it_change_nothing(tmp_path: Path) -> None:
    path = in_a_folder(tmp_path)
    before = Source.of(path)
    (tmp_path / "notes.txt").write_text("new")
    os.utime(tmp_path / "w.bin", (5, 5))
    after = Source.of(path)
    assert before is not None and after is not None and before.digests == after.digests


def test_what_changes_while_compiling_is_not_kept(tmp_path: Path) -> None:
    path, cache = in_a_folder(tmp_path), tmp_path / "cache"

    def tell(done: int, total: int, what: str) -> None:
        change_in_place(tmp_path / "w.bin")

    jangin.compile(path, cache=cache, progress=tell, isolated=False)
    assert not [*cache.rglob("*.jgn")]


def test_locations_are_found_wherever_a_tensor_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    node, graph = helper.make_node, helper.make_graph
    sparse = onnx.SparseTensorProto(values=external("sparse"), indices=external("indices"))
    inner = graph([node("Constant", [], ["c"], value=external("inner"))], "i", [], [], [external("of inner")])
    nodes = [
        node("If", ["c"], ["y"], then_branch=inner),
        node("Any", [], ["z"], list=[external("list 1"), external("list 2")]),
        node("Any", [], ["s"], sparse_value=sparse),
    ]
    made = helper.make_model(graph(nodes, "g", [], [], [external("outer"), external("outer")]))
    made.graph.sparse_initializer.append(sparse)
    body = [node("Constant", [], ["c"], value=external("function"))]
    made.functions.append(helper.make_function("d", "F", [], ["c"], body, []))
    made.functions[0].attribute_proto.append(helper.make_attribute("a", external("default")))
    names = ["default", "function", "indices", "inner", "list 1", "list 2", "of inner", "outer", "sparse"]
    for large in (onnx_file.LARGE, 1):
        monkeypatch.setattr(onnx_file, "LARGE", large)
        assert locations(memoryview(made.SerializeToString())) == names
    with pytest.raises(ValueError):
        locations(memoryview(made.SerializeToString()[:-3]))


@pytest.mark.sampled(2)
def test_a_cached_model_needs_no_onnx(tmp_path: Path) -> None:
    path = in_a_folder(tmp_path)
    code = (
        "import sys, jangin; jangin.compile(sys.argv[1], cache=sys.argv[2]);"
        "print([m for m in ('llvmlite', 'onnx') if m in sys.modules])"
    )
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", code, path, tmp_path / "c"], capture_output=True, check=True
        )
        assert done.stdout == b"[]\n"


def test_digests_depend_on_every_block_and_their_order() -> None:
    data = np.arange(3 * BLOCK // 8 + 5, dtype=np.int64)
    swapped = data.copy()
    swapped[:512], swapped[512:1024] = data[512:1024], data[:512]
    blocks = np.concatenate([data[BLOCK // 8 : 2 * BLOCK // 8], data[: BLOCK // 8], data[2 * BLOCK // 8 :]])
    last = data.copy()
    last[-1] += 1
    several = [data, swapped, blocks, last, data[:-1], data[:0], data[:1]]
    assert len({digest(a.tobytes()) for a in several}) == len(several)
    assert digest(data.tobytes()) == digest(memoryview(data.tobytes()))


def test_hugging_faces_layout(tmp_path: Path) -> None:
    """Links lead out of the model's folder to a folder of blobs. The model itself is a link to it as well."""
    made = in_a_folder(tmp_path / "made", "model.onnx_data")
    blobs, snapshot = tmp_path / "blobs", tmp_path / "snapshots" / "x"
    for folder in (blobs, snapshot):
        folder.mkdir(parents=True)
    for name, target in (("model.onnx", made), ("model.onnx_data", made.parent / "model.onnx_data")):
        target.rename(blobs / f"digest-{name}")
        (snapshot / name).symlink_to(f"../../blobs/digest-{name}")
    np.testing.assert_array_equal(
        jangin.compile(snapshot / "model.onnx", cache=False)(X), X @ W.reshape(4, 4)
    )
    (snapshot / "model.onnx_data").unlink()
    (tmp_path / "secret").write_bytes(W.tobytes())
    (snapshot / "model.onnx_data").symlink_to(tmp_path / "secret")
    with pytest.raises(jangin.CompileError, match=r"'model\.onnx_data', outside the model's folder"):
        jangin.compile(snapshot / "model.onnx", cache=False)


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("a\0b", "which is no file's name"),
        ("a" * 5000, "which can't be read: File name too long"),
        ("a/" * 3000 + "b", "which can't be read: File name too long"),
        ("loop", "which (can't be read: |is missing)"),
        ("folder", "which is missing beside the model"),
        ("../made/w.bin", "outside the model's folder"),
        ("folder/../../made/w.bin", "outside the model's folder"),
        ("/etc/passwd", "outside the model's folder"),
        ("", "outside the model's folder"),
        ("absent", "which is missing beside the model"),
    ],
)
def test_locations_that_may_not_be_read(tmp_path: Path, location: str, why: str) -> None:
    folder = tmp_path / "made"
    in_a_folder(folder)
    (folder / "loop").symlink_to("loop")
    (folder / "folder").mkdir()
    onnx.save(product(location), folder / "m.onnx")
    with pytest.raises(jangin.CompileError, match=r"constant 'w' keeps its data in '.*', " + why) as error:
        jangin.compile(folder / "m.onnx", cache=tmp_path / "cache")
    assert len(str(error.value)) < 300
