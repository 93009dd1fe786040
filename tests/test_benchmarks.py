"""The benchmarks' results and pictures, from invented figures."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

BENCHMARKS = Path(__file__).resolve().parent.parent / "benchmarks"
MEDIANS = {"jangin": 2.0, "onnxruntime": 3.0, "openvino": 2.5, "ncnn": 0.0}


@pytest.fixture(autouse=True)
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    for name in ("catalogue", "figures", "make_halves", "operators", "page", "plot", "sections"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def comparison(threads: int, scale: float) -> dict[str, Any]:
    """Return a comparison as `run.py` stores it: Jangin beside two peers that run and one that isn't
    installed."""
    from jangin.bench import Comparison, Result, as_json

    results = [
        Result(e, "1.0", median=m * scale, low=m * scale, high=m * scale, error=1e-6)
        if m
        else Result(e, problem="no module", absent=True)
        for e, m in MEDIANS.items()
    ]
    c = Comparison("x", threads, {}, 10**9, 1e12, 1e11, tuple(results))
    return {**as_json([c])["comparisons"][0], "date": "2026-01-01", "revision": "abc"}


@pytest.fixture
def figures() -> Any:
    from figures import Figures

    names = ("resnet18", "vgg16", "resnet50_batch8")
    found = {f"{name}/{n}": comparison(n, 1 / n) for name in names for n in (1, 2)}
    machine = {"processor": "P", "target": "T", "system": "S", "python": "3"}
    states = {state: {"median": 2.0, "low": 1.0, "high": 3.0} for state in ("quiet/1", "quiet/2", "loaded/2")}
    beside = {"engines": {"jangin": states}, "date": "2026-01-02", "revision": "abd"}
    return Figures(machine, {"untuned": found}, {"resnet50": beside})


def test_figures_survive_their_file_and_give_ratios(figures: Any, tmp_path: Path) -> None:
    from figures import BEST, Figures, fastest_peer, geometric_mean, ratio, ratios

    figures.save(tmp_path / "f.json")
    assert Figures.load(tmp_path / "f.json").comparisons.keys() == figures.comparisons.keys()
    c = figures.comparisons["untuned"]["vgg16/1"]
    assert (ratio(c, "onnxruntime"), ratio(c, "ncnn"), fastest_peer(c)) == (1.5, None, "openvino")
    assert ratios(figures, "untuned", 1, BEST) == {"resnet18": 1.25, "vgg16": 1.25}
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert geometric_mean([]) is None


def test_sections_have_every_table_in_full(figures: Any) -> None:
    from page import neighbours, section, short

    text = f"{section(figures, 'untuned').markdown()}\n\n{neighbours(figures.neighbours).markdown()}"
    assert "| ONNX Runtime | 1.50× | 1.50× | **1.50×** | 4 of 4 |" in text
    assert "**1.25×** OpenVINO" in text and "ncnn" not in text
    assert "| ResNet-50 | Jangin | 2.00 (1.00–3.00) |" in text
    assert "2026-01-01 to 2026-01-02, source abc, abd" in text
    for block in (*text.split("\n\n"), short(figures)):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count("|") for line in lines}) <= 1, block


@pytest.mark.parametrize("mode", ["int8", "float16", "bfloat16"])
def test_part_of_small_numbers(figures: Any, mode: str) -> None:
    """Small types stand beside Jangin's float32. Models of 16 bits have the memory of their weights."""
    from page import section

    for c in figures.comparisons["untuned"].values():
        ours, *peers = c["results"]
        before = {**ours, "engine": "float32", "median": 2.5 * ours["median"]}
        c["results"] = [{**ours, "memory": {"weights": 5_100_000}}, *peers, before]
    figures.comparisons[mode] = figures.comparisons.pop("untuned")
    figures.machine["target"] = "x86-64-v3"
    text = section(figures, mode).markdown()
    assert f"run.py --precision {mode}" in text
    assert "| Jangin's float32 | 2.50× | 2.50× | **2.50×** | 4 of 4 |" in text
    assert ("5.1 MB" in text) == (mode != "int8")


