"""Kernels for work-groups on a processor, whose code runs their blocks and threads as serial loops."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import test_c_kernels as c
from machine import run, runnable, target

from jangin.ir.graph import Array
from jangin.ir.interpret import run_func, size
from jangin.ir.loop import Func
from jangin.ir.parse import parse_func
from jangin.targets import NAMED

KERNELS = {
    "product": """func product(a: f32[M, 16], b: f32[16, 16], c: out f32[M, 16]) symbols (M in 1..) {
      block t in (M + 7) // 8 {
        alloc shared left: f32[8, 4]
        alloc shared right: f32[4, 16]
        alloc register acc: f32[32, 2, 2]
        thread x in 32 { serial i in 2 { vector j in 2 { acc[x, i, j] = f32(0.0) } } }
        serial k in 4 {
          thread y in 32 { left[y // 4, y % 4] = a[min(t * 8 + y // 4, M - 1), k * 4 + y % 4] }
          thread z in 32 { serial e in 2 {
            right[e * 2 + z // 16, z % 16] = b[k * 4 + e * 2 + z // 16, z % 16]
          } }
          thread w in 32 { serial l in 4 { unroll m in 2 { vector n in 2 {
            acc[w, m, n] = acc[w, m, n] + left[w // 8 * 2 + m, l] * right[l, w % 8 * 2 + n]
          } } } }
        }
        thread v in 32 { serial o in 2 { if t * 8 + v // 8 * 2 + o < M { vector p in 2 {
          c[t * 8 + v // 8 * 2 + o, v % 8 * 2 + p] = acc[v, o, p]
        } } } }
      }
    }""",
    "total": """func total(x: f32[N, 100], o: out f32[N]) symbols (N in 1..) {
      block t in N {
        alloc shared s: f32[64]
        thread x1 in 64 {
          alloc register a: f32[1]
          alloc scratch q: f32[3]
          a[0] = f32(0.0)
          serial k in 2 { if k * 64 + x1 < 100 { q[k] = x[t, k * 64 + x1] a[0] = a[0] + q[k] } }
          s[x1] = a[0]
        }
        unroll j in 6 { thread x2 in 64 { if x2 < 32 >> j { s[x2] = s[x2] + s[x2 + (32 >> j)] } } }
        thread x3 in 64 { if x3 < 1 { o[t] = s[0] } }
      }
    }""",
}


@cache
def expected(name: str) -> tuple[Func, dict[str, Array], dict[str, Array]]:
    """Return a kernel, its inputs, and the interpreter's results."""
    func, rng = parse_func(KERNELS[name]), np.random.default_rng()
    sizes = {v.name: 11 for v, _ in func.symbols}
    arrays: dict[str, Array] = {}
    for p in func.params:
        arrays[p.name] = rng.integers(-4, 5, [size(d, sizes) for d in p.shape]).astype(np.float32)
    want = {k: v.copy() for k, v in arrays.items()}
    run_func(func, want, sizes)
    return func, arrays, want


@pytest.mark.parametrize("on", runnable())
@pytest.mark.parametrize("name", KERNELS)
def test_native_code(name: str, on: str) -> None:
    func, arrays, want = expected(name)
    got = run(func, arrays, {v.name: 11 for v, _ in func.symbols}, target(on))
    for p in func.results:
        np.testing.assert_array_equal(got[p.name], want[p.name])


@pytest.mark.skipif(not c.COMPILERS, reason="no C compiler here: neither gcc nor clang")
@pytest.mark.parametrize("name", KERNELS)
def test_c(name: str, tmp_path: Path) -> None:
    func, arrays, want = expected(name)
    on = target(next(n for n in reversed(runnable()) if NAMED.get(n)))
    library = c.built([func], on, tmp_path)
    got = c.called(library, func, arrays, {v.name: 11 for v, _ in func.symbols})
    for p in func.results:
        np.testing.assert_array_equal(got[p.name], want[p.name])
