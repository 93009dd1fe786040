"""A Llama-like language model as an ONNX graph with a KV cache, from a GGUF file.

Standard operators of opset 23: RMSNormalization, RotaryEmbedding, and Attention whose heads share
keys and values (Touvron et al.: LLaMA, 2023). The cache's length is a symbol, so that one compiled
plan reads a prompt of any length (nothing in the cache) and then adds a token at a time.
Needs the `gguf` package, and `tokenizers` for text.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

Array = np.ndarray[Any, Any]
OPSET = 23


class Gguf:
    """A GGUF file: settings by key, and tensors by name, dequantized to float32."""

    def __init__(self, path: Path) -> None:
        from gguf import GGUFReader

        self._reader = GGUFReader(path)
        self._tensors = {t.name: t for t in self._reader.tensors}

    def setting(self, key: str) -> Any:
        return self._reader.fields[key].contents()

    def tensor(self, name: str) -> Array:
        from gguf.quants import dequantize

        found = self._tensors[name]
        return np.asarray(dequantize(found.data, found.tensor_type), np.float32)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors


class _Llama:
    """The graph in the making. `x` is always [1, seq, width]."""

    def __init__(self, file: Gguf) -> None:
        self.file = file
        self.layers: int = file.setting("llama.block_count")
        self.width: int = file.setting("llama.embedding_length")
        self.heads: int = file.setting("llama.attention.head_count")
        self.kv_heads: int = file.setting("llama.attention.head_count_kv")
        self.epsilon: float = file.setting("llama.attention.layer_norm_rms_epsilon")
        self.size = self.width // self.heads
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}

    def op(self, kind: str, *inputs: str, name: str, outputs: tuple[str, ...] = (), **attributes: Any) -> str:
        outputs = outputs or (name,)
        self.nodes.append(helper.make_node(kind, list(inputs), list(outputs), name=name, **attributes))
        return outputs[0]

    def const(self, name: str, value: Any) -> str:
        self.constants[name] = np.asarray(value)
        return name

    def linear(self, x: str, name: str) -> str:
        matrix = np.ascontiguousarray(self.file.tensor(f"{name}.weight").T)
        return self.op("MatMul", x, self.const(f"{name}.weight", matrix), name=name)

    def norm(self, x: str, name: str) -> str:
        scale = self.const(f"{name}.weight", self.file.tensor(f"{name}.weight"))
        return self.op("RMSNormalization", x, scale, name=name, axis=-1, epsilon=self.epsilon)

    def angles(self, positions: int) -> tuple[str, str]:
        """Cosines and sines of each position's turn, [positions, size / 2] (Su et al. 2021)."""
        base: float = self.file.setting("llama.rope.freq_base")
        speeds = base ** (-np.arange(0, self.size, 2) / self.size)
        turns = np.arange(positions)[:, None] * speeds
        cosines = self.const("cosines", np.cos(turns).astype(np.float32))
        return cosines, self.const("sines", np.sin(turns).astype(np.float32))

    def turned(self, x: str, heads: int, name: str) -> str:
        """GGUF files keep pairs of a head's elements side by side."""
        return self.op(
            "RotaryEmbedding", x, *self.tables, "positions", name=f"{name}.rotary",
            num_heads=heads, interleaved=1,
        )  # fmt: skip

    def attention(self, x: str, layer: int) -> str:
        block = f"blk.{layer}"
        q = self.turned(self.linear(x, f"{block}.attn_q"), self.heads, f"{block}.q")
        k = self.turned(self.linear(x, f"{block}.attn_k"), self.kv_heads, f"{block}.k")
        v = self.linear(x, f"{block}.attn_v")
        mixed = self.op(
            "Attention", q, k, v, "", f"past_key.{layer}", f"past_value.{layer}",
            name=f"{block}.attention",
            outputs=(f"{block}.attention", f"present_key.{layer}", f"present_value.{layer}"),
            q_num_heads=self.heads, kv_num_heads=self.kv_heads, is_causal=1,
        )  # fmt: skip
        return self.linear(mixed, f"{block}.attn_output")

    def feed_forward(self, x: str, layer: int) -> str:
        block = f"blk.{layer}"
        gate = self.linear(x, f"{block}.ffn_gate")
        swish = self.op("Mul", gate, self.op("Sigmoid", gate, name=f"{block}.sigmoid"), name=f"{block}.swish")
        both = self.op("Mul", swish, self.linear(x, f"{block}.ffn_up"), name=f"{block}.gated")
        return self.linear(both, f"{block}.ffn_down")

    def positions(self) -> None:
        """The places in the text of the tokens given: those after what the cache holds."""
        past = self.op("Shape", "past_key.0", name="past", start=2, end=3)
        count = self.op("Shape", "tokens", name="count", start=1, end=2)
        first, number = (self.op("Squeeze", s, name=f"{s}.scalar") for s in (past, count))
        end = self.op("Add", first, number, name="end")
        places = self.op("Range", first, end, self.const("step", np.int64(1)), name="range")
        self.op("Unsqueeze", places, self.const("axis", [0]), name="positions")

    def nodes_for(self, positions: int) -> None:
        self.tables = self.angles(positions)
        self.positions()
        embeddings = self.const("token_embd.weight", self.file.tensor("token_embd.weight"))
        x = self.op("Gather", embeddings, "tokens", name="embedded")
        for i in range(self.layers):
            attended = self.attention(self.norm(x, f"blk.{i}.attn_norm"), i)
            x = self.op("Add", x, attended, name=f"blk.{i}.attended")
            x = self.op("Add", x, self.feed_forward(self.norm(x, f"blk.{i}.ffn_norm"), i), name=f"blk.{i}")
        last = self.op("Gather", x, self.const("last", np.int64(-1)), name="last_token", axis=1)
        normal = self.norm(last, "output_norm")
        if "output.weight" in self.file:
            self.op("Identity", self.linear(normal, "output"), name="logits")
        else:  # the embeddings are the output's weights too
            self.op("Gemm", normal, embeddings, name="logits", transB=1)

    def model(self, positions: int) -> onnx.ModelProto:
        self.nodes_for(positions)
        make = helper.make_tensor_value_info
        vocabulary = len(self.constants["token_embd.weight"])

        def caches(prefix: str, length: str) -> list[onnx.ValueInfoProto]:
            shape = [1, self.kv_heads, length, self.size]
            names = (f"{prefix}_{part}.{i}" for i in range(self.layers) for part in ("key", "value"))
            return [make(name, TensorProto.FLOAT, shape) for name in names]

        inputs = [make("tokens", TensorProto.INT64, [1, "seq"]), *caches("past", "past")]
        outputs = [make("logits", TensorProto.FLOAT, [1, vocabulary]), *caches("present", "total")]
        constants = [numpy_helper.from_array(value, name) for name, value in self.constants.items()]
        graph = helper.make_graph(self.nodes, "llama", inputs, outputs, constants)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=11)


def build_llama(file: Gguf, positions: int = 2048) -> onnx.ModelProto:
    """Takes `tokens` int64 [1, seq] and a `past_key.I` and `past_value.I` f32 [1, heads, past, size] of
    each layer; gives the `logits` [1, vocabulary] of what follows the last token, and the
    `present_...` [1, heads, past + seq, size]. Good for texts of up to `positions` tokens."""
    return _Llama(file).model(positions)


def build_tokenizer(file: Gguf) -> Any:
    """The tokenizer inside the file, as SmolLM2 has it: byte-level BPE, each digit by itself."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = file.setting("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in file.setting("tokenizer.ggml.merges")]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    digits, words = pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    tokenizer.decoder = decoders.ByteLevel()
    kinds = file.setting("tokenizer.ggml.token_type")
    control = 3
    special = [t for t, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in special])
    return tokenizer
