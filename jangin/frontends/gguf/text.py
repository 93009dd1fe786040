"""Convert text to tokens and back, and conversations to text, as a GGUF file defines (by the packages
tokenizers and jinja2)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from jangin.frontends.gguf.chat import Renderer
from jangin.frontends.gguf.file import File
from jangin.frontends.gguf.words import DEFAULT, WORDS, Words
from jangin.ir.graph import CompileError
from jangin.once import once

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4
"""Types of tokens by llama.cpp's numbers. Tokens of the last three types are found in a text before the text
is split into words."""
ENDS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<end_of_turn>",
    "<|endoftext|>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]", "<｜end▁of▁sentence｜>",
    "<end_of_utterance>",
)  # fmt: skip
"""Names of the tokens that end an answer, in the models' published vocabularies. Files rarely list their
numbers."""
END_KEYS = ("eos", "eot", "eom")
"""The settings `tokenizer.ggml.KEY_token_id` with the tokens that end a text, a turn or a message."""
MARKS = {
    "bos": "bos", "eos": "eos", "unk": "unknown", "sep": "seperator", "pad": "padding", "cls": "cls",
    "mask": "mask",
}  # fmt: skip
"""The names NAME_token in templates, without the ending, and their keys in files. One key is misspelt
there."""


class Text:
    """The tokenizer and the chat template of a GGUF file. Raises CompileError for an unknown kind of
    tokenizer."""

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
        self._add_marks()
        self._templates: dict[str, Renderer] = {}
        words = self._words() if kind == "gpt2" else None
        starts = words.starts if words is not None else True
        self._starts = bool(self._file.settings.get("tokenizer.ggml.add_bos_token", starts))
        self._closes = bool(self._file.settings.get("tokenizer.ggml.add_eos_token", False))

    def _add_marks(self) -> None:
        """Add the control tokens and user-defined tokens, which the tokenizer then finds anywhere in a
        text."""
        from tokenizers import AddedToken

        kinds = self._file.setting("tokenizer.ggml.token_type", [])
        for token, kind in zip(self._tokens, kinds, strict=False):
            if token and kind in (UNKNOWN, CONTROL):
                self._tokenizer.add_special_tokens([AddedToken(token, normalized=False, special=True)])
            elif token and kind == USER_DEFINED:
                self._tokenizer.add_tokens([AddedToken(token, normalized=False, special=False)])

    @once
    def ends(self) -> frozenset[int]:
        """The numbers of the tokens that end an answer, because they end a text, a turn or a message."""
        numbered = (self._file.settings.get(f"tokenizer.ggml.{k}_token_id") for k in END_KEYS)
        numbers = {n for n in numbered if isinstance(n, int) and 0 <= n < len(self._tokens)}
        kinds = self._file.setting("tokenizer.ggml.token_type", [])
        marks = {t for t, k in zip(self._tokens, kinds, strict=False) if k in (CONTROL, USER_DEFINED)}
        return frozenset(numbers | {i for i, t in enumerate(self._tokens) if t in ENDS and t in marks})

    def encode(self, text: str, start: bool | None = None) -> list[int]:
        """Return the numbers of a text's tokens.

        By default the file decides if the tokens that begin and end a text are added. If `start` is given, it
        decides about the first, and the last isn't added."""
        tokens: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        if self._starts if start is None else start:
            tokens.insert(0, self._file.whole("tokenizer.ggml.bos_token_id"))
        if self._closes and start is None:
            tokens.append(self._file.whole("tokenizer.ggml.eos_token_id"))
        return tokens

    def decode(self, tokens: Sequence[int], marks: bool = False) -> str:
        """Return the text of the tokens with these numbers. Control tokens are included only with `marks`."""
        text: str = self._tokenizer.decode(list(tokens), skip_special_tokens=not marks)
        return text

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = True,
        **names: Any,
    ) -> str:
        """Return the text that an assistant continues, given a conversation ({"role": "user", "content":
        "..."}).

        The template gets the arguments of `apply_chat_template` in Transformers: `tools` (JSON schemas of
        functions), `documents`, whether an answer is to begin, and further `names`. Raises CompileError if
        the template is wrong, refuses the conversation, or doesn't end."""  # fmt: skip
        template = self._template("tool_use" if tools else "rag" if documents else "")
        marks = {f"{n}_token": self._mark(f"tokenizer.ggml.{key}_token_id") for n, key in MARKS.items()}
        context = {
            "messages": list(messages), "tools": tools, "documents": documents,
            "add_generation_prompt": add_generation_prompt,
        }  # fmt: skip
        return template({**{n: t for n, t in marks.items() if t is not None}, **context, **names})

    def _template(self, name: str) -> Renderer:
        """Return the renderer of the template with this name, or of the default template if the file has none
        of this name."""
        key = f"tokenizer.chat_template.{name}"
        if not name or key not in self._file.settings:
            key = "tokenizer.chat_template"
        if key not in self._templates:
            self._templates[key] = Renderer(self._file.setting(key))
        return self._templates[key]

    def _mark(self, key: str) -> str | None:
        at = self._file.settings.get(key)
        return self._tokens[at] if isinstance(at, int) and 0 <= at < len(self._tokens) else None

    def _words(self) -> Words:
        """Return the way in which the file splits text into words. Raises CompileError for an unknown way."""
        name = self._file.settings.get("tokenizer.ggml.pre", DEFAULT)
        if name not in WORDS:
            raise CompileError(
                f"{self._file.path}: tokenizer.ggml.pre is {name!r}, which is not supported; "
                f"{', '.join(WORDS)} are"
            )
        return WORDS[name]

    def _byte_level(self) -> Any:
        """Return a BPE tokenizer over bytes, each of which stands for a letter (Radford et al. 2019)."""
        from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

        words = self._words()
        tokens = {t: i for i, t in enumerate(self._tokens)}
        pairs = [m.partition(" ")[::2] for m in self._file.setting("tokenizer.ggml.merges")]
        merges = [(a, b) for a, b in pairs if a in tokens and b in tokens and a + b in tokens]
        tokenizer = Tokenizer(models.BPE(tokens, merges, ignore_merges=words.whole))
        cuts: list[Any] = [pre_tokenizers.Split(Regex(cut), "isolated") for cut in words.cuts]
        cuts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence(cuts)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentence_piece(self) -> Any:
        """Return a BPE tokenizer of pieces with scores. If several pairs can be merged, the one whose result
        has the highest score comes first."""
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
        unknown = self._mark("tokenizer.ggml.unknown_token_id")
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
