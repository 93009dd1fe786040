"""Real models compiled ahead of time give the same bits as in process."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from built import COMPILERS, Api, library, same_bits

import jangin
from jangin.ahead.emit import emit
from jangin.ahead.source import compiler_flags

MODELS = Path(__file__).resolve().parents[2] / ".cache" / "models"
NAMES = ("squeezenet1_1", "mobilenetv2", "resnet50", "minilm", "ocr_recogniser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not COMPILERS, reason="no C compiler here: neither gcc nor clang"),
]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["object", "c"])
def test_the_same_bits(kind: str, name: str, tmp_path: Path) -> None:
    path = MODELS / f"{name}.onnx"
    if not path.exists():
        pytest.skip(f"{path.name} isn't here: benchmarks/make_models.py exports it")
    exe = jangin.compile(path, threads=1)
    made = emit(path, kind, name="net")
    made.save(tmp_path)
    sources = sorted(f for f in made.files if f.endswith((".c", ".o", ".S")) and f != "main.c")
    flags = compiler_flags(made.model.target) if kind == "c" else ()
    api = Api(library(tmp_path, sources, flags), "net")
    assert api("start_threads", 2) == 0
    for sizes in ((1, 16), (1, 128), (2, 37)) if made.model.symbols else ((),):
        values = dict(zip(made.model.symbols, sizes, strict=True))
        rng = np.random.default_rng(sum(sizes))
        inputs = []
        for spec in exe.inputs:
            shape = [d if isinstance(d, int) else values[d] for d in spec.shape]
            high = 1000 if spec.name == "input_ids" else 2
            random = rng.random(shape) if spec.dtype.kind == "f" else rng.integers(0, high, shape)
            inputs.append(random.astype(spec.dtype))
        want = exe(*inputs)
        for threads in (1, 2):
            got = api.run(inputs, sizes, threads)
            for g, w in zip(got, want if isinstance(want, tuple) else (want,), strict=True):
                assert same_bits(g, w), (sizes, threads)
    api.library.net_stop_threads()
