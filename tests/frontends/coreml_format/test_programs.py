"""Core ML's programs (MIL) and networks, converted from PyTorch by coremltools, are compared with PyTorch.
Other tests damage them."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

ct = pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")
torch = pytest.importorskip("torch", reason="PyTorch, which makes the programs, isn't installed")

from torch import nn  # noqa: E402
from torch.nn import functional as f  # noqa: E402

TOLERANCE = 2e-5


class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.n = nn.Conv2d(3, 8, 3, 2, 1), nn.BatchNorm2d(8)
        self.b = nn.Conv2d(8, 8, 3, 1, 1, groups=2)
        self.u, self.g, self.l = nn.ConvTranspose2d(8, 4, 2, 2), nn.GroupNorm(2, 4), nn.Linear(4, 5)

    def forward(self, x: Any) -> Any:
        y = f.relu(self.n(self.a(x)))
        y = f.max_pool2d(y + f.hardswish(self.b(y)), 3, 2, 1)
        y = f.interpolate(y, scale_factor=2.0, mode="bilinear", align_corners=False)
        y = f.gelu(self.g(self.u(y)))
        return f.softmax(self.l(f.adaptive_avg_pool2d(y, 1).flatten(1)), -1)


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e, self.q, self.o = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.n = nn.LayerNorm(16)

    def forward(self, tokens: Any) -> Any:
        x = self.e(tokens.long())
        q, k, v = (z.reshape(1, -1, 2, 8).transpose(1, 2) for z in self.q(x).chunk(3, -1))
        y = f.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(1, -1, 16)
        return self.n(x + self.o(y)), x.argmax(-1), (x * 2).cumsum(1)


class Recurrent(nn.Module):
    def __init__(self, kind: str) -> None:
        super().__init__()
        self.l = getattr(nn, kind)(6, 5, bidirectional=kind == "LSTM")

    def forward(self, x: Any) -> Any:
        y, state = self.l(x)
        return y, state[0] if isinstance(state, tuple) else state


class Elements(nn.Module):
    def forward(self, x: Any) -> Any:
        a, b = x.split([2, 4], 1)
        y = torch.cat([b, a], 1)
        return (
            torch.where(y > 0, y.exp(), y.abs().sqrt()), y.clamp(-1, 1).pow(2).mean((2, 3)),
            torch.topk(x.flatten(1), 3)[0], f.pad(x, (1, 2, 0, 1), "reflect"),
            f.pixel_shuffle(f.silu(torch.cat([x, x], 1)), 2), x[:, ::2, 1:-1],
            torch.stack([x, x], 0).permute(1, 0, 2, 3, 4), f.leaky_relu(x) + f.softplus(x) - torch.floor(x),
        )  # fmt: skip


IMAGE, STEPS = torch.zeros(1, 3, 16, 16), torch.zeros(4, 1, 6)
MODULES: dict[str, tuple[Any, Any]] = {
    "convolutions": (Convolutions, IMAGE),
    "attention": (Attention, torch.arange(7, dtype=torch.int32)[None]),
    "lstm": (lambda: Recurrent("LSTM"), STEPS),
    "rnn": (lambda: Recurrent("RNN"), STEPS),
    "elements": (Elements, torch.zeros(1, 6, 8, 8)),
}


def program(folder: Path, name: str, half: bool = False) -> tuple[Path, Any, Any]:
    """Return the package, the module and its input."""
    make, like = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn(like.shape) if like.dtype.is_floating_point else like
    dtype = np.float32 if like.dtype.is_floating_point else np.int32
    precision = ct.precision.FLOAT16 if half else ct.precision.FLOAT32
    converted = ct.convert(
        torch.jit.trace(module, x), inputs=[ct.TensorType(name="x", shape=x.shape, dtype=dtype)],
        convert_to="mlprogram", compute_precision=precision, skip_model_load=True,
    )  # fmt: skip
    path = folder / "model.mlpackage"
    converted.save(str(path))
    return path, module, x


@pytest.mark.parametrize("name", MODULES)
def test_against_pytorch(name: str, tmp_path: Path) -> None:
    path, module, x = program(tmp_path, name)
    exe = jangin.compile(path, threads=1, cache=False)
    got, wanted = exe(x.numpy()), module(x)
    pairs = zip(*(t if isinstance(t, tuple) else (t,) for t in (got, wanted)), strict=True)
    for g, w in pairs:
        w = w.detach().numpy()
        assert g.shape == w.shape
        np.testing.assert_allclose(g, w, rtol=0, atol=TOLERANCE * max(1, np.abs(w).max()))


@pytest.mark.parametrize("name", ["convolutions", "attention", "elements", "lstm", "rnn"])
def test_networks_against_pytorch(name: str, tmp_path: Path) -> None:
    make, like = MODULES[name]
    torch.manual_seed(0)
    module = make().eval()
    x = torch.randn(like.shape) if like.dtype.is_floating_point else like
    made = ct.convert(
        torch.jit.trace(module, x), inputs=[ct.TensorType(name="x", shape=x.shape)],
        convert_to="neuralnetwork", skip_model_load=True,
    )  # fmt: skip
    got, wanted = (
        jangin.compile(made.get_spec(), threads=1, cache=False)(x.numpy().astype(np.float32)),
        module(x),
    )
    for g, w in zip(*(t if isinstance(t, tuple) else (t,) for t in (got, wanted)), strict=True):
        np.testing.assert_allclose(
            g, w.detach().numpy(), rtol=0, atol=TOLERANCE * max(1, float(w.abs().max()))
        )


def test_a_classifier_of_images() -> None:
    """The model has specification 1 and is made by hand: four axes that its description doesn't name, and
    weights of 8 bits."""
    from jangin.frontends.coreml.schema import module

    rng = np.random.default_rng(0)
    message = module("Model_pb2").Model(specificationVersion=1)
    array = message.description.input.add(name="image").type.multiArrayType
    array.dataType = 65568
    array.shape.extend([3, 5, 4])
    message.description.output.add(name="odds").type.dictionaryType.stringKeyType.SetInParent()
    message.description.output.add(name="label").type.stringType.SetInParent()
    message.description.predictedFeatureName, message.description.predictedProbabilitiesName = "label", "odds"
    network = message.neuralNetworkClassifier
    network.stringClassLabels.vector.extend(["ant", "bee", "cat"])
    names = ["image", "c", "p", "i", "s"]
    layers = [network.layers.add(name=b, input=[a], output=[b]) for a, b in pairwise(names)]
    conv, pool, inner, softmax = layers
    codes, scale = rng.integers(0, 256, (2, 3)).astype(np.uint8), np.array([0.01, 0.02], np.float32)
    conv.convolution.outputChannels, conv.convolution.kernelChannels = 2, 3
    conv.convolution.kernelSize.extend([1, 1])
    conv.convolution.valid.SetInParent()
    conv.convolution.weights.rawValue = codes.tobytes()
    conv.convolution.weights.quantization.numberOfBits = 8
    conv.convolution.weights.quantization.linearQuantization.scale.extend(scale.tolist())
    pool.pooling.type, pool.pooling.globalPooling = 1, True
    weights = rng.standard_normal((3, 2)).astype(np.float32)
    inner.innerProduct.inputChannels, inner.innerProduct.outputChannels = 2, 3
    inner.innerProduct.weights.floatValue.extend(weights.reshape(-1).tolist())
    softmax.softmax.SetInParent()
    x = rng.standard_normal((2, 3, 5, 4)).astype(np.float32)
    scores = x.mean((2, 3)) @ (codes * scale[:, None]).T @ weights.T
    odds = np.exp(scores) / np.exp(scores).sum(1, keepdims=True)
    got = jangin.compile(message, threads=1, cache=False).run({"image": x})
    np.testing.assert_allclose(got["odds"], odds, atol=1e-5)
    assert got["label"].tolist() == [["ant", "bee", "cat"][n] for n in odds.argmax(1)]


def test_half_precision(tmp_path: Path) -> None:
    path, module, x = program(tmp_path, "convolutions", half=True)
    np.testing.assert_allclose(
        jangin.compile(path, threads=1, cache=False)(x.numpy()), module(x).detach().numpy(), atol=5e-3
    )


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    path, _, _ = program(tmp_path, "convolutions")
    model = next(path.rglob("*.mlmodel"))
    whole = model.read_bytes()
    with pytest.raises(jangin.CompileError, match="give the path of the package, not the model's alone"):
        jangin.compile(whole, cache=False)
    model.write_bytes(whole.replace(b"max_pool", b"mix_pool").replace(b"gelu", b"gelv"))
    with pytest.raises(jangin.CompileError, match=r"(?s)2 nodes are not supported.*mix_pool.*max_pool is"):
        jangin.compile(path, cache=False)
    model.write_bytes(whole.replace(b"@model_path/weights/", b"@model_path/../../x/"))
    with pytest.raises(jangin.CompileError, match="which is no file of the package"):
        jangin.compile(path, cache=False)


def test_damaged_files_give_one_error(refused: Any, tmp_path: Path) -> None:
    path, _, _ = program(tmp_path, "convolutions")
    assert refused(path, [next(path.rglob("*.mlmodel")), path / "Manifest.json"]) > 0.5
