"""MiniLM-L6 (a BERT encoder) as ONNX with symbolic batch and sequence, made from its safetensors file.

The graph is as PyTorch's exporter writes it. Shape reads the sizes, and Concat puts them into Reshape.
Positions are sliced to the sequence, the mask is additive, and GELU is made with Erf."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def load_safetensors(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Return the f32 and i64 tensors of a safetensors file, by name."""
    raw = path.read_bytes()
    start = 8 + int.from_bytes(raw[:8], "little")
    kinds = {"F32": np.float32, "I64": np.int64}
    found = {}
    for name, entry in json.loads(raw[8:start]).items():
        if name != "__metadata__":
            low, high = entry["data_offsets"]
            flat = np.frombuffer(raw[start + low : start + high], kinds[entry["dtype"]])
            found[name] = flat.reshape(entry["shape"])
    return found


class _Bert:
    def __init__(self, state: dict[str, np.ndarray[Any, Any]], config: dict[str, Any]) -> None:
        self.state, self.config = state, config
        self.heads = config["num_attention_heads"]
        self.width = config["hidden_size"]
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, np.ndarray[Any, Any]] = {}

    def op(self, kind: str, *inputs: str, **attributes: Any) -> str:
        out = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [out], name=out, **attributes))
        return out

    def const(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def weight(self, name: str) -> str:
        return self.const(name, self.state[name])

    def linear(self, x: str, name: str) -> str:
        matrix = self.const(f"{name}.weight", self.state[f"{name}.weight"].T.copy())
        return self.op("Add", self.op("MatMul", x, matrix), self.weight(f"{name}.bias"))

    def norm(self, x: str, name: str) -> str:
        scale, bias = self.weight(f"{name}.weight"), self.weight(f"{name}.bias")
        return self.op("LayerNormalization", x, scale, bias, epsilon=self.config["layer_norm_eps"])

    def embeddings(self) -> str:
        self.batch = self.op("Shape", "input_ids", start=0, end=1)
        self.seq = self.op("Shape", "input_ids", start=1, end=2)
        length = self.config["max_position_embeddings"]
        ids = self.const("position_ids", np.arange(length, dtype=np.int64)[None])
        positions = self.op("Slice", ids, self.const("zero", [0]), self.seq, self.const("one", [1]))
        tables = [
            self.weight(f"embeddings.{n}_embeddings.weight") for n in ("word", "token_type", "position")
        ]
        parts = zip(tables, ("input_ids", "token_type_ids", positions), strict=True)
        word, kind, position = (self.op("Gather", table, index) for table, index in parts)
        return self.norm(self.op("Add", self.op("Add", word, kind), position), "embeddings.LayerNorm")

    def mask(self) -> str:
        mask = self.op("Unsqueeze", "attention_mask", self.const("axes", [1, 2]))
        one = self.const("one_f", np.float32(1))
        absent = self.op("Sub", one, self.op("Cast", mask, to=TensorProto.FLOAT))
        return self.op("Mul", absent, self.const("lowest", np.finfo(np.float32).min))

    def split_heads(self, x: str, perm: list[int]) -> str:
        size = self.const("head", [self.heads, self.width // self.heads])
        shape = self.op("Concat", self.batch, self.seq, size, axis=0)
        return self.op("Transpose", self.op("Reshape", x, shape), perm=perm)

    def attention(self, x: str, mask: str, name: str) -> str:
        query = self.split_heads(self.linear(x, f"{name}.self.query"), [0, 2, 1, 3])
        key = self.split_heads(self.linear(x, f"{name}.self.key"), [0, 2, 3, 1])
        value = self.split_heads(self.linear(x, f"{name}.self.value"), [0, 2, 1, 3])
        root = self.const("root", np.float32(math.sqrt(self.width / self.heads)))
        scores = self.op("Add", self.op("Div", self.op("MatMul", query, key), root), mask)
        mixed = self.op("MatMul", self.op("Softmax", scores, axis=-1), value)
        shape = self.op("Concat", self.batch, self.seq, self.const("width", [self.width]), axis=0)
        joined = self.op("Reshape", self.op("Transpose", mixed, perm=[0, 2, 1, 3]), shape)
        out = self.linear(joined, f"{name}.output.dense")
        return self.norm(self.op("Add", out, x), f"{name}.output.LayerNorm")

    def layer(self, x: str, mask: str, name: str) -> str:
        x = self.attention(x, mask, f"{name}.attention")
        y = self.linear(x, f"{name}.intermediate.dense")
        one, half = self.const("one_f", np.float32(1)), self.const("half", np.float32(0.5))
        erf = self.op("Erf", self.op("Div", y, self.const("sqrt2", np.float32(math.sqrt(2)))))
        y = self.op("Mul", self.op("Mul", y, self.op("Add", erf, one)), half)
        y = self.linear(y, f"{name}.output.dense")
        return self.norm(self.op("Add", y, x), f"{name}.output.LayerNorm")

    def model(self) -> onnx.ModelProto:
        x, mask = self.embeddings(), self.mask()
        for i in range(self.config["num_hidden_layers"]):
            x = self.layer(x, mask, f"encoder.layer.{i}")
        self.nodes.append(helper.make_node("Identity", [x], ["last_hidden_state"], name="result"))
        inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["batch", "seq"]) for n in INPUTS]
        shape = ["batch", "seq", self.width]
        output = helper.make_tensor_value_info("last_hidden_state", TensorProto.FLOAT, shape)
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "minilm", inputs, [output], constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def build_minilm(folder: Path) -> bytes:
    """Return the model in the folder of `packages.minilm()`."""
    config = json.loads((folder / "config.json").read_text())
    model = _Bert(load_safetensors(folder / "model.safetensors"), config).model()
    return bytes(model.SerializeToString())
