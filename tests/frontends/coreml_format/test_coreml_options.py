"""Every parameter of a layer and every argument of an operation is read, is known to change nothing, or is
refused by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

ct = pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")

from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import types  # noqa: E402
from coremltools.converters.mil.mil.ops.defs.iOS18 import compression  # noqa: E402
from test_network_layers import CASES, IMAGE, ROWS, A, Fields, inside, run, weights, x  # noqa: E402
from test_networks import network  # noqa: E402

from jangin.frontends.coreml.layers.asked import IDLE  # noqa: E402
from jangin.frontends.coreml.mil import weights_of  # noqa: E402
from jangin.frontends.coreml.schema import module  # noqa: E402

LAYER = module("NeuralNetwork_pb2").NeuralNetworkLayer.DESCRIPTOR.oneofs_by_name["layer"]
NO_PADS = {f"customPadding{side}": "the padding is VALID" for side in
           ("Front", "Back", "Top", "Bottom", "Left", "Right")}  # fmt: skip
SETTLED = {
    "batchnorm": {"instanceNormalization": "the mean and the variance are given, as nothing computes them"},
    "convolution3d": NO_PADS, "pooling3d": NO_PADS,
    "squeeze": {"squeezeAll": "the axes are all that can go"},
}  # fmt: skip
"""Parameters that change nothing in the tried case, with the reason."""


def others(field: Any) -> list[Any]:
    """Return values of a parameter other than its default."""
    if field.enum_type is not None:
        return [v.name for v in field.enum_type.values if v.number]
    if field.message_type is not None:
        return []
    return {field.CPPTYPE_FLOAT: [0.3], field.CPPTYPE_BOOL: [True]}.get(field.cpp_type, [2, 1, 3])


def outcome(kind: str, fields: Fields, inputs: Any) -> Any:
    try:
        (found,) = run(kind, fields, inputs, 1)
    except jangin.CompileError as error:
        return str(error)
    return found.tolist(), found.shape


@pytest.mark.parametrize("name", CASES)
def test_no_parameter_is_passed_over(name: str) -> None:
    """Each parameter that a case leaves out changes the layer's result when it is set, or is refused."""
    fields, inputs, _ = CASES[name]
    kind = name.split()[0]
    plain = outcome(kind, fields, inputs)
    (message,) = (f.message_type for f in LAYER.fields if f.name == kind)
    for field in message.fields:
        if field.name in {*fields, *IDLE.get(kind, ()), *SETTLED.get(kind, ())} or not others(field):
            continue
        several = hasattr(getattr(message._concrete_class(), field.name), "append")
        values = [[v] * 2 for v in others(field)] if several else others(field)
        assert any(outcome(kind, {**fields, field.name: v}, inputs) != plain for v in values), field.name


def test_parameters_that_change_nothing_are_the_schemas() -> None:
    known = {f.name: {p.name for p in f.message_type.fields} for f in LAYER.fields}
    assert all(IDLE[kind] <= known[kind] for kind in IDLE)


def test_what_is_not_read_is_named() -> None:
    given = {"inputChannels": 4, "outputChannels": 1, "weights": weights(x(4)), "int8DynamicQuantize": True}
    with pytest.raises(jangin.CompileError, match=r"innerProduct 'l'.*int8DynamicQuantize.*not supported"):
        run("innerProduct", given, [A], 1)
    inner = {"activations": [{"tanh": {}}, {"scaledTanh": {"alpha": 2.0}}]}
    with pytest.raises(jangin.CompileError, match=r"scaledTanh|needs|not supported"):
        run("gru", inner, [x(1, 1, 3, 1, 1)], 1)


