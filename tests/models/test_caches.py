"""Caches of keys and values in float16 and int8. Attention over them is compared with float64, and networks
with float32. No kernel widens a whole cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compared import error
from typer.testing import CliRunner

import jangin
from jangin.cli import app
from jangin.commands.common import formats_of
from jangin.compiler.pipeline import build_plan
from jangin.frontends.gguf.format import CACHES, GgufFormat
from jangin.ir.dtype import F32, I64, dtype_of
from jangin.ir.expr import Expr, Var, const
from jangin.ops.attention import Kept, attend_one, keep, unkept
from jangin.ops.builder import Builder
from jangin.ops.interpret import run_graph
from jangin.options import Options
from jangin.runtime.artifact import Artifact
from jangin.runtime.load import executable
from jangin.targets import resolve

SIZE = 24
PAST = Var("past", I64)
TOKENS = [3, 17, 39, 0, 8]
ALLOWED = {"float32": 1e-5, "float16": 1e-3, "int8": 3e-2}
"""The largest difference of a small network's logits, as a share of the largest logit."""
Array = np.ndarray[Any, Any]


def attending(kind: str, heads: int, groups: int) -> Artifact:
    """Compile attention of one query over a cache of any length."""
    b = Builder("one", {PAST: (const(0), const(4096))})

    def given(name: str, *shape: int | Expr, dtype: Any = F32) -> Any:
        return b.input(name, dtype, tuple(const(d) if isinstance(d, int) else d for d in shape))

    q = given("q", 1, heads, 1, SIZE)
    past = []
    for part in ("key", "value"):
        numbers = given(part, 1, PAST, groups, SIZE, dtype=dtype_of(CACHES[kind]))
        past.append(Kept(numbers, given(f"{part}_scale", 1, PAST, groups) if kind == "int8" else None))
    own = tuple(given(f"own_{part}", 1, groups, 1, SIZE) for part in ("key", "value"))
    return build_plan(
        b.graph([attend_one(b, q, (past[0], past[1]), (own[0], own[1]))], ["y"]), Options(resolve())
    )


def rounded(kind: str, x: Array) -> dict[str, Array]:
    """Return what a cache of a type stores for x [1, places, groups, size], by the operator `keep`."""
    b = Builder("kept", {})
    kept = keep(
        b, b.transpose(b.input("x", F32, tuple(map(const, x.shape))), (0, 2, 1, 3)), dtype_of(CACHES[kind])
    )
    made = [kept.numbers] if kept.scales is None else [kept.numbers, kept.scales]
    wide = b.transpose(unkept(b, kept, F32), (0, 2, 1, 3))
    return run_graph(b.graph([*made, wide], [*(["numbers", "scales"][: len(made)]), "wide"]), {"x": x})


