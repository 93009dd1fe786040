"""Kernels that call another maker's library. They are candidates beside the templates, and measured like
them.

On processors, a library runs on one thread inside one of Jangin's tasks, so that Jangin's pool shares the
work. An epilogue fused to the product is a kernel of Jangin's, which runs over each task's rows while they
are in cache. On other devices, the library's launches are enqueued among Jangin's."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from jangin.libraries import convolutions, gemm
from jangin.runtime.libraries import absent, find
from jangin.templates.template import Template, Workload

CANDIDATES: Mapping[str, Callable[[Workload], Template | None]] = {
    "openblas": gemm.openblas,
    "onednn": gemm.onednn,
    "clblast": gemm.clblast,
    "cublas": gemm.cublas,
    "cudnn": convolutions.cudnn,
}
"""Functions that make a candidate for a workload, by library."""


def candidates(workload: Workload, libraries: str, callable_: Collection[str]) -> list[Template]:
    """Return the library kernels that fit a workload.

    The libraries must be installed, allowed by `libraries` (see `Options`), and `callable_` from the target's
    code. Raises ValueError if `libraries` names one that isn't installed."""
    asked = libraries.split(",")
    for name in asked:
        if name in CANDIDATES and find(name) is None:
            raise ValueError(absent(name))
    allowed = CANDIDATES if "auto" in asked else asked
    names = [n for n in CANDIDATES if n in callable_ and n in allowed and find(n) is not None]
    return [template for n in names if (template := CANDIDATES[n](workload)) is not None]
