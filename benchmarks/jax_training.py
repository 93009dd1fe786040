"""The eight networks of `training_networks` in plain JAX, with PyTorch's weights: the step that is compared.

Pictures have the channels last, and the weights of convolutions lie as [height, width, in, out]. The step is
one compiled function, whose weights and momenta are donated. Batch normalization keeps running statistics.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from torch import nn

Weights = dict[str, Any]


def with_threads(count: int) -> None:
    """Let JAX have as many threads. It counts the processors that this process may use, at its first use."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])


def stepped(model: nn.Module, name: str, lr: float, momentum: float) -> Callable[[Any], float]:
    """Return a step of SGD with momentum. It takes a batch of tensors, and returns the loss."""
    run = LOSSES.get(name, _walked)
    state = {n: _laid(t.detach().numpy()) for n, t in model.state_dict().items() if t.is_floating_point()}
    trained = {n for n, _ in model.named_parameters()}
    weights = {n: jnp.array(a) for n, a in state.items() if n in trained}
    statistics = {n: jnp.array(a) for n, a in state.items() if n not in trained}

    def loss(weights: Weights, statistics: Weights, x: Any, y: Any) -> Any:
        after = dict(statistics)
        logits = run(model, weights, after, x)
        chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), y[:, None], 1)
        return -chosen.mean(), after

    @partial(jax.jit, donate_argnums=(0, 1, 2))
    def step(weights: Weights, speeds: Weights, statistics: Weights, x: Any, y: Any) -> Any:
        (value, after), g = jax.value_and_grad(loss, has_aux=True)(weights, statistics, x, y)
        speeds = jax.tree.map(lambda v, g: momentum * v + g, speeds, g)
        return value, jax.tree.map(lambda w, v: w - lr * v, weights, speeds), speeds, after

    kept = weights, jax.tree.map(jnp.zeros_like, weights), statistics

    def call(batch: Any) -> float:
        nonlocal kept
        x, y = (t.numpy() for t in batch.values())
        value, *after = step(*kept, x, y.astype(np.int32))
        kept = tuple(after)
        return float(value)

    return call


def _laid(array: Any) -> Any:
    return array.transpose(2, 3, 1, 0) if array.ndim == 4 else array


# -- networks of pictures: the modules' own structure ----------------------------------------------


def _walked(model: nn.Module, w: Weights, after: Weights, x: Any) -> Any:
    """Return the result of a network of layers, blocks of pytorchcv, and `ResNet8`."""
    return _run(model, "", w, after, x.transpose(0, 2, 3, 1) if x.ndim == 4 else x)


def _run(module: Any, name: str, w: Weights, after: Weights, x: Any) -> Any:
    def part(child: str, x: Any) -> Any:
        return _run(getattr(module, child), f"{name}{child}.", w, after, x)

    kind = type(module).__name__
    if kind in LAYERS:
        return LAYERS[kind](module, name, w, after, x)
    if kind == "ResUnit":
        around = part("identity_conv", x) if module.resize_identity else x
        return jax.nn.relu(part("body", x) + around)
    if kind == "LinearBottleneck" and module.residual:
        return x + part("conv3", part("conv2", part("conv1", x)))
    if kind == "ResNet8":
        x = jax.nn.relu(part("stem", x))
        for n in range(len(module.first)):
            inner = part("second", (n, jax.nn.relu(part("first", (n, x)))))
            x = jax.nn.relu(part("around", (n, x)) + inner)
        return part("head", x.mean((1, 2)))
    if kind == "ModuleList":
        n, x = x
        return _run(module[n], f"{name}{n}.", w, after, x)
    for child, _ in module.named_children():
        x = part(child, x.reshape(len(x), -1) if kind == "ResNet" and child == "output" else x)
    return x.reshape(len(x), -1) if kind == "MobileNetV2" else x


def _convolution(module: Any, name: str, w: Weights, after: Weights, x: Any) -> Any:
    y = lax.conv_general_dilated(
        x, w[name + "weight"], module.stride, [(p, p) for p in module.padding],
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=module.groups,
    )  # fmt: skip
    return y if module.bias is None else y + w[name + "bias"]


