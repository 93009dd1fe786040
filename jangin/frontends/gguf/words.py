"""The ways in which byte-level tokenizers split text into words before merging pairs, by
`tokenizer.ggml.pre`.

The regular expressions are those of the models' published tokenizers. Each one splits the pieces of the one
before it into its matches and the text between them."""

from __future__ import annotations

from collections.abc import Mapping

from jangin.ir.records import dataclass

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SUFFIX = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
LLAMA3 = rf"{_SUFFIX}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}"
QWEN2 = LLAMA3.replace("{1,3}", "")
_UPPER, _LOWER = r"\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}", r"\p{Ll}\p{Lm}\p{Lo}\p{M}"
_CASED = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]*[{_LOWER}]+{{0}}|[^\r\n\p{{L}}\p{{N}}]?[{_UPPER}]+[{_LOWER}]*{{0}}"
)
_MARKS = rf" ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_SPACES}"
GPT4O = rf"{_CASED.replace('{0}', f'{_SUFFIX}?')}|\p{{N}}{{1,3}}|{_MARKS}"
TEKKEN = rf"{_CASED.replace('{0}', '')}|\p{{N}}|{_MARKS}"
DEEPSEEK3 = (
    r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
)  # fmt: skip
_SIGNS = r"\p{P}\$\+<=>\^~\|"
_THREES = "[0-9][0-9][0-9]"


@dataclass(frozen=True)
class Words:
    """A way to split text into words.

    `cuts` are regular expressions, applied in order. With `whole`, a word that is a token isn't built by
    merging pairs. With `starts`, a text begins with the beginning token, unless the file says otherwise."""

    cuts: tuple[str, ...]
    whole: bool = False
    starts: bool = False


_BY_GPT2, _BY_DIGIT, _BY_QWEN2 = Words((GPT2,)), Words((r"\p{N}", GPT2)), Words((QWEN2,))
_BY_LLAMA3, _BY_DBRX = Words((LLAMA3,), whole=True, starts=True), Words((LLAMA3,))

DEFAULT = "default"
"""The name that counts if a file has none, as in llama.cpp."""
WORDS: Mapping[str, Words] = {
    DEFAULT: Words((rf"[{_SIGNS}]+", GPT2, r"\p{N}+", _THREES)),
    "falcon": Words((rf"[{_SIGNS}`]+", GPT2, _THREES)),
    **dict.fromkeys(("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat"), _BY_GPT2),
    **dict.fromkeys(
        ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"), _BY_DIGIT
    ),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "falcon3", "pixtral"), _BY_LLAMA3),
    **dict.fromkeys(("dbrx", "smaug-bpe"), _BY_DBRX),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "stablelm2", "megrez"), _BY_QWEN2),
    "deepseek-v3": Words(DEEPSEEK3),
    **dict.fromkeys(("gpt-4o", "llama4"), Words((GPT4O,))),
    "tekken": Words((TEKKEN,), whole=True, starts=True),
}  # fmt: skip
