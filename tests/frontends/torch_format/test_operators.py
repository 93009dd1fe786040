"""Core ATen's operators give PyTorch's results on the sample inputs of PyTorch's OpInfo database."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
pytest.importorskip("expecttest", reason="PyTorch's OpInfo database needs expecttest")

import torch
from operator_cases import CORE, Case, compiled, interpreted, recorded

import jangin
from jangin.ir.graph import CompileError

LEFT_OUT = tomllib.loads(Path(__file__).with_name("operators.toml").read_text())["refused"]
NUMBERS = re.compile(r"aten\.sym_.*")
"""Operators that give sizes. A compiled model has no nodes for them; test_modules.py has models with them."""
IN_PLACE = ("aten.atan2.out",)
"""Operators that are marked as core by mistake. No exported program writes into a given tensor."""

COMPOSITE = torch._C.DispatchKey.CompositeImplicitAutograd
"""The dispatch key of operators that PyTorch always decomposes."""


def left_out(case: Case) -> str:
    return next((e["reason"] for e in LEFT_OUT if re.fullmatch(e["calls"], str(case), re.S)), "")


def failures(cases: list[Case], run: Any) -> Iterator[str]:
    for case in cases:
        try:
            case.checked(run)
        except (CompileError, AssertionError) as error:
            if not left_out(case) or isinstance(error, AssertionError):
                yield f"{case}: {error}"
        else:
            if left_out(case):
                yield f"{case} is right, though it is left out"


def names() -> frozenset[str]:
    return frozenset(name.split(".")[1] for name in CORE)


@pytest.fixture(scope="module")
def few() -> dict[str, list[Case]]:
    """Return one call of most operators and types."""
    return recorded(limit=1, samples=1, names=names())


def test_a_call_of_most_operators_by_the_interpreter(few: dict[str, list[Case]]) -> None:
    assert len(few) > 140
    interpreted_only = [c for cases in few.values() for c in cases if not c.needs_program]
    assert not list(failures(interpreted_only, interpreted))


@pytest.mark.parametrize("mode", ["linear", "bilinear", "bicubic"])
def test_corners_stay_whatever_the_scale(mode: str) -> None:
    """PyTorch takes the sizes alone if corners are aligned, and a scale otherwise."""
    images = torch.randn(1, 2, 7) if mode == "linear" else torch.randn(1, 2, 6, 5)
    for aligned in (True, False):

        class Resized(torch.nn.Module):
            def forward(self, x: Any, aligned: bool = aligned) -> Any:
                return torch.nn.functional.interpolate(x, scale_factor=1.7, mode=mode, align_corners=aligned)

        found = jangin.compile(Resized(), example_inputs=(images,), threads=1)(images)
        # sums in another order
        torch.testing.assert_close(torch.as_tensor(found), Resized()(images), rtol=1e-5, atol=1e-5)


@pytest.mark.slow  # a thousand calls take minutes
def test_every_operator_by_the_interpreter() -> None:
    found = recorded(limit=6, samples=12)
    whole = {n for n, op in CORE.items() if not op.has_kernel_for_dispatch_key(COMPOSITE)}
    assert not {n for n in whole - found.keys() if not NUMBERS.fullmatch(n) and n not in IN_PLACE}
    cases = [c for kept in found.values() for c in kept]
    assert not list(failures(cases, interpreted))
    right = sum(not left_out(c) for c in cases)
    print(f"\n{len(found)} operators: {right} of {len(cases)} calls right, 0 wrong, the others left out")
    assert right >= 0.95 * len(cases)


@pytest.mark.slow  # each call is compiled
def test_a_call_of_every_operator_compiled() -> None:
    found = recorded(limit=1, samples=3)
    assert not list(failures([kept[0] for kept in found.values()], compiled))
