"""`jangin compare`: the table, the drawing, and wrong usage."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from command_line import Cli


def test_engines(cli: Cli, model: Path, tmp_path: Path) -> None:
    data, plot = tmp_path / "data.npy", tmp_path / "parting.svg"
    np.save(data, np.random.default_rng(1).standard_normal((2, 3, 8, 8)).astype(np.float32))
    given = ("compare", model, model, "--data", data, "--threads", 1)
    done = cli(*given, "--engines", "jangin,onnxruntime", "--plot", plot)
    assert done.status == 0, done.err
    assert "none differs by more than 0.001" in done.out
    assert "Conv 'conv1'" in done.out
    assert plot.read_text("utf-8").startswith("<svg")
    for engines, message in (("a,b,c", "write one, or two"), ("jangin,tvm", "unknown engine 'tvm'")):
        wrong = cli(*given, "--engines", engines)
        assert wrong.status == 1
        assert message in wrong.err
