"""The table of templates: no important kernel becomes a scalar nest."""

from __future__ import annotations

import pytest

from jangin.commands.templates import CLASSES, SCALAR, dtypes_of, kernels, name_of
from jangin.targets import resolve


@pytest.mark.sampled(4)
@pytest.mark.parametrize("operator", CLASSES)
def test_nothing_is_scalar(operator: str) -> None:
    target = resolve("x86-64-v3")
    for title, make in CLASSES[operator].items():
        for dtype in dtypes_of(operator):
            names = [name_of(k) for k in kernels(make, dtype, target)]
            assert names and not [n for n in names if SCALAR in n], f"{operator}, {title}, {dtype}: {names}"
