"""Tensors of other libraries on the device, in and out of a model's runs. The mock counts copies."""

from __future__ import annotations

import gc
from typing import Any

import ml_dtypes
import mocked
import numpy as np
import onnx
import pytest
import tensors
from onnx import TensorProto, helper
from tensors import Dlpack, Interface

import jangin
from jangin.runtime.devices.cuda_tensors import GRAPHS, DeviceTensor
from jangin.runtime.tensors import Taken, c_strides, pieces

pytestmark = mocked.needed
KINDS = Dlpack, Interface


def model(*nodes: onnx.NodeProto, dtype: int = TensorProto.FLOAT, outputs: str = "y") -> onnx.ModelProto:
    graph = helper.make_graph(
        list(nodes), "g", [helper.make_tensor_value_info(n, dtype, ["n", 3]) for n in ("x", "w")],
        [helper.make_tensor_value_info(n, dtype, None) for n in outputs],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)])


def difference(dtype: int = TensorProto.FLOAT) -> onnx.ModelProto:
    return model(helper.make_node("Sub", ["x", "w"], ["y"], name="the_node"), dtype=dtype)


@pytest.fixture
def exe(driver: Any) -> Any:
    return jangin.compile(difference(), "cuda", cache=False)


def drawn(rows: int, seed: int = 0, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng([rows, seed]).integers(-9, 9, (rows, 3)).astype(dtype)


def copied(exe: Any) -> int:
    count: int = exe._module.copied
    return count


@pytest.mark.parametrize("kind", KINDS)
def test_tensors_in_place_on_their_streams(driver: Any, exe: Any, kind: Any) -> None:
    """Nothing is copied, though the tensors are made on streams that nobody has waited for. Outputs stay on
    the device."""
    for _ in range(2):
        for rows in (4, 1, 7):
            x, w = kind(drawn(rows)), kind(drawn(rows, 1))
            before = copied(exe), driver.mock_copies_on_device(), driver.mock_waits()
            y = exe(x, w)
            assert (copied(exe), driver.mock_copies_on_device()) == before[:2]
            assert driver.mock_waits() == before[2] + 2
            assert kind is Interface or x.asked_for > 2, "the run's own stream waits"
            assert isinstance(y, DeviceTensor) and y.shape == (rows, 3)
            np.testing.assert_array_equal(y.numpy(), x.array - w.array)
    assert isinstance(exe(drawn(2), drawn(2)), np.ndarray), "arrays of the host give arrays of the host"
    np.testing.assert_array_equal(exe(drawn(7), drawn(7, 2)), drawn(7) - drawn(7, 2))


def test_the_host_and_the_device_mixed(driver: Any, exe: Any) -> None:
    x, w = drawn(4), drawn(4, 1)
    for given in ((Dlpack(x), w), (x, Interface(w)), (exe.to_device(x), w)):
        np.testing.assert_array_equal(np.asarray(exe(*given)), x - w)
        np.testing.assert_array_equal(exe(x, w), x - w)
    np.testing.assert_array_equal(exe.run({"w": Dlpack(w), "x": x})["y"].numpy(), x - w)


def test_graphs_by_address(driver: Any, exe: Any) -> None:
    """Launches on addresses that come again are recorded. Others are made one by one, and few stay
    recorded."""
    x = [exe.to_device(drawn(4, n)) for n in range(GRAPHS + 2)]
    memory = exe._module.memory()
    layout = exe._layout((4,))
    memory.prepare(layout)
    buffers: list[Any] = []
    room = memory._code.room
    with pytest.MonkeyPatch.context() as patch:  # outputs at one address
        patch.setattr(memory._code, "room", lambda name, size: buffers[0] if buffers else room(name, size))
        for n, graphs in [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (0, 1)]:
            before = driver.mock_graph_launches()
            given = [memory.received(t, s) for t, s in zip((x[n], x[n + 1]), exe.inputs, strict=True)]
            y = memory.run(layout, given)["y"]
            buffers[:] = [y._buffer]
            np.testing.assert_array_equal(y.numpy(), drawn(4, n) - drawn(4, n + 1))
            assert driver.mock_graph_launches() - before == graphs
        for n in range(GRAPHS + 1):
            memory.run(layout, [memory.received(t, s) for t, s in zip(x[n : n + 2], exe.inputs, strict=True)])
    assert len(memory._graphs) == GRAPHS


def views() -> dict[str, tuple[np.ndarray, np.ndarray, int]]:
    """Return tensors of shape [4, 3] that can't be used in place, with their memory and its offset."""
    flat = np.arange(60, dtype=np.float32)
    shape = flat[:12].reshape(4, 3)
    return {
        "misaligned": (shape, shape, 4),
        "transposed": (flat[:12].reshape(3, 4).T, flat, 0),
        "rows": (flat.reshape(10, 6)[1:9:2, 1:4], flat, 0),
        "columns": (flat.reshape(4, 15)[:, ::5], flat, 0),
        "backwards": (flat[:12].reshape(4, 3)[::-1], flat, 0),
        "repeated": (np.broadcast_to(flat[3:6], (4, 3)), flat, 0),
    }


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", views())
def test_tensors_copied_on_the_device(driver: Any, exe: Any, kind: Any, name: str) -> None:
    view, memory, offset = views()[name]
    x, w = kind(view, memory, offset), kind(drawn(4))
    before = copied(exe), driver.mock_copies_on_device()
    y = exe(x, w)
    assert copied(exe) == before[0], "no byte goes to the host"
    assert driver.mock_copies_on_device() > before[1]
    np.testing.assert_array_equal(y.numpy(), view - w.array)


@pytest.mark.parametrize("seed", range(60))
def test_pieces_of_any_strides(seed: int) -> None:
    """The copies of rows make a contiguous tensor, and write each byte once."""
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 5, rng.integers(0, 5)))
    whole = rng.integers(0, 99, tuple(2 * n for n in shape)).astype(np.int16)
    view = whole[
        tuple(slice(None, n * s, s) for n, s in zip(shape, rng.integers(1, 3, len(shape)), strict=True))
    ]
    view = view.transpose(rng.permutation(view.ndim))
    tensor = Taken(0, 0, view.dtype, view.shape, view.strides, None, None)
    assert tensor.is_contiguous == view.flags.c_contiguous
    raw, made, written = whole.tobytes(), bytearray(view.nbytes), 0
    for p in pieces(tensor):
        for n in range(p.rows):
            at, to = p.at + n * p.pitch, p.to + n * p.to_pitch
            made[to : to + p.width] = raw[at : at + p.width]
            written += p.width
    assert bytes(made) == view.tobytes(), seed
    assert written == view.nbytes


