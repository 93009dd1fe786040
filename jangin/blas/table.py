"""All routines, a line each."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial

import jangin.blas.by_element as by_element
import jangin.blas.by_product as by_product
import jangin.blas.columns as columns
import jangin.blas.complexes as complexes
import jangin.blas.matvec as matvec
import jangin.blas.products as products
import jangin.blas.rotations as rotations
import jangin.blas.solve as solve
import jangin.blas.triangles as triangles
import jangin.blas.vectors as vectors
from jangin.blas.kernel import Kernel
from jangin.blas.routine import PAIRS, PLACES, Routine
from jangin.ops.values import Tensor

_X_Y = {"x": "n", "y": "n"}
_STEPS = "n,offx,incx,offy,incy"

_rank_update = partial(columns.updated, name="a")
_packed_update = partial(columns.updated, name="ap")

ROUTINES: Mapping[str, Routine] = {
    r.name: r
    for r in (
        Routine(
            "axpy", 1, "n a x incx y incy", "x,y,[n,a,offx,incx,offy,incy]", _X_Y, "y", vectors.axpy,
            updates=("y",),
        ),
        Routine(
            "axpby", 1, "n alpha x incx beta y incy", "x,y,[n,alpha,beta,offx,incx,offy,incy]", _X_Y, "y",
            vectors.axpby, updates=("y",),
        ),
        Routine("scal", 1, "n a x incx", "a,x,[n,offx,incx]", {"x": "n"}, "x", vectors.scal, updates=("x",)),
        Routine("copy", 1, "n x incx y incy", f"x,y,[{_STEPS}]", _X_Y, "y", vectors.copy, updates=("y",)),
        Routine("swap", 1, "n x incx y incy", f"x,y,[{_STEPS}]", _X_Y, "x y", vectors.swap),
        Routine("dot", 1, "n x incx y incy", f"x,y,[{_STEPS}]", _X_Y, "result", vectors.dot),
        Routine("asum", 1, "n x incx", "x,[n,offx,incx]", {"x": "n"}, "result", vectors.asum),
        Routine("nrm2", 1, "n x incx", "x,[n,offx,incx]", {"x": "n"}, "result", vectors.nrm2),
        Routine("iamax", 1, "n x incx", "x,[n,offx,incx]", {"x": "n"}, "result", vectors.iamax),
        Routine(
            "sdsdot", 1, "n b x incx y incy", f"b,x,y,[{_STEPS}]", _X_Y, "result", vectors.sdsdot, "s"
        ),
        Routine("dsdot", 1, "n x incx y incy", f"x,y,[{_STEPS}]", _X_Y, "result", vectors.dsdot, "s"),
        Routine(
            "rot", 1, "n x incx y incy c s", f"x,y,c,s,[{_STEPS},overwrite_x,overwrite_y]", _X_Y, "x y",
            vectors.rot,
        ),
        Routine(
            "rotm", 1, "n x incx y incy param", f"x,y,param,[{_STEPS},overwrite_x,overwrite_y]",
            {**_X_Y, "param": "5"}, "x y", vectors.rotm,
        ),
        Routine("rotg", 1, "a b c s", "a,b", {}, "a b c s", rotations.rotg, returns="c s"),
        Routine(
            "rotmg", 1, "d1 d2 x1 y1 param", "d1,d2,x1,y1", {"param": "5"}, "d1 d2 x1 param",
            rotations.rotmg, returns="param",
        ),
        Routine(
            "gemv", 2, "trans m n alpha a lda x incx beta y incy",
            "alpha,a,x,[beta,y,offx,incx,offy,incy,trans,overwrite_y]",
            {"a": "m n", "x": "trans? n | m", "y": "trans? m | n"}, "y", matvec.gemv,
        ),
        Routine(
            "ger", 2, "m n alpha x incx y incy a lda",
            "alpha,x,y,[incx,incy,a,overwrite_x,overwrite_y,overwrite_a]",
            {"x": "m", "y": "n", "a": "m n"}, "a", _rank_update, updates=("a",),
        ),
        Routine(
            "gbmv", 2, "trans m n kl ku alpha a lda x incx beta y incy",
            "m,n,kl,ku,alpha,a,x,[incx,offx,beta,y,incy,offy,trans,overwrite_y]",
            {"a": "kl+ku+1 n", "x": "trans? n | m", "y": "trans? m | n"}, "y", columns.banded,
        ),
        Routine(
            "symv", 2, "uplo n alpha a lda x incx beta y incy",
            "alpha,a,x,[beta,y,offx,incx,offy,incy,lower,overwrite_y]",
            {"a": "n n", **_X_Y}, "y", columns.symmetric,
        ),
        Routine(
            "sbmv", 2, "uplo n k alpha a lda x incx beta y incy",
            "k,alpha,a,x,[incx,offx,beta,y,incy,offy,lower,overwrite_y]",
            {"a": "k+1 n", **_X_Y}, "y", columns.symmetric,
        ),
        Routine(
            "spmv", 2, "uplo n alpha ap x incx beta y incy",
            "n,alpha,ap,x,[incx,offx,beta,y,incy,offy,lower,overwrite_y]",
            {"ap": "n*", **_X_Y}, "y", columns.symmetric,
        ),
        Routine(
            "syr", 2, "uplo n alpha x incx a lda", "alpha,x,[lower,incx,offx,n,a,overwrite_a]",
            {"x": "n", "a": "n n"}, "a", _rank_update, updates=("a",),
        ),
        Routine(
            "syr2", 2, "uplo n alpha x incx y incy a lda",
            "alpha,x,y,[lower,incx,offx,incy,offy,n,a,overwrite_a]",
            {**_X_Y, "a": "n n"}, "a", _rank_update, updates=("a",),
        ),
        Routine(
            "spr", 2, "uplo n alpha x incx ap", "n,alpha,x,ap,[incx,offx,lower,overwrite_ap]",
            {"x": "n", "ap": "n*"}, "ap", _packed_update,
        ),
        Routine(
            "spr2", 2, "uplo n alpha x incx y incy ap",
            "n,alpha,x,y,ap,[incx,offx,incy,offy,lower,overwrite_ap]",
            {**_X_Y, "ap": "n*"}, "ap", _packed_update,
        ),
        *(
            Routine(
                f"t{stored}{what}", 2, f"uplo trans diag n {more}x incx",
                f"{call}x,[{rest}lower,trans,diag,overwrite_x]",
                {matrix: extent, "x": "n"}, "x", body,
            )
            for what, body in (("mv", triangles.multiplied), ("sv", triangles.solved))
            for stored, matrix, extent, more, call, rest in (
                ("r", "a", "n n", "a lda ", "a,", "offx,incx," if what == "mv" else "incx,offx,"),
                ("b", "a", "k+1 n", "k a lda ", "k,a,", "incx,offx,"),
                ("p", "ap", "n*", "ap ", "n,ap,", "incx,offx,"),
            )
        ),
        Routine(
            "gemm", 3, "transa transb m n k alpha a lda b ldb beta c ldc",
            "alpha,a,b,[beta,c,trans_a,trans_b,overwrite_c]",
            {"a": "transa? m k | k m", "b": "transb? k n | n k", "c": "m n"}, "c", products.gemm, "sdhb",
            updates=("c",),
        ),
        Routine(
            "gemmtr", 3, "uplo transa transb n k alpha a lda b ldb beta c ldc",
            "alpha,a,b,[beta,c,trans_a,trans_b,lower,overwrite_c]",
            {"a": "transa? n k | k n", "b": "transb? k n | n k", "c": "n n"}, "c", products.gemmtr,
            updates=("c",),
        ),
        Routine(
            "symm", 3, "side uplo m n alpha a lda b ldb beta c ldc",
            "alpha,a,b,[beta,c,side,lower,overwrite_c]",
            {"a": "side? m m | n n", "b": "m n", "c": "m n"}, "c", products.symm, updates=("c",),
        ),
        Routine(
            "syrk", 3, "uplo trans n k alpha a lda beta c ldc", "alpha,a,[beta,c,trans,lower,overwrite_c]",
            {"a": "trans? n k | k n", "c": "n n"}, "c", products.syrk, updates=("c",),
        ),
        Routine(
            "syr2k", 3, "uplo trans n k alpha a lda b ldb beta c ldc",
            "alpha,a,b,[beta,c,trans,lower,overwrite_c]",
            {"a": "trans? n k | k n", "b": "trans? n k | k n", "c": "n n"}, "c", products.syr2k,
            updates=("c",),
        ),
        Routine(
            "trmm", 3, "side uplo transa diag m n alpha a lda b ldb",
            "alpha,a,b,[side,lower,trans_a,diag,overwrite_b]", {"a": "side? m m | n n", "b": "m n"}, "b",
            products.trmm,
        ),
        Routine(
            "trsm", 3, "side uplo transa diag m n alpha a lda b ldb",
            "alpha,a,b,[side,lower,trans_a,diag,overwrite_b]", {"a": "side? m m | n n", "b": "m n"}, "b",
            solve.trsm, updates=("b",),
        ),
    )
}  # fmt: skip
"""Every routine by its name without the letter of a type."""

BATCHED: Mapping[str, Routine] = {
    "gemm_strided_batched": Routine(
        "gemm_strided_batched", 3, "transa transb m n k alpha a lda b ldb beta c ldc offsets batch",
        "alpha,a,b,[beta,c,trans_a,trans_b,overwrite_c]",
        {"a": "transa? m k | k m", "b": "transb? k n | n k", "c": "m n", PLACES: "batch 3"}, "c",
        products.gemm_batch, updates=("c",),
    ),
}  # fmt: skip
"""The routine of many products at once, by its name without the letter of a type."""

_LIKE: Mapping[str, str] = {
    "scal_real": "scal", "dotu": "dot", "dotc": "dot", "geru": "ger", "gerc": "ger", "hemv": "symv",
    "hbmv": "sbmv", "hpmv": "spmv", "her": "syr", "her2": "syr2", "hpr": "spr", "hpr2": "spr2",
    "hemm": "symm", "herk": "syrk", "her2k": "syr2k",
}  # fmt: skip
"""The complex routines that real ones have other names for."""
_BODIES: Mapping[str, Callable[[Kernel], Tensor | tuple[Tensor, ...]]] = {
    "gemm": complexes.gemm, "gemmtr": complexes.gemmtr, "symm": complexes.symm,
    "syrk": complexes.syrk, "syr2k": complexes.syr2k, "trmm": complexes.trmm,
    "trsm": triangles.solved_systems, "rotg": rotations.complex_rotg,
}  # fmt: skip
"""The kernels of complex routines that differ from the real ones', by the real names."""
_REAL_ONLY = {*_LIKE.values(), "sdsdot", "dsdot", "rotm", "rotmg"} - {
    "scal", "symm", "syrk", "syr2k",
}  # fmt: skip
"""The real routines that no complex one shares its name with."""


