"""Inverses, linear equations, Cholesky factors and products of bytes, against PyTorch in float64. Unsupported
calls are refused by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")

import jangin  # noqa: E402


class Applied(torch.nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *arrays: Any) -> Any:
        return self.function(*arrays)


def random(seed: int, *shape: int) -> Any:
    return torch.from_numpy(np.random.default_rng(seed).standard_normal(shape))


def positive(seed: int, *shape: int) -> Any:
    a = random(seed, *shape)
    return a @ a.transpose(-1, -2) + shape[-1] * torch.eye(shape[-1], dtype=a.dtype)


def crossed(n: int) -> Any:
    """Make matrices with ones on the other diagonal and small numbers elsewhere, so that each pivot lies in
    another row."""
    return torch.flip(torch.eye(n, dtype=torch.float64), [0]) + 0.01 * random(3, n, n)


SOLVE = torch.linalg.solve
CASES: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "inverse": (torch.inverse, (random(0, 5, 5),)), "inverses": (torch.linalg.inv, (random(1, 2, 3, 7, 7),)),
    "pivots": (torch.linalg.inv, (crossed(6),)), "one": (torch.inverse, (random(2, 1, 1),)),
    "solve": (SOLVE, (random(3, 4, 5, 5), random(4, 4, 5, 3))),
    "solve a vector": (SOLVE, (random(5, 6, 6), random(6, 6))),
    "solve one of vectors": (SOLVE, (random(7, 3, 4, 4), random(8, 3, 4))),
    "solve many by one": (SOLVE, (random(9, 5, 5), random(10, 2, 5, 3))),
    "solve from the right": (
        lambda a, y: torch.linalg.solve(a, y, left=False), (random(11, 4, 4), random(12, 3, 4))),
    "cholesky": (torch.linalg.cholesky, (positive(13, 3, 6, 6),)),
    "cholesky above": (lambda a: torch.linalg.cholesky(a, upper=True), (positive(14, 5, 5),)),
    "cholesky of old": (torch.cholesky, (positive(15, 4, 4),)),
    "triangular": (
        lambda a, y: torch.linalg.solve_triangular(a, y, upper=True),
        (random(16, 4, 4) + 3, random(17, 4, 2))),
    "triangular of ones": (
        lambda a, y: torch.linalg.solve_triangular(a, y, upper=False, unitriangular=True),
        (random(18, 2, 5, 5), random(19, 2, 5, 2))),
    "triangular from the right": (
        lambda a, y: torch.linalg.solve_triangular(a, y, upper=True, left=False),
        (random(20, 4, 4) + 3, random(21, 2, 4))),
    "power": (lambda a: torch.linalg.matrix_power(a, -2), (random(22, 4, 4) + 2,)),
}  # fmt: skip


def compiled(function: Callable[..., Any], arrays: tuple[Any, ...]) -> Any:
    program = torch.export.export(Applied(function), arrays)
    return jangin.compile(program, threads=2, cache=False, isolated=False)


@pytest.mark.parametrize("name", CASES)
def test_against_pytorch(name: str) -> None:
    """Jangin and PyTorch compute in f32, so both may miss the exact result by the matrix's condition
    number."""
    function, exact = CASES[name]
    arrays = tuple(a.float() for a in exact)
    wanted = function(*(a.double() for a in arrays))
    got = compiled(function, arrays)(*arrays)
    assert got.shape == wanted.shape and got.dtype == torch.float32
    condition = float(torch.linalg.cond(arrays[0].double()).max())
    error = float((got.double() - wanted).abs().max() / wanted.abs().max())
    assert error < 1e-6 * max(condition, 1), (error, condition)


def test_a_singular_matrix_is_no_error() -> None:
    """A singular matrix gives infinite numbers or NaN. PyTorch raises an error, but a compiled model
    can't."""
    singular = torch.tensor([[1.0, 2.0], [2.0, 4.0]])
    got = compiled(torch.inverse, (torch.eye(2),))(singular)
    assert not torch.isfinite(got).all()
    got = compiled(torch.linalg.cholesky, (torch.eye(2),))(-torch.eye(2))
    assert torch.isnan(got).any()


def test_products_of_bytes() -> None:
    x = torch.from_numpy(np.random.default_rng(0).integers(-128, 128, (20, 16)).astype(np.int8))
    w = torch.from_numpy(np.random.default_rng(1).integers(-128, 128, (16, 8)).astype(np.int8))
    got = compiled(torch._int_mm, (x, w))(x, w)
    assert got.dtype == torch.int32
    np.testing.assert_array_equal(got.numpy(), x.numpy().astype(np.int32) @ w.numpy().astype(np.int32))


@pytest.mark.parametrize(
    ("function", "name"),
    [(torch.det, "_linalg_det"), (torch.linalg.svd, "_linalg_svd"), (torch.linalg.qr, "linalg_qr"),
     (torch.linalg.eigh, "_linalg_eigh"), (torch.linalg.lu, "linalg_lu")],
)  # fmt: skip
def test_what_is_refused_is_named(function: Callable[..., Any], name: str) -> None:
    with pytest.raises(jangin.CompileError, match=rf"aten\.{name}\.default is not supported"):
        compiled(function, (random(0, 4, 4).float(),))


def test_factors_are_not_given() -> None:
    with pytest.raises(jangin.CompileError, match="its first result is compiled alone"):
        compiled(torch.linalg.inv_ex, (random(0, 4, 4).float(),))


def test_any_number_of_matrices() -> None:
    """The number of matrices may be free. Their own size must be known."""
    many = torch.export.Dim("many", min=1, max=64)
    arrays = (random(23, 3, 4, 4).float(),)
    program = torch.export.export(Applied(torch.inverse), arrays, dynamic_shapes=(({0: many},),))
    exe = jangin.compile(program, cache=False, isolated=False)
    for count in (1, 5):
        x = random(count, count, 4, 4).float()
        np.testing.assert_allclose(exe(x) @ x, torch.eye(4).expand(count, 4, 4), atol=1e-4)
    size = torch.export.Dim("size", min=2, max=64)
    program = torch.export.export(
        Applied(torch.inverse), (random(24, 4, 4).float(),), dynamic_shapes=(({0: size, 1: size},),)
    )
    with pytest.raises(jangin.CompileError, match="must be of square matrices"):
        jangin.compile(program, cache=False, isolated=False)


def test_equations_by_torch_compile() -> None:
    """A token tensor for the order of effects goes in and comes out with torch.compile."""

    def function(a: Any, y: Any) -> Any:
        return torch.linalg.solve(a, y) + torch.linalg.cholesky(a @ a.transpose(1, 2))[..., :2]

    a, y = random(25, 3, 4, 4).float() + 3 * torch.eye(4), random(26, 3, 4, 2).float()
    wanted = function(a.double(), y.double())
    got = torch.compile(function, backend="jangin")(a, y)
    np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-5)