def test_images_with_channels_last_are_few_copies() -> None:
    shape = 1, 3, 224, 224
    strides = 224 * 224 * 12, 4, 224 * 12, 12
    tensor = Taken(0, 0, np.dtype(np.float32), shape, strides, None, None)
    assert len([*pieces(tensor)]) == 3
    scattered = Taken(0, 0, np.dtype(np.float32), (99, 99, 99), (99**3 * 4, 200, 8), None, None)
    with pytest.raises(ValueError, match=r"need 9801 copies: give a contiguous copy"):
        next(pieces(scattered))
    assert c_strides((2, 0, 3), 4) == (0, 12, 4)


# --- lifetimes


@pytest.mark.parametrize("flags", [0, 1, 2, 3, 4])
def test_flags_that_are_not_known_are_refused(exe: Any, flags: int) -> None:
    """A tensor that is read-only or a copy is read like others."""
    x, w = drawn(4), drawn(4, 1)
    tensor = Dlpack(x)
    tensor.flags = flags
    if flags == 4:
        with pytest.raises(TypeError, match=r"input x.* has the flags 0x4"):
            exe(tensor, w)
    else:
        np.testing.assert_array_equal(exe(tensor, w).numpy(), exe(Dlpack(x), w).numpy())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("versions", [True, False])
def test_deleters_are_called_once(exe: Any, versions: bool) -> None:
    x, w = Dlpack(drawn(4)), Dlpack(drawn(4, 1))
    for tensor in (x, w):
        tensor.versions = versions
    for runs in (1, 2, 3):
        exe(x, w)
        gc.collect()
        assert (x.released, w.released) == (runs, runs)
    w.dtype = np.dtype(np.int32)
    with pytest.raises(TypeError):
        exe(x, w)
    gc.collect()
    assert (x.released, w.released) == (4, 4), "errors release tensors too"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("versioned", [True, False])
