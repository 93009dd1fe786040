"""All options of builtin operators for all types (`options.py`) give LiteRT's results or an error. Operators
that become tables are tried on every input. Errors name what is refused."""

from __future__ import annotations

import faulthandler
import os
import pickle
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import numpy as np
import pytest

import jangin

pytest.importorskip("tflite", reason="the package tflite isn't installed: the extra `tflite` brings it")

from files import Operator, Tensor, written
from options import Case, cases

from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ops.interpret import run_graph
from jangin.passes.partition import has_steps

CASES = cases()
MORE = {
    "AVERAGE_POOL_2D": "without a scale LiteRT cuts means off", "ATAN2": "LiteRT doesn't broadcast",
    "CAST float16": "LiteRT's casts of float16 to small integers don't saturate",
    "CONV_2D float of float16": "LiteRT reads the weights as another type",
    "DIV": "where a denominator is 0, or beyond the result's type, there is no result",
    "EMBEDDING_LOOKUP": "LiteRT copies bytes of the wrong size",
    "FLOOR_DIV": "a denominator of 0 is an error of the run's", "FLOOR_MOD": "as FLOOR_DIV",
    "LOCAL_RESPONSE_NORMALIZATION": "LiteRT's reference kernel leaves out the last channel of each window",
    "MATRIX_DIAG": "LiteRT moves elements of other sizes than it has", "MATRIX_SET_DIAG": "as MATRIX_DIAG",
    "MAX_POOL_2D int": "activations of integers without a scale", "MAX_POOL_2D uint": "the same",
    "PRELU qint16": "LiteRT's products overflow", "SUM": "LiteRT's sums overflow",
    "MEAN int": "integers without a scale", "MEAN uint": "the same",
    "QUANTIZE int": "integers without a scale", "QUANTIZE uint": "the same",
}  # fmt: skip
"""Cases that differ from LiteRT, with the reason. A key is the beginning of a case's name."""


def feed(random: np.random.Generator, t: Tensor) -> Any:
    if t.dtype == "bool":
        return random.integers(0, 2, t.shape).astype(bool)
    if t.dtype.startswith("float"):
        return (random.standard_normal(t.shape) * 3).astype(t.dtype)
    whole = {"int8": (-128, 128), "uint8": (0, 256), "int16": (-(1 << 15), 1 << 15)}
    low, high = whole.get(t.dtype, (0, 9)) if t.scales else (0 if t.dtype[0] == "u" else -9, 9)
    return random.integers(low, high, t.shape).astype(t.dtype)


Asked = tuple[Case, list[Any]]


def litert(asked: list[Asked]) -> Iterator[list[Any] | None]:
    """Yield LiteRT's results for one case after another. The result is None if LiteRT refuses the case, or
    ends the process, which happens for some types."""
    while asked:
        end, start = os.pipe()
        child = os.fork()
        if not child:
            faulthandler.disable()
            with os.fdopen(start, "wb") as file:
                for case, feeds in asked:
                    pickle.dump(_litert(case, feeds), file)
                    file.flush()
                os._exit(0)
        os.close(start)
        with os.fdopen(end, "rb") as file, suppress(EOFError):
            while asked:
                yield pickle.load(file)
                asked = asked[1:]
        os.waitpid(child, 0)
        if asked:
            yield None
            asked = asked[1:]


def _litert(case: Case, feeds: list[Any]) -> list[Any] | None:
    """Run a case in LiteRT, by the first version of the operator that LiteRT has for it."""
    from test_tflite import reference

    tensors, operator = case
    given = [i for i in operator.inputs if tensors[i].data is None]
    for version in (operator.version, *range(1, 13)):
        one = Operator(**{**vars(operator), "version": version})
        try:
            return reference(written(tensors, [one], given, list(operator.outputs)), feeds)
        except (RuntimeError, ValueError) as error:
            if "Registration failed" not in str(error):
                return None
    return None


def ours(case: Case, feeds: list[Any]) -> list[Any]:
    tensors, operator = case
    given = [i for i in operator.inputs if tensors[i].data is None]
    model = written(tensors, [operator], given, list(operator.outputs))
    graph = lower(load(model))
    if has_steps(graph):
        exe = jangin.compile(model, threads=1, cache=False, isolated=False)
        return list(exe.run({s.name: x for s, x in zip(exe.inputs, feeds, strict=True)}).values())
    with np.errstate(all="ignore"):
        return list(run_graph(graph, dict(zip(graph.inputs, feeds, strict=True))).values())


