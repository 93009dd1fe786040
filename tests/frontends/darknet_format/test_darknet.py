"""Darknet's layers with random weights, compared with OpenCV's dnn."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.bench import measure
from jangin.commands.bench import bench
from jangin.commands.common import Settings
from jangin.options import Options

TOLERANCE = 2e-5
"""The largest difference, as a share of the largest value. Sums of some hundred products are in another
order, followed by an exponential."""
NET = "[net]\n# a comment\nwidth=24\nheight=16\nchannels=3\n"
CONV = "[convolutional]\nbatch_normalize=1\nfilters={0}\nsize={1}\nstride={2}\npad=1\nactivation={3}\n"
PLAIN = "[convolutional]\nfilters={0}\nsize=1\nstride=1\npad=1\nactivation=linear\n"
YOLO = "[yolo]\nmask=1,2\nanchors=3,5, 4,4, 9,7\nclasses=3\nnum=3\n"
NETWORKS = {
    "convolutions": CONV.format(8, 3, 1, "leaky")
    + CONV.format(6, 3, 2, "relu")
    + "[convolutional]\nfilters=6\ngroups=3\nsize=3\nstride=1\npad=1\nactivation=logistic\n",
    "pools": CONV.format(4, 3, 1, "leaky") + "[maxpool]\nsize=2\nstride=2\n[maxpool]\nsize=2\nstride=1\n"
    "[maxpool]\nsize=3\nstride=2\n[avgpool]\n[softmax]\ngroups=1\n",
    "routes": CONV.format(8, 1, 1, "mish") + CONV.format(8, 3, 1, "leaky") + "[shortcut]\nfrom=-2\n"
    "activation=linear\n[route]\nlayers=-1\ngroups=2\ngroup_id=1\n[route]\nlayers=-1,0\n"
    "[upsample]\nstride=2\n" + PLAIN.format(5),
    "reorg": CONV.format(8, 3, 2, "leaky") + "[reorg]\nstride=2\n" + PLAIN.format(5),
    "yolo": CONV.format(8, 3, 2, "leaky") + PLAIN.format(16) + YOLO,
    "stretched": CONV.format(8, 3, 2, "leaky") + PLAIN.format(16) + YOLO + "scale_x_y=1.2\n",
    "region": CONV.format(8, 3, 2, "leaky")
    + PLAIN.format(24)
    + "[region]\nanchors=1,2, 3,1.5, 0.5,2.2\nclasses=3\ncoords=4\nnum=3\nsoftmax=1\n",
    "connected": CONV.format(4, 3, 2, "tanh") + "[dropout]\nprobability=.5\n"
    "[connected]\noutput=7\nactivation=relu\n[softmax]\ngroups=1\n",
}  # fmt: skip


def write(folder: Path, text: str, numbers: int | None = None) -> Path:
    """Write a cfg with a number of random weights, by default as many as it needs."""
    path = folder / "model.cfg"
    path.write_text(text)
    count = 1 << 16 if numbers is None else numbers
    data = np.random.default_rng(0).uniform(0.05, 0.4, count).astype(np.float32)
    path.with_suffix(".weights").write_bytes(struct.pack("<iiiq", 0, 2, 5, 0) + data.tobytes())
    if numbers is not None:
        return path
    with pytest.raises(jangin.CompileError, match="numbers more than the cfg") as error:
        jangin.compile(path, cache=False)
    left = int(str(error.value).split(" has ")[1].split(" numbers more")[0])
    return write(folder, text, count - left)


def opencv(path: Path, x: Any) -> list[Any]:
    cv2 = pytest.importorskip(
        "cv2", reason="OpenCV, the reference, isn't installed: the extra `models` has it"
    )
    if not hasattr(cv2.dnn, "readNetFromDarknet"):
        pytest.skip("OpenCV 5 reads no Darknet: the reference is 4")
    net = cv2.dnn.readNetFromDarknet(str(path), str(path.with_suffix(".weights")))
    net.setInput(x)
    return list(net.forward(net.getUnconnectedOutLayersNames()))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NETWORKS)
def test_against_opencv(name: str, tmp_path: Path) -> None:
    path = write(tmp_path, NET + NETWORKS[name])
    exe = jangin.compile(path, threads=1, cache=False)
    for seed in range(2):
        x = np.random.default_rng(seed).standard_normal((1, 3, 16, 24)).astype(np.float32)
        for got, wanted in zip(exe.run({"data": x}).values(), opencv(path, x), strict=True):
            if got.ndim == 3:
                boxes(got[0], wanted, name == "region")
            else:
                near(got, wanted.reshape(got.shape))


def near(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE * max(1, np.abs(wanted).max()))


def boxes(got: Any, wanted: Any, region: bool) -> None:
    """Compare boxes. OpenCV multiplies class probabilities by the box's probability, with 0 if it isn't above
    0.2.

    For a [region], OpenCV also gives 0 if a better box overlaps."""
    near(got[:, :5], wanted[:, :5])
    scores, kept = got[:, 5:] * got[:, 4:5], wanted[:, 5:] > 0
    assert kept.any()
    near(scores[kept], wanted[:, 5:][kept])
    assert region or (scores[~kept] <= 0.2 + TOLERANCE).all()


def test_batches_are_free(tmp_path: Path) -> None:
    exe = jangin.compile(write(tmp_path, NET + NETWORKS["yolo"]), threads=1, cache=False)
    x = np.random.default_rng(0).standard_normal((3, 3, 16, 24)).astype(np.float32)
    whole = exe(x)
    for n in range(3):
        np.testing.assert_array_equal(exe(x[n : n + 1])[0], whole[n])


@pytest.mark.parametrize(
    "text, reason",
    [
        ("[net]\nwidth=8\nheight=8\n[convolutional\n", "not a section"),
        ("[net]\nwidth=8\n[avgpool]\n", r"\[net\] in line 1 has no height="),
        ("[net]\nwidth=x\nheight=8\n[avgpool]\n", "width=x is no number"),
        (NET + "[route]\nlayers=3\n", "reads layer 3, which isn't before it"),
        (
            NET + "[wonder]\n[marvel]\n",
            r"(?s)2 nodes are not supported.*\[wonder\] layer 0.*\[marvel\] layer 1",
        ),
        (
            NET + CONV.format(4, 3, 1, "odd"),
            r"\[convolutional\] layer 0 \(line 6\).*the activation odd is none",
        ),
        (NET + PLAIN.format(4) + YOLO, "reads 4 channels, which aren't 2 anchors of 3 classes"),
    ],
)
def test_what_is_wrong_is_said(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(jangin.CompileError, match=reason):
        jangin.compile(
            write(tmp_path, text, 124 if "odd" in text else 16 if "yolo" in text else 0), cache=False
        )


def test_weights_of_another_cfg(tmp_path: Path) -> None:
    text = NET + PLAIN.format(4)
    with pytest.raises(
        jangin.CompileError, match="ends before the weights of layer 0, which needs 12 numbers"
    ):
        jangin.compile(write(tmp_path, text, 15), cache=False)
    with pytest.raises(jangin.CompileError, match="has 1 numbers more than the cfg"):
        jangin.compile(write(tmp_path, text, 17), cache=False)
    path = write(tmp_path, text, 16)
    path.with_suffix(".weights").unlink()
    with pytest.raises(jangin.CompileError, match=r"whose weights should lie beside it as .*model\.weights"):
        jangin.compile(path, cache=False)


@pytest.mark.sampled(2)
def test_boxes_are_suppressed(tmp_path: Path) -> None:
    """The result is compared with the plain outputs, suppressed by the test."""
    from jangin.frontends.darknet.format import DarknetFormat

    path = write(tmp_path, NET + NETWORKS["yolo"])
    x = np.random.default_rng(3).standard_normal((2, 3, 16, 24)).astype(np.float32)
    found = jangin.compile(path, formats=[DarknetFormat(nms=0.3, score=0.1, most=40)], cache=False)(x)
    assert found.shape == (2, 40, 6)
    plain = jangin.compile(path, cache=False)(x)
    for got, boxes in zip(found, plain, strict=True):
        wanted = []
        for c in range(3):
            scores = boxes[:, 4] * boxes[:, 5 + c]
            kept: list[Any] = []
            for i in np.argsort(-scores, kind="stable"):
                if scores[i] > 0.1 and all(overlap(boxes[i], boxes[j]) <= 0.3 for j in kept):
                    kept.append(i)
            wanted += [[*boxes[i, :4], scores[i], c] for i in kept]
        wanted.sort(key=lambda row: -row[4])
        assert len(wanted) > 3
        near(got[: len(wanted)], np.array(wanted[:40]))
        assert not got[len(wanted) :].any()


def overlap(a: Any, b: Any) -> float:
    low = np.maximum(a[:2] - a[2:4] / 2, b[:2] - b[2:4] / 2)
    high = np.minimum(a[:2] + a[2:4] / 2, b[:2] + b[2:4] / 2)
    inter = np.prod(np.maximum(high - low, 0))
    return float(inter / (a[2] * a[3] + b[2] * b[3] - inter))


def sigmoid(v: Any) -> Any:
    return 1 / (1 + np.exp(-v))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", ["rnn", "gru", "lstm"])
def test_recurrent_sections(kind: str, tmp_path: Path) -> None:
    """Three steps, with the state carried by the caller, are compared with Darknet's source."""
    inputs, out = 6, 5
    shapes = {
        "rnn": [(out, inputs), (out, out), (out, out)], "gru": [(out, out)] * 3 + [(out, inputs)] * 3,
        "lstm": [(out, out)] * 4 + [(out, inputs)] * 4,
    }[kind]  # fmt: skip
    text = f"[net]\ninputs={inputs}\n[{kind}]\noutput={out}\nactivation=tanh\ntanh=1\n"
    path = write(tmp_path, text, sum(o * i + o for o, i in shapes))
    exe = jangin.compile(path, threads=1, cache=False)
    numbers = np.frombuffer(path.with_suffix(".weights").read_bytes(), np.float32, offset=20)
    layers = []
    for o, i in shapes:
        bias, numbers = numbers[:o], numbers[o:]
        layers.append((numbers[: o * i].reshape(o, i), bias))
        numbers = numbers[o * i :]
    part = [lambda v, w=w, c=c: v @ w.T + c for w, c in layers]
    rng = np.random.default_rng(0)
    states = [np.zeros((2, out), np.float32) for _ in exe.inputs[1:]]
    h, cell = np.zeros((2, out)), np.zeros((2, out))
    for _ in range(3):
        x = rng.standard_normal((2, inputs)).astype(np.float32)
        y, *states = exe(x.reshape(2, inputs, 1, 1), *states)
        if kind == "rnn":
            h = np.tanh(part[0](x)) + np.tanh(part[1](h))
            wanted = np.tanh(part[2](h))
        elif kind == "gru":
            z, r = sigmoid(part[3](x) + part[0](h)), sigmoid(part[4](x) + part[1](h))
            h = wanted = z * h + (1 - z) * np.tanh(part[5](x) + part[2](r * h))
        else:
            i, f, o, g = (part[n](h) + part[n + 4](x) for n in range(4))
            cell = sigmoid(f) * cell + sigmoid(i) * np.tanh(g)
            h = wanted = sigmoid(o) * np.tanh(cell)
        near(y.reshape(2, out), wanted)
        near(states[0], h)