def test_layers_of_channels_last_and_of_the_last_pixel() -> None:
    (got,) = run("reshape", {"targetShape": [2, 6, 12], "mode": "CHANNEL_LAST"}, [IMAGE], 1, exact=False)
    wanted = IMAGE.transpose(0, 2, 3, 1).reshape(1, 6, 12, 2).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(got, wanted)
    pads = {"includeLastPixel": {"paddingAmounts": [1, 0]}, "kernelSize": [3, 3], "stride": [2, 2]}
    (got,) = run("pooling", {"type": "MAX", **pads}, [IMAGE], 1)
    assert got.shape == (1, 4, 4, 3)  # ceil((6 + 2 - 3) / 2) + 1, ceil((6 - 3) / 2) + 1
    whole = np.pad(IMAGE, ((0, 0), (0, 0), (1, 3), (0, 3)), constant_values=-np.inf)
    wanted = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (2, 3))[:, :, :8:2, :6:2].max((-2, -1))
    np.testing.assert_array_equal(got, wanted)
    (got,) = run("pooling", {"type": "AVERAGE", "avgPoolExcludePadding": True, **pads}, [IMAGE], 1)
    whole = np.pad(IMAGE, ((0, 0), (0, 0), (1, 3), (0, 3)), constant_values=np.nan)
    view = np.lib.stride_tricks.sliding_window_view(whole, (3, 3), (2, 3))[:, :, :8:2, :6:2]
    np.testing.assert_allclose(got, np.nanmean(view, (-2, -1)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_sliding_windows(axis: int) -> None:
    (got,) = run("slidingWindows", {"axis": axis, "windowSize": 2, "step": 2}, [ROWS], 1)
    axis %= 3
    view = np.lib.stride_tricks.sliding_window_view(ROWS, 2, axis)
    wanted = np.moveaxis(view, -1, axis + 1)[(slice(None),) * axis + (slice(None, None, 2),)]
    np.testing.assert_array_equal(got, wanted)


@pytest.mark.parametrize(("number", "dtype"), [(65552, "float16"), (65568, "float32"), (65600, "float64"),
                                               (131104, "int32")])  # fmt: skip
def test_networks_compute_in_single_precision(number: int, dtype: str) -> None:
    """Networks compute in single precision, whatever types their inputs and outputs are declared to have."""
    message, net = network([2, 3])
    message.description.input[0].type.multiArrayType.dataType = number
    message.description.output[0].type.multiArrayType.dataType = number
    inner = net.layers.add(name="i", input=["x"], output=["h"]).innerProduct
    inner.inputChannels, inner.outputChannels = 3, 2
    inner.weights.floatValue.extend([3, 1, 0.5, 0, 1, 2])
    net.layers.add(name="l", input=["h"], output=["y"]).unary.type = 6  # the absolute value
    exe = jangin.compile(message, cache=False, isolated=False)
    given = np.array([[1, 2, 4], [-8, 0, 3]], dtype)
    w = np.float32([[3, 1, 0.5], [0, 1, 2]])
    (got,) = exe.run({"x": given}).values()
    assert got.dtype == dtype and exe.outputs[0].name == "y"
    np.testing.assert_array_equal(got, np.abs(given.astype(np.float32) @ w.T).astype(dtype))


def test_outputs_have_their_features_names() -> None:
    """Outputs keep their features' names even if their blobs are written several times."""
    message, net = network([3])
    net.layers.add(name="a", input=["x"], output=["y"]).exp2.SetInParent()
    net.layers.add(name="b", input=["y"], output=["y"]).floor.SetInParent()
    exe = jangin.compile(message, cache=False, isolated=False)
    (name, got), *_ = exe.run({"x": np.float32([0.5, 2, 3.2])}).items()
    assert name == "y" and got.tolist() == [1, 4, 9]


# -- programs --------------------------------------------------------------------------------------


def program(body: Any, shape: tuple[int, ...], *states: tuple[int, ...]) -> Any:
    """Return a program of iOS 18 with an input x and states."""
    kept = [mb.StateTensorSpec(s, dtype=types.fp16) for s in states]
    specs = [mb.TensorSpec(shape, dtype=types.fp32), *kept]
    made = mb.program(input_specs=specs, opset_version=ct.target.iOS18)(body)
    return ct.convert(
        made, minimum_deployment_target=ct.target.iOS18, skip_model_load=True,
        compute_precision=ct.precision.FLOAT32,
    )  # fmt: skip


def test_states_are_kept_between_runs() -> None:
    def body(x: Any, total: Any, count: Any) -> Any:
        wide = mb.cast(x=x, dtype="fp16")
        now = mb.coreml_update_state(state=total, value=mb.add(x=mb.read_state(input=total), y=wide))
        twice = mb.coreml_update_state(state=total, value=mb.mul(x=now, y=np.float16(2)))
        runs = mb.coreml_update_state(
            state=count, value=mb.add(x=mb.read_state(input=count), y=np.float16(1))
        )
        return mb.mul(x=twice, y=runs, name="y")

    exe = jangin.compile(program(body, (2, 3), (2, 3), (1,)).get_spec(), cache=False, isolated=False)
    assert [s.name for s in exe.inputs] == ["x"] and len(exe.outputs) == 1
    given = np.float32([[1, 2, 3], [4, 5, 6]])
    for _ in range(2):
        total = np.zeros((2, 3))
        for run_ in range(1, 4):
            total = (total + given) * 2
            np.testing.assert_array_equal(exe(given), total * run_)
        exe.reset()


def parts(kind: str, vector: int) -> dict[str, Any]:
    """Return the arguments of a sparse compressed array, with tables for each half of its columns."""
    rng = np.random.default_rng(vector)
    mask = (rng.random((4, 6)) < 0.4).astype(np.uint8)
    values = rng.integers(0, 4, int(mask.sum())).astype(np.uint8)
    if kind == "constexpr_sparse_blockwise_shift_scale":
        scale, offset = inside(1, 6), rng.integers(0, 4, (1, 6)).astype(np.uint8)
        return {"data_mask": mask, "nonzero_data": values, "scale": scale, "offset": offset}
    axis = {"vector_axis": np.int32(0)} if vector > 1 else {}
    return {"indices_mask": mask, "indices_nonzero_data": values, "lut": x(1, 2, 4, vector), **axis}


@pytest.mark.parametrize("vector", [1, 3])
@pytest.mark.parametrize("kind", ["constexpr_lut_to_sparse", "constexpr_sparse_blockwise_shift_scale"])
def test_sparse_weights(kind: str, vector: int) -> None:
    """The results are compared with coremltools' own functions, and made dense."""
    given = parts(kind, vector)
    theirs = {**given, "vector_axis": given.get("vector_axis")} if "lut" in given else given
    wanted = getattr(compression, kind).decompress(**theirs)
    mask, values = weights_of.decompressed(kind, given, "weights")
    np.testing.assert_array_equal(mask, wanted[0])
    np.testing.assert_allclose(values, wanted[1], rtol=1e-6)
    dense = {"nonzero_data": values, "mask": mask}
    (whole,) = weights_of.decompressed("constexpr_sparse_to_dense", dense, "weights")
    np.testing.assert_array_equal(whole, compression.constexpr_sparse_to_dense.decompress(**dense))


def test_tables_of_vectors() -> None:
    indices, lut = np.random.default_rng(0).integers(0, 4, (4, 6)).astype(np.uint8), x(2, 1, 4, 3)
    for axis in (0, 1, -1):
        given = {"indices": indices, "lut": lut, "vector_axis": np.int32(axis)}
        (got,) = weights_of.decompressed("constexpr_lut_to_dense", given, "weights")
        np.testing.assert_array_equal(got, compression.constexpr_lut_to_dense.decompress(**given))


def test_a_program_of_sparse_weights_of_a_table(tmp_path: Path) -> None:
    """The program has the chain that coremltools writes for pruned weights with a palette."""
    mask = np.array([[1, 0, 1, 0], [0, 1, 0, 0], [1, 1, 1, 0]])
    indices = np.array([0, 1, 1, 0, 1, 1])
    lut = np.float32([0.5, -2]).reshape(1, 1, 2, 1)

    def body(x: Any) -> Any:
        bits = mask.astype(types.np_uint1_dtype), indices.astype(types.np_uint1_dtype)
        kept, values = mb.constexpr_lut_to_sparse(indices_mask=bits[0], indices_nonzero_data=bits[1], lut=lut)
        weight = mb.constexpr_sparse_to_dense(nonzero_data=values, mask=kept)
        return mb.linear(x=x, weight=weight, bias=np.zeros(3, np.float32))

    program(body, (2, 4)).save(str(tmp_path / "sparse.mlpackage"))
    exe = jangin.compile(tmp_path / "sparse.mlpackage", cache=False, isolated=False)
    whole = np.zeros((3, 4), np.float32)
    whole[mask != 0] = np.float32([0.5, -2])[indices]
    given = x(2, 4)
    np.testing.assert_allclose(exe(given), given @ whole.T, rtol=1e-6, atol=1e-6)


def test_arguments_that_are_not_read_are_named() -> None:
    """A flag for the check of indices changes nothing, but a slope of relu would."""
    gathered = program(
        lambda x: mb.gather(x=x, indices=np.int32([1]), validate_indices=True), (4, 3)
    ).get_spec()
    given = x(4, 3)
    np.testing.assert_array_equal(jangin.compile(gathered, cache=False, isolated=False)(given), given[1:2])
    message = program(lambda x: mb.relu(x=x), (4, 3)).get_spec()
    block = next(iter(message.mlProgram.functions["main"].block_specializations.values()))
    (relu,) = (o for o in block.operations if o.type == "relu")
    relu.inputs["slope"].arguments.add(name="x")
    with pytest.raises(jangin.CompileError, match=r"its arguments slope are not supported"):
        jangin.compile(message, cache=False, isolated=False)
