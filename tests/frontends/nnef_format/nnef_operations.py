"""NNEF's operations one by one, compared with NNEF-Tools' interpreter in float64 if it has them."""

from __future__ import annotations

import functools
import json
import subprocess
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.frontends import table
from jangin.frontends.lower import lower
from jangin.frontends.nnef import parser, parsing
from jangin.ops.interpret import run_graph

nnef = pytest.importorskip("nnef", reason="nnef isn't installed: the extra `nnef` brings it")
torch = pytest.importorskip("torch", reason="PyTorch isn't installed: NNEF-Tools' interpreter runs on it")
reference = pytest.importorskip(
    "nnef_tools.interpreter.pytorch.nnef_operators", reason="nnef-tools isn't installed"
).Operators

TOLERANCE = 3e-6
"""The largest difference, as a share of the largest value. At most a few hundred float32 operations each
round by 6e-8."""
TYPES = {"f": "scalar", "i": "integer", "b": "logical"}
COVERED: set[str] = {"external", "variable", "constant"}
"""Operations with a test of their own (`covers`). The first three are tested with whole models."""
SHOWN: set[str] = set()
"""Operations that the running test has shown to be right."""

Array = np.ndarray[Any, Any]


def given(*shapes: tuple[int, ...], low: float = -2.0, high: float = 2.0, seed: int = 0) -> list[Array]:
    random = np.random.default_rng(seed)
    return [random.uniform(low, high, s).astype(np.float32) for s in shapes]


def run(
    call: str, inputs: list[Array], results: str = "y", lists: int = 0, compiled: bool = False
) -> list[Array]:
    """Return the results of one invocation with tensors x0, x1, ... They are computed by compiled code or by
    the interpreter."""
    names = [f"x{i}" for i in range(len(inputs))]
    lines = [
        f"{n} = external<{TYPES[a.dtype.kind]}>(shape = {list(a.shape)});"
        for n, a in zip(names, inputs, strict=True)
    ]
    outputs = [f"y{i}" for i in range(lists)] if lists else results.split(", ")
    left = f"[{', '.join(outputs)}]" if lists else results
    text = (
        f"version 1.0; graph G({', '.join(names)}) -> ({', '.join(outputs)}) "
        f"{{ {' '.join(lines)} {left} = {call}; }}"
    )
    feeds = dict(zip(names, inputs, strict=True))
    if compiled:
        found = jangin.compile(text.encode(), threads=1, cache=False).run(feeds)
    else:
        found = run_graph(lower(table.load(text.encode())), feeds)
    return [found[n] for n in outputs]


def near(got: Array, wanted: Any, what: str) -> None:
    wanted = np.asarray(wanted)
    assert got.shape == wanted.shape, what
    if got.dtype.kind != "f":
        assert np.array_equal(got, wanted), what
        return
    scale = np.abs(wanted[np.isfinite(wanted)]).max(initial=1e-9)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE * scale, err_msg=what)


def torched(array: Array) -> Any:
    return torch.from_numpy(array.astype(np.float64) if array.dtype.kind == "f" else array)


def value(v: Any) -> str:
    if isinstance(v, bool):
        return str(v).lower()
    if isinstance(v, str):
        return f"'{v}'"
    if isinstance(v, (list, tuple)):
        marks = "()" if isinstance(v, tuple) else "[]"
        return marks[0] + ", ".join(map(value, v)) + marks[1]
    return repr(v)


def covers(*names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare the operations that the decorated test is about. It must show all of them, or the one in its
    argument `name`."""
    COVERED.update(names)

    def wrap(test: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(test)
        def run(*args: Any, **kwargs: Any) -> None:
            SHOWN.clear()
            test(*args, **kwargs)
            assert {kwargs["name"]} == SHOWN if "name" in kwargs else set(names) == SHOWN

        return run

    return wrap


def check(
    name: str,
    inputs: list[Array],
    oracle: Callable[..., Any] | None = None,
    compiled: bool = False,
    **given: Any,
) -> None:
    """Compare one operation on single tensors with the reference or a function on float64 arrays."""
    call = ", ".join(
        [*(f"x{i}" for i in range(len(inputs))), *(f"{k} = {value(v)}" for k, v in given.items())]
    )
    (got,) = run(f"{name}({call})", inputs, compiled=compiled)
    if oracle is None:
        wanted = reference[name](*map(torched, inputs), **given).numpy()
    else:
        wanted = oracle(*(a.astype(np.float64) if a.dtype.kind == "f" else a for a in inputs))
    near(got, wanted, f"{name}({call})")
    SHOWN.add(name)


@pytest.fixture(autouse=True)
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parse these hundreds of well-formed lines in this process."""

    def run(command: list[str], input: bytes, **_: Any) -> subprocess.CompletedProcess[bytes]:
        answer = parsing._parsed(json.loads(input))
        return subprocess.CompletedProcess(command, 0, json.dumps(answer).encode())

    monkeypatch.setattr(parser.subprocess, "run", run)
