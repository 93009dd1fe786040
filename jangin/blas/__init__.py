"""BLAS as compiled functions: `jangin.blas.dgemm(1.0, a, b)`, by the conventions of `scipy.linalg.blas`.

A routine is compiled when it is first called, once for all sizes, and kept in the cache. Those of
`jangin.blas.on("opencl")` run on a device.
"""

from __future__ import annotations

from typing import Any


def __getattr__(name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(f"module 'jangin.blas' has no attribute {name!r}")
    import jangin.blas.places as places

    own = {"on": places.on, "set_threads": places.set_threads}
    function = own.get(name) or getattr(places.Routines(None), name)
    globals()[name] = function
    return function


def __dir__() -> list[str]:
    from jangin.blas.places import Routines

    return sorted({*dir(Routines(None)), "on", "set_threads"})