def test_recurrent_convolutions(tmp_path: Path) -> None:
    text = "[net]\nwidth=5\nheight=4\nchannels=2\n"
    text += "[crnn]\noutput_filters=3\nhidden_filters=4\nactivation=logistic\n"
    path = write(tmp_path, text, sum(o * i * 9 + o for o, i in ((4, 2), (4, 4), (3, 4))))
    exe = jangin.compile(path, threads=1, cache=False)
    x = np.random.default_rng(0).standard_normal((1, 2, 4, 5)).astype(np.float32)
    state = np.zeros((1, 4, 4, 5), np.float32)
    first, state = exe(x, state)
    second, _ = exe(x, state)
    numbers = np.frombuffer(path.with_suffix(".weights").read_bytes(), np.float32, offset=20)

    def convolved(v: Any, o: int, i: int) -> Any:
        nonlocal numbers
        bias, w = numbers[:o], numbers[o : o + o * i * 9].reshape(o, i, 3, 3)
        numbers = numbers[o + o * i * 9 :]
        padded = np.pad(v, [(0, 0), (0, 0), (1, 1), (1, 1)])
        taps = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (2, 3))
        return sigmoid(np.einsum("nihwab,oiab->nohw", taps, w) + bias[:, None, None])

    hidden = convolved(x, 4, 2) + convolved(np.zeros((1, 4, 4, 5)), 4, 4)
    near(state, hidden)
    near(first, convolved(hidden, 3, 4))
    assert np.abs(second - first).max() > 1e-4


@pytest.mark.sampled(3)
def test_bench_takes_weights(tmp_path: Path) -> None:
    """Weights that don't lie beside the cfg are passed to the timed process."""
    path = write(tmp_path, NET + next(iter(NETWORKS.values())))
    weights = path.with_suffix(".weights").rename(tmp_path / "elsewhere")
    options = measure.Options((), shapes={"batch": 1}, compiling=Options(weights=weights))
    assert measure.make_jobs(path, 1, options, tmp_path)[0].options.weights == weights
    settings = Settings(cache=False, weights=weights)
    (found,) = bench([path], settings, "", "1", 1, 0.01, ["batch=1"], [], False, None, "", None)
    assert [r.engine for r in found.results] == ["jangin"]
