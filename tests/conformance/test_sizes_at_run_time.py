"""ONNX's node tests of operators with sizes as inputs, compiled as a user would.

No input is made a constant (unlike in the backend interface, see `jangin.onnx_backend`). Sizes are bound at
run time. Inputs that decide ranks or loops, such as axes, must be constants. Otherwise an error names the
node."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np
import pytest
from onnx import helper
from onnx.backend.test.case import node as cases

import jangin

SIZED = {
    "center_crop_pad": "export_center_crop_pad_crop", "constantofshape": "export_float_ones",
    "expand": "export_dim_changed", "rangeop": "export_range_int32_type_negative_delta",
    "reshape": "export_reshape", "resize": "export_resize_upsample_sizes_nearest", "tile": "export_tile",
    "topk": "export_top_k",
}  # fmt: skip
"""Modules of ONNX's node tests, and one of the examples in each."""
SETTINGS = {
    "cumsum": "export_cumsum_1d", "reducesum": "export_do_not_keepdims",
    "slice": "export_slice_neg", "unsqueeze": "export_unsqueeze_one_axis",
    "resize": "export_resize_upsample_scales_nearest",
}  # fmt: skip


def examples(module: str, function: str, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """Return (model, inputs, outputs) of each case that one of ONNX's functions makes."""
    made: list[tuple[Any, ...]] = []

    def record(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        names = [n for n in node.input if n]
        arrays = [np.asarray(a) for a in inputs]
        infos = [
            helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
            for n, a in zip(names, arrays, strict=True)
        ]
        results = [helper.make_empty_tensor_value_info(n) for n in node.output]
        graph = helper.make_graph([node], name, infos, results)
        made.append((helper.make_model(graph), arrays, outputs))

    part = importlib.import_module(f"{cases.__name__}.{module}")
    monkeypatch.setattr(part, "expect", record)
    (example,) = (vars(c)[function] for c in vars(part).values() if function in getattr(c, "__dict__", ()))
    example.__func__()
    return made


@pytest.mark.parametrize("module", SIZED)
def test_sizes_are_bound_in_a_run(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = examples(module, SIZED[module], monkeypatch)
    assert found
    for model, inputs, outputs in found[:3]:
        made = jangin.compile(model, cache=False, isolated=False)(*inputs)
        for got, want in zip(made if isinstance(made, tuple) else (made,), outputs, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-6, strict=True)


@pytest.mark.parametrize("module", SETTINGS)
def test_settings_must_be_constants(module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = examples(module, SETTINGS[module], monkeypatch)[0][0]
    with pytest.raises(jangin.CompileError, match=r"must be (a )?constant.*make it an initializer"):
        jangin.compile(model, cache=False, isolated=False)
