"""Kernels that models share: how many are made, counted in calls, and which are not taken from the file."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

import jangin
from jangin.backends.llvm.backend import LLVM
from jangin.compiler import kernels, shared
from jangin.compiler.pipeline import build_artifact, import_model
from jangin.compiler.shared import Made, SharedKernels, parse_kernel, print_kernel
from jangin.options import Options
from jangin.runtime.artifact import Artifact
from jangin.targets import resolve

TARGET = "x86-64-v3"
LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
X = np.linspace(-1, 1, 5 * 24, dtype=np.float32).reshape(5, 24)
pytestmark = pytest.mark.usefixtures("compiled_anew")


def network(seed: int = 0, widths: tuple[int, ...] = (24, 40, 16), prefix: str = "") -> onnx.ModelProto:
    """Return matrix products with a bias, each before another map."""
    rng, nodes, held, x = np.random.default_rng(seed), [], [], "x"
    for n, (rows, columns) in enumerate(pairwise(widths)):
        w, b, y, z = (f"{prefix}{c}{n}" for c in "wbyz")
        held.append(numpy_helper.from_array(rng.standard_normal((rows, columns), np.float32), w))
        held.append(numpy_helper.from_array(rng.standard_normal(columns, np.float32), b))
        nodes.append(helper.make_node("Gemm", [x, w, b], [y], name=f"{prefix}gemm{n}"))
        nodes.append(helper.make_node(("Tanh", "Sigmoid", "Relu")[n], [y], [z]))
        x = z
    made, given = (
        helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [5, size])
        for name, size in ((x, widths[-1]), ("x", widths[0]))
    )
    graph = helper.make_graph(nodes, "network", [given], [made], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Counts how many kernels are scheduled, and how many are compiled."""
    found = SimpleNamespace(scheduled=0, compiled=0)
    make_kernel, code = kernels.make_kernel, LLVM.code

    def scheduled(*args: object, **given: object) -> object:
        found.scheduled += 1
        return make_kernel(*args, **given)  # type: ignore[arg-type]

    def compiled(*args: object) -> bytes:
        found.compiled += 1
        return code(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(kernels, "make_kernel", scheduled)
    monkeypatch.setattr(LLVM, "code", compiled)
    return found


def made_by(count: SimpleNamespace, work: Callable[[], object]) -> tuple[int, int]:
    before = count.scheduled, count.compiled
    work()
    return count.scheduled - before[0], count.compiled - before[1]


def build(folder: Path | bool, model: onnx.ModelProto, **options: object) -> Artifact:
    """Call `jangin.build`, always in this process."""
    given = {"target": TARGET, "isolated": False, **options}
    made = jangin.build(model, cache=folder, **given)  # type: ignore[arg-type]
    assert isinstance(made, Artifact)
    return made


def test_a_fine_tune_makes_no_kernel(tmp_path: Path, count: SimpleNamespace) -> None:
    assert made_by(count, lambda: build(tmp_path, network(0))) == (2, 2)
    assert made_by(count, lambda: build(tmp_path, network(1))) == (0, 0)
    kept, alone = build(tmp_path, network(2, prefix="other_")), build(False, network(2, prefix="other_"))
    assert kept.objects == alone.objects and kept.plan.launches == alone.plan.launches
    assert [x.kernel for x in kept.plan.launches] == ["k_other_gemm0_0", "k_other_gemm1_1"]
    assert list(kept.plan.kernels.values()) == list(alone.plan.kernels.values())
    for name, constant in alone.plan.constants.items():
        np.testing.assert_array_equal(kept.plan.constants[name], constant)


def test_results_are_the_same_bits(tmp_path: Path, count: SimpleNamespace) -> None:
    jangin.compile(network(0), cache=tmp_path, isolated=False)
    before = count.compiled
    taken = jangin.compile(network(1), cache=tmp_path, isolated=False)
    assert count.compiled == before
    alone = jangin.compile(network(1), cache=False, isolated=False)
    np.testing.assert_array_equal(taken.run({"x": X})["z1"], alone.run({"x": X})["z1"])


def test_another_model_takes_the_layers_that_it_shares(tmp_path: Path, count: SimpleNamespace) -> None:
    build(tmp_path, network())
    longer = network(3, (24, 40, 16, 8))
    assert made_by(count, lambda: build(tmp_path, longer)) == (1, 1)


def test_kernels_over_other_sizes_are_one(count: SimpleNamespace) -> None:
    """Kernels are shared whatever the model's names of sizes are. Each launch has its own sizes."""
    names = [f"x{i}" for i in range(12)]
    inputs = [helper.make_tensor_value_info(x, 1, [f"n{i}", f"m{i // 2}"]) for i, x in enumerate(names)]
    nodes = [helper.make_node("Softmax", [x], [f"y{x}"], axis=1) for x in names]
    joined = [helper.make_node("Concat", names[i : i + 2], [f"z{i}"], axis=0) for i in range(0, 12, 2)]
    nodes += joined
    outputs = [helper.make_empty_tensor_value_info(o) for n in nodes for o in n.output]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
    assert made_by(count, lambda: build_artifact(model, Options(resolve(TARGET), verify=True))) == (2, 2)
    exe = jangin.compile(model, cache=False, isolated=False)
    rng = np.random.default_rng(0)
    fed = {x: rng.standard_normal((i % 5 + 1, 7 + i // 2), np.float32) for i, x in enumerate(names)}
    got = exe.run(fed)
    for i, x in enumerate(names):
        raised = np.exp(fed[x] - fed[x].max(1, keepdims=True))
        np.testing.assert_allclose(got[f"y{x}"], raised / raised.sum(1, keepdims=True), 1e-5, 1e-6)
        if i % 2 == 0:
            np.testing.assert_array_equal(got[f"z{i}"], np.concatenate([fed[n] for n in names[i : i + 2]]))


def test_what_else_decides_what_a_kernel_becomes(
    tmp_path: Path, count: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, network())
    assert made_by(count, lambda: build(tmp_path, network(1), target="x86-64-v4")) == (2, 2)
    assert made_by(count, lambda: build(tmp_path, network(2), libraries="auto")) == (2, 2)
    options = Options(resolve(TARGET))
    graph = import_model(network(), options)
    node = next(n for n in graph.nodes if n.op == "kernel")
    text, workload, _ = kernels.kernel_workload(node, graph, options)
    candidate, other = [c for c, _ in kernels.kernel_candidates(workload, options)][:2]
    identities = set()

    def note(jobs: Sequence[kernels.Job]) -> list[shared.Scheduled]:
        identities.add(jobs[0].identity)
        return [job() for job in jobs]

    for choices in ({}, {text: candidate}, {text: other}):
        kernels.schedule_kernels(graph, options.but(choices=choices), note)
    assert len(identities) == 3, "a tuned kernel is another than the untuned one"
    monkeypatch.setattr(shared, "source_digest", lambda: "another compiler")
    assert made_by(count, lambda: build(tmp_path, network(4))) == (2, 2)


def test_without_a_cache_nothing_is_kept(
    tmp_path: Path, count: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JANGIN_CACHE_DIR", str(tmp_path))
    for _ in range(2):
        assert made_by(count, lambda: build(False, network())) == (2, 2)
    assert not [*tmp_path.iterdir()]


def file_of(folder: Path) -> Path:
    return folder / shared.FOLDER / shared.FILE


def change(folder: Path, statements: str) -> None:
    with closing(sqlite3.connect(file_of(folder))) as db, db:
        db.executescript(statements)


DAMAGES: dict[str, Callable[[Path], object]] = {
    "another's code": lambda f: change(f, "UPDATE kernels SET code = zeroblob(64)"),
    "rows change places": lambda f: change(
        f, "CREATE TEMP TABLE o AS SELECT * FROM kernels; UPDATE kernels SET (digest, kernel, code) = "
        "(SELECT digest, kernel, code FROM o WHERE o.key != kernels.key)"
    ),
    "other types": lambda f: change(f, "UPDATE kernels SET kernel = 1, code = 'text'"),
    "no table": lambda f: change(f, "DROP TABLE kernels"),
    "no database": lambda f: file_of(f).write_bytes(b"something else" * 1000),
    "cut short": lambda f: file_of(f).write_bytes(file_of(f).read_bytes()[:5000]),
    "empty": lambda f: file_of(f).write_bytes(b""),
}  # fmt: skip


@pytest.mark.sampled(4)
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_made_again(tmp_path: Path, count: SimpleNamespace, damage: str) -> None:
    want = build(tmp_path, network()).objects
    DAMAGES[damage](tmp_path)
    assert made_by(count, lambda: build(tmp_path, network(1))) == (2, 2)
    build(tmp_path, network(2))  # the build before found the damage; this one writes the file again
    assert made_by(count, lambda: build(tmp_path, network(3))) == (0, 0)
    assert build(tmp_path, network(4)).objects == want


@pytest.mark.parametrize("which", ["file", "folder", "beside"])
def test_what_another_user_could_write_is_not_taken(
    tmp_path: Path, count: SimpleNamespace, which: str
) -> None:
    build(tmp_path, network())
    file = file_of(tmp_path)
    assert (file.parent.stat().st_mode & 0o777, file.stat().st_mode & 0o777) == (0o700, 0o600)
    beside = file.with_name(f"{file.name}-wal")
    beside.touch()
    {"file": file, "folder": file.parent, "beside": beside}[which].chmod(0o777)
    assert made_by(count, lambda: build(tmp_path, network(1))) == (2, 2)
    assert made_by(count, lambda: build(tmp_path, network(2))) == (0, 0), "mended"
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_of_another_user_is_not_taken(
    tmp_path: Path, count: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(tmp_path, network())
    monkeypatch.setattr("os.getuid", lambda: 12345)
    assert made_by(count, lambda: build(tmp_path, network(1))) == (2, 2)


def test_a_folder_that_takes_no_file(tmp_path: Path, count: SimpleNamespace) -> None:
    (tmp_path / shared.FOLDER).write_text("a file where the folder belongs")
    assert made_by(count, lambda: build(tmp_path, network())) == (2, 2)


def test_the_least_recently_used_go_first(tmp_path: Path) -> None:
    kernel = _kernel()
    size = len(print_kernel(kernel)) + 1000
    some = SharedKernels(tmp_path, limit=3 * size)
    for name in "abc":
        some.put({name: Made(kernel, bytes(1000))})
    assert SharedKernels(tmp_path).get("a").keys() == {"a"}
    some.put({"d": Made(kernel, bytes(1000))})
    assert SharedKernels(tmp_path).get("abcd").keys() == {"a", "c", "d"}


_PROCESS = """
import sys
from pathlib import Path
from jangin.compiler.shared import Made, SharedKernels, parse_kernel
kernel = parse_kernel(sys.argv[2])
for i in range(200):
    kernels, name = SharedKernels(Path(sys.argv[1]), limit=40_000), str(i % 17)
    found = kernels.get([name])
    assert name not in found or found[name] == Made(kernel, name.encode() * 2000), "another entry"
    if name not in found:
        kernels.put({name: Made(kernel, name.encode() * 2000)})
"""


@pytest.mark.sampled(2)
def test_two_processes(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _PROCESS, str(tmp_path), print_kernel(_kernel())]
    running = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    errors = [p.communicate(timeout=600)[1] for p in running]
    assert [p.returncode for p in running] == [0, 0], errors
    with closing(sqlite3.connect(file_of(tmp_path))) as db:
        count, total = db.execute("SELECT count(*), sum(bytes) FROM kernels").fetchone()
    assert count > 1 and total <= 40_000


def _kernel() -> shared.Scheduled:
    options = Options(resolve(TARGET))
    (first, *_) = kernels.schedule_kernels(import_model(network(), options), options).values()
    return first[0]


@pytest.mark.parametrize(
    "name", ["squeezenet", "shufflenet", pytest.param("densenet121", marks=pytest.mark.slow)]
)
def test_kernels_as_texts(name: str) -> None:
    options = Options(resolve(TARGET))
    graph = import_model(LIGHT / f"light_{name}.onnx", options)
    for kernel, _ in kernels.schedule_kernels(graph, options).values():
        assert parse_kernel(print_kernel(kernel)) == kernel


def test_the_parts_of_a_program_share(count: SimpleNamespace) -> None:
    """A program has two equal products, with a step between them that needs the first one's data."""
    w = numpy_helper.from_array(np.eye(24, dtype=np.float32), "w")
    nodes = [
        helper.make_node("Mul", ["x", "s"], ["x1"]),
        helper.make_node("MatMul", ["x1", "w"], ["y"]),
        helper.make_node("NonZero", ["y"], ["places"]),
        helper.make_node("ReduceSum", ["places"], ["total"], keepdims=0),
        helper.make_node("Cast", ["total"], ["number"], to=onnx.TensorProto.FLOAT),
        helper.make_node("Mul", ["x", "number"], ["x2"]),
        helper.make_node("MatMul", ["x2", "w"], ["z"]),
    ]
    sizes = {"x": [5, 24], "s": [], "z": [5, 24]}
    *given, made = (helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, d) for n, d in sizes.items())
    graph = helper.make_graph(nodes, "program", given, [made], [w])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])
    parts = getattr(build_artifact(model, Options(resolve(TARGET))), "parts", ())
    functions = [launch.function for part in parts for launch in part.plan.launches]
    assert len(parts) > 1 and len(set(functions)) < len(functions)
    assert count.compiled == len(set(functions))
