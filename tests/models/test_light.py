"""The architectures that ship with onnx, from AlexNet to ZFNet, at full size.

Their weights are constants, so that every stored output is one value 1,000 times. So each is compiled once
more with random weights, and compared with ONNX Runtime. Quick tests do one of the two, or none (`SLOW`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from compared import error, onnxruntime
from onnx import numpy_helper

import jangin

LIGHT = Path(onnx.backend.test.__file__).parent / "data" / "light"
LONG = ("bvlc_alexnet", "densenet121", "inception_v1", "inception_v2", "resnet50")
"""Models whose random weights are slow tests. Their stored outputs are compared in quick tests."""
NAMES = [p.stem.removeprefix("light_") for p in sorted(LIGHT.glob("*.onnx"))]
SLOW = ("densenet121", "inception_v1", "vgg19")
"""Models that only slow tests compare. Quick tests have similar ones: Inception v2 has joined branches, and
AlexNet and ZFNet have one chain of convolutions. `passes/test_in_place.py` has DenseNet's blocks."""
STORED_ALONE = ("vgg19", "zfnet512")
"""Models that are compared with their stored outputs alone."""
RANDOM = [n for n in NAMES if n not in STORED_ALONE]


def cases(names: Sequence[str], slow: Sequence[str]) -> list[Any]:
    return [pytest.param(n, marks=[pytest.mark.slow] if n in slow else []) for n in names]


def load(name: str) -> tuple[onnx.ModelProto, str]:
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    constants = {t.name for t in model.graph.initializer}
    (given,) = (i.name for i in model.graph.input if i.name not in constants)
    return model, given


def randomised(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the model up to its last Softmax, which would hide differences. The weights are seeded, and keep
    activations at a sane scale."""
    rng = np.random.default_rng(0)
    shapes = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        shape = shapes[node.input[0]]
        if len(shape) > 1:
            values = rng.standard_normal(shape) * np.sqrt(2 / np.prod(shape[1:]))
        else:
            values = rng.uniform(0.5, 1.0, shape)
        model.graph.initializer.append(numpy_helper.from_array(values.astype(np.float32), node.output[0]))
    if kept[-1].op_type == "Softmax":
        kept[-1].op_type = "Identity"
        del kept[-1].attribute[:]
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", cases(NAMES, [*SLOW, *(n for n in RANDOM if n not in LONG)]))
def test_stored_output(name: str) -> None:
    model, _ = load(name)
    x = (np.arange(3 * 224 * 224, dtype=np.float64) / (3 * 224 * 224)).reshape(1, 3, 224, 224)
    expected = onnx.load_tensor(LIGHT / f"light_{name}_output_0.pb")
    out = jangin.compile(model, cache=False)(x.astype(np.float32))
    assert error(out, numpy_helper.to_array(expected)) < 1e-4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", cases(RANDOM, LONG))
def test_random_weights(name: str) -> None:
    model, given = load(name)
    model = randomised(model)
    x = np.random.default_rng(1).random((1, 3, 224, 224), np.float32)
    (reference,) = onnxruntime(model.SerializeToString(), {given: x}).values()
    assert np.ptp(reference) > 1e-3
    assert error(jangin.compile(model, cache=False)(x), reference) < 1e-3
