"""BLAS as compiled functions: `jangin.blas.dgemm(1.0, a, b)`, by the conventions of `scipy.linalg.blas`.

A routine is compiled when it is first called, once for all sizes, and kept in the cache.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'jangin.blas' has no attribute {name!r}")
    if name == "set_threads":
        from jangin.blas.calls import set_threads as function
    else:
        import jangin.blas.batched as batched
        import jangin.blas.calls as calls

        function = batched.function(name) if name in batched.NAMES else calls.found(name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    from jangin.blas.batched import NAMES
    from jangin.blas.calls import all_routines

    return sorted({*all_routines(), *NAMES, "set_threads"})
