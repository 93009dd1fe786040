"""TensorFlow Lite's operators as a dialect."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.frontends.dialect import OWN, Bodies, Dialect, Inputs, Lowering, Outputs, near
from jangin.frontends.tflite.control import CONTROL
from jangin.frontends.tflite.left_out import LEFT_OUT
from jangin.frontends.tflite.operators import BUILTINS
from jangin.frontends.tflite.operators.common import Call, Quantization
from jangin.frontends.tflite.operators.complex import of_complex
from jangin.ir.graph import CompileError, ImportedAttributes, Node
from jangin.ops.builder import Builder

KINDS = frozenset({"inputs", "outputs", "intermediates"})
"""Attributes that the importer adds to a node to describe its tensors. A node's other attributes are the
operator's own options."""
SAID = frozenset({"body", "keys", "shapes", "values"})
"""Attributes with further parts of an operator, such as its sub-graph, that the importer adds. They aren't
options."""


class Asked(dict[str, Any]):
    """An operator's options. It records which of them a lowering reads."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        super().__init__(given)
        self.asked: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.asked.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.asked.add(name)
        return super().get(name, default)

    def unread(self, operator: str) -> list[str]:
        """Return the names of the options of `operator` that may change its result and that no lowering read.
        Options with their default value aren't included."""
        idle = IDLE.get(operator, frozenset()) | SAID
        return [n for n, value in self.items() if _says(n, value) and n not in self.asked and n not in idle]


def _says(name: str, value: Any) -> bool:
    """Tell if an option has another value than its default."""
    if isinstance(value, list | tuple):
        return len(value) > 1 or any(_says(name, one) for one in value)
    if isinstance(value, str | bytes | dict | None):
        return bool(value)
    return np.size(value) > 1 or (
        np.size(value) == 1 and value not in ((0, 1) if "dilation" in name else (0,))
    )


_ROUNDED = frozenset({"asymmetric_quantize_inputs", "quantized_bias_type"})
_WITHIN = frozenset({"fused_activation_function"})
IDLE: Mapping[str, frozenset[str]] = {
    **dict.fromkeys(("ARG_MAX", "ARG_MIN"), frozenset({"output_type"})),
    **dict.fromkeys(("BATCH_MATMUL", "CONV_2D", "FULLY_CONNECTED", "TRANSPOSE_CONV"), _ROUNDED),
    **dict.fromkeys(("ADD", "SUB"), frozenset({"pot_scale_int16"})),
    **dict.fromkeys(("LSTM", "SVDF", "UNIDIRECTIONAL_SEQUENCE_LSTM"), _WITHIN),
    "STABLEHLO_REDUCE_WINDOW": frozenset({"body_subgraph_index"}),
    "STABLEHLO_SCATTER": frozenset({"update_computation_subgraph_index"}),
    "MaxUnpooling2D": frozenset({"padding"}),
    **dict.fromkeys(("FlexReluGrad", "FlexMaxPoolGrad", "FlexConv2DBackpropFilter"), frozenset({"T"})),
    "FlexSave": frozenset({"T"}), "FlexRestore": frozenset({"dt", "preferred_shard"}),
    "FlexEnsureShape": frozenset({"T", "shape"}),
    "TFLite_Detection_PostProcess": frozenset({"detections_per_class", "max_classes_per_detection"}),
    "CAST": frozenset({"in_data_type", "out_data_type"}), "PACK": frozenset({"values_count"}),
    "DEPTHWISE_CONV_2D": _ROUNDED | {"depth_multiplier"}, "RESHAPE": frozenset({"new_shape"}),
    "SHAPE": frozenset({"out_type"}), "SPLIT_V": frozenset({"num_splits"}),
    "UNIQUE": frozenset({"idx_out_type"}),
}  # fmt: skip
"""Options that a lowering needn't read, by operator.

Some only repeat what the file's tensors say. Some matter only for layers whose inputs are rounded. Others
belong to another way to suppress boxes or to compute a recurrent layer. Still others have no influence on
sizes, or only tell which operators a sub-graph has."""


class Tflite(Dialect):
    """A builtin operator's name is "tflite." and its name in the schema ("tflite.CONV_2D"). A custom
    operator's is "tflite." and its custom code."""

    domain = "tflite"

    def lowering(self, node: Node) -> Lowering | None:
        if node.op in CONTROL:
            return CONTROL[node.op]
        return self._lower if node.op.removeprefix("tflite.") in BUILTINS else None

    def _lower(self, b: Builder, node: Node, inputs: Inputs, bodies: Bodies) -> Outputs:
        attrs, options = node.of(ImportedAttributes), Asked(self.attributes(node))
        call = Call(
            b,
            tuple(inputs),
            tuple(Quantization(*k) for k in attrs["inputs"]),
            tuple(Quantization(*k) for k in attrs["outputs"]),
            options,
            tuple(Quantization(*k) for k in attrs.get("intermediates", ())),
        )
        name = node.op.removeprefix("tflite.")
        outputs: Outputs
        if any(q.complex for q in (*call.given, *call.gives)):
            outputs = of_complex(name, BUILTINS[name], call)
        else:
            outputs = BUILTINS[name](call)
        unread = options.unread(name)
        if unread:
            raise CompileError(f"its options {', '.join(unread)} are not supported")
        return outputs

    def remedy(self, node: Node) -> str:
        name = node.op.removeprefix("tflite.")
        also = f": {LEFT_OUT[name]}" if name in LEFT_OUT else near(name, BUILTINS)
        return f"{name} is not supported{also}; {OWN}"

    def attributes(self, node: Node) -> Mapping[str, Any]:
        return {k: v for k, v in node.of(ImportedAttributes).items() if k not in KINDS}


TFLITE = Tflite()
