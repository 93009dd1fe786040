"""Compute shaders of the same kernels give native code's results, with guard words around all memory."""

from __future__ import annotations

import re
from collections import Counter
from types import ModuleType

import numpy as np
import pytest
import test_c_kernels
import test_groups
import test_naive_nests
import test_small_types
from on_adapter import NONE, run, unchecked, usable

from jangin.backends.wgsl.functions import FORMULAS
from jangin.backends.wgsl.module import shader, source
from jangin.ir.dtype import F32, F64
from jangin.ir.expr import Binary, Buffer, Call, Load, Var, binary, call, const
from jangin.ir.graph import Array, CompileError
from jangin.ir.interpret import run_func
from jangin.ir.loop import For, Func, Store, expressions, statements
from jangin.ir.parse import parse_func
from jangin.ir.text import print_func
from jangin.ir.traversal import walk
from jangin.ir.words import INTRINSICS, PAIRS, PRODUCTS
from jangin.runtime.devices.webgpu import opened
from jangin.targets.webgpu import WEBGPU

ADAPTERS = usable()
ULPS = 24
"""The largest error in units in the last place. In WGSL a quotient may be off by 2.5, and a product may be
fused with a sum or not. A kernel may have a few of these."""
pytestmark = pytest.mark.skipif(not ADAPTERS, reason=NONE)


def left_out(func: Func) -> str:
    """Return the reason why a kernel has no shader: float64, or products of words. Passes make these products
    only for targets with rows for them."""
    nodes = [n for s in statements(func.body) for e in expressions(s) for n in walk(e)]
    if any(p.dtype is F64 for p in func.params) or any(n.dtype is F64 for n in nodes):
        return "float64"
    words = any(isinstance(n, Call) and n.fn in {*PRODUCTS, *PAIRS} for n in nodes)
    return "products of words" if words else ""


def approximate(func: Func) -> bool:
    """Return whether results may differ by a device's rounding: for quotients, sums, products and
    functions."""
    nodes = [n for s in statements(func.body) for e in expressions(s) for n in walk(e)]
    quotients = {"div", "floordiv", "pow", "rem", "mod", "add", "mul"}
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


SHARES = [
    *((module, 12) for module in (test_naive_nests, test_small_types)),
    *(pytest.param(module, 1, marks=pytest.mark.slow) for module in test_c_kernels.MODULES),
]


