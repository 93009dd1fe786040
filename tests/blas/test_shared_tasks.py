"""Tasks that threads share: each element of a result is written by one of them, for any number of threads."""

from __future__ import annotations

import numpy as np
import pytest
from repeatable import RNG

from jangin import blas
from jangin.blas import compiled, dense, matvec, triangles
from jangin.blas.kernel import Kernel
from jangin.blas.table import routine_of
from jangin.ir.core import LoopNest
from jangin.ir.expr import Buffer, const
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Let
from jangin.runtime.sizes import Evaluator
from jangin.targets import resolve

OPTIONS = {"gemv": {"trans": "N"}, "gemm": {"transa": "N", "transb": "T"}}


def writers(name: str, letter: str, threads: int, m: int, n: int) -> list[np.ndarray]:
    """Return which elements of the result each task writes. Factors of 0 let it write without reading."""
    machine = resolve("x86-64-v3").machine
    graph = Kernel(routine_of(name, letter), letter, OPTIONS[name], machine, threads).graph()
    (node,) = (node for node in graph.nodes if isinstance(node.attrs, LoopNest))
    body = node.of(LoopNest).body
    assert isinstance(body, For) and body.kind == "parallel"
    sizes = {v.name: {"m": m, "n": n, "k": 1}.get(v.name, m + n) for v in graph.symbols}
    value = Evaluator({v: sizes[v.name] for v in graph.symbols})
    names = [*(f"x{i}" for i in range(len(node.inputs))), "out"]
    buffers = [
        Buffer(name, graph.dtype(of), graph.shape(of))
        for name, of in zip(names, (*node.inputs, *node.outputs), strict=True)
    ]
    arrays = {b.name: np.zeros([value(d) for d in b.shape], b.dtype.numpy) for b in buffers}
    written = []
    for task in range(value(body.extent)):
        arrays["out"] = np.full_like(arrays["out"], np.nan)
        one = Let(body.var, const(task), body.body)
        run_func(Func("one", tuple(buffers), 1, tuple(graph.symbols.items()), one), dict(arrays), sizes)
        written.append(~np.isnan(arrays["out"]))
    return written


