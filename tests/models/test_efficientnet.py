"""EfficientNet-Lite0 with pretrained weights on 20 labelled photographs."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
from compared import error, onnxruntime

import jangin


@pytest.fixture(scope="module")
def compiled(efficientnet: bytes) -> Any:
    start = time.perf_counter()
    exe = jangin.compile(efficientnet, shapes={"batch": 1}, cache=False)
    print(f"\nEfficientNet-Lite0 compiled in {time.perf_counter() - start:.2f} s")
    return exe


def test_photographs_are_recognised(efficientnet: bytes, compiled: Any) -> None:
    from efficientnet import pictures

    found = pictures()
    images = np.stack([pixels for _, pixels, _ in found])
    labels = np.array([label for _, _, label in found])
    logits = np.concatenate([compiled(image[None]) for image in images])
    order = np.argsort(-logits, axis=1)
    assert (order[:, 0] == labels).sum() >= 18
    assert (order[:, :5] == labels[:, None]).any(axis=1).sum() >= 19
    reference = onnxruntime(efficientnet, {"images": images})["logits"]
    assert error(logits, reference) < 1e-3


@pytest.mark.sampled(3)
@pytest.mark.parametrize("target", ["x86-64-v2", pytest.param("x86-64-v3", marks=pytest.mark.slow)])
def test_other_targets_agree(efficientnet: bytes, compiled: Any, target: str) -> None:
    try:
        exe = jangin.compile(efficientnet, target, shapes={"batch": 1}, cache=False)
    except jangin.LoadError as reason:
        pytest.skip(f"this machine can't run {target}: {reason}")
    image = np.random.default_rng(0).random((1, 3, 224, 224), np.float32)
    assert error(exe(image), compiled(image)) < 1e-4


@pytest.mark.sampled(3)
def test_symbolic_batch(efficientnet: bytes, compiled: Any) -> None:
    images = np.random.default_rng(0).random((3, 3, 224, 224), np.float32)
    one_plan = jangin.compile(efficientnet, cache=False)
    for batch in (1, 3):
        ours = one_plan(images[:batch])
        assert error(ours, np.concatenate([compiled(i[None]) for i in images[:batch]])) < 1e-4