def test_outputs_for_other_libraries(driver: Any, exe: Any, versioned: bool) -> None:
    """A consumer's tensor keeps the memory until it calls the deleter. Capsules that nobody takes release it
    themselves."""
    x, w = Dlpack(drawn(4)), Dlpack(drawn(4, 1))
    y = exe(x, w)
    before = driver.mock_live()
    asked: dict[str, Any] = {"max_version": (1, 1)} if versioned else {}
    y.__dlpack__(**asked)
    elements, release = tensors.consumed(y.__dlpack__(stream=2, **asked), versioned)
    del y
    gc.collect()
    assert driver.mock_live() == before, "the consumer has the memory"
    np.testing.assert_array_equal(elements, x.array - w.array)
    release()
    gc.collect()
    assert driver.mock_live() == before - 1


def test_outputs_by_the_array_interface(driver: Any, exe: Any) -> None:
    x, w = drawn(4), drawn(4, 1)
    y = exe(Dlpack(x), w)
    said = y.__cuda_array_interface__
    assert said["version"] == 3 and said["stream"] is None and said["data"][1] is False
    np.testing.assert_array_equal(tensors.at_address(said["data"][0], said["shape"], 4), x - w)
    assert "f32" not in repr(y) and "float32[4, 3]" in repr(y)


def test_outputs_are_inputs_again(driver: Any, exe: Any) -> None:
    x, w = drawn(4), drawn(4, 1)
    y = exe(exe.to_device(x), w)
    before = copied(exe)
    np.testing.assert_array_equal(exe(y, y.copy()).numpy(), np.zeros((4, 3)))
    assert copied(exe) == before
    on_host = np.from_dlpack(y, device="cpu")
    np.testing.assert_array_equal(on_host, x - w)


def test_exports_that_are_refused(exe: Any) -> None:
    y = exe(exe.to_device(drawn(2)), drawn(2))
    with pytest.raises(ValueError, match="stream 0 is ambiguous"):
        y.__dlpack__(stream=0)
    with pytest.raises(BufferError, match=r"can't be given on the device \(2, 1\)"):
        y.__dlpack__(dl_device=(2, 1))
    with pytest.raises(ValueError, match="a copy alone"):
        np.array(y, copy=False)
    assert y.__dlpack_device__() == (2, 0)


def test_nothing_of_tensors_is_left(driver: Any, exe: Any) -> None:
    before = driver.mock_live()
    again = jangin.Executable(exe.artifact)
    for rows in (2, 0, 3):
        again(Interface(drawn(rows)), Dlpack(drawn(rows))).numpy()
    del again
    gc.collect()
    assert driver.mock_live() == before


def test_outputs_that_are_aliases(driver: Any) -> None:
    """Outputs that no kernel makes are copies on the device too."""
    nodes = [
        helper.make_node("Sub", ["x", "w"], ["d"]),
        helper.make_node("Flatten", ["d"], ["f"], axis=0),
        helper.make_node("Flatten", ["x"], ["p"], axis=0),
        helper.make_node("Identity", ["w"], ["i"]),
        helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0]),
    ]
    exe = jangin.compile(model(*nodes, outputs="dfpic"), "cuda", cache=False)
    x, w = drawn(4), drawn(4, 1)
    wanted = exe(x, w)
    columns = np.asfortranarray(x)
    for given in ((Dlpack(x), w), (x, Dlpack(w)), (Dlpack(columns, columns.T), Interface(w))):
        for made, want in zip(exe(*given), wanted, strict=True):
            assert isinstance(made, DeviceTensor)
            np.testing.assert_array_equal(made.numpy(), want)


def test_bfloat16_goes_by_dlpack(driver: Any) -> None:
    exe = jangin.compile(difference(TensorProto.BFLOAT16), "cuda", cache=False)
    x, w = drawn(4, 0, ml_dtypes.bfloat16), drawn(4, 1, ml_dtypes.bfloat16)
    y = exe(Dlpack(x), Dlpack(w))
    np.testing.assert_array_equal(y.numpy(), x - w)
    assert not hasattr(y, "__cuda_array_interface__")
    y.__dlpack__()


# --- errors: input, tensor, reason, remedy


def test_a_tensor_on_another_gpu(driver: Any, exe: Any) -> None:
    x = Dlpack(drawn(4))
    x.device = 1
    with pytest.raises(
        ValueError,
        match=r"input x float32\[n, 3\] got a tensors Dlpack float32\[4, 3\] on cuda:1, but the model runs "
        r"on cuda:0 \(Mock GPU 0\): move it there \(x.to\('cuda:0'\)",
    ):
        exe(x, drawn(4))
    x = Interface(drawn(4))
    driver.mock_ordinal(1)
    with pytest.raises(ValueError, match=r"input x .* on cuda:1, but the model runs on cuda:0"):
        exe(x, drawn(4))


