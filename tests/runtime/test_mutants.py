"""Files that were damaged, or made to harm, are refused. None of them crashes the process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from plans import chain

import jangin
from jangin.runtime.artifact import AT_ONCE, ArtifactError
from jangin.runtime.load import load


def sizes_by_data() -> onnx.ModelProto:
    """Return a program: two segments with a host call's size between them, and a loop."""
    nodes = [
        helper.make_node("Greater", ["x", "limit"], ["big"]),
        helper.make_node("NonZero", ["big"], ["where"]),
        helper.make_node("Transpose", ["where"], ["rows"], perm=[1, 0]),
        helper.make_node("GatherND", ["x", "rows"], ["taken"]),
        helper.make_node("Loop", ["three", "", "x"], ["y"], body=_doubling()),
        helper.make_node("ReduceSum", ["taken"], ["sum"], keepdims=0),
        helper.make_node("Add", ["sum", "w"], ["z"]),
    ]
    constants = {
        "limit": np.float32(500), "three": np.array(3), "w": np.arange(64, dtype=np.float32),
    }  # fmt: skip
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1000])],
        [helper.make_empty_tensor_value_info(n) for n in "yz"],
        [numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])


def _doubling() -> onnx.GraphProto:
    info = helper.make_tensor_value_info
    inputs = [info("n", TensorProto.INT64, []), info("c", TensorProto.BOOL, []), info("v", 1, [1000])]
    nodes = [helper.make_node("Add", ["v", "v"], ["vv"]), helper.make_node("Identity", ["c"], ["cc"])]
    return helper.make_graph(nodes, "b", inputs, [info("cc", TensorProto.BOOL, []), info("vv", 1, [1000])])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("artefacts")
    chain().save(made / "plan.jgn")
    jangin.compile(sizes_by_data(), target="x86-64-v2", cache=False).save(made / "program.jgn")
    return made


def run(folder: Path, seed: int, count: int, kind: str) -> int:
    """Run mutants in another process, and return how many were refused."""
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "fuzz" / "mutants.py"),
        str(folder),
        str(seed),
        str(count),
        kind,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return int(done.stdout.split()[0])


def test_damaged_files(folder: Path) -> None:
    assert run(folder, 0, 700, "bytes") > 600  # the rest changes padding, or exchanges equal blocks


@pytest.mark.sampled(3)
def test_fields_written_on_purpose(folder: Path) -> None:
    # the rest changes names and comments of the plan, or enlarges memory
    assert run(folder, 0, 1000, "fields") > 500


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["bytes", "fields"])
def test_many_mutants(folder: Path, kind: str) -> None:
    run(folder, 1, 50_000, kind)


def test_blocks_of_constants_that_changed_places(tmp_path: Path) -> None:
    """A sum of words wouldn't see exchanged blocks. A small constant is checked while the file is read, and a
    large one later."""
    for size, error_at_load in ((64, True), (1024, False)):
        w = numpy_helper.from_array(np.random.default_rng(0).random((size, size), np.float32), "w")
        ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, size]) for n in "xy"]
        graph = helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["y"])], "g", ends[:1], ends[1:], [w]
        )
        path = tmp_path / "m.jgn"
        jangin.compile(helper.make_model(graph), cache=False).save(path)
        data = bytearray(path.read_bytes())
        at = len(data) - size * size * 2
        data[at : at + 4096], data[at + 4096 : at + 8192] = data[at + 4096 : at + 8192], data[at : at + 4096]
        path.write_bytes(data)
        if error_at_load:
            with pytest.raises(ArtifactError, match=r"the checksum of constant .* is wrong"):
                load(path)
            continue
        exe = load(path)
        for _ in range(2):
            with pytest.raises(ArtifactError, match=r"the checksum of constant .* is wrong"):
                exe(np.ones((1, 1024), np.float32))
        with pytest.raises(ArtifactError):
            exe.save(tmp_path / "again.jgn")


def test_parts_of_a_program_that_changed_places(folder: Path, tmp_path: Path) -> None:
    made = jangin.load(folder / "program.jgn")
    parts = made.artifact.parts
    assert len(parts) > 1
    swapped = type(made.artifact)(made.program, parts[::-1], made.artifact.code)
    swapped.save(tmp_path / "m.jgn")
    with pytest.raises(ArtifactError, match="segment 0 and its plan differ in inputs or outputs"):
        load(tmp_path / "m.jgn")


def test_a_damaged_entry_of_the_cache_is_made_again(tmp_path: Path) -> None:
    model = sizes_by_data()
    jangin.compile(model, cache=tmp_path)
    (entry,) = tmp_path.rglob("*.jgn")
    data = bytearray(entry.read_bytes())
    data[-40] ^= 1
    entry.write_bytes(data)
    jangin.compile(model, cache=tmp_path)
    load(entry)


def test_a_damaged_constant_of_the_cache_is_made_again(tmp_path: Path) -> None:
    """The constant is so large that it is checked while the model loads."""
    weights = np.random.default_rng(0).random((600, 600), np.float32)
    assert weights.nbytes > AT_ONCE
    ends = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 600]) for n in "xy"]
    product, constants = (
        helper.make_node("MatMul", ["x", "w"], ["y"]),
        [numpy_helper.from_array(weights, "w")],
    )
    graph = helper.make_graph([product], "g", ends[:1], ends[1:], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)]), tmp_path / "m.onnx")
    x = np.ones((1, 600), np.float32)
    expected = jangin.compile(tmp_path / "m.onnx", cache=tmp_path)(x)
    (entry,) = tmp_path.rglob("*.jgn")
    data = bytearray(entry.read_bytes())
    data[-1000] ^= 64
    entry.write_bytes(data)
    for _ in range(2):
        np.testing.assert_array_equal(jangin.compile(tmp_path / "m.onnx", cache=tmp_path)(x), expected)
        load(entry)(x)
