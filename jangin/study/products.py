"""Square matrix products of growing size, as models of a study."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from onnx import TensorProto, helper

from jangin.files import write_whole


def parse_sizes(text: str) -> tuple[int, ...]:
    """Return the sizes of `64..4096`, each twice the one before, or of a list such as `64,96`. Raises
    ValueError for anything else."""
    doubled = re.fullmatch(r"(\d+)\.\.(\d+)", text)
    if doubled:
        size, last = map(int, doubled.groups())
        sizes = []
        while 0 < size <= last:
            sizes.append(size)
            size *= 2
    else:
        sizes = [int(n) for n in text.split(",")] if re.fullmatch(r"\d+(,\d+)*", text) else []
    if not sizes or min(sizes) < 1:
        raise ValueError(f"--products {text!r} is not understood: write 64..4096 or 64,96,128")
    return tuple(dict.fromkeys(sizes))


def write_products(folder: Path, sizes: Sequence[int]) -> list[Path]:
    """Write a model of one product for each size, and return the paths. Both factors are inputs, so that no
    engine can pack one before."""
    return [_write(folder / f"{name_of(n)}.onnx", n) for n in sizes]


def _write(path: Path, n: int) -> Path:
    a, b, c = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [n, n]) for name in "abc")
    graph = helper.make_graph([helper.make_node("MatMul", ["a", "b"], ["c"])], "product", [a, b], [c])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    write_whole(path, lambda file: file.write(model.SerializeToString()))
    return path


def name_of(size: int) -> str:
    return f"product-{size}"


def work(sizes: Sequence[int]) -> Mapping[str, float]:
    """Return the operations of each product by the name of its model."""
    return {name_of(n): 2.0 * n**3 for n in sizes}
