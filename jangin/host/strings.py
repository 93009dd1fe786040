"""Host functions on text: arrays of Python strings. They implement the string operators of ONNX and
TensorFlow Lite.

Regular expressions are RE2's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def concat(x: Array, y: Array) -> Array:
    return np.asarray(x + y, object)


def pick(*values: Array) -> Array:
    """Pick elements of several texts. The last argument has positions, which count through all texts."""
    *texts, positions = values
    elements = np.concatenate([t.reshape(-1) for t in texts])[positions.reshape(-1)]
    return np.asarray(elements.reshape(positions.shape))


def equal(x: Array, y: Array) -> Array:
    return np.asarray(x == y, bool)


def to_text(x: Array) -> Array:
    """Convert numbers to text as ONNX does: the shortest text that reads back as the same number."""
    return np.array([str(v) for v in x.reshape(-1)], object).reshape(x.shape)


def to_number(x: Array, *, dtype: str) -> Array:
    kind = np.dtype(dtype)
    parse: Callable[[str], Any] = float if kind.kind == "f" else int
    return np.array([parse(v) for v in x.reshape(-1)], kind).reshape(x.shape)


def split(x: Array, *, delimiter: str = "", maxsplit: int | None = None) -> tuple[Array, Array]:
    """Return the parts of each text, padded with "", and their count."""
    most = -1 if maxsplit is None else maxsplit
    parts = [v.split(delimiter or None, most) for v in x.reshape(-1)]
    width = max(map(len, parts), default=0)
    padded = np.full((len(parts), width), "", object)
    for i, row in enumerate(parts):
        padded[i, : len(row)] = row
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    return padded.reshape(*x.shape, width), counts


def normalize(
    x: Array, *, case_change_action: str, is_case_sensitive: int, stopwords: Sequence[str]
) -> Array:
    """Return the words that are no stop words, in another case."""
    fold: Callable[[str], str] = str if is_case_sensitive else str.casefold
    stops = {fold(w) for w in stopwords}
    change: Callable[[str], str] = {"LOWER": str.lower, "UPPER": str.upper}.get(case_change_action, str)
    kept = [change(w) for w in x.reshape(-1) if fold(w) not in stops] or [""]
    return np.array(kept, object).reshape(*x.shape[:-1], -1)


def full_match(x: Array, *, pattern: str) -> Array:
    compiled = _expression(pattern)
    return np.array([compiled.fullmatch(v) is not None for v in x.reshape(-1)], bool).reshape(x.shape)


def _expression(pattern: str, *, longest: bool = False) -> Any:
    """Compile a regular expression by RE2, which takes time linear in the text. Python's own expressions may
    take exponential time."""
    try:
        import re2
    except ModuleNotFoundError:
        raise ValueError("regular expressions need RE2: pip install 'jangin[text]'") from None
    options = re2.Options()
    options.log_errors = False
    options.longest_match = longest
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        raise ValueError(f"{pattern!r} is no regular expression of RE2: {error}") from None


START_OF_TEXT, END_OF_TEXT = "\x02", "\x03"


def tokenize(
    x: Array, *, mark: bool, pad: str, shortest: int, separators: Sequence[str], expression: str
) -> Array:
    """Return each text's parts, padded with `pad`, as ONNX Runtime's Tokenizer does. Parts of fewer than
    `shortest` characters are left out."""
    if list(separators) == [""]:
        rows = [list(text) for text in x.reshape(-1)]
    elif separators:
        rows = [[text] for text in x.reshape(-1)]
        for pattern in separators:
            regex = _expression(pattern, longest=True)
            rows = [[part for text in row for part in _between(regex, text, shortest)] for row in rows]
    else:
        regex = _expression(expression, longest=True)
        rows = [[m[0] for m in regex.finditer(text) if len(m[0]) >= shortest] for text in x.reshape(-1)]
    ends = ([START_OF_TEXT], [END_OF_TEXT]) if mark and any(rows) else ([], [])
    marked = [[*ends[0], *row, *ends[1]] for row in rows]
    width = max(map(len, marked), default=0)
    filled = [[*row, *[pad] * (width - len(row))] for row in marked]
    return np.array(filled, object).reshape(*x.shape, width)


def _between(separator: Any, text: str, shortest: int) -> list[str]:
    """Return the parts of the text between the matches.

    An empty match also consumes the character that follows it."""
    parts, start = list[str](), 0
    for match in separator.finditer(text):
        if match.start() >= start:
            parts.append(text[start : match.start()])
            start = max(match.end(), match.start() + 1)
    return [part for part in (*parts, text[start:]) if len(part) >= shortest]


def tf_idf(
    x: Array, *, mode: str, pool: Sequence[Any], starts: Sequence[int], indexes: Sequence[int],
    weights: Sequence[float], shortest: int, longest: int, skips: int,
) -> Array:  # fmt: skip
    """Return the weighted count of each n-gram of the pool in each row.

    The items of an n-gram lie `skip` + 1 apart, for every skip up to `skips`."""
    columns = _pool(pool, starts)
    size = max(indexes) + 1
    out = np.zeros((*x.shape[:-1], size), np.float32)
    counted = out.reshape(-1, size)
    for row, counts in zip(x.reshape(len(counted), x.shape[-1]), counted, strict=True):
        items = row.tolist()
        for n in range(shortest, min(longest, len(starts), len(items)) + 1):
            furthest = (len(items) - 1) // (n - 1) if n > 1 else 1  # with more skips no n-gram fits
            for step in range(1, min(skips + 1, furthest) + 1):
                for first in range(len(items) - (n - 1) * step):
                    at = columns.get(tuple(items[first : first + n * step : step]))
                    if at is not None:
                        counts[indexes[at]] += 1
    scale = np.ones(size, np.float32)
    if weights:
        scale[list(indexes)] = weights
    return out if mode == "TF" else (out > 0) * scale if mode == "IDF" else out * scale


def _pool(pool: Sequence[Any], starts: Sequence[int]) -> Mapping[tuple[Any, ...], int]:
    """Return each n-gram's number. The pool has all n-grams of one item, then all of two, and so on."""
    numbers: dict[tuple[Any, ...], int] = {}
    for n, (start, end) in enumerate(zip(starts, [*starts[1:], len(pool)], strict=True), 1):
        for at in range(start, end, n):
            numbers.setdefault(tuple(pool[at : at + n]), len(numbers))
    return numbers