def _complex(name: str, like: str) -> Routine:
    """Return the complex routine that has the arguments of a real one."""
    real = ROUTINES[like]
    scipy = real.scipy.replace("]", ",overwrite_x]") if name == "scal_real" else real.scipy
    results = "a c s" if name == "rotg" else real.results
    body = _BODIES.get(like, real.body)
    return replace(real, name=name, scipy=scipy, results=results, body=body, types="cz")


COMPLEX: Mapping[str, Routine] = {
    name: _complex(name, like)
    for name, like in ({n: n for n in ROUTINES if n not in _REAL_ONLY} | {**_LIKE}).items()
}
"""The complex routines by name without a type's letter. `scal_real` has a real factor: csscal, zdscal."""


_LEVEL_2 = [n for n, r in {**ROUTINES, **COMPLEX}.items() if r.level == 2]
_ON_DEVICES: Mapping[str, Callable[[Kernel], Tensor | tuple[Tensor, ...]]] = {
    "axpy": by_element.axpy, "axpby": by_element.axpby, "scal": by_element.scal,
    "scal_real": by_element.scal, "copy": by_element.copy, "swap": by_element.swap,
    "asum": by_element.asum, "nrm2": by_element.nrm2, "dot": by_element.dot, "dotu": by_element.dot,
    "dotc": by_element.dot, "dsdot": by_element.dsdot, "sdsdot": by_element.sdsdot,
    **dict.fromkeys(_LEVEL_2, by_element.updated),
    **dict.fromkeys((n for n in _LEVEL_2 if n.endswith("mv")), by_element.multiplied),
    **dict.fromkeys((n for n in _LEVEL_2 if n.endswith("sv")), by_product.solved),
    "gemm": by_product.gemm, "gemmtr": by_product.gemmtr, "gemm_strided_batched": by_product.gemm_batch,
    "symm": by_product.of_one_triangle, "hemm": by_product.of_one_triangle,
    "syrk": by_product.syrk, "herk": by_product.syrk, "syr2k": by_product.syr2k, "her2k": by_product.syr2k,
    "trmm": by_product.of_one_triangle, "trsm": by_product.solved,
}  # fmt: skip
"""The kernels of routines on devices with memory of their own, if they differ from a processor's."""


@cache
def on_device(name: str, letter: str) -> Routine:
    """Return a routine, for the letter of a type, as a device with memory of its own runs it."""
    routine = routine_of(name, letter)
    arguments = " ".join(w for w in routine.words if w != PLACES)
    extents = {n: e for n, e in routine.extents.items() if n != PLACES}
    body = _ON_DEVICES.get(name, routine.body)
    return replace(routine, placed=True, arguments=arguments, extents=extents, body=body)


def routine_of(name: str, letter: str) -> Routine:
    """Return a routine by its name, for the letter of a type."""
    return COMPLEX[name] if letter in PAIRS else ROUTINES.get(name) or BATCHED[name]
