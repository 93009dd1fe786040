"""Import LLaMA-like networks from GGUF files as graphs of ggml's operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.gguf.file import File
from jangin.ir import limits
from jangin.ir.dtype import F32, I8, I64, DType
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.records import dataclass
from jangin.ir.sources import Sources


@dataclass(frozen=True)
class Family:
    """An architecture's difference from LLaMA. With `halves`, the two elements of a rotated pair are in the
    two halves of a head. Otherwise they are neighbours."""

    halves: bool = False


FAMILIES = {"llama": Family(), "qwen2": Family(halves=True), "qwen3": Family(halves=True)}
"""Architectures by `general.architecture`. The files of Mistral, SmolLM and TinyLlama have the value
llama."""
READ = {
    "attention.head_count",
    "attention.head_count_kv",
    "attention.key_length",
    "attention.layer_norm_rms_epsilon",
    "attention.value_length",
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "rope.dimension_count",
    "rope.freq_base",
    "rope.scale_linear",
    "rope.scaling.attn_factor",
    "rope.scaling.factor",
    "rope.scaling.type",
}
"""Settings of an architecture that the importer reads or checks against the tensors."""
WITHOUT_EFFECT = {
    "rope.scaling.finetuned",
    "rope.scaling.original_context_length",
    "tensor_data_layout",
    "vocab_size",
}
"""Settings that change no result of these architectures."""
OFF: Mapping[str, Any] = {
    "attention.causal": True, "attention.clamp_kqv": 0, "attention.max_alibi_bias": 0,
    "attention.sliding_window": 0, "expert_count": 0, "expert_used_count": 0, "pooling_type": 0,
    "use_parallel_residual": False,
}  # fmt: skip
"""Settings that are supported only with this value."""


class Llama:
    """The graph of a network while it is imported. A value `x` is always [1, seq, width].

    `cache` is the type of the cached keys and values. With `rounded`, the operands of blockwise quantized
    weights are rounded to 8 bits."""

    def __init__(self, file: File, cache: DType = F32, rounded: bool = False) -> None:
        self.file, self.cache, self.rounded = file, cache, rounded
        self.kind: str = file.setting("general.architecture")
        if self.kind not in FAMILIES:
            known = ", ".join(FAMILIES)
            raise CompileError(f"{file.path} is of architecture {self.kind}; those supported are {known}")
        self._refuse_unknown()
        self.layers = self._whole("block_count")
        self.width = self._whole("embedding_length")
        self.heads = self._each("attention.head_count")
        self.kv_heads = self._each("attention.head_count_kv", self.heads)
        self.epsilon = float(file.number(f"{self.kind}.attention.layer_norm_rms_epsilon"))
        if min(self.layers, self.width, self.heads, self.kv_heads) < 1 or self.heads % self.kv_heads:
            raise CompileError(
                f"{file.path} has {self.heads} heads of queries and {self.kv_heads} of keys, which must "
                "divide them"
            )
        self.size = self._whole("attention.key_length", self.width // self.heads)
        if self._whole("attention.value_length", self.size) != self.size:
            raise CompileError(f"{file.path}: keys and values of different lengths are not supported")
        self.context = self._whole("context_length")
        self._check()
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}

    def _refuse_unknown(self) -> None:
        """Raise CompileError for a setting of the architecture that is neither read nor known to have no
        effect."""
        for key, value in self.file.settings.items():
            name = key.removeprefix(f"{self.kind}.")
            if name == key or name in READ or name in WITHOUT_EFFECT:
                continue
            if name not in OFF or OFF[name] != value:
                raise CompileError(f"{self.file.path}: {key} = {value!r:.80} is not supported")

    def _each(self, key: str, default: int | None = None) -> int:
        """Return a setting that a file may have as one number or as a list with a number for each block.
        Raises CompileError if blocks differ."""
        numbers = self.file.settings.get(f"{self.kind}.{key}")
        if not isinstance(numbers, list):
            return self._whole(key, default)
        if len(numbers) != self.layers or len({*numbers}) != 1:
            raise CompileError(
                f"{self.file.path}: {self.kind}.{key} = {numbers!r:.80} is not supported; its {self.layers} "
                "blocks must have the same number"
            )
        return self.file.in_range(f"{self.kind}.{key}", numbers[0])

    def _check(self) -> None:
        """Raise CompileError if the settings don't fit the file's tensors. This is checked before memory is
        allocated by the settings."""
        path, rows = self.file.path, self.file.shape("blk.0.attn_q.weight")[0]
        if self.layers > len(self.file):
            raise CompileError(
                f"{path} has {self.layers} blocks by its settings, but only {len(self.file)} tensors"
            )
        if rows != self.heads * self.size:
            raise CompileError(
                f"{path} has {self.heads} heads of {self.size} by its settings, but queries of {rows} rows"
            )

    def _whole(self, key: str, default: int | None = None) -> int:
        return self.file.whole(f"{self.kind}.{key}", default)

    def imported(self, shapes: ShapeBindings) -> Graph:
        """Return the graph of one call.

        Inputs are `tokens` [1, seq], and `past_key.I` and `past_value.I` [1, past, heads, size] of each layer
        I. A cache of int8 adds `past_key_scale.I` and `past_value_scale.I` [1, past, heads].

        Outputs are the `logits` [1, vocabulary] of the token after the last, and the new tokens' `new_key.I`
        and so on, of `seq` positions. A caller that stores them behind the past in one array copies nothing
        of the past."""
        symbols = Symbols({"seq": (1, self.context), "past": (0, self.context - 1), **shapes})
        names = [f"{part}.{i}" for i in range(self.layers) for part in self._kept]
        inputs = [Value("tokens", I64, symbols.shape("tokens", [1, "seq"]))]
        rows: list[int | str] = [1, "past", self.kv_heads]
        for name in names:
            dtype, shape = (F32, rows) if "_scale" in name else (self.cache, [*rows, self.size])
            inputs.append(Value(f"past_{name}", dtype, symbols.shape(f"past_{name}", shape)))
        self._network()
        outputs = ["logits", *(f"new_{n}" for n in names)]
        name = str(self.file.settings.get("general.name", self.kind))
        return model_graph(name, inputs, outputs, self.nodes, self.constants, symbols)

    @property
    def _kept(self) -> list[str]:
        """The names of the parts of one layer's cache."""
        return ["key", "value", *(["key_scale", "value_scale"] if self.cache is I8 else [])]

    def _network(self) -> None:
        self._angles()
        embeddings = self._weights("token_embd.weight")
        x = self._op("get_rows", "token_embd", [embeddings[0], "tokens"], **embeddings[1])
        for i in range(self.layers):
            x = self._block(x, f"blk.{i}", i)
        last = self._op("view", "last_token", [x])
        normal = self._norm(last, "output_norm")
        shared = "output.weight" not in self.file
        self._linear(normal, "token_embd" if shared else "output", "logits")

    def _block(self, x: str, block: str, i: int) -> str:
        attended = self._attention(self._norm(x, f"{block}.attn_norm"), block, i)
        x = self._op("add", f"{block}.attended", [x, attended])
        normal = self._norm(x, f"{block}.ffn_norm")
        gate, up = (self._linear(normal, f"{block}.ffn_{part}") for part in ("gate", "up"))
        both = self._op("swiglu", f"{block}.ffn_swiglu", [gate, up])
        return self._op("add", f"{block}.out", [x, self._linear(both, f"{block}.ffn_down")])

    def _attention(self, x: str, block: str, i: int) -> str:
        parts = {}
        for part, heads in (("q", self.heads), ("k", self.kv_heads), ("v", self.kv_heads)):
            parts[part] = self._linear(x, f"{block}.attn_{part}", heads=heads)
            if f"{block}.attn_{part}_norm.weight" in self.file:
                parts[part] = self._norm(parts[part], f"{block}.attn_{part}_norm")
        for part in "qk":
            pair = [parts[part], "rope.cosines", "rope.sines", "tokens", "past_key.0"]
            parts[part] = self._op("rope", f"{block}.{part}_rope", pair, halves=FAMILIES[self.kind].halves)
        inputs = [*parts.values(), *(f"past_{part}.{i}" for part in self._kept)]
        outputs = [f"{block}.attended_values", *(f"new_{part}.{i}" for part in self._kept)]
        mixed = self._op("flash_attn_ext", outputs[0], inputs, outputs, cache=self.cache)
        return self._linear(mixed, f"{block}.attn_output")

    # -- nodes ----------------------------------------------------------------------------------

    def _op(
        self, kind: str, name: str, inputs: Sequence[str], outputs: Sequence[str] = (), **attrs: Any
    ) -> str:
        names = tuple(outputs) or (name,)
        key = ImportedAttributes(f"ggml.{kind}", attrs)
        self.nodes.append(Node(name, tuple(inputs), names, key, Sources.of(kind, name)))
        return names[0]

    def _weights(self, name: str) -> tuple[str, dict[str, Any]]:
        """Add a tensor as a constant. Return its name, and the attributes that describe its blocks."""
        kind, data = self.file.blocks(name)
        self.constants[name] = data
        return name, {"type": kind, "width": self.file.shape(name)[-1]}

    def _linear(self, x: str, name: str, output: str = "", heads: int = 0) -> str:
        weights, kind = self._weights(f"{name}.weight")
        inputs = [x, weights]
        if f"{name}.bias" in self.file:
            inputs.append(self._floats(f"{name}.bias"))
        return self._op("mul_mat", output or name, inputs, heads=heads, rounded=self.rounded, **kind)

    def _norm(self, x: str, name: str) -> str:
        return self._op("rms_norm", name, [x, self._floats(f"{name}.weight")], epsilon=self.epsilon)

    def _floats(self, name: str) -> str:
        kind, data = self.file.blocks(name)
        if kind not in ("F32", "F16"):
            raise CompileError(f"tensor {name} is of type {kind}, and should be floats")
        self.constants[name] = data.astype(np.float32, copy=False)
        return name

    def _angles(self) -> None:
        """Add constants with the cosines and sines of each position's rotation, [positions, pairs] (Su et al.
        2021)."""
        width = self._whole("rope.dimension_count", self.size)
        if width > self.size:
            raise CompileError(
                f"{self.file.path} rotates {width} elements of each head, which has only {self.size}"
            )
        limits.at(f"the positions of {self.kind}.context_length = {self.context}")
        limits.room((self.context, width // 2))
        speeds = self.file.number(f"{self.kind}.rope.freq_base", 10000.0) ** (-np.arange(0, width, 2) / width)
        if "rope_freqs.weight" in self.file:
            speeds = speeds / self.file.blocks("rope_freqs.weight")[1].astype(np.float64)
        speeds = speeds / self._stretch()
        turns = np.arange(self.context)[:, None] * speeds
        size = self.file.number(f"{self.kind}.rope.scaling.attn_factor", 1.0)
        self.constants["rope.cosines"] = (np.cos(turns) * size).astype(np.float32)
        self.constants["rope.sines"] = (np.sin(turns) * size).astype(np.float32)

    def _stretch(self) -> float:
        """Return the factor by which positions are divided. As in llama.cpp, a factor without a type is
        linear."""
        scaling = self.file.settings.get(f"{self.kind}.rope.scaling.type", "linear")
        if scaling == "none":
            return 1.0
        if scaling != "linear":
            raise CompileError(f"{self.file.path}: positions scaled by {scaling} are not supported")
        old = self.file.number(f"{self.kind}.rope.scale_linear", 0.0)
        return self.file.number(f"{self.kind}.rope.scaling.factor", old) or 1.0
