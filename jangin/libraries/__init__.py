"""Kernels that call a library of another maker: candidates beside the templates, measured like them.

On processors a library runs on one thread inside a task of ours, so that our pool shares the work; what is
fused behind the product is a kernel of ours that runs over each task's rows while they are in cache. On other
devices the library's launches are enqueued among ours.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from jangin.libraries import gemm
from jangin.runtime.libraries import absent, find
from jangin.templates.template import Template, Workload

CANDIDATES: Mapping[str, Callable[[Workload], Template | None]] = {
    "openblas": gemm.openblas,
    "onednn": gemm.onednn,
    "clblast": gemm.clblast,
}
"""By library."""


def candidates(workload: Workload, libraries: str, callable_: Collection[str]) -> list[Template]:
    """The library kernels that fit, of the libraries that are here, that `libraries` allows (see `Options`)
    and that are `callable_` by the target's code. Raises ValueError where it names one that isn't here."""
    if libraries in CANDIDATES and find(libraries) is None:
        raise ValueError(absent(libraries))
    names = [n for n in CANDIDATES if n in callable_ and libraries in ("auto", n) and find(n) is not None]
    return [made for n in names if (made := CANDIDATES[n](workload)) is not None]
