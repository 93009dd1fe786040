"""Each parameter of each fragment of NNEF's standard changes the result at another value, or is refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from nnef_operations import Array, here, nnef, run, value

__all__ = ["here"]

PARAMETER = re.compile(r"(\w+)\s*:\s*([^=]+?)\s*(?:=\s*(.+))?", re.DOTALL)
IMAGE, WINDOW = (1, 2, 6, 6), {"size": [1, 1, 2, 2]}
REGIONS = [np.array([[0, 1, 4, 5], [1, 0, 5, 4]], np.float32), np.array([0, 0])]
PLACES = np.arange(36).reshape(1, 1, 6, 6).repeat(2, 1) % 9
TRANSPOSED = {"size": [1, 1, 2, 2], "stride": [1, 1, 2, 2], "padding": [(0, 0)] * 4}
SEPARABLE = [(1, 2, 6, 6), (2, 1, 3, 3), (4, 2, 1, 1)]
CASES: Mapping[str, tuple[list[Any], dict[str, Any]]] = {
    "reshape": ([(2, 3, 4)], {"shape": [4, 3, 2]}), "transpose": ([(3, 3, 3)], {"axes": [0, 2, 1]}),
    "concat": ([], {"values": "[x0, x1]", "axis": 0}), "stack": ([], {"values": "[x0, x1]", "axis": 0}),
    "split": ([(6, 6)], {"axis": 0, "ratios": [1, 2]}), "unstack": ([(3, 3)], {"axis": 0}),
    "slice": ([(6, 6)], {"axes": [0], "begin": [1], "end": [4]}),
    "squeeze": ([(1, 1, 3)], {"axes": [0]}), "unsqueeze": ([(3, 3)], {"axes": [0]}),
    "tile": ([(2, 2)], {"repeats": [1, 2]}),
    "pad": ([(3, 3)], {"padding": [(1, 1), (0, 0)], "border": "constant", "value": 0.0}),
    "gather": ([(3, 3), np.array([0, 2])], {}), "matmul": ([(3, 3), (3, 3)], {}),
    "conv": ([IMAGE, (2, 2, 3, 3)], {}), "deconv": ([IMAGE, (2, 2, 3, 3)], {}),
    "box": ([IMAGE], WINDOW), "avg_pool": ([IMAGE], WINDOW), "max_pool": ([IMAGE], WINDOW),
    "rms_pool": ([IMAGE], WINDOW), "argmax_pool": ([IMAGE], WINDOW), "max_pool_with_index": ([IMAGE], WINDOW),
    "debox": ([IMAGE], TRANSPOSED), "avg_unpool": ([IMAGE], TRANSPOSED),
    "sample": ([IMAGE, PLACES], {"size": [1, 1, 1, 1]}),
    "desample": ([IMAGE, PLACES], TRANSPOSED), "max_unpool": ([IMAGE, PLACES], TRANSPOSED),
    "nearest_downsample": ([IMAGE], {"factor": [2, 2]}), "area_downsample": ([IMAGE], {"factor": [2, 2]}),
    "nearest_upsample": ([IMAGE], {"factor": [2, 2]}), "multilinear_upsample": ([IMAGE], {"factor": [2, 2]}),
    **{f"{name}_reduce": ([(3, 4)], {"axes": [1]})
       for name in ("sum", "max", "min", "argmax", "argmin", "mean")},
    **{f"{name}_reduce": ([np.eye(3, 4) > 0], {"axes": [1]}) for name in ("any", "all")},
    "moments": ([(3, 4)], {"axes": [1]}), "softmax": ([(3, 4)], {"axes": [1]}),
    "softabs": ([(3, 4)], {"epsilon": 0.5}), "elu": ([(3, 4)], {}), "selu": ([(3, 4)], {}),
    "leaky_relu": ([(3, 4)], {"alpha": 0.1}), "linear": ([(3, 4), (2, 4)], {}),
    "separable_conv": (SEPARABLE, {}), "separable_deconv": ([(1, 4, 6, 6), *SEPARABLE[1:]], {}),
    **{f"local_{name}_normalization": ([IMAGE], {"size": [1, 1, 3, 3]})
       for name in ("response", "mean", "variance", "contrast")},
    "l1_normalization": ([(3, 4)], {"axes": [1]}), "l2_normalization": ([(3, 4)], {"axes": [1]}),
    "batch_normalization": ([(2, 3), (1, 3), np.full((1, 3), 0.5, "f"), (1, 3), (1, 3)], {"epsilon": 0.1}),
    **{name: ([IMAGE, *REGIONS], {"output_size": [2, 2]})
       for name in ("avg_roi_pool", "max_roi_pool", "roi_resample")},
    **{name: ([IMAGE, *REGIONS], {"output_size": [2, 2], "sampling_rate": [2, 2]})
       for name in ("avg_roi_align", "max_roi_align")},
    "min_max_linear_quantize": (
        [(3, 4), np.float32(-1), np.float32(1)], {"bits": 3, "signed": True, "symmetric": True},
    ),
    "zero_point_linear_quantize": (
        [(3, 4), np.array(1), np.float32(0.25)], {"bits": 3, "signed": True, "symmetric": False},
    ),
    "linear_quantize": ([(3, 4), np.float32(-1), np.float32(1)], {"bits": 3}),
    "logarithmic_quantize": ([(3, 4), np.float32(1)], {"bits": 3}), "copy_n": ([(3,)], {"times": 2}),
}  # fmt: skip
"""For each fragment with parameters: its inputs, by shape or as arrays, and arguments of a plain call."""
LISTS = {"concat": 0, "stack": 0, "split": 2, "unstack": 3, "copy_n": 2}
"""The number of results of calls that give a list, or 0 for those that take one."""
RESULTS = {"moments": "y, z", "max_pool_with_index": "y, z"}
IDLE = {
    ("desample", "border"): "elements outside of the border are nowhere in the result",
    ("max_unpool", "border"): "the same",
}
"""Parameters that change nothing, with the reason."""


def standard() -> Iterator[tuple[str, str, str]]:
    """Yield the fragments' parameters that aren't tensors or have a default: fragment, name and type."""
    folder = Path(nnef.__file__).parent / "cpp" / "include" / "nnef"
    text = (folder / "comp" / "stdlib_source.h").read_text()
    for name, listed in re.findall(r"fragment\s+(\w+)(?:<[^>]*>)?\s*\(([^;{]*?)\)\s*->", text):
        for part in re.split(r",(?![^()]*\))", listed):
            found = PARAMETER.fullmatch(part.strip())
            assert found is not None, part
            parameter, kind, default = found.groups()
            if name not in ("external", "variable", "constant") and (
                default or not kind.startswith("tensor")
            ):
                yield name, parameter, kind.replace(" ", "")


ALL = [
    *standard(),
    *((f"{kind}_unpool", parameter, "integer[]") for kind in ("avg", "max") for parameter in WINDOW),
]


def others(kind: str, now: Any) -> list[Any]:
    """Return values of a parameter of a type to try. `now` is its value in the plain call, or None."""
    if kind == "logical":
        return [not now]
    if kind in ("scalar", "tensor<scalar>"):
        return [0.3, 2.0, 9.0]
    if kind == "integer":
        return [v for v in (0, 1, 2, 4, -1) if v != now]
    if kind == "string":
        return ["no such word"]
    if kind == "(integer,integer)[]":
        return [[(1, 1)] * 2, [(0, 0), (0, 0), (1, 1), (1, 1)], [(0, 0), (1, 1)]]
    longer = [[v + 1 for v in now], [1 - v for v in now]] if now else []
    return [*longer, [2, 2], [1, 1, 2, 2], [1], [1, 2, 12, 12]]


def outcome(name: str, inputs: list[Array], arguments: Mapping[str, Any]) -> Any:
    """Return the results of a call in a form that compares, or its error."""
    tensors = [] if "values" in arguments else [f"x{n}" for n in range(len(inputs))]
    named = [f"{k} = {v if k == 'values' else value(v)}" for k, v in arguments.items()]
    call = f"{name}({', '.join([*tensors, *named])})"
    try:
        found = run(call, inputs, RESULTS.get(name, "y"), lists=LISTS.get(name, 0))
    except Exception as error:
        return error
    return [(a.shape, a.tolist()) for a in found]


@pytest.mark.parametrize("name", CASES)
def test_no_parameter_is_passed_over(name: str) -> None:
    given, arguments = CASES[name]
    random = np.random.default_rng(0)
    shapes = [(3, 3), (3, 3)] if "values" in arguments else given
    inputs = [
        np.asarray(g) if not isinstance(g, tuple) else random.uniform(-2, 2, g).astype(np.float32)
        for g in shapes
    ]
    plain = outcome(name, inputs, arguments)
    assert not isinstance(plain, Exception), plain
    for fragment, parameter, kind in ALL:
        if fragment == name and (name, parameter) not in IDLE:
            values = others(kind, arguments.get(parameter))
            tried = (outcome(name, inputs, {**arguments, parameter: v}) for v in values)
            assert any(isinstance(t, Exception) or t != plain for t in tried), parameter


def test_the_list_is_the_standards() -> None:
    assert {fragment for fragment, _, _ in ALL} == CASES.keys()