@pytest.mark.parametrize("letter", "sc")
def test_tasks_of_gemv(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of a task are whole vectors, so there may be fewer tasks than threads."""
    monkeypatch.setattr(matvec, "LEAST", 4)
    for threads in (1, 8, 23):
        for m in (0, 17, 65, int(RNG.integers(2, 100))):
            counts = np.sum(writers("gemv", letter, threads, m, 1), axis=0, dtype=int)
            assert (counts == 1).all() if m else not counts.any(), (threads, m)


@pytest.mark.parametrize("letter", "sd")
def test_tasks_of_gemm(letter: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dense, "WORTH", 1)
    monkeypatch.setattr(dense, "PANELS", 2)
    for threads in (1, 3, 8):
        m, n = (int(size) for size in RNG.integers(1, 60, 2))
        counts = np.sum(writers("gemm", letter, threads, m, n), axis=0, dtype=int)
        assert (counts[:, :m] == 1).all() and not counts[:, m:].any(), (threads, m, n)


@pytest.mark.parametrize("letter", "sd")
@pytest.mark.parametrize("uplo", "UL")
def test_tasks_of_triangles(letter: str, uplo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other triangle of a result isn't written."""
    monkeypatch.setattr(dense, "PANELS", 2)
    monkeypatch.setitem(OPTIONS, "syrk", {"uplo": uplo, "trans": "N"})
    for threads in (2, 5):
        n = int(RNG.integers(1, 90))
        counts = np.sum(writers("syrk", letter, threads, n, n), axis=0, dtype=int)[:, :n]
        inside = np.tril(np.ones((n, n), int)) if uplo == "U" else np.triu(np.ones((n, n), int))
        assert (counts == inside).all(), (threads, n)


@pytest.mark.parametrize("uplo", "UL")
@pytest.mark.parametrize("trans", "NT")
@pytest.mark.parametrize("diag", "NU")
def test_systems_in_rounds(uplo: str, trans: str, diag: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are solved one after the other, by any number of threads. The other triangle may have NaN."""
    monkeypatch.setattr(triangles, "BLOCK", 8)
    monkeypatch.setattr(triangles, "SMALLEST", 8)
    options, machine = {"uplo": uplo, "trans": trans, "diag": diag}, resolve("x86-64-v3").machine
    for threads, n in ((2, 8), (2, int(RNG.integers(9, 40))), (3, 24)):
        graph = Kernel(routine_of("trsv", "d"), "d", options, machine, threads).graph()
        (node,) = (node for node in graph.nodes if isinstance(node.attrs, LoopNest))
        names = ("x0", "x1", "out")
        buffers = tuple(
            Buffer(name, graph.dtype(of), graph.shape(of))
            for name, of in zip(names, (*node.inputs, *node.outputs), strict=True)
        )
        a, x = RNG.standard_normal((n, n + 2)), RNG.standard_normal(n)
        a[:, :n] /= n
        a[range(n), range(n)] = np.nan if diag == "U" else 2.0
        whole = (np.triu if uplo == "L" else np.tril)(a[:, :n]).T  # a row of the array is a column
        a[:, :n][(np.tril if uplo == "L" else np.triu)(np.ones((n, n), bool), -1 if uplo == "L" else 1)] = (
            np.nan
        )
        np.fill_diagonal(whole, 1.0 if diag == "U" else 2.0)
        arrays = {"x0": a, "x1": x, "out": np.full(n, np.nan)}
        body = node.of(LoopNest).body
        assert isinstance(body, For) and body.kind == "serial"
        run_func(Func("all", buffers, 1, tuple(graph.symbols.items()), body), arrays, {"n": n, "lda": n + 2})
        expected = np.linalg.solve(whole.T if trans == "T" else whole, x)
        # The triangle's condition number is small: other elements are at most a few times 1 / n.
        np.testing.assert_allclose(arrays["out"], expected, rtol=0, atol=1e-12 * abs(expected).max())


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("lower", [0, 1])
@pytest.mark.parametrize("name", ["dtrsv", "dtpsv"])
def test_large_systems_write_nothing_beside(name: str, lower: int, threads: int) -> None:
    """Systems that are solved in rounds are right, and leave the bytes around their vector."""
    n = triangles.SMALLEST + int(RNG.integers(1, 9))
    a, b = RNG.standard_normal((n, n)) / n, RNG.standard_normal(n)
    np.fill_diagonal(a, 2.0)
    a = np.tril(a) if lower else np.triu(a)
    packed = np.concatenate([a[j:, j] if lower else a[: j + 1, j] for j in range(n)])
    whole = np.full(n + 128, 777.0)
    x = whole[64 : 64 + n]
    x[...] = b
    blas.set_threads(threads)
    try:
        if name == "dtrsv":
            found = blas.dtrsv(np.asfortranarray(a), x, lower=lower, overwrite_x=1)
        else:
            found = blas.dtpsv(n, packed, x, lower=lower, overwrite_x=1)
    finally:
        blas.set_threads(None)
    assert np.shares_memory(found, whole)
    assert (whole[:64] == 777).all() and (whole[64 + n :] == 777).all()
    # The condition number is small, and a sum of n terms loses at most n units in the last place.
    np.testing.assert_allclose(found, np.linalg.solve(a, b), rtol=0, atol=n * 2.3e-16 * np.abs(b).max())


def test_each_number_of_threads_has_kernels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel from the cache has the tasks of the number that it was made for."""
    names = []

    class Asked(Exception):
        """The cache was asked for a kernel."""

    class Entries:
        def load(self, name: str, read: object) -> None:
            names.append(name)
            raise Asked

    monkeypatch.setattr(compiled, "Cache", Entries)
    for threads in (1, 2, 3, 2):
        with pytest.raises(Asked):
            compiled._artifact(routine_of("gemv", "s"), "s", ("N",), threads, None)
    assert len({*names}) == 3 and names[1] == names[3]
