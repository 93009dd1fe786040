"""Comments and docstrings are read once: no sentence is long, or leans on the one before it.

`test_pages` holds the documents to the same."""

from __future__ import annotations

import pytest
import words


@pytest.mark.sampled(4)
@pytest.mark.parametrize("folder", ["jangin", "benchmarks", "examples", "tests"])
def test_no_sentence_is_long_or_leans_on_another(folder: str) -> None:
    found = [fault for path in words.files(folder) for fault in words.faults(path)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "fault"),
    [
        ('"""Fine. It is short."""', ""),
        (f'"""One {"word " * words.LONGEST}more."""', "27 words"),
        ('X = 1\n"""Of a constant."""', "begins with Of"),
        ("# A comment\n# And another line.\n# What follows is wrong", "begins with What"),
        ("x = 1  # To be done", "begins with To"),
        (f'"""A command.\n\n    run {"option " * words.LONGEST}\n\nThe end."""', ""),
    ],
)  # fmt: skip
def test_faults_are_found(source: str, fault: str) -> None:
    texts = [text for _, text in [*words.docstrings(source), *words.comments(source)]]
    assert next(filter(None, map(words.fault, texts)), "").startswith(fault)
    assert bool(fault) == any(map(words.fault, texts))