def check(names: list[str]) -> None:
    found: dict[str, list[Any]] = {}
    asked: list[Asked] = []
    for name in names:
        tensors, operator = CASES[name]
        random = np.random.default_rng(len(name))
        feeds = [feed(random, tensors[i]) for i in operator.inputs if tensors[i].data is None]
        try:
            found[name] = ours(CASES[name], feeds)
        except jangin.CompileError as error:
            assert "TypeError" not in str(error), name
        else:
            asked.append((CASES[name], feeds))
    for (name, results), wanted in zip(found.items(), litert(asked), strict=True):
        for got, exact in zip(results, wanted or (), strict=bool(wanted)):
            assert (got.shape, got.dtype) == (exact.shape, exact.dtype), name
            if got.dtype.kind == "f":
                finite = np.abs(exact[np.isfinite(exact)])
                near = 1e-5 if got.dtype == np.float32 else 5e-3
                most = near * max(1, finite.max(initial=0))
                np.testing.assert_allclose(got, exact, near, most, err_msg=name)
            else:
                np.testing.assert_array_equal(got, exact, name)


def names() -> list[str]:
    return [n for n in CASES if not n.startswith(tuple(MORE))]


def test_a_sample_of_options_and_types() -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")
    seed = int(os.environ.get("OPTIONS_SEED", "0"))
    check(Random(seed).sample(names(), 60))


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted({n.split()[0] for n in CASES}))
def test_all_options_and_types(kind: str) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")
    check([name for name in names() if name.split()[0] == kind])


def test_the_list_has_all_operators_of_options() -> None:
    """Every operator that has a lowering and options is in the list, or has a test of its own."""
    from jangin.frontends.tflite.operators import BUILTINS

    elsewhere = {
        "ARG", "ASSIGN", "EMBEDDING_LOOKUP_SPARSE",
        "REDUCE_WINDOW", "BIDIRECTIONAL", "BITCAST", "CALL", "COMPLEX", "CONV_3D", "CUSTOM", "DENSIFY",
        "DILATE", "FAKE", "HASHTABLE", "IMAG", "LSTM", "MULTINOMIAL", "NON", "RANDOM", "REAL", "RFFT", "RNN",
        "SKIP", "SPLIT", "STABLEHLO", "SVDF", "UNIDIRECTIONAL", "BROADCAST", "LSH",
    }  # fmt: skip
    listed = {n.split()[0] for n in CASES}
    left = [n for n in BUILTINS if n.isupper() and n not in listed]
    assert [n for n in left if not n.startswith(tuple(elsewhere))] == []


# -- tables of all 256 inputs ----------------------------------------------------------------------

TABLES: dict[str, tuple[str, dict[str, Any], int]] = {
    "GELU": ("GeluOptions", {"Approximate": False}, 2), "RELU": ("", {}, 2), "RELU6": ("", {}, 2),
    "RELU_N1_TO_1": ("", {}, 1), "RELU_0_TO_1": ("", {}, 1), "EXP": ("", {}, 2), "LOG": ("", {}, 2),
    "SQRT": ("", {}, 2), "HARD_SWISH": ("", {}, 1), "LEAKY_RELU": ("LeakyReluOptions", {"Alpha": 0.3}, 2),
    "ABS": ("", {}, 2), "LOGISTIC": ("", {}, 2), "TANH": ("", {}, 2), "QUANTIZE": ("", {}, 2),
}  # fmt: skip
UNSIGNED = set(TABLES) - {"EXP", "LOG", "SQRT", "ABS"}
"""Functions whose kernels take uint8."""


def scales(name: str, low: int, r: Random) -> tuple[float, int, float, int]:
    """Draw scale and zero point of an input and of a result. With many of them, results lie half-way between
    two integers."""
    some = [0.1, 0.05, 0.0625, 0.25, 0.5, 0.02, r.uniform(0.001, 0.3)]
    x = r.choice(some)
    y = r.choice([x, x * 2, x / 2, *some])
    zero, end = (
        low if name in ("SQRT", "LOG", "EXP") else r.randrange(low, low + 256),
        r.randrange(low, low + 256),
    )
    fixed = {"LOGISTIC": (1 / 256, low), "TANH": (1 / 128, low + 128)}
    return x, zero, *fixed.get(name, (y, end))


@pytest.mark.parametrize(
    ("name", "dtype"), [(n, d) for n in TABLES for d in ("int8", "uint8") if d == "int8" or n in UNSIGNED]
)
def test_every_input_of_tables(name: str, dtype: str) -> None:
    pytest.importorskip("ai_edge_litert.interpreter", reason="ai-edge-litert, the reference, isn't installed")
    low = 0 if dtype == "uint8" else -128
    table, options, version = TABLES[name]
    x = np.arange(low, low + 256).astype(dtype)
    asked: list[Asked] = []
    for n in range(8):
        a, zero, c, end = scales(name, low, Random(f"{name} {n}"))
        tensors = [Tensor([256], dtype, [a], [zero]), Tensor([256], dtype, [c], [end])]
        asked.append(((tensors, Operator(name, [0], [1], table, options, version)), [x]))
    for (case, feeds), wanted in zip(asked, litert(asked), strict=True):
        assert wanted is not None
        np.testing.assert_array_equal(ours(case, feeds)[0], wanted[0], f"{name} of {case[0]}")


