"""Every version of every operator that ONNX defines is implemented, or is listed here with the reason."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from onnx import defs

from jangin.frontends.onnx.dialect import ONNX
from jangin.frontends.onnx.importer import node_op
from jangin.ir.graph import ImportedAttributes, Node

LEFT_OUT: Mapping[tuple[str, str, int], str] = {}
"""Reasons by (domain, operator, version)."""
MICROSOFT = (
    "Attention", "BiasGelu", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul", "EmbedLayerNormalization",
    "FastGelu", "FusedConv", "FusedGemm", "FusedMatMul", "Gelu", "GroupQueryAttention",
    "MatMulIntegerToFloat", "MatMulNBits", "MultiHeadAttention", "QGemm", "QLinearAdd",
    "QLinearAveragePool", "QLinearConcat",
    "QLinearConv", "QLinearGlobalAveragePool", "QLinearLeakyRelu", "QLinearMul", "QLinearReduceMean",
    "QLinearSigmoid", "QLinearSoftmax", "QLinearWhere", "QuickGelu", "RotaryEmbedding",
    "SimplifiedLayerNormalization", "SkipLayerNormalization", "SkipSimplifiedLayerNormalization",
)  # fmt: skip
"""Operators that ONNX Runtime's exporters and optimizers put into models. ONNX has no schemas for them."""
BLOCKS = (
    "AveragePool", "Conv", "GlobalAveragePool", "GlobalMaxPool", "MaxPool", "ReorderInput", "ReorderOutput",
    "Upsample",
)  # fmt: skip
"""Operators of models that ONNX Runtime has optimized for one processor."""


def implemented(domain: str, name: str, version: int) -> bool:
    domain = "" if domain == "ai.onnx" else domain
    node = Node("n", (), (), ImportedAttributes(node_op(domain, name), {"opset": version}))
    return ONNX.lowering(node) is not None


def test_every_schema() -> None:
    versions = {(s.domain or "ai.onnx", s.name, s.since_version) for s in defs.get_all_schemas_with_history()}
    missing = {v for v in versions if not implemented(*v)}
    assert len(versions) > 600
    assert missing == LEFT_OUT.keys(), "what is missing must be listed, and only that"
    assert {domain for domain, _, _ in versions} == {
        "ai.onnx", "ai.onnx.ml", "ai.onnx.preview", "ai.onnx.preview.training"
    }  # fmt: skip


@pytest.mark.parametrize("name", MICROSOFT)
def test_what_onnx_runtime_adds(name: str) -> None:
    assert implemented("com.microsoft", name, 1)


@pytest.mark.parametrize("name", BLOCKS)
def test_what_onnx_runtime_writes_for_one_processor(name: str) -> None:
    assert implemented("com.microsoft.nchwc", name, 1)