@pytest.mark.parametrize(("heads", "groups"), [(6, 2), (3, 3)])
@pytest.mark.parametrize("kind", CACHES)
def test_one_query_over_a_cache(kind: str, heads: int, groups: int) -> None:
    """Attention over the cache gives the float64 result for the dequantized cache."""
    made = attending(kind, heads, groups)
    whole = [b for b in made.plan.buffers if b.kind == "arena" and PAST in b.shape and const(SIZE) in b.shape]
    assert not whole, "the cache is widened where it is multiplied, and never kept in floats"
    exe, rng = executable(made, 1), np.random.default_rng(heads)
    for past in (0, 1, 7, 65):
        feeds = {"q": rng.standard_normal((1, heads, 1, SIZE)).astype(np.float32)}
        sides = []
        for part in ("key", "value"):
            cache = rounded(kind, rng.standard_normal((1, past, groups, SIZE)).astype(np.float32))
            feeds[part] = cache["numbers"]
            wide = cache["numbers"].astype(np.float64)
            if kind == "int8":
                feeds[f"{part}_scale"] = cache["scales"]
                wide = wide * cache["scales"][..., None]
            feeds[f"own_{part}"] = rng.standard_normal((1, groups, 1, SIZE)).astype(np.float32)
            own = feeds[f"own_{part}"].transpose(0, 2, 1, 3)
            sides.append(np.repeat(np.concatenate([wide, own], 1), heads // groups, 2))
        scores = np.einsum("nhqd,njhd->nhqj", feeds["q"].astype(np.float64), sides[0]) / np.sqrt(SIZE)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        wanted = np.einsum("nhqj,njhd->nhqd", weights / weights.sum(-1, keepdims=True), sides[1])
        assert error(exe.run(feeds)["y"], wanted) < 2e-6


def test_int8_is_within_half_a_step() -> None:
    x = np.random.default_rng(0).standard_normal((1, 5, 2, SIZE)).astype(np.float32)
    x[0, 1, 0] = 0
    x[0, 2, 1] *= 1e-42
    x[0, 3, 0] *= 1e30
    kept = rounded("int8", x)
    step = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    least = 127 * 2.0**-150  # below it a scale would be subnormal
    assert (np.abs(kept["wide"] - x) <= step * 0.501 + least).all()
    assert kept["numbers"].dtype == np.int8 and not kept["numbers"][0, 1, 0].any()
    assert (np.abs(kept["numbers"]).max(-1) == 127)[[0, 0, 0], [0, 3, 4], [0, 0, 1]].all()


def test_float16_is_rounded_once() -> None:
    x = np.random.default_rng(1).standard_normal((1, 5, 2, SIZE)).astype(np.float32)
    np.testing.assert_array_equal(rounded("float16", x)["numbers"], x.astype(np.float16))


def test_a_number_that_is_none_stays_so() -> None:
    x = np.ones((1, 1, 1, SIZE), np.float32)
    x[..., 3] = np.nan
    assert np.isnan(rounded("int8", x)["wide"]).any() and np.isnan(rounded("float16", x)["wide"]).any()


def test_other_types_are_refused() -> None:
    with pytest.raises(ValueError, match="cache='int4' is unknown; known: float32, float16, int8"):
        GgufFormat(cache="int4")


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("gguf", reason="gguf is not installed (see the extra `gguf`)")
    from gguf_files import write

    return write(tmp_path_factory.mktemp("gguf") / "m.gguf")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", CACHES)
def test_networks(kind: str, network: Path, tmp_path: Path) -> None:
    """A text is read in three parts, with the last token alone. The compile cache distinguishes the cache's
    types."""
    from llama_reference import logits

    from jangin.frontends.gguf.file import File

    def compiled(name: str) -> Any:
        return jangin.compile(network, threads=1, formats=[GgufFormat(cache=name)], cache=tmp_path)

    compiled("float32" if kind != "float32" else "int8")
    exe = compiled(kind)
    arrays = {s.name: np.zeros((1, 32, *s.shape[2:]), s.dtype) for s in exe.inputs if s.name != "tokens"}
    bytes_each = sum(a.nbytes for a in arrays.values()) / sum(
        a.size for n, a in arrays.items() if "_scale" not in n
    )
    assert bytes_each == {"float32": 4, "float16": 2, "int8": 1 + 4 / 16}[kind]
    count = 0
    for part in (TOKENS[:2], TOKENS[2:4], TOKENS[4:]):
        found = exe.run({"tokens": np.array([part]), **{n: a[:, :count] for n, a in arrays.items()}})
        for name, a in arrays.items():
            a[:, count : count + len(part)] = found[name.replace("past", "new")]
        count += len(part)
    assert error(found["logits"][0, 0], logits(File(network), TOKENS)) < ALLOWED[kind]
    if kind != "float32":
        wrong = {n: a[:, :1].astype(np.float64) for n, a in arrays.items()}
        with pytest.raises(TypeError, match=r"past_key\.0"):
            exe.run({"tokens": np.array([[1]]), **wrong})


@pytest.mark.sampled(2)
@pytest.mark.parametrize("emitted", [False, True])
def test_the_command_line_compiles_with_a_type(network: Path, tmp_path: Path, emitted: bool) -> None:
    given, out = ["compile", str(network), "--kv-cache", "float16", "--target", "x86-64-v3"], tmp_path / "out"
    given += ["--emit", "c", "-o", str(out)] if emitted else ["-o", str(out.with_suffix(".jgn"))]
    done = CliRunner().invoke(app, ["--no-cache", *given], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    if emitted:
        assert "past_key" in (out / f"{network.stem}.h").read_text(encoding="utf-8")
        return
    made = jangin.load(out.with_suffix(".jgn"), threads=1)
    assert {s.dtype for s in made.inputs if s.name.startswith("past_")} == {np.dtype(np.float16)}


def test_other_models_have_no_cache_to_choose(tmp_path: Path) -> None:
    model = tmp_path / "model.cfg"
    model.write_bytes(b"[net]\nwidth=8\n")
    with pytest.raises(ValueError, match="--kv-cache is for GGUF files"):
        formats_of(model, "int8", "")
    with pytest.raises(ValueError, match="--activations is for GGUF and ONNX files"):
        formats_of(model, "", "int8")
    assert formats_of(model, "", "") == ()
