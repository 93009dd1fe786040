"""Kernels that call a library of another maker: candidates beside the templates, measured like them.

A library runs on one thread inside a task of ours, so that our pool shares the work; what is fused
behind the product is a kernel of ours that runs over each task's rows while they are in cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from jangin.libraries import gemm
from jangin.runtime.libraries import absent, find
from jangin.templates.template import Template, Workload

CANDIDATES: Mapping[str, Callable[[Workload], Template | None]] = {
    "openblas": gemm.openblas,
    "onednn": gemm.onednn,
}
"""By library."""


def candidates(workload: Workload, libraries: str) -> list[Template]:
    """The library kernels that fit, of the libraries that are here and that `libraries` allows (see
    `Options`). Raises ValueError where it names one that isn't here."""
    if libraries in CANDIDATES and find(libraries) is None:
        raise ValueError(absent(libraries))
    names = [n for n in CANDIDATES if libraries in ("auto", n) and find(n) is not None]
    return [made for n in names if (made := CANDIDATES[n](workload)) is not None]
