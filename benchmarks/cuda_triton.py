"""A product and attention in Triton, tiled as in its tutorials, beside ours. They need PyTorch and Triton."""

from __future__ import annotations

from typing import Any

from cuda_peers import Row, torch_seconds, torch_with_cuda

try:
    import triton
    import triton.language as tl
except ImportError:  # the jobs then say so
    triton = tl = None

if triton is not None:

    @triton.jit
    def _product(  # type: ignore[no-untyped-def]
        x, y, z, M, N, K, TF32: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
        GROUP: tl.constexpr,
    ):  # fmt: skip
        """Make a tile of a product. Tiles of GROUP rows follow each other, so that they share columns."""
        number = tl.program_id(0)
        across, down = tl.cdiv(N, BN), tl.cdiv(M, BM)
        first = number // (GROUP * across) * GROUP
        rows = min(down - first, GROUP)
        inner = number % (GROUP * across)
        m = (first + inner % rows) * BM + tl.arange(0, BM)
        n = inner // rows * BN + tl.arange(0, BN)
        k = tl.arange(0, BK)
        total = tl.zeros((BM, BN), tl.float32)
        for step in range(tl.cdiv(K, BK)):
            at = step * BK + k
            a = tl.load(x + m[:, None] * K + at[None, :], (m[:, None] < M) & (at[None, :] < K), 0.0)
            b = tl.load(y + at[:, None] * N + n[None, :], (at[:, None] < K) & (n[None, :] < N), 0.0)
            total = tl.dot(a, b, total, input_precision="tf32" if TF32 else "ieee")
        inside = (m[:, None] < M) & (n[None, :] < N)
        tl.store(z + m[:, None] * N + n[None, :], total.to(z.dtype.element_ty), inside)

    @triton.jit
    def _attention(  # type: ignore[no-untyped-def]
        q, k, v, o, scale, ROWS: tl.constexpr, HEAD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr
    ):
        """Make a tile of attention's rows, with a running softmax. Lengths fill whole tiles."""
        head = tl.program_id(1) * ROWS * HEAD
        m, n, d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, BN), tl.arange(0, HEAD)
        queries = tl.load(q + head + m[:, None] * HEAD + d[None, :])
        most = tl.full((BM,), -float("inf"), tl.float32)
        sums = tl.zeros((BM,), tl.float32)
        total = tl.zeros((BM, HEAD), tl.float32)
        for start in range(0, ROWS, BN):
            at = head + (start + n)[:, None] * HEAD + d[None, :]
            scores = tl.dot(queries, tl.trans(tl.load(k + at)), input_precision="ieee") * scale
            new = tl.maximum(most, tl.max(scores, 1))
            shares, old = tl.exp(scores - new[:, None]), tl.exp(most - new)
            sums = sums * old + tl.sum(shares, 1)
            values = tl.load(v + at)
            total = tl.dot(shares.to(values.dtype), values, total * old[:, None], input_precision="ieee")
            most = new
        tl.store(o + head + m[:, None] * HEAD + d[None, :], (total / sums[:, None]).to(o.dtype.element_ty))


def product_tiles() -> list[Any]:
    """Return the tiles that are tried, those of Triton's tutorial."""
    sizes = (
        (128, 256, 64, 3, 8), (64, 256, 32, 4, 4), (128, 128, 64, 4, 4), (128, 64, 32, 4, 4),
        (64, 32, 32, 5, 2),
    )  # fmt: skip
    return [
        triton.Config({"BM": m, "BN": n, "BK": k, "GROUP": 8}, num_stages=stages, num_warps=warps)
        for m, n, k, stages, warps in sizes
    ]  # fmt: skip


def attention_tiles(rows: int) -> list[Any]:
    sizes = ((128, 64, 3, 4), (128, 128, 3, 8), (64, 64, 3, 4), (64, 32, 4, 4))
    return [
        triton.Config({"BM": m, "BN": n}, num_stages=stages, num_warps=warps)
        for m, n, stages, warps in sizes
        if rows % max(m, n) == 0
    ]


def product(x: Any, y: Any, z: Any, tf32: bool, tiles: dict[str, int] | None = None) -> Any:
    """Return a function that writes the product of two tensors to a third. Without `tiles`, the quickest of
    the tutorial's are taken."""
    (m, k), n = x.shape, y.shape[1]
    kernel = _product if tiles else triton.autotune(product_tiles(), key=["M", "N", "K"])(_product)

    def groups(meta: Any) -> tuple[int]:
        return (triton.cdiv(m, meta["BM"]) * triton.cdiv(n, meta["BN"]),)

    return lambda: kernel[groups](x, y, z, m, n, k, TF32=tf32, **tiles or {})


def attention(q: Any, k: Any, v: Any, o: Any, tiles: dict[str, int] | None = None) -> Any:
    """Return a function that writes attention over [heads, rows, head] to a tensor."""
    heads, rows, head = q.shape
    kernel = _attention if tiles else triton.autotune(attention_tiles(rows), key=["ROWS"])(_attention)

    def groups(meta: Any) -> tuple[int, int]:
        return triton.cdiv(rows, meta["BM"]), heads

    return lambda: kernel[groups](q, k, v, o, head**-0.5, ROWS=rows, HEAD=head, **tiles or {})


def of_triton(name: str, kind: str, shape: tuple[int, ...], ours: float) -> Row:
    """Measure Triton's product of [rows, terms, columns], or attention of [heads, rows, head], by the
    device's clock."""
    torch = torch_with_cuda()
    if torch is None or triton is None:
        return {"absent": "PyTorch with CUDA" if torch is None else "Triton"}
    dtype = getattr(torch, "float32" if kind == "tf32" else kind)

    def made(*sizes: int) -> Any:
        return torch.randn(*sizes, device="cuda", dtype=dtype)

    try:
        if name == "product":
            rows, terms, columns = shape
            run = product(made(rows, terms), made(terms, columns), made(rows, columns), kind == "tf32")
        else:
            run = attention(*(made(*shape) for _ in range(4)))
        theirs = torch_seconds(torch, run)
    except Exception as error:  # a kernel that Triton can't run is only reported
        return {"failed": f"Triton: {str(error)[:200]}"}
    return {"Triton": theirs, "of Triton": theirs / ours}
