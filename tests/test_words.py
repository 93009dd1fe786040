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


def test_each_number_of_a_module_is_explained() -> None:
    """A newcomer must learn a constant's unit and reason where it stands."""
    found = [
        f"{path.relative_to(words.ROOT)}:{line}: {name} has neither a docstring nor a comment"
        for path in words.files("jangin")
        for line, name in words.unexplained(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ('A = 1\nB, C = 2, 1 << 3\n"""Bytes."""', []),
        ("A = -1  # the mode of a leaf\n# bits\nB = 2", []),
        ("A = 1\nB = 'text'\n", ["A"]),
        ("A, B = 1, 2.5", ["(A, B)"]),
        ('A = 2 * 3\nB = f(A)\n"""Bytes."""\nC = (1, 2)', ["A"]),
    ],
)
def test_unexplained_numbers_are_found(source: str, names: list[str]) -> None:
    assert [name for _, name in words.unexplained(source)] == names


def test_each_catch_of_every_error_raises_or_has_a_reason() -> None:
    found = [
        f"{path.relative_to(words.ROOT)}:{line} catches every error: narrow it, or say why in a comment"
        for path in words.files("jangin")
        for line in words.unreasoned(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("handler", "lines"),
    [
        ("except Exception: pass", [3]),
        ("except: pass", [3]),
        ("except (OSError, BaseException) as e: x = e", [3]),
        ("except Exception: pass  # the caller asks again", []),
        ("except Exception: raise ValueError", []),
        ("except OSError: pass", []),
    ],
)
def test_catches_without_a_reason_are_found(handler: str, lines: list[int]) -> None:
    assert [*words.unreasoned(f"try:\n    f()\n{handler}\n")] == lines


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
