"""Darknet's sections with all their options, against Darknet's definitions (its src/) in NumPy and float64.
Every option of every section is read, is known to change nothing, or is refused by its name."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.frontends.darknet.idle import ANYWHERE, IDLE
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ir.expr import Const
from jangin.ops.interpret import run_graph

SIZE = (4, 6, 8)
"""Channels, rows and columns of a network's input."""
NET = "[net]\nwidth=8\nheight=6\nchannels=4\n"
Array = Any


class Numbers:
    """The numbers of a weights file, which a reference takes in the file's order."""

    def __init__(self, seed: int) -> None:
        self.random, self.taken = np.random.default_rng(seed), list[Array]()

    def take(self, *shape: int) -> Array:
        self.taken.append(self.random.uniform(0.05, 0.6, shape).astype(np.float32))
        return self.taken[-1].astype(np.float64)

    def written(self, path: Path) -> None:
        flat = [a.reshape(-1) for a in self.taken]
        data = np.concatenate(flat) if flat else np.zeros(0, np.float32)
        path.with_suffix(".weights").write_bytes(struct.pack("<iiiq", 0, 2, 5, 0) + data.tobytes())


def results(path: Path, text: str, numbers: Numbers, x: Array) -> list[Array]:
    path = path / "model.cfg"
    path.write_text(NET + text)
    numbers.written(path)
    graph = lower(load(path))
    sizes = {
        n: [d.value if isinstance(d, Const) else len(x) for d in graph.shape(n)] for n in graph.inputs[1:]
    }
    states = {n: np.zeros(size, np.float32) for n, size in sizes.items()}
    return list(run_graph(graph, {graph.inputs[0]: x, **states}).values())


def options(text: str) -> dict[str, str]:
    return dict(line.split("=") for line in text.splitlines() if "=" in line)


# -- Darknet's definitions -------------------------------------------------------------------------


def sigmoid(v: Array) -> Array:
    return 1 / (1 + np.exp(-v))


def channels(v: Array, parts: Array) -> Array:
    return parts / (parts.sum(1, keepdims=True) + 1e-4)


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {
    "linear": lambda v: v,
    "silu": lambda v: v * sigmoid(v),
    "logistic": sigmoid,
    "hard_mish": lambda v: np.where(v > 0, v, np.where(v > -2, v * v / 2 + v, 0)),
    "revleaky": lambda v: np.where(v > 0, v, 0.1 * v),
    "stair": lambda v: np.where(np.floor(v) % 2 == 0, 0, v - np.floor(v)) + np.floor(v / 2),
    "normalize_channels": lambda v: channels(v, np.maximum(v, 0)),
    "normalize_channels_softmax": lambda v: channels(v, np.exp(v)),
    "normalize_channels_softmax_maxval": lambda v: channels(v, np.exp(v - v.max(1, keepdims=True))),
}