def _normalized(module: Any, name: str, w: Weights, after: Weights, x: Any) -> Any:
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    count = x.size // x.shape[-1]
    for key, now in (("mean", mean), ("var", variance * (count / (count - 1)))):
        before = after[f"{name}running_{key}"]
        after[f"{name}running_{key}"] = before + module.momentum * (now - before)
    scale = w[name + "weight"] * lax.rsqrt(variance + module.eps)
    return (x - mean) * scale + w[name + "bias"]


def _pooled(module: Any, name: str, w: Weights, after: Weights, x: Any) -> Any:
    def pair(value: Any) -> tuple[int, int]:
        return value if isinstance(value, tuple) else (value, value)

    window, strides = (1, *pair(module.kernel_size), 1), (1, *pair(module.stride), 1)
    pads = [(0, 0), *((p, p) for p in pair(module.padding)), (0, 0)]
    if isinstance(module, nn.MaxPool2d):
        return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, pads)
    return lax.reduce_window(x, 0.0, lax.add, window, strides, pads) / (window[1] * window[2])


def _flattened(module: Any, name: str, w: Weights, after: Weights, x: Any) -> Any:
    return x.transpose(0, 3, 1, 2).reshape(len(x), -1)


def _affine(module: Any, name: str, w: Weights, after: Weights, x: Any) -> Any:
    return x @ w[name + "weight"].T + w[name + "bias"]


LAYERS: dict[str, Callable[..., Any]] = {
    "Conv2d": _convolution, "BatchNorm2d": _normalized, "Linear": _affine, "Flatten": _flattened,
    "MaxPool2d": _pooled, "AvgPool2d": _pooled, "Identity": lambda *given: given[-1],
    "ReLU": lambda *given: jax.nn.relu(given[-1]), "ReLU6": lambda *given: jax.nn.relu6(given[-1]),
}  # fmt: skip


# -- sequences -------------------------------------------------------------------------------------


def _transformed(model: Any, w: Weights, after: Weights, x: Any) -> Any:
    def affine(name: str, x: Any) -> Any:
        return x @ w[f"{name}.weight"].T + w[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        share = lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)
        return x * share * w[f"{name}.weight"] + w[f"{name}.bias"]

    def attention(name: str, x: Any) -> Any:
        count, length, width = x.shape
        shape = count, length, 12, width // 12
        q, k, v = (t.reshape(shape) for t in jnp.split(affine(f"{name}.qkv", x), 3, -1))
        scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) * shape[-1] ** -0.5
        if model.causal:
            scores = jnp.where(jnp.tril(jnp.ones((length, length), bool)), scores, -jnp.inf)
        y = jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores), v)
        return affine(f"{name}.out", y.reshape(x.shape))

    def widened(name: str, x: Any) -> Any:
        return affine(f"{name}.narrow", jax.nn.gelu(affine(f"{name}.wide", x), approximate=False))

    x = w["words.weight"][x] + w["places"]
    if not model.causal:
        x = norm("norm", x)
    for name in (f"layers.{n}" for n in range(len(model.layers))):
        first, second = f"{name}.norms.0", f"{name}.norms.1"
        if model.causal:
            x = x + attention(name, norm(first, x))
            x = widened(name, norm(second, x)) + x
        else:
            x = norm(first, x + attention(name, x))
            x = norm(second, widened(name, x) + x)
    if model.causal:
        return norm("norm", x).reshape(-1, x.shape[-1]) @ w["head.weight"].T
    return affine("head", x[:, 0])


def _recurrent(model: Any, w: Weights, after: Weights, x: Any) -> Any:
    x = x.transpose(1, 0, 2)
    for layer in range(2):
        ins, own = w[f"lstm.weight_ih_l{layer}"], w[f"lstm.weight_hh_l{layer}"]
        given = x @ ins.T + (w[f"lstm.bias_ih_l{layer}"] + w[f"lstm.bias_hh_l{layer}"])

        def step(state: Any, given: Any, own: Any = own) -> Any:
            h, c = state
            i, f, g, o = jnp.split(given + h @ own.T, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zeros = jnp.zeros((x.shape[1], own.shape[1]))
        x = lax.scan(step, (zeros, zeros), given)[1]
    return _affine(None, "head.", w, after, x[-1])


LOSSES: dict[str, Callable[..., Any]] = {
    "encoder": _transformed, "GPT-2 of 2 layers": _transformed, "LSTM 2x512": _recurrent,
}  # fmt: skip
