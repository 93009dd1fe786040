"""Rows of instructions on matrix registers: zeroing, loading, storing and multiplying."""

from __future__ import annotations

from dataclasses import replace

from jangin.ir.dtype import F32, I32
from jangin.ir.products import Product
from jangin.targets.rows import TILE_BYTES, TILE_ROWS, Row


def _each(inner: str) -> str:
    """Return the text of loops that run a statement for each row and column of a matrix."""
    return f"serial i in R {{ serial j in C {{ {inner} }} }}"


def tiles(zero: str, load: str, store: str, feature: str) -> tuple[Row, ...]:
    """Return the rows that zero, load and store matrix registers. `zero`, `load` and `store` are the names of
    LLVM's functions for the three instructions."""

    def row(name: str, operands: str, reference: str, function: str, given: str) -> Row:
        llvm = f"call void @llvm.x86.{function}({given})"
        becomes = function.removesuffix("64")
        return Row(name, (I32, F32), operands, "", _each(reference), llvm, (feature,), becomes)

    memory = "ptr %memory, i64 %stride"
    loaded, stored = (
        "memory: T[M], stride: i64[1], r: out T[R, C]",
        "x: T[R, C], stride: i64[1], memory: out T[M]",
    )
    place = "memory[i * (stride[0] // 4) + j]"
    return (
        row("tile_zero", "r: out T[R, C]", "r[i, j] = T(0)", zero, "i8 %r"),
        row("tile_load", loaded, f"r[i, j] = {place}", load, f"i8 %r, {memory}"),
        row("tile_store", stored, f"{place} = x[i, j]", store, f"i8 %x, {memory}"),
    )


def tile(product: Product, function: str, feature: str) -> Row:
    """Return the row that multiplies two matrix registers of words, and adds the product to a third."""
    operands = "x: i32[R, K], y: i32[K, C], r: out T[R, C]"
    reference = _each(f"serial k in K {{ r[i, j] = r[i, j] + {product.name}(x[i, k], y[k, j]) }}")
    llvm = f"call void @llvm.x86.{function}(i8 %r, i8 %x, i8 %y)"
    whole = replace(
        product, rows=TILE_ROWS, columns=TILE_BYTES // product.total.bytes,
        terms=TILE_BYTES // product.left.bytes, held="matrix register",
    )  # fmt: skip
    return Row(
        f"{product.name}_tile", (product.total,), operands, "", reference, llvm, (feature,), function,
        product=whole,
    )  # fmt: skip