@pytest.mark.parametrize(("module", "share"), SHARES, ids=lambda m: getattr(m, "__name__", m))
def test_kernels_of_other_tests(module: ModuleType, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """All kernels run, or one in `share`, beginning with a random one. They meet guards around their buffers
    without wgpu's checks of indices."""
    unchecked(ADAPTERS[0], monkeypatch)
    _, ran = test_c_kernels.kernels_of(module, monkeypatch)
    counts: Counter[str] = Counter()
    for func, (arrays, symbols), want in ran[int(np.random.default_rng().integers(share)) :: share]:
        if why := left_out(func):
            counts[why] += 1
            continue
        counts["compared"] += 1
        compare(run(func, arrays, symbols, ADAPTERS[0], 2), want, func)
    print(module.__name__, dict(counts))
    assert counts["compared"] or share > 1


@pytest.mark.parametrize("name", test_groups.KERNELS)
@pytest.mark.parametrize("groups", [1 << 20, 3])
def test_groups_of_work_items(name: str, groups: int) -> None:
    func, arrays, want = test_groups.expected(name)
    got = run(func, arrays, {v.name: 11 for v, _ in func.symbols}, ADAPTERS[0], groups)
    for p in func.results:
        np.testing.assert_array_equal(got[p.name], want[p.name])


# --- functions


def elementwise(fn: str, count: int) -> Func:
    """Return a kernel that applies a function to each element of one array or of two."""
    two = fn in ("pow", "atan2")
    x, z, y = (Buffer(n, F32, (const(count),)) for n in "xzy")
    i = Var("i")
    given = (x, z) if two else (x,)
    args = [Load(b, (i,)) for b in given]
    value = binary("pow", *args) if fn == "pow" else call(fn, *args)
    return Func(fn, (*given, y), 1, (), For(i, const(count), Store(y, (i,), value)))


MOST_ULPS = {
    "pow": 200,
    "sin": 8,
    "cos": 8,
    "tan": 12,
    "sinh": 12,
    "cosh": 8,
    "acosh": 12,
    "asinh": 8,
    "log1p": 8,
}
"""The largest errors in units in the last place, for functions with larger errors than the others."""
DOMAINS = {"acosh": (1.0, 1e4), "atanh": (-1.0, 1.0), "asin": (-1.0, 1.0), "acos": (-1.0, 1.0),
           "exp": (-87.0, 88.0), "expm1": (-20.0, 88.0), "exp2": (-126.0, 127.0), "sinh": (-88.0, 88.0),
           "cosh": (-88.0, 88.0), "log": (1e-30, 1e30), "log2": (1e-30, 1e30), "log1p": (-0.999, 1e6),
           "sigmoid": (-80.0, 80.0), "tan": (-1.5, 1.5)}  # fmt: skip
"""Arguments for which results are normal numbers. Other functions take arguments from -100 to 100."""
REFERENCES = {"asin": np.arcsin, "acos": np.arccos, "atan": np.arctan, "asinh": np.arcsinh, "pow": np.power,
              "acosh": np.arccosh, "atanh": np.arctanh, "atan2": np.arctan2,
              "sigmoid": lambda x: 1 / (1 + np.exp(-x))}  # fmt: skip
EDGES = np.float32(
    [0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 0.5, -0.5, 2.0, -2.0, 3.0, 1e30, -1e30, 1e-30]
)
TESTED = sorted(
    {*FORMULAS, "exp", "exp2", "expm1", "log", "log2", "log1p", "sigmoid", "tanh", "sin", "cos", "tan"}
)


@pytest.mark.parametrize("fn", TESTED)
def test_functions(fn: str) -> None:
    """The arguments are small, normal and large, and include those for which a function has a rule of its
    own."""
    rng, count = np.random.default_rng(), 4096
    low, high = DOMAINS.get(fn, (-100.0, 100.0))
    x = rng.uniform(low, high, count).astype(np.float32)
    x[: count // 4] *= np.float32(2.0) ** rng.uniform(-12, 0, count // 4).astype(np.float32)
    x[: count // 4] = np.clip(x[: count // 4], low, high)
    z = rng.uniform(-4, 4, count).astype(np.float32)
    if fn == "pow":
        x, z[:64] = np.abs(x), rng.integers(-3, 4, 64)
        x[:64] = -x[:64]
    elif fn in ("sin", "cos", "tan"):
        x[-64:] = rng.uniform(1e4, 1e30, 64)
    reference = REFERENCES.get(fn) or getattr(np, fn)
    func = elementwise(fn, count)
    given = {"x": x, "z": z} if len(func.params) == 3 else {"x": x}
    with np.errstate(all="ignore"):
        want = reference(*(a.astype(np.float64) for a in given.values()))
    got = run(func, given | {"y": np.empty(count, np.float32)}, {}, ADAPTERS[0])["y"]
    normal = np.abs(want) >= 2.0**-126
    error = np.abs(got - want)[normal] / np.spacing(np.abs(want[normal]).astype(np.float32))
    assert error.max() <= MOST_ULPS.get(fn, 5), (fn, error.max(), x[normal][error.argmax()])


@pytest.mark.parametrize("fn", TESTED)
def test_functions_at_their_edges(fn: str) -> None:
    func = elementwise(fn, len(EDGES) ** 2)
    x, z = np.repeat(EDGES, len(EDGES)), np.tile(EDGES, len(EDGES))
    given = {"x": x, "z": z} if len(func.params) == 3 else {"x": x}
    with np.errstate(all="ignore"):
        reference = REFERENCES.get(fn) or getattr(np, fn)
        want = reference(*given.values()).astype(np.float32)
    got = run(func, given | {"y": np.empty(len(x), np.float32)}, {}, ADAPTERS[0])["y"]
    atol = 2e-7  # for results near 0 or subnormal ones
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=atol, err_msg=f"{fn} at {given}")


def test_a_sum_loses_what_it_should() -> None:
    """(a + b) - a keeps the rounding of its sum. A compiler may replace it by b, and some do, but rounding by
    a large number depends on it."""
    body = "serial i in 4 { y[i] = (x[i] + f32(12582912.0)) - f32(12582912.0) }"
    func = parse_func(f"func k(x: f32[4], y: out f32[4]) {{ {body} }}")
    given = {"x": np.float32([0.25, 1.5, 2.75, -3.5]), "y": np.zeros(4, np.float32)}
    np.testing.assert_array_equal(run(func, given, {}, ADAPTERS[0])["y"], np.rint(given["x"]))


# --- 64 bits


LONGS = np.int64([0, 1, -1, 2, -7, 1 << 31, -(1 << 31), (1 << 31) - 1, 1 << 40, -(1 << 40), 12345678901,
                  -98765, (1 << 63) - 1, -(1 << 63), 0xFFFFFFFF, 0x100000001])  # fmt: skip


@pytest.mark.parametrize("dtype", ["i64", "u64"])
@pytest.mark.parametrize(
    "op", ["x + y", "x - y", "x * y", "x // y", "x % y", "min(x, y)", "max(x, y)", "x & y", "x ^ y", "x << y",
           "x >> y", "rem(x, y)", "pow(x, y)", "select(x < y, x, y)"],
)  # fmt: skip
def test_integers_of_64_bits(op: str, dtype: str) -> None:
    """All bits of 64-bit integers count, because values of a model may have them."""
    count = len(LONGS) ** 2
    value = re.sub(r"\b[xy]\b", lambda m: {"x": "a[i]", "y": "b[i]"}[m[0]], op)
    func = parse_func(
        f"func k(a: {dtype}[{count}], b: {dtype}[{count}], c: out {dtype}[{count}], d: out f32[{count}]) "
        f"{{ serial i in {count} {{ c[i] = {value} d[i] = f32(c[i]) }} }}"
    )
    a, b = np.repeat(LONGS, len(LONGS)), np.tile(LONGS, len(LONGS))
    kind = np.int64 if dtype == "i64" else np.uint64
    given = {
        "a": a.view(kind),
        "b": b.view(kind),
        "c": np.zeros(count, kind),
        "d": np.zeros(count, np.float32),
    }
    if "<<" in op or ">>" in op or "pow" in op:
        given["b"] = (given["b"] & kind(63)).astype(kind)
    want = {k: v.copy() for k, v in given.items()}
    run_func(func, want, {})
    got = run(func, given, {}, ADAPTERS[0])
    for name in ("c", "d"):
        np.testing.assert_array_equal(got[name], want[name], err_msg=op)


def test_a_size_that_32_bits_may_not_hold_is_stored_whole() -> None:
    """A product of sizes is stored with 64 bits, because in the model it may be any number. As an index it
    has 32 bits."""
    func = parse_func("func k(y: out i64[1]) symbols (n in 1.., m in 1..) { y[0] = n * m * n }")
    got = run(func, {"y": np.zeros(1, np.int64)}, {"n": 70000, "m": 3}, ADAPTERS[0])
    assert got["y"][0] == 70000 * 70000 * 3


def test_longs_of_floats() -> None:
    x = np.float32(
        [0.5, -0.5, 3.99, -3.99, 2.0**31, -(2.0**40) - 3e5, 2.0**62, 2.0**63, -(2.0**63), np.nan, np.inf]
    )
    func = parse_func(
        f"func k(x: f32[{len(x)}], y: out i64[{len(x)}]) {{ serial i in {len(x)} {{ y[i] = i64(x[i]) }} }}"
    )
    given = {"x": x, "y": np.zeros(len(x), np.int64)}
    want = {k: v.copy() for k, v in given.items()}
    run_func(func, want, {})
    np.testing.assert_array_equal(run(func, given, {}, ADAPTERS[0])["y"], want["y"])


# --- refused kernels


def test_float64_is_refused_by_name() -> None:
    func = parse_func("func k(x: f64[3], y: out f64[3]) { serial i in 3 { y[i] = x[i] + f64(1.0) } }")
    with pytest.raises(CompileError, match="k: WGSL has no f64"):
        source(func, WEBGPU)


def test_a_buffer_too_large_to_count_is_refused_by_name() -> None:
    func = parse_func("func k(x: f32[70000, 70000], y: out f32[1]) { y[0] = x[0, 0] }")
    with pytest.raises(CompileError, match=r"k: x f32\[70000, 70000\] takes 19600000000 bytes"):
        source(func, WEBGPU)


def test_bytes_of_one_word_are_written_by_many_work_items() -> None:
    func = parse_func("func k(x: i32[256], y: out u8[256]) { block t in 4 { thread i in 64 {"
                      " y[t * 64 + i] = u8(x[t * 64 + i]) } } }")  # fmt: skip
    x = np.random.default_rng().integers(0, 256, 256).astype(np.int32)
    got = run(func, {"x": x, "y": np.zeros(256, np.uint8)}, {}, ADAPTERS[0])
    np.testing.assert_array_equal(got["y"], x.astype(np.uint8))
    assert shader(func, WEBGPU).accesses == {"0": "r", "1": "b"}


ROWS = """
func k(x: f32[2, 12], s: f32[3], y: out f32[2, 12], b: out u8[8], z: out f32[11]) {
  block t in 2 {
    thread i in 2 {
      vector c in 4 {
        y[t, i * 8 + c] = select(i < 1, x[t, i * 8 + c] * s[t], x[t, c + 8] + s[i + 1])
      }
      vector c in 4 { z[i * 7 + c] = x[t, i + c] }
      b[t * 4 + i] = u8(s[i])
    }
  }
}
"""


@pytest.mark.parametrize("most", [8, 1])
def test_rows_of_words_are_loaded_and_stored_at_once(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows at multiples of four words are. Others go word by word, even if they are in one binding with bytes
    that many work-items write."""
    rng = np.random.default_rng()
    func = parse_func(ROWS)
    given: dict[str, Array] = {
        "x": rng.standard_normal((2, 12)).astype(np.float32), "s": np.float32([3, 7, 200]),
        "y": np.zeros((2, 12), np.float32), "b": np.zeros(8, np.uint8), "z": np.zeros(11, np.float32),
    }  # fmt: skip
    given["x"][1] = given["x"][0]  # both groups write z
    want = {k: v.copy() for k, v in given.items()}
    run_func(func, want, {})
    monkeypatch.setattr(opened(ADAPTERS[0]), "most_buffers", most)
    made = shader(func, WEBGPU)
    assert made.accesses == {"0": "qr", "1": "r", "2": "t", "3": "b", "4": "w"}
    got = run(func, given, {}, ADAPTERS[0], made=made)
    for name in ("y", "b", "z"):
        np.testing.assert_allclose(got[name], want[name], rtol=1e-6, err_msg=made.text())
    kinds = re.findall(r"array<([\w<>]+)>;", made.text())
    assert kinds == ["vec4<u32>", "u32", "vec4<u32>", "atomic<u32>", "u32"]


GUARDED = """
func k(x: f32[5, 24], s: f32[1], y: out f32[5, {0}]) {{
  block t in 5 {{
    thread i in 6 {{
      vector c in 4 {{
        if {1} {{ y[t, i * 4 + c] = x[t, i * 4 + c] * f32(2.0) }}
      }}
    }}
  }}
}}
"""


@pytest.mark.parametrize(
    ("columns", "guard", "letter"),
    [
        (16, "i * 4 + c < 16", "t"), (16, "(i * 4 + c < 16) & (t < 3)", "t"), (16, "i * 4 + c < 14", "w"),
        (16, "(i * 3 + c < 16) & (i < 4)", "w"), (16, "(i < 4) & (s[0] > f32(1.0))", "t"),
        (18, "i * 4 + c < 18", "w"),
    ],
)  # fmt: skip
def test_guards_of_whole_rows(columns: int, guard: str, letter: str) -> None:
    """A row is stored at once if its guard holds for all four lanes or none."""
    rng, func = np.random.default_rng(), parse_func(GUARDED.format(columns, guard))
    given: dict[str, Array] = {
        "x": rng.standard_normal((5, 24)).astype(np.float32), "s": np.float32([2]),
        "y": np.ones((5, columns), np.float32),
    }  # fmt: skip
    want = {k: v.copy() for k, v in given.items()}
    run_func(func, want, {})
    made = shader(func, WEBGPU)
    assert made.accesses["2"] == letter
    np.testing.assert_array_equal(run(func, given, {}, ADAPTERS[0], made=made)["y"], want["y"])
