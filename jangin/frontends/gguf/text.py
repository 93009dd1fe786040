"""Text to tokens and back, and conversations as text, as a GGUF file says (by the packages
tokenizers and jinja2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jangin.frontends.gguf.chat import Renderer
from jangin.frontends.gguf.file import File
from jangin.ir.graph import CompileError

CONTROL, BYTE = 3, 6
"""Kinds of tokens that are no text: marks, and single bytes."""
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
PATTERNS: Mapping[str, str | None] = {
    "default": None, "gpt-2": None, "smollm": None, "llama-bpe": LLAMA3, "llama3": LLAMA3,
    "qwen2": LLAMA3.replace("{1,3}", ""),
}  # fmt: skip
"""How text is cut into words, by `tokenizer.ggml.pre`: None as GPT-2 does."""
DIGITS = ("smollm",)
"""Where each digit is a word."""


class Text:
    """The tokenizer and the chat template of a GGUF file. CompileError for kinds that aren't known."""

    def __init__(self, path: Path) -> None:
        self._file = File(path)
        self._tokens: list[str] = self._file.setting("tokenizer.ggml.tokens")
        makers = {"gpt2": self._byte_level, "llama": self._sentence_piece}
        kind = self._file.setting("tokenizer.ggml.model")
        if kind not in makers:
            raise CompileError(
                f"{path}: a tokenizer of the kind {kind} is not supported; {', '.join(makers)} are"
            )
        self._tokenizer = makers[kind]()
        kinds = self._file.setting("tokenizer.ggml.token_type", [])
        marks = [t for t, k in zip(self._tokens, kinds, strict=False) if k == CONTROL]
        from tokenizers import AddedToken

        self._tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in marks])
        first = "tokenizer.ggml.add_bos_token"
        self._render: Renderer | None = None
        self._starts = bool(self._file.settings.get(first, kind == "llama"))

    @property
    def end(self) -> int:
        """The token that ends a text."""
        return self._file.whole("tokenizer.ggml.eos_token_id")

    def encode(self, text: str, start: bool | None = None) -> list[int]:
        """Tokens of a text; with `start` (by default as the file says) the one that begins a text before
        it."""
        found: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        begins = self._starts if start is None else start
        return [self._file.whole("tokenizer.ggml.bos_token_id"), *found] if begins else found

    def decode(self, tokens: Sequence[int], marks: bool = False) -> str:
        """The text of tokens, with those that are no text where `marks` says so."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=not marks)
        return text

    def chat(self, messages: Iterable[Mapping[str, str]]) -> str:
        """A conversation ({"role": "user", "content": "..."}) as the text that an assistant goes on with.
        Raises CompileError where the template is wrong, refuses the conversation, or comes to no end."""
        if self._render is None:
            self._render = Renderer(self._file.setting("tokenizer.chat_template"))
        marks = {
            f"{n}_token": self._mark(f"tokenizer.ggml.{n}_token_id") for n in ("bos", "eos", "unk", "pad")
        }
        return self._render({"messages": list(messages), "add_generation_prompt": True, **marks})

    def _mark(self, key: str) -> str:
        at = self._file.settings.get(key)
        return self._tokens[at] if isinstance(at, int) and 0 <= at < len(self._tokens) else ""

    def _byte_level(self) -> Any:
        """BPE over bytes that stand for letters (Radford et al. 2019)."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        pre = self._file.settings.get("tokenizer.ggml.pre", "default")
        if pre not in PATTERNS:
            raise CompileError(f"words cut as {pre} does are not supported; {', '.join(PATTERNS)} are")
        merges = [tuple(m.split(" ", 1)) for m in self._file.setting("tokenizer.ggml.merges")]
        tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(self._tokens)}, merges))
        pattern = PATTERNS[pre]
        cuts: list[Any] = [pre_tokenizers.Digits(individual_digits=True)] if pre in DIGITS else []
        if pattern is not None:
            cuts.append(pre_tokenizers.Split(Regex(pattern), "isolated"))
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentence_piece(self) -> Any:
        """Pieces with scores: of two that can be joined, those whose whole scores best are first."""
        from tokenizers import Tokenizer, decoders, models, normalizers

        scores: list[float] = self._file.setting("tokenizer.ggml.scores")
        places = {t: i for i, t in enumerate(self._tokens)}
        merges = [
            (scores[i], -i, (t[:n], t[n:]))
            for t, i in places.items()
            for n in range(1, len(t))
            if t[:n] in places and t[n:] in places
        ]
        merges.sort(key=lambda m: m[:2], reverse=True)
        unknown = self._mark("tokenizer.ggml.unknown_token_id") or None
        tokenizer = Tokenizer(
            models.BPE(places, [m[2] for m in merges], unk_token=unknown, fuse_unk=True, byte_fallback=True)
        )
        space = (
            [normalizers.Prepend("▁")]
            if self._file.settings.get("tokenizer.ggml.add_space_prefix", True)
            else []
        )
        tokenizer.normalizer = normalizers.Sequence([*space, normalizers.Replace(" ", "▁")])
        strip = [decoders.Strip(" ", 1, 0)] if space else []
        tokenizer.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), *strip]
        )
        return tokenizer
