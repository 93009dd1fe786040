"""Export 12 transformer architectures to ONNX, tiny and with seeded weights, with PyTorch's answers.

All variable sizes are symbols: batch and sequence, or only the batch for pictures. NAME.npz beside NAME.onnx
has inputs of several sizes and PyTorch's results. `tests/models/test_architectures.py` compares with them.
The script needs torch and transformers, as `make_models.py` does:

    .venv-export/bin/python benchmarks/architectures.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import transformers as tf
from catalogue import MODELS

FOLDER = MODELS / "architectures"
SEED, OPSET = 0, 20
VOCABULARY, WIDTH, LAYERS, HEADS, INNER = 97, 32, 2, 4, 64
SIZES = ((2, 7), (1, 16), (3, 5))
"""Pairs of batch and sequence. The first pair is the exporter's example."""
Inputs = dict[str, torch.Tensor]


class Output(torch.nn.Module):
    """A model of the library that takes its inputs by position and returns one tensor of its output."""

    def __init__(self, model: Any, names: tuple[str, ...], output: str) -> None:
        super().__init__()
        model.config.use_cache = False
        self.model, self.names, self.output = model, names, output

    def forward(self, *inputs: Any) -> Any:
        named = dict(zip(self.names, inputs, strict=True))
        return getattr(self.model(**named), self.output)


def text(batch: int, seq: int, mask: bool = True) -> Inputs:
    """Return token ids. The mask hides the end of all rows but the first."""
    made = {"input_ids": torch.randint(3, VOCABULARY, (batch, seq))}
    if mask:
        made["attention_mask"] = torch.ones(batch, seq, dtype=torch.int64)
        made["attention_mask"][1:, seq - 2 :] = 0
    return made


def tokens(batch: int, seq: int) -> Inputs:
    return text(batch, seq, mask=False)


def picture(batch: int, seq: int) -> Inputs:
    return {"pixel_values": torch.rand(batch, 3, 32, 32)}


def sound(batch: int, seq: int) -> Inputs:
    return {"input_features": torch.rand(batch, 16, 40)}


@dataclass(frozen=True)
class Architecture:
    model: Callable[[], Any]
    inputs: Callable[[int, int], Inputs] = text
    output: str = "last_hidden_state"
    axes: Mapping[int, str] = field(default_factory=lambda: {0: "batch", 1: "seq"})


ENCODER = {
    "vocab_size": VOCABULARY, "hidden_size": WIDTH, "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS, "intermediate_size": INNER, "max_position_embeddings": 64,
}  # fmt: skip
DECODER = {**ENCODER, "num_key_value_heads": 2}
BATCH = {0: "batch"}


def whisper_encoder() -> Any:
    config = tf.WhisperConfig(
        d_model=WIDTH, encoder_layers=LAYERS, decoder_layers=1, encoder_attention_heads=HEADS,
        decoder_attention_heads=HEADS, encoder_ffn_dim=INNER, decoder_ffn_dim=INNER,
        num_mel_bins=16, max_source_positions=20, vocab_size=VOCABULARY,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
    )  # fmt: skip
    return tf.WhisperModel(config).get_encoder()


ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": Architecture(lambda: tf.BertModel(tf.BertConfig(**ENCODER))),
    "roberta": Architecture(lambda: tf.RobertaModel(tf.RobertaConfig(**ENCODER))),
    "distilbert": Architecture(
        lambda: tf.DistilBertModel(
            tf.DistilBertConfig(
                vocab_size=VOCABULARY, dim=WIDTH, n_layers=LAYERS, n_heads=HEADS, hidden_dim=INNER
            )
        )
    ),
    "albert": Architecture(lambda: tf.AlbertModel(tf.AlbertConfig(**ENCODER, embedding_size=16))),
    "gpt2": Architecture(
        lambda: tf.GPT2LMHeadModel(
            tf.GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64)
        ),
        tokens,
        "logits",
    ),
    "llama": Architecture(lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**DECODER)), tokens, "logits"),
    "mistral": Architecture(
        lambda: tf.MistralForCausalLM(tf.MistralConfig(**DECODER, sliding_window=4)), tokens, "logits"
    ),
    "qwen2": Architecture(lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**DECODER)), text, "logits"),
    "t5_encoder": Architecture(
        lambda: tf.T5EncoderModel(
            tf.T5Config(
                vocab_size=VOCABULARY,
                d_model=WIDTH,
                d_kv=8,
                d_ff=INNER,
                num_layers=LAYERS,
                num_heads=HEADS,
                attn_implementation="eager",
            )
        )
    ),
    "vit": Architecture(
        lambda: tf.ViTModel(
            tf.ViTConfig(
                hidden_size=WIDTH,
                num_hidden_layers=LAYERS,
                num_attention_heads=HEADS,
                intermediate_size=INNER,
                image_size=32,
                patch_size=8,
            )
        ),
        picture,
        axes=BATCH,
    ),
    "clip_text": Architecture(
        lambda: tf.CLIPTextModel(tf.CLIPTextConfig(**ENCODER, bos_token_id=1, eos_token_id=2))
    ),
    "whisper_encoder": Architecture(whisper_encoder, sound, axes=BATCH),
}


def export(name: str) -> None:
    entry = ARCHITECTURES[name]
    torch.manual_seed(SEED)
    example = entry.inputs(*SIZES[0])
    model = Output(entry.model().eval(), tuple(example), entry.output).eval()
    axes = dict.fromkeys(entry.axes, torch.export.Dim.DYNAMIC)
    part = FOLDER / f"{name}.part"
    torch.onnx.export(
        model, tuple(example.values()), part, input_names=list(example), output_names=["output"],
        dynamic_shapes=((axes,) * len(example),), opset_version=OPSET, dynamo=True, external_data=False,
    )  # fmt: skip
    arrays: dict[str, Any] = {}
    for i, size in enumerate(SIZES):
        inputs = entry.inputs(*size)
        with torch.no_grad():
            arrays[f"{i}.output"] = model(*inputs.values()).numpy()
        arrays |= {f"{i}.{k}": v.numpy() for k, v in inputs.items()}
    np.savez_compressed(FOLDER / f"{name}.npz", **arrays)
    part.rename(FOLDER / f"{name}.onnx")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", help="which (default: all)", default=list(ARCHITECTURES))
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in parser.parse_args().names:
        start = time.perf_counter()
        export(name)
        print(f"{name}: {time.perf_counter() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()
