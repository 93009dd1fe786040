"""A plugin of pytest that puts `jangin.blas` in the place of SciPy's own library.

A routine that Jangin leaves out skips the test that calls it."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import scipy.linalg
import scipy.linalg.blas

import jangin.blas
from jangin.blas.calls import BlasError


class Library(ModuleType):
    """Every routine of SciPy's library, of `jangin.blas` or one that skips."""

    def __getattr__(self, name: str) -> Any:
        if name == "__fblas_error":
            return BlasError
        if name in dir(jangin.blas):
            return getattr(jangin.blas, name)
        if not hasattr(_own, name):
            raise AttributeError(name)

        def lacking(*given: Any, **named: Any) -> None:
            pytest.skip(f"jangin.blas has no {name}")

        return lacking


_own = scipy.linalg._fblas
scipy.linalg._fblas = scipy.linalg.blas._fblas = Library("jangin")
for routine in {*dir(jangin.blas)} & {*dir(scipy.linalg.blas)}:
    setattr(scipy.linalg.blas, routine, getattr(jangin.blas, routine))
