"""The records of products are consistent, and every text form and instruction row names them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from jangin.ir.arithmetic import apply
from jangin.ir.core import Conv, MatMul
from jangin.ir.dtype import BF16, F32, I8, I16, I32, DType
from jangin.ir.expr import const
from jangin.ir.graph import Array, Graph
from jangin.ir.graph_text import parse_graph, print_graph
from jangin.ir.interpret import run_func
from jangin.ir.parse import parse_func
from jangin.ir.products import DOT1BF, DOT2BF, DOT4, DOT4S, DOT4U, DOT8, PRODUCTS, Product
from jangin.ir.reader import ParseError
from jangin.ir.verify import VerifyError, verify_func
from jangin.ops.builder import Builder
from jangin.targets import NAMED
from jangin.targets.rows import Row

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "sizes": ({"right": I16}, "numbers of one size"),
    "a small sum": ({"total": I8}, "a sum that is wider than its numbers"),
    "floats and integers": ({"total": F32}, "floats alone"),
    "no terms": ({"terms": 0}, "a row and a term"),
    "rows of no columns": ({"rows": 2}, "columns"),
    "three terms": ({"terms": 3}, "words of 8, 16, 32 or 64 bits, not of 24"),
    "half a word": ({"terms": 6, "rows": 2, "columns": 2, "held": "matrix register"}, "whole words"),
    "single products that clamp": ({"left": I16, "right": I16, "terms": 1, "clamps": True}, "pairs"),
    "a least beyond the type": ({"right_least": -200}, "a least it can have"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_is_no_product(case: str) -> None:
    fields, error = WRONG[case]
    with pytest.raises(ValueError, match=error):
        replace(DOT4, **fields)


def test_shapes_and_words() -> None:
    """A word has all terms of a vector's sum, 32 bits in a matrix register, and one term in a fragment."""
    tile = replace(DOT4U, rows=16, columns=16, terms=64, held="matrix register")
    assert (tile.terms_of_word, tile.word, tile.of_matrices) == (4, I32, False)
    assert tile.by_lanes == DOT4U == DOT4U.by_lanes != DOT4S
    assert DOT8.of_matrices and DOT8.by_lanes == Product("dot8", I8, I8, I32, terms=8)
    fragment = replace(DOT1BF, rows=16, columns=8, terms=16, held="fragment")
    assert (fragment.terms_of_word, fragment.word, fragment.by_lanes) == (1, BF16, DOT1BF)
    assert (DOT4.row_type, DOT2BF.row_type) == (I32, F32)


def graph(name: str) -> Graph:
    """Make a graph of a product and a convolution on words."""
    b, dot = Builder("net", {}), PRODUCTS[name]
    x, y = (b.input(n, dot.word, (const(3), const(3))) for n in "xy")
    image, w = (
        b.input(n, dot.word, tuple(map(const, s))) for n, s in (("i", (1, 5, 5, 4)), ("w", (2, 4, 3, 3)))
    )
    window = Conv((3, 3), (1, 1), (1, 1), (0,) * 4, 1, "last", dot.total, dot)
    parts = [b.node(MatMul(dtype=dot.total, dot=dot), [x, y]), b.node(window, [image, w])]
    return b.graph(parts, ["product", "window"])


@pytest.mark.parametrize("name", PRODUCTS)
def test_the_text_names_the_product(name: str) -> None:
    made = graph(name)
    text = print_graph(made)
    assert text.count(f'dot = "{name}"') == 2 and parse_graph(text) == made
    with pytest.raises(ParseError, match="there is no product 'dot9'; there are dot1, dot2"):
        parse_graph(text.replace(f'"{name}"', '"dot9"'))


def test_a_product_multiplies_its_own_words() -> None:
    for name, product in PRODUCTS.items():
        operands = f"x: {{0}}[4], y: {{0}}[4], out: out {product.total}[1]"
        func = f"func k({operands}) {{{{ out[0] = {name}(x[0], y[0]) }}}}"
        verify_func(parse_func(func.format(product.word)))
        with pytest.raises(VerifyError, match=f"{name} multiplies words of {product.word}, not of u16"):
            verify_func(parse_func(func.format("u16")))


def rows() -> list[Any]:
    """Return one row for each reference that multiplies words lane by lane."""
    found = {
        r.reference: r
        for target in NAMED.values()
        for r in target.rows
        if r.product is not None and r.product == r.product.by_lanes
    }
    return [pytest.param(r, id=r.name) for r in found.values()]


@pytest.mark.parametrize("row", rows())
def test_a_row_computes_its_product(row: Row) -> None:
    """The row's reference computes the product, on small numbers. Sums of floats are exact."""
    product, count = row.product, 64
    assert product is not None
    random = np.random.default_rng()

    def words(dtype: DType) -> Array:
        least = -60 if dtype.kind != "u" else 0
        return (
            random.integers(least, 60, (count, product.terms))
            .astype(dtype.numpy)
            .view(product.word.numpy)[:, 0]
        )

    func, pairs = (
        row.func(product.row_type),
        [(words(product.left), words(product.right)) for _ in range(row.words)],
    )
    arrays = dict(zip("xyuv", (w for pair in pairs for w in pair), strict=False))
    arrays |= {n: random.integers(-99, 99, count).astype(product.total.numpy) for n in "zr"}
    want = arrays["z"] + sum(apply(product.name, pair, product.total) for pair in pairs)
    run_func(func, arrays, {"N": count})
    np.testing.assert_array_equal(arrays["r"], want)
