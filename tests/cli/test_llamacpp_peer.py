"""llama.cpp as a peer of language models."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("xllamacpp", reason="xllamacpp, which is llama.cpp, isn't installed")
pytest.importorskip("gguf", reason="gguf is not installed (see the extra `gguf`)")

sys.path.append(str(Path(__file__).resolve().parents[1] / "models"))

from command_line import Cli
from gguf_files import GROUPS, HEADS, LAYERS, WIDTH, vocabulary, write

import jangin
from jangin.bench.arrays import save_arrays
from jangin.bench.engine import Job
from jangin.bench.llamacpp import llama_cpp


@pytest.mark.parametrize("past", [0, 5])
def test_it_reads_tokens_behind_others(past: int, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", more=vocabulary)
    exe = jangin.compile(path, cache=False)
    shape = (1, past, GROUPS, WIDTH // HEADS)
    names = [f"past_{part}.{n}" for n in range(LAYERS) for part in ("key", "value")]
    feeds = {"tokens": np.array([[3, 1, 4]]), **{name: np.zeros(shape, np.float32) for name in names}}
    save_arrays(tmp_path / "inputs.npz", feeds)
    engine = llama_cpp(Job("llamacpp", 2, str(path), str(tmp_path / "inputs.npz")))
    assert engine.version and engine.compile_seconds > 0
    want = exe.run(feeds)["logits"]
    for _ in range(2):  # a run leaves nothing behind
        outputs = engine.call()
        assert [*outputs] == ([] if past else ["logits"])
        for logits in outputs.values():
            assert logits.shape == want.shape
            # its cache is float16
            np.testing.assert_allclose(logits, want, rtol=0, atol=2e-2 * np.abs(want).max())


def test_the_command_tells_tokens_a_second(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "m.gguf", more=vocabulary)
    asked = "--against llamacpp --threads 1 --shape seq=4 --shape past=0 --rounds 1 --seconds 0.01 --plain"
    done = cli("bench", path, *asked.split())
    assert done.status == 0, done.err
    lines = [line.strip().split("\t") for line in done.out.splitlines()]
    heading = next(line for line in lines if "tokens/s" in line)
    rows = [
        dict(zip(heading, line, strict=True)) for line in lines if line[0].startswith(("Jangin", "llama"))
    ]
    assert len(rows) == 2, done.out
    for row in rows:
        assert int(row["tokens/s"]) > 0 and float(row["error"]) < 2e-2