@pytest.mark.parametrize(("precision", "allowed"), [("float16", 2**-9), ("bfloat16", 2**-6)])
def test_models_of_halves(precision: str, allowed: float) -> None:
    """Weights, constants and inner casts have 16 bits. Inputs and outputs are unchanged."""
    import make_halves

    import jangin

    random = np.random.default_rng(0)
    w, most = random.standard_normal((12, 7)).astype(np.float32), np.full(1, 3e38, np.float32)
    nodes = [
        helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(most)),
        helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Min", ["p", "c"], ["y"]),
    ]  # fmt: skip
    x, y = (helper.make_tensor_value_info(n, TensorProto.FLOAT, [3, d]) for n, d in (("x", 12), ("y", 7)))
    graph = helper.make_graph(nodes, "g", [x], [y], [numpy_helper.from_array(w, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    make_halves.convert(model.graph, precision)
    onnx.checker.check_model(model, full_check=True)
    assert {t.data_type for t in model.graph.initializer} == {make_halves.TYPES[precision][0]}
    given = random.standard_normal((3, 12)).astype(np.float32)
    want = given.astype(np.float64) @ w
    got = np.asarray(jangin.compile(model, None, 1, cache=False)(given))
    assert got.dtype == np.float32
    assert np.abs(got - want).max() <= allowed * np.abs(want).max()


def test_sections_survive_their_file(figures: Any, tmp_path: Path) -> None:
    from page import section
    from sections import Section, Table

    before = section(figures, "untuned")
    after = Section.load(before.save("untuned", tmp_path))
    assert after.markdown() == before.markdown() and after.ratios == before.ratios
    assert before.ratios and before.ratios["OpenVINO"]["1"]["VGG-16"] == 1.25
    with pytest.raises(ValueError, match="1 cells in a table of 2 columns"):
        Table(["a", "b"], [["1"]])


def test_results_are_drawn_the_same_each_time(tmp_path: Path) -> None:
    """All stored results are drawn twice with the same bytes, and RESULTS.md names each of them."""
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    from sections import FOLDER, render

    kept = sorted(FOLDER.glob("*.json"))
    pages = [render(kept, tmp_path / name) for name in "ab"]
    assert pages[0].read_text() == pages[1].read_text()
    pictures = sorted(path.name for path in (tmp_path / "a").glob("*.svg"))
    assert len(pictures) > 10
    for name in pictures:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    listed = (BENCHMARKS / "RESULTS.md").read_text()
    assert [path.name for path in kept if f"results/{path.name})" not in listed] == []


def test_operators_are_drawn_by_their_seed() -> None:
    import operators

    drawn = [str(operators.draw(1, n)) for n in range(60)]
    assert drawn == [str(operators.draw(1, n)) for n in range(60)]
    assert len({d.split()[0] for d in drawn}) > 8 and len(set(drawn)) > 50
    for n in range(0, 60, 6):
        model, feeds = operators.model_of(operators.draw(1, n))
        assert model and all(x.size for x in feeds.values())


PROBLEMS = {
    "conv": {
        'mb9ic64ih56oc32oh56kh3ph1n"a"': ([1, 64, 56, 56], [32, 64, 3, 3], [1, 32, 56, 56]),
        "g2ic4iw9oc6ow5kw3sw2pw1": ([1, 4, 9], [6, 2, 3], [1, 6, 5]),
        "ic3id5oc2od3kd3": ([1, 3, 5, 5, 5], [2, 3, 3, 3, 3], [1, 2, 3, 3, 3]),
        "mb1_ic2_ih9_oc2_oh3_kh3_dh2_": ([1, 2, 9, 9], [2, 2, 3, 3], [1, 2, 3, 3]),
        "g1ic3ih8iw8oc4oh4ow4kh3kw3sh2sw2ph0pw0": ([1, 3, 8, 8], [4, 3, 3, 3], [1, 4, 4, 4]),
    },
    "deconv": {"ic6ih4oc3oh8kh4sh2ph1": ([1, 6, 4, 4], [6, 3, 4, 4], [1, 3, 8, 8])},
    "pool": {"ic5ih7iw9oh3ow4kh3kw3sh2sw2": ([1, 5, 7, 9], [], [1, 5, 3, 4])},
    "matmul": {
        "3x5:5x7": ([3, 5], [5, 7], [3, 7]),
        '2x3x5:2x5x7_n"b"': ([2, 3, 5], [2, 5, 7], [2, 3, 7]),
    },
    "resampling": {"ic5_ih3oh6_iw7ow21": ([1, 5, 3, 7], [4], [1, 5, 6, 21])},
    "rnn": {"l1t6mb1sic8slc5dhc8": ([6, 1, 5], [1, 32, 8], [6, 1, 1, 8])},
}


def test_benchdnn_s_problems_are_read(tmp_path: Path) -> None:
    """Each line gives the operator with the sizes that benchdnn's documents say, and lines come once."""
    from benchdnn_problems import case_of, operations, problems
    from operators import model_of

    for driver, lines in PROBLEMS.items():
        (tmp_path / driver).mkdir()
        text = "# a remark\n--dir=FWD_I\n" + "\n".join([*lines, *lines])
        (tmp_path / driver / "shapes_x").write_text(text)
        found = problems(tmp_path, [driver], ["shapes_*"])
        assert [p.line for p in found] == [*lines]
        for problem, (x, w, y) in zip(found, lines.values(), strict=True):
            case = case_of(problem, "f32", 1, np.random.default_rng(0))
            arrays = [list(a.shape) for a in (*case.inputs, *case.constants)]
            assert (arrays[0], arrays[-1] if len(arrays) > 1 else []) == (x, w), problem
            made = onnx.load_from_string(model_of(case)[0]).graph.output[0].type.tensor_type.shape
            assert [d.dim_value for d in made.dim] == y, problem
            if driver == "conv":
                assert operations(case) == 2 * np.prod(y) * np.prod(w[1:]), problem


def test_a_script_that_imports_pytorch_finds_its_neighbours(tmp_path: Path) -> None:
    """PyTorch imports a package `cuda` if it finds one, and `benchmarks/cuda.py` has this name."""
    pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
    program = "import sys; sys.path.insert(0, sys.argv[1]); import torch, catalogue"
    subprocess.run([sys.executable, "-c", program, str(BENCHMARKS)], check=True, cwd=tmp_path)


def test_a_model_of_both_tables_of_training_is_written_to_its_own() -> None:
    pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
    import torch_train

    row = {"model": "MobileNetV2", "threads": 2, "steps": 3, "error": 0.0, "jangin": 1.0, "eager": 2.0}
    written = dict(torch_train.sections([{**row, "table": "train", "ratio": 2.0}]))
    assert [*written] == ["train"] and "| 2.00 | 1.2 |" in written["train"].markdown()
    written = dict(torch_train.sections([{**row, "table": "torch_train", "ratio": 2.0}]))
    assert [*written] == ["torch_train"] and "| asked |" not in written["torch_train"].markdown()