def windows(v: Array, size: int, strides: tuple[int, int], before: int, after: int, fill: float) -> Array:
    """Return windows [n, c, rows, columns, size, size]."""
    pads = ((0, 0), (0, 0), (before, after), (before, after))
    whole = np.pad(v, pads, constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(whole, (size, size), (2, 3))
    return view[:, :, :: strides[0], :: strides[1]]


def strides(o: dict[str, str]) -> tuple[int, int]:
    plain = o.get("stride", "1")
    return int(o.get("stride_y", plain)), int(o.get("stride_x", plain))


def convolutional(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    filters, size, groups = (int(o.get(n, d)) for n, d in (("filters", 1), ("size", 1), ("groups", 1)))
    biases = numbers.take(filters)
    scales, mean, variance = ([numbers.take(filters) for _ in range(3)] if "batch_normalize" in o
                              else (np.ones(filters), np.zeros(filters), np.ones(filters)))  # fmt: skip
    weights = numbers.take(filters, x.shape[1] // groups, size, size)
    pad = size // 2 if int(o.get("pad", 0)) else int(o.get("padding", 0))
    view = windows(x, size, strides(o), pad, pad, 0.0)
    each, deep = filters // groups, x.shape[1] // groups
    y = np.concatenate([
        np.einsum("ncijab,fcab->nfij", view[:, g * deep : (g + 1) * deep], weights[g * each : (g + 1) * each])
        for g in range(groups)], 1)  # fmt: skip
    spread = [a[:, None, None] for a in (scales, mean, variance, biases)]
    if "batch_normalize" in o:
        y = (y - spread[1]) / (np.sqrt(spread[2]) + 1e-6) * spread[0]
    return ACTIVATIONS[o.get("activation", "logistic")](y + spread[3])


def pooled(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    """Compute [maxpool] and [local_avgpool]. NaN stands for elements outside."""
    if int(o.get("maxpool_depth", 0)):
        few = int(o["out_channels"])
        return np.stack([x[:, g::few].max(1) for g in range(few)], 1)
    size = int(o.get("size", o.get("stride", 1)))
    padding = int(o.get("padding", size - 1))
    view = windows(x, size, strides(o), padding // 2, padding - padding // 2, np.nan)
    return (np.nanmean if o["kind"] == "local_avgpool" else np.nanmax)(view, (4, 5))


def deconvolutional(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    filters, size, stride = (int(o[n]) for n in ("filters", "size", "stride"))
    biases, weights = numbers.take(filters), numbers.take(x.shape[1], filters, size, size)
    pad = size // 2 if int(o.get("pad", 0)) else int(o.get("padding", 0))
    n, _, h, w = x.shape
    whole = np.zeros((n, filters, (h - 1) * stride + size, (w - 1) * stride + size))
    for i in range(h):
        for j in range(w):
            part = np.einsum("nc,cfab->nfab", x[:, :, i, j], weights)
            whole[:, :, i * stride : i * stride + size, j * stride : j * stride + size] += part
    end = (slice(pad, d - pad) for d in whole.shape[2:])
    return ACTIVATIONS[o["activation"]](whole[(slice(None), slice(None), *end)] + biases[:, None, None])


def local(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    filters, size, stride, pad = (int(o[n]) for n in ("filters", "size", "stride", "pad"))
    view = windows(x, size, (stride, stride), pad, pad, 0.0)
    rows, columns = view.shape[2:4]
    biases = numbers.take(filters, rows, columns)
    weights = numbers.take(rows, columns, filters, x.shape[1], size, size)
    return ACTIVATIONS[o["activation"]](np.einsum("ncijab,ijfcab->nfij", view, weights) + biases)


def crop(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    height, width = int(o["crop_height"]), int(o["crop_width"])
    top, left = ((d - s) // 2 for d, s in zip(x.shape[2:], (height, width), strict=True))
    y = x[:, :, top : top + height, left : left + width]
    return y if int(o.get("noadjust", 0)) else y * 2 - 1


def upsampled(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    s, scale = int(o["stride"]), float(o.get("scale", 1))
    if s > 0:
        return x.repeat(s, 2).repeat(s, 3) * scale
    n, c, h, w = x.shape
    return x.reshape(n, c, h // -s, -s, w // -s, -s).sum((3, 5)) * scale


def reorganized(o: dict[str, str], x: Array, numbers: Numbers) -> Array:
    """Compute `reorg_cpu`, element by element."""
    n, c, h, w = x.shape
    s, back, later = int(o["stride"]), bool(int(o.get("reverse", 0))), o["kind"] == "reorg3d"
    out_c, out_h, out_w = (c * s * s, h // s, w // s) if later else (c, h, w)
    in_c = out_c // (s * s)
    flat, made = x.reshape(n, -1), np.zeros((n, x[0].size))
    for k in range(out_c):
        for j in range(out_h):
            for i in range(out_w):
                inside = i + out_w * (j + out_h * k)
                offset = k // in_c
                w2, h2 = i * s + offset % s, j * s + offset // s
                outside = w2 + out_w * s * (h2 + out_h * s * (k % in_c))
                if back:
                    made[:, outside] = flat[:, inside]
                else:
                    made[:, inside] = flat[:, outside]
    shape = (c // (s * s), h * s, w * s) if back else (c * s * s, h // s, w // s)
    return made.reshape(n, *shape)


SECTIONS: dict[str, Callable[[dict[str, str], Array, Numbers], Array]] = {
    "convolutional": convolutional, "crop": crop, "deconvolutional": deconvolutional, "local": local,
    "local_avgpool": pooled, "maxpool": pooled, "reorg": reorganized, "reorg3d": reorganized,
    "upsample": upsampled,
}  # fmt: skip
CONV = "[convolutional]\nfilters=6\nsize=3\npad=1\n"
SINGLE = [
    CONV + "stride_x=2\nstride_y=1\nactivation=linear\n", CONV + "stride=2\nstride_y=3\nactivation=silu\n",
    CONV + "batch_normalize=1\ngroups=2\nstride=1\nactivation=hard_mish\nantialiasing=0\nxnor=0\n",
    "[conv]\nfilters=3\nsize=2\npadding=1\nstride=1\nactivation=stair\nstream=1\n",
    *[CONV + f"stride=1\nactivation={a}\n" for a in ACTIVATIONS],
    "[maxpool]\nsize=2\nstride=2\nstride_x=1\n", "[max]\nsize=3\nstride_x=2\nstride_y=3\npadding=0\n",
    "[maxpool]\nmaxpool_depth=1\nout_channels=2\n", "[local_avgpool]\nsize=3\nstride=2\nstride_x=1\n",
    "[local_avg]\nsize=2\nstride=2\npadding=0\n", "[upsample]\nstride=2\nscale=1.5\n",
    "[upsample]\nstride=-2\n", "[upsample]\nstride=-2\nscale=0.25\n", "[reorg]\nstride=2\n",
    "[reorg]\nstride=2\nreverse=1\n", "[reorg3d]\nstride=2\n",
    "[crop]\ncrop_height=3\ncrop_width=5\nflip=1\n",
    "[crop]\ncrop_height=6\ncrop_width=4\nnoadjust=1\nangle=7\n",
    "[deconvolutional]\nfilters=3\nsize=3\nstride=2\npad=1\nactivation=silu\n",
    "[deconv]\nfilters=2\nsize=4\nstride=2\npadding=1\nactivation=linear\n",
    "[local]\nfilters=3\nsize=3\nstride=2\npad=1\nactivation=logistic\n",
    "[local]\nfilters=2\nsize=2\nstride=1\npad=0\nactivation=linear\n",
]  # fmt: skip
ALIASES = {
    "conv": "convolutional",
    "deconv": "deconvolutional",
    "local_avg": "local_avgpool",
    "max": "maxpool",
}


def near(got: Array, wanted: Array) -> None:
    """Compare numbers. Sums of some hundred products of f32 are in another order."""
    assert got.shape == wanted.shape
    np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=2e-5 * max(1, np.abs(wanted).max()))


@pytest.mark.parametrize("text", SINGLE, ids=[t.replace("\n", " ").strip() for t in SINGLE])
def test_a_section(text: str, tmp_path: Path) -> None:
    kind = text[1 : text.index("]")]
    kind = ALIASES.get(kind, kind)
    numbers = Numbers(len(text))
    x = np.random.default_rng(1).standard_normal((2, *SIZE)).astype(np.float32)
    wanted = SECTIONS[kind]({"kind": kind, **options(text)}, x.astype(np.float64), numbers)
    (got,) = results(tmp_path, text, numbers, x)
    near(got, wanted)


def shortcut(first: Array, others: list[Array], weights: Array | None, norm: str) -> Array:
    """Compute `shortcut_cpu` of the first Darknet, or `shortcut_multilayer_cpu` for several layers and
    weights."""
    if weights is not None and norm != "none":
        parts = np.exp(weights - weights.max(0)) if norm == "softmax" else np.maximum(weights, 0)
        weights = parts / (parts.sum(0) + 1e-4)
    out = first * (1 if weights is None else weights[0][:, None, None])
    for n, other in enumerate(others, 1):
        (_, c1, h1, w1), (_, c2, h2, w2) = other.shape, out.shape
        step, gap = max(w1 // w2, 1), max(w2 // w1, 1)
        c, h, w = min(c1, c2), min(h1, h2), min(w1, w2)
        part = other[:, :c, : h * step : step, : w * step : step]
        if weights is not None:
            part = part * np.broadcast_to(weights[n], c2)[:c, None, None]
        out[:, :c, : h * gap : gap, : w * gap : gap] += part
    return out


@pytest.mark.parametrize("norm", ["none", "relu", "softmax"])
@pytest.mark.parametrize(("kind", "filters"), [("per_feature", 4), ("per_channel", 4), ("per_channel", 3)])
def test_weighted_shortcuts(kind: str, filters: int, norm: str, tmp_path: Path) -> None:
    text = "[upsample]\nstride=1\n" + CONV.replace("6", str(filters)) + "stride=1\nactivation=linear\n"
    text += f"[shortcut]\nfrom=-2,-3\nweights_type={kind}\nweights_normalization={norm}\nactivation=silu\n"
    text = "[upsample]\nstride=1\nscale=2\n" + text
    x = np.random.default_rng(2).standard_normal((2, *SIZE)).astype(np.float32)
    numbers = Numbers(3)
    double = x.astype(np.float64) * 2
    y = convolutional(options(text.split("[")[3]) | {"activation": "linear"}, double, numbers)
    weights = numbers.take(3, filters if kind == "per_channel" else 1)
    if kind == "per_feature":
        weights = np.broadcast_to(weights, (3, filters))
    (got,) = results(tmp_path, text, numbers, x)
    near(got, ACTIVATIONS["silu"](shortcut(y, [double, double], weights, norm)))


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("filters", [2, 7])
def test_shortcuts_of_other_sizes(filters: int, wide: bool, tmp_path: Path) -> None:
    """The added layer is larger or smaller in rows and columns, and in channels."""
    pooled_ = "[local_avgpool]\nsize=2\nstride=2\npadding=0\n"
    conv = CONV.replace("6", str(filters)) + f"stride={2 if wide else 1}\nactivation=linear\n"
    text = "[upsample]\nstride=1\n" if wide else pooled_ + "[route]\nlayers=-1\n[upsample]\nstride=2\n"
    text += conv + "[shortcut]\nfrom=0\n"
    x = np.random.default_rng(4).standard_normal((2, *SIZE)).astype(np.float32)
    numbers, exact = Numbers(5), x.astype(np.float64)
    small = pooled({"kind": "local_avgpool", **options(pooled_)}, exact, numbers)
    y = convolutional(options(conv), exact if wide else small.repeat(2, 2).repeat(2, 3), numbers)
    (got,) = results(tmp_path, text, numbers, x)
    near(got, shortcut(y, [exact if wide else small], None, "none"))


def test_learned_numbers_of_channels(tmp_path: Path) -> None:
    """YOLOR's [implicit_add] and [implicit_mul] feed [shift_channels] and [control_channels]."""
    text = "[implicit_add]\nfilters=4\n[implicit_mul]\nfilters=4\nmean=1.0\nstd=0.02\n[implicit]\nfilters=4\n"
    numbers = Numbers(6)
    values = [numbers.take(4, 1, 1) for _ in range(3)]
    x = np.random.default_rng(7).standard_normal((2, *SIZE)).astype(np.float32)
    (got,) = results(tmp_path, text, numbers, x)
    near(got, np.broadcast_to(values[2], (2, 4, 1, 1)))
    image = CONV + "stride=1\nactivation=linear\n"
    numbers = Numbers(8)
    y = convolutional(options(image), x.astype(np.float64), numbers)
    shift, factor = numbers.take(6, 1, 1), numbers.take(6, 1, 1)
    text = image + "[implicit_add]\nfilters=6\n[implicit_mul]\nfilters=6\n[route]\nlayers=0\n"
    text += "[shift_channels]\nfrom=1\n[control_channels]\nfrom=2\n"
    (got,) = results(tmp_path, text, numbers, x)
    near(got, (y + shift) * factor)


@pytest.mark.parametrize("point", ["center", "left_top", "right_bottom"])
def test_gaussian_boxes(point: str, tmp_path: Path) -> None:
    plain = "[convolutional]\nfilters=24\nsize=1\nactivation=linear\n"
    text = plain + "[Gaussian_yolo]\nmask=0,2\nanchors=3,5, 4,4, 9,7\nclasses=3\nnum=3\nscale_x_y=1.1\n"
    text += f"yolo_point={point}\nuc_normalizer=1.0\n"
    numbers = Numbers(9)
    x = np.random.default_rng(10).standard_normal((2, *SIZE)).astype(np.float32) * 0.5
    y = convolutional(options(plain), x.astype(np.float64), numbers)
    (got,) = results(tmp_path, text, numbers, x)
    h, w = y.shape[2:]
    boxes = []
    for j in range(h):
        for i in range(w):
            for k, (across, down) in enumerate([(3, 5), (9, 7)]):
                v = y[:, 12 * k : 12 * k + 12, j, i]
                px, py = (sigmoid(v[:, a]) * 1.1 - 0.05 for a in (0, 2))
                bw, bh = np.exp(v[:, 4]) * across / 8, np.exp(v[:, 6]) * down / 6
                part = {"center": 0, "left_top": 0.5, "right_bottom": -0.5}[point]
                doubt = sum(sigmoid(v[:, a]) for a in (1, 3, 5, 7)) / 4
                certain = sigmoid(v[:, 8]) * (1 - doubt)
                places = ((i + px) / w + bw * part, (j + py) / h + bh * part)
                boxes.append(np.stack([*places, bw, bh, certain, *sigmoid(v[:, 9:]).T], 1))
    near(got, np.stack(boxes, 1))


@pytest.mark.parametrize("softmax", [0, 1])
@pytest.mark.parametrize("squared", [0, 1])
def test_boxes_of_the_first_version(softmax: int, squared: int, tmp_path: Path) -> None:
    side, classes, count = 2, 3, 2
    size = side * side * (classes + 5 * count)
    text = f"[connected]\noutput={size}\nactivation=linear\n[detection]\nclasses=3\ncoords=4\nrescore=1\n"
    text += f"side=2\nnum=2\nsoftmax={softmax}\nsqrt={squared}\njitter=.2\nobject_scale=1\n"
    numbers = Numbers(11)
    biases, weights = numbers.take(size), numbers.take(size, 4 * 6 * 8)
    x = np.random.default_rng(12).standard_normal((2, *SIZE)).astype(np.float32) * 0.1
    y = x.reshape(2, -1).astype(np.float64) @ weights.T + biases
    (got,) = results(tmp_path, text, numbers, x)
    boxes = []
    for cell in range(side * side):
        odds = y[:, cell * classes : (cell + 1) * classes]
        if softmax:
            odds = np.exp(odds) / np.exp(odds).sum(1, keepdims=True)
        for k in range(count):
            certain = y[:, side * side * classes + cell * count + k]
            v = y[:, side * side * (classes + count) + (cell * count + k) * 4 :][:, :4]
            places = ((v[:, 0] + cell % side) / side, (v[:, 1] + cell // side) / side)
            extents = v[:, 2:] ** (2 if squared else 1)
            boxes.append(np.stack([*places, *extents.T, certain, *odds.T], 1))
    near(got, np.stack(boxes, 1))


# -- options ---------------------------------------------------------------------------------------

REFUSED = [
    (CONV + "stride=1\nantialiasing=1\n", "antialiasing=1 is not supported"),
    (CONV + "stride=1\nxnor=1\n", "xnor=1 is not supported"),
    (CONV + "stride=1\nbinary=1\n", "binary=1 is not supported"),
    (CONV + "stride=1\nshare_index=0\n", "share_index is not supported"),
    (CONV + "stride=1\nflipped=1\n", "flipped=1 is not supported"),
    (CONV + "stride=1\nstretch_sway=1\n", "stretch_sway=1 is not supported"),
    (CONV + "stride=1\ndontloadscales=1\n", "dontloadscales=1 is not supported"),
    (CONV + "stride=1\nwonders=3\n", r"\[convolutional\] layer 0 \(line 5\): wonders is not supported"),
    ("[maxpool]\nsize=2\nstride=2\nantialiasing=1\n", "antialiasing=1 is not supported"),
    ("[maxpool]\nmaxpool_depth=1\nout_channels=3\n", "3 groups don't divide 4 channels"),
    ("[softmax]\nspatial=1\n", "spatial=1 is not supported"), ("[softmax]\ntree=a\n", "trees are not"),
    ("[upsample]\nstride=-5\n", "stride=-5 doesn't fit 6 x 8"),
    ("[reorg3d]\nstride=2\nreverse=1\n", "reorg3d"),
    ("[contrastive]\nclasses=2\n", "a loss, which only training has"),
    ("[shortcut]\nfrom=0\n", "reads layer 0, which isn't before it"),
    ("[local]\nfilters=1\nsize=5\nstride=1\npad=1\n", "pad=1 with size=5"),
    ("[avgpool]\n[shortcut]\nfrom=-1\nweights_type=odd\n", "weights_type=odd"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_what_is_refused_is_named(text: str, reason: str, tmp_path: Path) -> None:
    numbers = Numbers(0)
    numbers.take(1 << 12)
    with pytest.raises(jangin.CompileError, match=reason):
        results(tmp_path, text, numbers, np.zeros((1, *SIZE), np.float32))


PLAIN = {
    "net": "", "convolutional": CONV + "stride=1\n", "maxpool": "[maxpool]\nsize=2\nstride=2\n",
    "crop": "[crop]\ncrop_height=2\ncrop_width=2\n",
    "route": "[upsample]\nstride=1\n[route]\nlayers=-1\n",
    "rnn": "[rnn]\noutput=4\nhidden=3\n", "softmax": "[softmax]\ngroups=1\n",
    **{k: f"[{k}]\nfilters=3\n" for k in IDLE if "implicit" in k},
}  # fmt: skip
"""Networks of one layer each. Sections that find boxes have tests with the options of real files."""


def test_sections_with_idle_options_are_tested() -> None:
    assert IDLE.keys() - PLAIN.keys() == {"detection", "gaussian_yolo", "region", "yolo"}


@pytest.mark.parametrize("kind", sorted(PLAIN))
def test_options_that_training_reads_change_nothing(kind: str, tmp_path: Path) -> None:
    """A network with all of these options equals the network without them."""
    more = "".join(f"{name}=1\n" for name in sorted({*IDLE[kind], *(ANYWHERE if kind != "net" else ())}))
    texts = [PLAIN[kind], PLAIN[kind] + more] if kind != "net" else ["[avgpool]\n", more + "[avgpool]\n"]
    x = np.random.default_rng(0).standard_normal((1, *SIZE)).astype(np.float32)
    found = []
    for n, text in enumerate(texts):
        numbers = Numbers(1)
        if kind == "convolutional":
            convolutional(options(CONV + "stride=1\n"), x, numbers)
        elif "implicit" in kind:
            numbers.take(3)
        elif kind == "rnn":  # it has layers of the input, the state and the output, with biases
            numbers.take(3 * math.prod(SIZE) + 3 * 3 + 3 * 4 + 3 + 3 + 4)
        found.append(results(tmp_path, text, numbers, x)[0])
        assert n == 0 or np.array_equal(*found)
