"""`jangin.compare`: the first value that differs, between models, precisions and engines."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import onnx
import pytest
from onnx import numpy_helper
from small_nets import convolutions, pictures, products, rows

import jangin
from jangin.commands.common import terminal
from jangin.commands.compare import summary, svg, table
from jangin.options import Options
from jangin.quantization.compare import _Replayed

pytestmark = pytest.mark.usefixtures("shared_kernels")


def changed(model: bytes, name: str, by: float) -> bytes:
    """Return the model with one of its constants multiplied."""
    proto = onnx.load_from_string(model)
    (held,) = (t for t in proto.graph.initializer if t.name == name)
    held.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(held) * np.float32(by), name))
    data: bytes = proto.SerializeToString()
    return data


@pytest.mark.parametrize("engines", [("jangin", "jangin"), ("jangin", "onnxruntime")])
def test_first(engines: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    """A changed weight shows at its own node, and at none before it."""
    model = convolutions()
    found = jangin.compare(model, changed(model, "w2", 1.01), pictures(2), engines=engines, threads=1)
    assert found.first is not None
    assert "project" in found.first.source
    assert found.first.largest == pytest.approx(0.01, rel=0.9)
    at = list(found.differences).index(found.first)
    assert at > 3
    assert all(d.largest < 1e-5 for d in found.differences[:at])
    assert found.differences[-1].name == "y"
    terminal().print(table(found))
    assert "project" in capsys.readouterr().out
    assert "project" in summary(found)
    drawn = ElementTree.fromstring(svg(found, "a < b"))
    circles = [e for e in drawn.iter() if e.tag.endswith("circle")]
    assert len(circles) == 2 * len(found.differences)


def test_same() -> None:
    """Engines agree on the same model, within rounding."""
    found = jangin.compare(products(), products(), rows(2), engines=("onnxruntime", "jangin"), threads=1)
    assert found.first is None
    assert len(found.differences) == 10
    assert max(d.largest for d in found.differences) > 0


def test_precisions() -> None:
    """A model and its int8 version share the names of inner values."""
    model = convolutions()
    small = jangin.quantize(model, pictures(), method="minmax", threads=1).model
    found = jangin.compare(model, small, pictures(2), tolerance=0.5, threads=1)
    assert len(found.differences) >= 5
    assert found.first is None
    assert 1e-4 < found.differences[-1].largest < 0.1


def test_replay() -> None:
    """A replay runs the kernels of the model itself, so that outputs have the same bits. Values between
    kernels are channels first, as in the model."""
    model, data = convolutions(), pictures(2)
    every = jangin.compare(model, model, data, threads=1)
    replayed = jangin.compare(model, model, data, threads=1, replay=True)
    assert 2 < len(replayed.differences) < len(every.differences)
    assert replayed.first is None
    assert all(d.largest == 0 for d in replayed.differences)
    shapes = {d.name: d.shape for d in every.differences}
    assert all(d.shape == shapes[d.name] for d in replayed.differences)
    side = _Replayed(model, Options(threads=1))
    side.ready(list(side.values(False)), False)
    given = {"x": data[0]}
    (want,) = jangin.compile(model, None, 1, cache=False).run(given).values()
    np.testing.assert_array_equal(side.run(given)["y"], want)


def test_replay_finds_a_changed_weight() -> None:
    model = convolutions()
    found = jangin.compare(model, changed(model, "w2", 1.01), pictures(2), threads=1, replay=True)
    assert found.first is not None
    at = list(found.differences).index(found.first)
    assert all(d.largest == 0 for d in found.differences[:at])
    assert found.first.largest == pytest.approx(0.01, rel=0.9)


def test_refused() -> None:
    model, data = convolutions(), pictures(1)
    with pytest.raises(ValueError, match=r"input x .* of the first model is x"):
        jangin.compare(model, products(), data)
    with pytest.raises(ValueError, match="unknown engine 'tvm'; known: jangin, onnxruntime"):
        jangin.compare(model, model, data, engines=("jangin", "tvm"))
    with pytest.raises(
        ValueError, match="replay= is for Jangin's kernels, and the engines are jangin and onnx"
    ):
        jangin.compare(model, model, data, engines=("jangin", "onnxruntime"), replay=True)
    with pytest.raises(ValueError, match=re.escape("doesn't fit the input x")):
        jangin.compare(model, model, rows(1))
    with pytest.raises(ValueError, match="no data to calibrate with"):
        jangin.compare(model, model, [])