def encode(x: Array, *, keys: Sequence[Any], values: Sequence[Any], default: Any, dtype: str) -> Array:
    """Return the value of each element as a key, or the default."""
    table = dict(zip(map(_key, keys), values, strict=True))
    entries = [table.get(_key(v), default) for v in x.reshape(-1).tolist()]
    return np.array(entries, dtype).reshape(x.shape)


def _key(value: Any) -> Any:
    return "nan" if value != value else value


SPACES = frozenset(" \t\n\v\f\r")


def skip_gram(x: Array, *, size: int, skips: int, shorter: bool) -> Array:
    """Return groups of `size` words of one text in order, with at most `skips` words left out between two, as
    TensorFlow Lite's SKIP_GRAM does.

    With `shorter`, smaller groups are included."""
    words = _words(x.reshape(-1)[0])
    groups: list[str] = []

    def grow(chosen: list[int]) -> None:
        if len(chosen) < size:
            for following in range(chosen[-1] + 1, min(chosen[-1] + 2 + skips, len(words))):
                grow([*chosen, following])
        if shorter or len(chosen) == size:
            groups.append(" ".join(words[i] for i in chosen))

    for first in range(len(words) if len(words) >= size else 0):
        grow([first])
    return np.array(groups, object)


def _words(text: str) -> list[str]:
    """Split a text as TensorFlow Lite does. A space at the very beginning belongs to the first word, which is
    left out if another word follows."""
    words, start = [], 0
    for i in range(1, len(text)):
        if text[i] in SPACES:
            if i > start and text[start] not in SPACES:
                words.append(text[start:i])
            start = i + 1
    return [*words, text[start:]] if start < len(text) else words


def zip_map(x: Array, *, labels: Sequence[Any]) -> list[dict[Any, float]]:
    """Return a dictionary of each row's numbers by label. Numbers are Python's floats, so that JSON can hold
    them."""
    rows = x.reshape(1, -1) if x.ndim == 1 else x
    return [dict(zip(labels, row, strict=True)) for row in rows.tolist()]


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "StringConcat": concat,
    "StringEqual": equal,
    "Pick": pick,
    "StringOf": to_text,
    "NumberOf": to_number,
    "StringSplit": split,
    "StringNormalizer": normalize,
    "RegexFullMatch": full_match,
    "Tokenizer": tokenize,
    "TfIdfVectorizer": tf_idf,
    "LabelEncoder": encode,
    "SkipGram": skip_gram,
    "ZipMap": zip_map,
}
