"""Matrix products of chosen sizes, as models of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

from onnx import TensorProto, helper

from jangin.files import write_whole
from jangin.ir.core import Conv
from jangin.ir.expr import Const
from jangin.ir.graph import Graph
from jangin.ir.records import dataclass

CONVOLUTIONS = "convolutions"
"""The word for the products that a study's models compute as convolutions."""


@dataclass(frozen=True, order=True)
class Product:
    """The sizes of a product of two matrices: [rows, depth] times [depth, columns]."""

    rows: int
    depth: int
    columns: int

    @property
    def square(self) -> bool:
        return self.rows == self.depth == self.columns

    @property
    def name(self) -> str:
        """The name of its model. Square products have one number."""
        return f"product-{self.rows}" + ("" if self.square else f"x{self.depth}x{self.columns}")

    @property
    def work(self) -> float:
        """The operations of the product."""
        return 2.0 * self.rows * self.depth * self.columns


def parse_sizes(text: str) -> tuple[tuple[Product, ...], bool]:
    """Return the products of a list of sizes, and whether it has the word `convolutions` too.

    `64..4096` are square ones, each twice as wide as the one before. `96` is a square one, and `64x147x12544`
    one of rows, depth and columns. Raises ValueError for anything else."""
    products: list[Product] = []
    words = text.split(",")
    for word in words:
        doubled, sizes = re.fullmatch(r"(\d+)\.\.(\d+)", word), re.fullmatch(r"(\d+)(?:x(\d+)x(\d+))?", word)
        of_word = []
        if doubled:
            size, last = map(int, doubled.groups())
            while 0 < size <= last:
                of_word.append(Product(size, size, size))
                size *= 2
        elif sizes and min(int(n) for n in sizes.groups("1")) > 0:
            rows, depth, columns = (int(n or sizes[1]) for n in sizes.groups())
            of_word.append(Product(rows, depth, columns))
        if not of_word and word != CONVOLUTIONS:
            raise ValueError(
                f"--products {text!r} is not understood: write 64..4096, 64,96,128, 64x147x12544 or "
                f"{CONVOLUTIONS}"
            )
        products += of_word
    return tuple(dict.fromkeys(products)), CONVOLUTIONS in words


def products_of(graph: Graph) -> list[Product]:
    """Return the matrix products that a graph's convolutions are computed by. Each multiplies the filters by
    the windows of one image. Convolutions of several groups are left out."""
    products = []
    for node in graph.nodes:
        if isinstance(node.attrs, Conv) and node.attrs.groups == 1:
            (rows, *taps), (_, *image) = graph.shape(node.inputs[1]), graph.shape(node.outputs[0])
            windows = image[1:] if node.attrs.layout == "first" else image[:-1]
            if all(isinstance(n, Const) for n in (rows, *taps, *windows)):
                depth, columns = (prod(int(str(n)) for n in sizes) for sizes in (taps, windows))
                products.append(Product(int(str(rows)), depth, columns))
    return products


def write_products(folder: Path, products: Sequence[Product]) -> list[Path]:
    """Write a model of each product, and return the paths. Both factors are inputs, so that no engine can
    pack one before."""
    return [_write(folder / f"{product.name}.onnx", product) for product in products]


def _write(path: Path, product: Product) -> Path:
    sizes = {"a": (product.rows, product.depth), "b": (product.depth, product.columns),
             "c": (product.rows, product.columns)}  # fmt: skip
    a, b, c = (helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n, shape in sizes.items())
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [a, b], [c])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    write_whole(path, lambda file: file.write(model.SerializeToString()))
    return path


def by_name(products: Sequence[Product]) -> Mapping[str, Product]:
    """Return products by the names of their models."""
    return {product.name: product for product in products}