def test_tables_of_few_bits() -> None:
    """DEQUANTIZE of int4, and float rows from tables of int4 with one scale for all rows or one for each."""
    data = np.arange(-8, 8).reshape(4, 4)
    numbers = Tensor([4, 4], "int4", [0.1], [1], data=data)
    at = Tensor([2], "int32")
    model = written(
        [numbers, Tensor([4, 4]), at, Tensor([2, 4])],
        [Operator("DEQUANTIZE", [0], [1], version=6), Operator("GATHER", [1, 2], [3], "GatherOptions", {})],
        [2], [3],
    )  # fmt: skip
    places = np.array([3, 0], np.int32)
    (got,) = jangin.compile(model, threads=1, cache=False, isolated=False).run({"t2": places}).values()
    np.testing.assert_array_equal(got, (data[places] - 1).astype(np.float32) * np.float32(0.1))
    for dtype, scales in (("int4", [0.1]), ("int8", [0.1, 0.5, 0.2, 0.3]), ("int4", [0.1, 0.5, 0.2, 0.3])):
        table = Tensor([4, 4], dtype, scales, [0] * len(scales), data=data)
        case = ([at, table, Tensor([2, 4])], Operator("EMBEDDING_LOOKUP", [0, 1], [2], version=4))
        (got,) = ours(case, [places])
        exact = data[places] * np.broadcast_to(np.float32(scales), 4)[places][:, None].astype(np.float64)
        np.testing.assert_allclose(got, exact, 1e-6)


# -- refused models --------------------------------------------------------------------------------

IMAGE, SIZES = Tensor([1, 4, 4, 2]), Tensor([2], "int32", data=[7, 3])
REFUSED: dict[str, tuple[Case, str]] = {
    "both flags": (
        ([IMAGE, SIZES, Tensor([1, 7, 3, 2])],
         Operator("RESIZE_BILINEAR", [0, 1], [2], "ResizeBilinearOptions",
                  {"AlignCorners": True, "HalfPixelCenters": True})), "exclude each other"),
    "a fused tanh": (
        ([IMAGE, IMAGE, IMAGE], Operator("ADD", [0, 1], [2], "AddOptions", {"FusedActivationFunction": 4})),
        "the fused activation 4 is not supported"),
    "a sum of 16 bits at different powers of two": (
        ([Tensor([4], "int16", [2.0**-k], [0]) for k in (7, 8, 6)],
         Operator("ADD", [0, 1], [2], "AddOptions", {"PotScaleInt16": True})),
        "pot_scale_int16 is not supported"),
    "a fused bound of a concatenation": (
        ([IMAGE, IMAGE, Tensor([2, 4, 4, 2])],
         Operator("CONCATENATION", [0, 1], [2], "ConcatenationOptions", {"FusedActivationFunction": 1})),
        "its options fused_activation_function are not supported"),
    "a logistic of int32": (
        ([Tensor([4], "int32", [0.1], [0]), Tensor([4], "int32", [0.1], [0])],
         Operator("LOGISTIC", [0], [1])), "not supported|not defined"),
    "two ellipses": (
        ([IMAGE, *[Tensor([2], "int32", data=[0, 0])] * 2, Tensor([2], "int32", data=[1, 1]), IMAGE],
         Operator("STRIDED_SLICE", [0, 1, 2, 3], [4], "StridedSliceOptions", {"EllipsisMask": 3})),
        "2 ellipses"),
    "logic of floats": (
        ([IMAGE, IMAGE, IMAGE], Operator("LOGICAL_AND", [0, 1], [2])), "must be truth values"),
    "weights of uint8": (
        ([Tensor([2, 4]), Tensor([3, 4], "uint8", [0.1], [128], data=np.zeros((3, 4))), Tensor([2, 3])],
         Operator("FULLY_CONNECTED", [0, 1], [2], "FullyConnectedOptions", {})), "weights of u8 for floats"),
    "integers without a scale": (
        ([Tensor([4], "int8"), Tensor([4])], Operator("DEQUANTIZE", [0], [1])), "without a scale"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    case, message = REFUSED[name]
    with pytest.raises(jangin.CompileError, match=message):
        ours(case, [])