def test_a_tensor_that_was_freed(exe: Any) -> None:
    for kind in KINDS:
        x = kind(drawn(4))
        del x.buffer
        with pytest.raises(
            ValueError,
            match=r"input w .* got a tensor float32\[4, 3\] .*whose memory at 0x.*it was freed, so",
        ):
            exe(drawn(4), x)
    none = Interface(drawn(4))
    none.address = 0
    with pytest.raises(ValueError, match="it was freed"):
        exe(none, drawn(4))


@pytest.mark.parametrize("kind", KINDS)
def test_wrong_dtypes_and_shapes(exe: Any, kind: Any) -> None:
    with pytest.raises(
        TypeError, match=r"input x .* got a tensor float64\[4, 3\] on .*: convert it to float32"
    ):
        exe(kind(drawn(4, 0, np.float64)), drawn(4))
    with pytest.raises(ValueError, match=r"input w .*dimension 0 must be 4, got shape \(5, 3\)"):
        exe(kind(drawn(4)), kind(drawn(5)))


def test_tensors_that_the_protocol_forbids(exe: Any) -> None:
    for extra, told in (
        ({"mask": object()}, "it has a mask"),
        ({"stream": 0}, "its stream is 0, which the protocol forbids"),
    ):
        x = Interface(drawn(4))
        x.extra = extra
        with pytest.raises(
            TypeError, match=rf"input x .*a tensors Interface float32\[4, 3\], can't .*{told}"
        ):
            exe(x, drawn(4))
    taken = Dlpack(drawn(4)).capsule(versioned=False)
    x = Dlpack(drawn(4))
    x.__class__ = type("Twice", (Dlpack,), {"capsule": lambda self, versioned: taken})
    exe(x, drawn(4))
    with pytest.raises(TypeError, match="no capsule of a tensor that nobody has taken"):
        exe(x, drawn(4))


@pytest.mark.parametrize("stream", [1, 2, None])
def test_default_streams(driver: Any, exe: Any, stream: int | None) -> None:
    """1 and 2 are the default streams. With None there is nothing to wait for."""
    x = Interface(drawn(4))
    x.stream.finish()
    x.extra = {"stream": stream}
    before = driver.mock_waits()
    np.testing.assert_array_equal(exe(x, drawn(4, 1)).numpy(), x.array - drawn(4, 1))
    assert driver.mock_waits() - before == (stream is not None)
    x.extra = {"version": 2}
    exe(x, drawn(4, 1))
    assert driver.mock_waits() - before == (stream is not None) + 1, "older versions name no stream"


@pytest.mark.parametrize("target", ["host", "cpu+cuda"])
def test_models_of_the_host(driver: Any, target: str) -> None:
    """Models for the processor and for several devices read the host's memory."""
    exe = jangin.compile(difference(), target, cache=False)
    for kind in KINDS:
        with pytest.raises(
            TypeError, match=r"input x .* is on a GPU \(tensors's .*copy it to the host first"
        ):
            exe(kind(drawn(4)), drawn(4))


def test_models_without_a_gpu_upload_nothing() -> None:
    exe = jangin.compile(difference(), cache=False)
    with pytest.raises(ValueError, match="device 'cpu' takes arrays of the host"):
        exe.to_device(drawn(4))


def test_a_fault_on_tensors_is_named(driver: Any, exe: Any) -> None:
    """The fault ends the tensors' memory, so that the kernel is found on zeros."""
    driver.mock_fault(exe.plan.launches[0].function.encode())
    with pytest.raises(RuntimeError, match=r"could not run the kernel .*the_node.*ILLEGAL_ADDRESS"):
        exe(Dlpack(drawn(4)), Interface(drawn(4)))


def test_every_allocation_fails_in_turn(driver: Any, exe: Any) -> None:
    x, w = Dlpack(drawn(4)), Dlpack(*views()["transposed"])
    failed = 0
    for left in range(100):
        again = jangin.Executable(exe.artifact)
        driver.mock_allocations_left(left)
        try:
            again(x, w)
        except MemoryError as error:
            assert "OUT_OF_MEMORY" in str(error)
            failed += 1
        else:
            break
        finally:
            driver.mock_allocations_left(-1)
    assert failed == left > 1
    gc.collect()
    assert (x.released, w.released) == (left + 1, left + 1)
