"""Masks of attention that hide by -inf, by a truth value, or by the lowest finite number, as in Hugging
Face's models.

The lowest number hides nothing for good. If a whole row has it, all scores are equal, and the result is the
mean of the values. If a whole row is -inf, the result is 0, as ONNX and PyTorch define it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from against import onnxruntime_outputs
from onnx import helper
from onnx.reference import ReferenceEvaluator

import jangin
from jangin.cli import main
from jangin.ir.graph import Array

KINDS = ("-inf", "lowest", "-10000", "both", "truth")


def mask(kind: str, rows: int, columns: int, dtype: Any = np.float32) -> Array:
    """Return a mask that hides all of the first row, all but the last key of the second row, and one key of
    the third."""
    lowest = float(np.finfo(dtype).min)
    hidden = np.zeros((rows, columns), bool)
    hidden[0], hidden[1, :-1], hidden[2, 1] = True, True, True
    if kind == "truth":
        return ~hidden
    if kind == "both":
        found = np.where(hidden, lowest, 0.0)
        found[0, 0] = found[1, 0] = found[2, 1] = -np.inf
    else:
        found = np.where(hidden, {"-inf": -np.inf, "lowest": lowest, "-10000": -1e4}[kind], 0.0)
    return found.astype(dtype)


def tensors(*shape: int, keys: int, dtype: Any = np.float32) -> dict[str, Array]:
    rng, (*outer, _, size) = np.random.default_rng(3), shape
    shapes = {"q": shape, "k": (*outer, keys, size), "v": (*outer, keys, size)}
    return {n: rng.standard_normal(s).astype(dtype) for n, s in shapes.items()}


def attention(
    feeds: dict[str, Array], op: str = "Attention", domain: str = "", **given: Any
) -> onnx.ModelProto:
    kinds = {n: helper.np_dtype_to_tensor_dtype(a.dtype) for n, a in feeds.items()}
    ends = [helper.make_tensor_value_info(n, kinds[n], a.shape) for n, a in feeds.items()]
    names = (
        list(feeds)
        if not domain
        else ["q", "k", "v", "", "keys" if "keys" in feeds else "", "m" * ("m" in feeds)]
    )
    node = helper.make_node(op, names, ["y"], domain=domain, **given)
    out = helper.make_tensor_value_info("y", kinds["q"], None)
    opsets = [helper.make_opsetid("", 23), *([helper.make_opsetid(domain, 1)] if domain else [])]
    return helper.make_model(helper.make_graph([node], "g", ends, [out]), opset_imports=opsets, ir_version=10)


def compiled(model: onnx.ModelProto) -> Any:
    return jangin.compile(model, cache=False, isolated=False)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("heads", "queries", "keys", "size"), [(2, 4, 5, 8), (8, 40, 37, 16)])
def test_onnx(kind: str, dtype: Any, heads: int, queries: int, keys: int, size: int) -> None:
    """The larger cases are one kernel. A mask doesn't prevent that."""
    feeds = tensors(1, heads, queries, size, keys=keys, dtype=dtype)
    feeds["m"] = mask(kind, queries, keys, dtype)
    model = attention(feeds)
    exe = compiled(model)
    wide = {n: a.astype(np.float32) if a.dtype == np.float16 else a for n, a in feeds.items()}
    (want,) = ReferenceEvaluator(attention(wide)).run(None, wide)
    close = 1e-5 if dtype is np.float32 else 4e-3  # half precision keeps eleven bits of numbers up to 3
    np.testing.assert_allclose(exe.run(feeds)["y"], want, close, close)
    if heads > 2 and dtype is np.float32:
        assert "attention" in {launch.template.split()[0] for launch in exe.plan.launches}


@pytest.mark.parametrize("kind", ["lowest", "-10000", "-inf", "both"])
def test_what_is_added_in_onnxruntimes_own(kind: str) -> None:
    """MultiHeadAttention adds its bias as it is. A row of -inf gives NaN in ONNX Runtime, and 0 in Jangin."""
    feeds = tensors(1, 4, 16, keys=5)
    feeds["m"] = np.broadcast_to(mask(kind, 4, 5), (1, 2, 4, 5)).copy()
    model = attention(feeds, "MultiHeadAttention", "com.microsoft", num_heads=2)
    (want,) = onnxruntime_outputs(model, feeds)
    want = np.where(np.isnan(want), 0, want)
    np.testing.assert_allclose(compiled(model).run(feeds)["y"], want, 1e-5, 1e-5)


@pytest.mark.parametrize("hidden", [-10000.0, float(np.finfo(np.float32).min)])
def test_the_number_that_hides_in_onnxruntimes_own(hidden: float) -> None:
    """`mask_filter_value` is the mask's number for padding keys. In the second item, all keys are padding."""
    feeds = tensors(2, 4, 16, keys=5)
    feeds["keys"] = np.array([[1, 1, 1, 0, 0], [0, 0, 0, 0, 0]], np.int32)
    model = attention(feeds, "MultiHeadAttention", "com.microsoft", num_heads=2, mask_filter_value=hidden)
    (want,) = onnxruntime_outputs(model, feeds)
    np.testing.assert_allclose(compiled(model).run(feeds)["y"], want, 1e-5, 1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["float32", "float16", "bfloat16"])
def test_pytorch(kind: str, name: str) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch isn't installed: the extra `torch` brings it")
    dtype = getattr(torch, name)
    q, k, v = (torch.from_numpy(a).to(dtype) for a in tensors(1, 2, 4, 8, keys=5).values())
    given = torch.from_numpy(mask(kind, 4, 5))
    if kind in ("lowest", "both"):  # the lowest number of the mask's own type
        given = torch.where(given == torch.finfo(torch.float32).min, torch.finfo(dtype).min, given)
    given = given if kind == "truth" else given.to(dtype)

    def attend(q: Any, k: Any, v: Any, m: Any) -> Any:
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=m)

    with torch.no_grad():
        torch._dynamo.reset()
        got = torch.compile(attend, backend="jangin")(q, k, v, given).float().numpy()
        want = attend(q, k, v, given).float().numpy()
    close = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}[name]  # the types keep 24, 11 and 8 bits
    np.testing.assert_allclose(got, want, close, close)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("kind", ["lowest", "both", "truth"])
@pytest.mark.parametrize(
    ("suffix", "package"), [(".onnx", "onnx"), (".nnef.tgz", "nnef"), (".tflite", "tflite")]
)
def test_converted(
    kind: str, suffix: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Formats without such an attention get the same masks in their own operators."""
    pytest.importorskip(package, reason=f"{package} isn't installed: the extra `{package}` brings it")
    feeds = tensors(1, 2, 4, 8, keys=5)
    feeds["m"] = mask(kind, 4, 5)
    source, made = tmp_path / "a.onnx", tmp_path / f"b{suffix}"
    onnx.save(attention(feeds), source)
    monkeypatch.setattr("sys.argv", ["jangin", "convert", str(source), str(made)])
    with pytest.raises(SystemExit, match="0"):
        main()
    exe = jangin.compile(made, cache=False, isolated=False)
    want = compiled(attention(feeds)).run(feeds)["y"]
    (got,) = exe.run(dict(zip((s.name for s in exe.inputs), feeds.values(), strict=True))).values()
    np.testing.assert_allclose(got, want, 1e-6, 1e-6)
