"""Small Core ML models made by hand, from coremltools' messages alone."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.coreml.schema import module

F32, ARRAY = 11, 65568
"""The numbers of float32 in MIL and in an array feature."""


def network() -> bytes:
    """A convolution, a loop of three steps that changes its result, a pool, a layer and softmax."""
    rng = np.random.default_rng(0)
    message = module("Model_pb2").Model(specificationVersion=4)
    array = message.description.input.add(name="x").type.multiArrayType
    array.dataType = ARRAY
    array.shape.extend([1, 3, 6, 6])
    message.description.output.add(name="y").type.multiArrayType.dataType = ARRAY
    net = message.neuralNetwork
    net.arrayInputShapeMapping = 1
    conv = net.layers.add(name="conv", input=["x"], output=["c"]).convolution
    conv.outputChannels, conv.kernelChannels = 4, 3
    conv.kernelSize.extend([3, 3])
    conv.valid.SetInParent()
    conv.weights.floatValue.extend(rng.standard_normal(108).tolist())
    loop = net.layers.add(name="again").loop
    loop.maxLoopIterations = 3
    half = loop.bodyNetwork.layers.add(name="half", input=["c"], output=["h"])
    half.activation.linear.alpha = 0.5
    back = loop.bodyNetwork.layers.add(name="back", input=["h", "c"], output=["c"])
    back.maxBroadcastable.SetInParent()
    pool = net.layers.add(name="pool", input=["c"], output=["p"]).pooling
    pool.type, pool.globalPooling = 1, True
    net.layers.add(name="flat", input=["p"], output=["f"]).flattenTo2D.axis = 1
    inner = net.layers.add(name="inner", input=["f"], output=["i"]).innerProduct
    inner.inputChannels, inner.outputChannels = 4, 5
    inner.weights.floatValue.extend(rng.standard_normal(20).tolist())
    net.layers.add(name="softmax", input=["i"], output=["y"]).softmaxND.axis = -1
    made: bytes = message.SerializeToString()
    return made


def package() -> Mapping[str, bytes]:
    """A program's files: a layer whose weights lie in a file beside it, and a branch on a sum."""
    message = module("Model_pb2").Model(specificationVersion=6)
    array = message.description.input.add(name="x").type.multiArrayType
    array.dataType = ARRAY
    array.shape.extend([2, 4])
    message.description.output.add(name="y").type.multiArrayType.dataType = ARRAY
    message.mlProgram.version = 1
    function = message.mlProgram.functions["main"]
    function.opset = "CoreML5"
    _typed(function.inputs.add(name="x").type, [2, 4])
    block = function.block_specializations["CoreML5"]
    weight = _operation(block, "const", "w", [5, 4], {})
    stored = weight.attributes["val"]
    _typed(stored.type, [5, 4])
    stored.blobFileValue.fileName, stored.blobFileValue.offset = "@model_path/weights/weight.bin", 64
    _operation(block, "linear", "l", [2, 5], {"x": "x", "weight": "w"})
    _operation(block, "reduce_sum", "s", [], {"x": "l"})
    _number(_operation(block, "const", "zero", [], {}).attributes["val"], 0.0)
    _operation(block, "greater", "p", [], {"x": "s", "y": "zero"})
    chosen = _operation(block, "cond", "y", [2, 5], {"pred": "p"})
    for name, kind in (("t", "tanh"), ("r", "relu")):
        inner = chosen.blocks.add()
        _operation(inner, kind, name, [2, 5], {"x": "l"})
        inner.outputs.append(name)
    block.outputs.append("y")
    data = np.random.default_rng(0).standard_normal(20).astype(np.float32).tobytes()
    entry = struct.pack("<IIQQ", 0xDEADBEEF, 1, len(data), 128).ljust(64, b"\0")
    item = {"author": "com.apple.CoreML", "name": "model.mlmodel", "path": "com.apple.CoreML/model.mlmodel"}
    manifest = {"fileFormatVersion": "1.0.0", "itemInfoEntries": {"a": item}, "rootModelIdentifier": "a"}
    inside = "Data/com.apple.CoreML"
    return {
        "Manifest.json": json.dumps(manifest).encode(),
        f"{inside}/model.mlmodel": message.SerializeToString(),
        f"{inside}/weights/weight.bin": bytes(64) + entry + data,
    }


def _typed(kind: Any, shape: list[int]) -> None:
    kind.tensorType.dataType, kind.tensorType.rank = F32, len(shape)
    for size in shape:
        kind.tensorType.dimensions.add().constant.size = size


def _number(value: Any, number: float) -> None:
    _typed(value.type, [])
    value.immediateValue.tensor.floats.values.append(number)


def _operation(block: Any, kind: str, name: str, shape: list[int], inputs: Mapping[str, str]) -> Any:
    made = block.operations.add(type=kind)
    _typed(made.outputs.add(name=name).type, shape)
    for key, value in inputs.items():
        made.inputs[key].arguments.add(name=value)
    return made
