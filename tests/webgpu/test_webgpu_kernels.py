"""The same kernels as compute shaders and as native code give the same, with guard words around all memory."""

from __future__ import annotations

from collections import Counter
from types import ModuleType

import numpy as np
import pytest
import test_c_kernels
import test_groups
from on_adapter import NONE, run, usable

from jangin.backends.wgsl.functions import FORMULAS
from jangin.backends.wgsl.module import shader, source
from jangin.ir.dtype import F64, I32
from jangin.ir.expr import Binary, Buffer, Call, Load, Var, call, const
from jangin.ir.graph import Array, CompileError
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Store, expressions, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.traversal import walk
from jangin.ir.words import INTRINSICS
from jangin.targets.webgpu import WEBGPU

ADAPTERS = usable()
ULPS = 24
"""Units in the last place: a quotient may be off by 2.5 in WGSL, sums are rounded otherwise where a product is
fused with them or not, and a few such meet in a function."""
pytestmark = pytest.mark.skipif(not ADAPTERS, reason=NONE)


def of_doubles(func: Func) -> bool:
    """Whether a kernel computes in float64, which WGSL lacks."""
    nodes = [n for s in statements(func.body) for e in expressions(s) for n in walk(e)]
    return any(p.dtype is F64 for p in func.params) or any(n.dtype is F64 for n in nodes)


def approximate(func: Func) -> bool:
    """Whether a device's roundings show: quotients, products that may be fused with sums, and functions."""
    nodes = [n for s in statements(func.body) for e in expressions(s) for n in walk(e)]
    quotients = {"div", "floordiv", "pow", "rem", "mod", "add"}
    return any(
        (isinstance(n, Binary) and n.dtype.is_float and n.op in quotients)
        or (isinstance(n, Call) and n.fn in INTRINSICS and n.dtype.is_float)
        for n in nodes
    )


def compare(got: dict[str, Array], want: dict[str, Array], func: Func) -> None:
    for name, value in want.items():
        if value.dtype.kind not in "iub" and approximate(func):
            kind = np.float32 if value.dtype.itemsize >= 4 else value.dtype
            close = ULPS * float(np.finfo(kind).eps) if value.dtype.kind == "f" else 0.1
            scale = float(np.abs(value[np.isfinite(value)].astype(np.float64)).max(initial=0.0))
            np.testing.assert_allclose(
                got[name].astype(np.float64), value.astype(np.float64), rtol=close, atol=close * scale,
                err_msg=print_func(func),
            )  # fmt: skip
        else:
            test_c_kernels.assert_same_bits(got, {name: value}, func)


@pytest.mark.parametrize("module", test_c_kernels.MODULES, ids=lambda m: m.__name__)
def test_kernels_of_other_tests(module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    _, ran = test_c_kernels.kernels_of(module, monkeypatch)
    counts: Counter[str] = Counter()
    for func, (arrays, symbols), want in ran:
        if of_doubles(func):
            counts["float64"] += 1
            continue
        counts["compared"] += 1
        compare(run(func, arrays, symbols, ADAPTERS[0], 2), want, func)
    print(module.__name__, dict(counts))
    assert counts["compared"] > counts["float64"]
