"""Caffe's layers with random weights, compared with OpenCV's dnn. Other tests are about old syntax, phases,
and damaged files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin
from jangin.frontends.caffe.weights import _net
from jangin.frontends.lower import lower
from jangin.frontends.table import load
from jangin.ops.interpret import run_graph

TOLERANCE = 2e-5
"""The largest difference, as a share of the largest value. Sums of some hundred products are in another
order."""
Blobs = dict[str, list[tuple[int, ...]]]
DATA = 'name: "tiny"\ninput: "data"\ninput_shape { dim: 2 dim: 6 dim: 11 dim: 9 }\n'


def layer(kind: str, text: str = "", bottom: str = "data", top: str = "y", name: str = "l") -> str:
    ends = "".join(
        f'{end}: "{n}" ' for end, names in (("bottom", bottom), ("top", top)) for n in names.split()
    )
    return f'layer {{ name: "{name}" type: "{kind}" {ends} {text} }}\n'


CONV = "convolution_param {{ num_output: {0} kernel_size: {1} {2} }}"
CASES: dict[str, tuple[str, Blobs]] = {
    "conv": (layer("Convolution", CONV.format(8, 3, "pad: 1 stride: 2")), {"l": [(8, 6, 3, 3), (8,)]}),
    "conv_group": (layer("Convolution", CONV.format(6, 3, "group: 3 bias_term: false")), {"l": [(6, 2, 3,
    3)]}),
    "conv_dilation": (
        layer("Convolution",
            "convolution_param { num_output: 4 kernel_h: 3 kernel_w: 1 pad_h: 2 pad_w: 0 dilation: 2 }"),
        {"l": [(4, 6, 3, 1), (1, 1, 1, 4)]},
    ),
    "deconv": (layer("Deconvolution", CONV.format(4, 4, "pad: 1 stride: 2")), {"l": [(6, 4, 4, 4), (4,)]}),
    "deconv_group": (
        layer("Deconvolution", CONV.format(6, 4, "group: 6 stride: 2 bias_term: false")), {"l": [(6, 1, 4,
            4)]},
    ),
    "max_ceil": (layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }"), {}),
    "max_pad": (layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 pad: 1 }"), {}),
    "ave_ceil": (layer("Pooling", "pooling_param { pool: AVE kernel_size: 2 stride: 2 pad: 1 }"), {}),
    "global": (layer("Pooling", "pooling_param { pool: AVE global_pooling: true }"), {}),
    "lrn": (layer("LRN", "lrn_param { local_size: 5 alpha: 0.3 beta: 0.75 }"), {}),
    "lrn_within": (layer("LRN", "lrn_param { local_size: 3 alpha: 0.5 norm_region: WITHIN_CHANNEL }"), {}),
    "inner": (layer("InnerProduct", "inner_product_param { num_output: 5 }"), {"l": [(5, 594), (5,)]}),
    "relu": (layer("ReLU", "relu_param { negative_slope: 0.2 }"), {}),
    "prelu": (layer("PReLU"), {"l": [(6,)]}),
    "elu": (layer("ELU", "elu_param { alpha: 1.0 }"), {}),
    "functions": (
        layer("Sigmoid", top="a") + layer("TanH", bottom="a", top="b", name="t")
        + layer("AbsVal", bottom="b", top="c", name="u") + layer("BNLL", bottom="c", top="y", name="v"), {},
    ),
    "power": (layer("AbsVal", top="a") + layer("Power", "power_param { power: 2 scale: 0.5 shift: 1 }", "a",
    name="p"), {}),
    "exp": (layer("Exp", "exp_param { base: 2 scale: 0.5 shift: 0.1 }"), {}),
    "in_place": (
        layer("BatchNorm", top="data", name="n") + layer("Scale", "scale_param { bias_term: true }",
            top="data", name="s")
        + layer("ReLU", top="data", name="r"),
        {"n": [(6,), (6,), (1,)], "s": [(6,), (6,)]},
    ),
    "eltwise": (
        layer("Split", top="a b", name="s") + layer("TanH", bottom="a", top="t", name="t")
        + layer("Eltwise", "eltwise_param { coeff: 0.5 coeff: -2 }", "t b", name="e"), {},
    ),
    "eltwise_max": (
        layer("TanH", top="t", name="t") + layer("Eltwise", "eltwise_param { operation: MAX }", "t data",
            name="e"), {},
    ),
    "slice": (
        layer("Slice", "slice_param { axis: 1 slice_point: 1 slice_point: 4 }", top="a b c")
        + layer("Concat", "concat_param { axis: 1 }", "c a b", name="j"), {},
    ),
    "flatten": (layer("Flatten"), {}),
    "reshape": (layer("Reshape", "reshape_param { shape { dim: 0 dim: 3 dim: -1 dim: 9 } }"), {}),
    "permute": (layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }"), {}),
    "crop": (
        layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", top="s", name="p")
        + layer("Crop", "crop_param { axis: 2 offset: 2 offset: 1 }", "data s"), {},
    ),
    "softmax": (layer("Softmax"), {}),
    "mvn": (layer("MVN", "mvn_param { eps: 1e-9 }"), {}),
    "normalize": (
        layer("Normalize",
            "norm_param { across_spatial: false channel_shared: false scale_filler { value: 20 } }"),
        {"l": [(6,)]},
    ),
    "shuffle": (layer("ShuffleChannel", "shuffle_channel_param { group: 3 }"), {}),
    "interp": (layer("Interp", "interp_param { height: 7 width: 15 }"), {}),
}  # fmt: skip


def _lrn(x: Any) -> Any:
    near = np.pad(x, [(0, 0), (1, 1), (0, 0), (0, 0)]) ** 2
    return x / (2 + 0.1 * sum(near[:, n : n + 6] for n in range(3))) ** 0.75


FORMULAS: dict[str, tuple[str, Any]] = {
    "max_floor": (
        "Pooling pooling_param { kernel_size: 2 stride: 2 round_mode: FLOOR }",
        lambda x: x[:, :, :10, :8].reshape(2, 6, 5, 2, 4, 2).max((3, 5)),
    ),
    "argmax": ("ArgMax argmax_param { axis: 1 }", lambda x: x.argmax(1)[:, None]),
    "argmax_all": (
        "ArgMax argmax_param { out_max_val: true }",
        lambda x: np.stack([x.reshape(2, -1).argmax(1), x.reshape(2, -1).max(1)], 1)[..., None],
    ),
    "reduction": ("Reduction reduction_param { operation: SUMSQ axis: 2 coeff: 0.5 }",
    lambda x: (x * x).sum((2, 3)) / 2),
    "lrn": ("LRN lrn_param { local_size: 3 alpha: 0.3 beta: 0.75 k: 2 }", _lrn),
    "threshold": ("Threshold threshold_param { threshold: 0.5 }", lambda x: x > 0.5),
    "log": ("Log log_param { base: 2 shift: 9 }", lambda x: np.log2(x + 9)),
    "tile": ("Tile tile_param { axis: 1 tiles: 2 }", lambda x: np.concatenate([x, x], 1)),
    "clip": ("Clip clip_param { min: -0.3 max: 1.5 }", lambda x: np.clip(x, -0.3, 1.5)),
    "swish": ("Swish swish_param { beta: 1.7 }", lambda x: x / (1 + np.exp(-1.7 * x))),
    "swish plain": ("Swish", lambda x: x / (1 + np.exp(-x))),
    "crelu": ("CReLU", lambda x: np.concatenate([np.maximum(x, 0), np.maximum(-x, 0)], 1)),
    "crelu leaky": (
        "CReLU crelu_param { negative_slope: 0.1 axis: 2 }",
        lambda x: np.concatenate([np.where(x > 0, x, 0.1 * x), np.where(x < 0, -x, -0.1 * x)], 2)),
}  # fmt: skip
"""Layers that OpenCV lacks or computes differently."""


@pytest.mark.parametrize("name", FORMULAS)
def test_against_numpy(name: str, tmp_path: Path) -> None:
    text, formula = FORMULAS[name]
    x = image()
    got = interpreted(write(tmp_path, DATA + layer(*text.split(" ", 1)), {}), x)
    wanted = formula(x.astype(np.float64))
    assert got.shape == wanted.shape
    near(got, wanted)


@pytest.mark.parametrize("statistics", [False, True])
def test_normalization_of_segnet_and_pspnet(statistics: bool, tmp_path: Path) -> None:
    blobs: Blobs = {"l": [(1, 6, 1, 1)] * (4 if statistics else 2)}
    text = "bn_param { frozen: true eps: 0.01 }" if statistics else "bn_param { bn_mode: INFERENCE }"
    path, x = write(tmp_path, DATA + layer("BN", text), blobs), image()
    rng = np.random.default_rng(0)
    factor, offset, *rest = (rng.uniform(0.05, 0.4, (1, 6, 1, 1)).astype("<f4") for _ in blobs["l"])
    mean, variance = rest or (0, 0.99)
    near(interpreted(path, x), (x - mean) / np.sqrt(variance + 0.01) * factor + offset)
    with pytest.raises(jangin.CompileError, match="bn_mode: LEARN takes the statistics of the batch"):
        interpreted(write(tmp_path, DATA + layer("BN"), {"l": blobs["l"][:2]}), x)


@pytest.mark.parametrize("size", ["", "unpool_size: 12"])
def test_unpooling(size: str, tmp_path: Path) -> None:
    """The maxima are put back at their positions."""
    text = layer("Pooling", "pooling_param { kernel_size: 3 stride: 2 }", "data", "p mask", "pool")
    text += layer("Unpooling", f"unpooling_param {{ unpool: MAX kernel_size: 3 stride: 2 {size} }}", "p mask")
    shape = (2, 6, 11, 11)
    data = 'name: "tiny"\ninput: "data"\ninput_shape { dim: 2 dim: 6 dim: 11 dim: 11 }\n'
    x = image(0, shape)
    got = interpreted(write(tmp_path, data + text, {}), x)
    view = np.lib.stride_tricks.sliding_window_view(x, (3, 3), (2, 3))[:, :, ::2, ::2].reshape(2, 6, 5, 5, 9)
    at = view.argmax(-1)
    rows, columns = 2 * np.arange(5)[:, None] + at // 3, 2 * np.arange(5) + at % 3
    wide = 12 if size else 11
    wanted = np.zeros((2, 6, wide * wide), np.float32)
    place = (rows * 11 + columns).reshape(2, 6, 25)
    np.put_along_axis(wanted, place, view.max(-1).reshape(2, 6, 25), 2)
    np.testing.assert_array_equal(got, wanted.reshape(2, 6, wide, wide))


def test_products_of_bottoms(tmp_path: Path) -> None:
    x = image()
    text = layer("TanH", top="t", name="t") + layer("MatMul", "matmul_param { transpose_b: true }", "data t")
    near(interpreted(write(tmp_path, DATA + text, {}), x), x @ np.tanh(x).swapaxes(2, 3))
    sizes = "matmul_param { dim_1: 54 dim_2: 11 dim_3: 54 }"
    text = layer("TanH", top="t", name="t") + layer("MatMul", sizes, "data t")
    near(
        interpreted(write(tmp_path, DATA + text, {}), x), x.reshape(2, 54, 11) @ np.tanh(x).reshape(2, 11, 54)
    )


@pytest.mark.parametrize("name", sorted({t.split(" ")[0] for t, _ in FORMULAS.values()}))
def test_no_parameter_is_passed_over(name: str, tmp_path: Path) -> None:
    """An unknown parameter is refused by name."""
    text = next(t for t, _ in FORMULAS.values() if t.split(" ")[0] == name)
    odd = layer(*f"{text} odd_param {{ odd: 3 }}".split(" ", 1))
    with pytest.raises(jangin.CompileError, match=r"its parameters odd_param\.odd are not supported"):
        interpreted(write(tmp_path, DATA + odd, {}), image())


def write(folder: Path, text: str, blobs: Blobs, kind: str = "layer") -> Path:
    """Write a prototxt and its caffemodel of random blobs, positive for variances."""
    net, rng = _net()(), np.random.default_rng(0)
    for name, shapes in blobs.items():
        entry = getattr(net, kind).add()
        entry.name = name.encode()
        for shape in shapes:
            blob = entry.blobs.add(data=rng.uniform(0.05, 0.4, shape).astype("<f4").tobytes())
            if kind == "layer":
                blob.shape.dim.extend(shape)
            else:
                blob.num, blob.channels, blob.height, blob.width = (*[1] * (4 - len(shape)), *shape)
    path = folder / "net.prototxt"
    path.write_text(text)
    path.with_suffix(".caffemodel").write_bytes(net.SerializeToString())
    return path


def opencv(path: Path, feeds: dict[str, Any]) -> list[Any]:
    cv2 = pytest.importorskip(
        "cv2", reason="OpenCV, the reference, isn't installed: the extra `models` has it"
    )
    if not hasattr(cv2.dnn, "readNetFromCaffe"):
        pytest.skip("OpenCV 5 reads no Caffe: the reference is 4")
    net = cv2.dnn.readNetFromCaffe(str(path), str(path.with_suffix(".caffemodel")))
    for name, x in feeds.items():
        net.setInput(x, name)
    return list(net.forward(net.getUnconnectedOutLayersNames()))


def near(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=0, atol=TOLERANCE * max(1, np.abs(wanted).max()))


def image(seed: int = 0, shape: tuple[int, ...] = (2, 6, 11, 9)) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def interpreted(path: Path, x: Any) -> Any:
    """Return a layer's result by the interpreter. The kernels that compute it have tests of their own."""
    graph = lower(load(path))
    return run_graph(graph, {"data": x})[graph.outputs[0]]


@pytest.mark.parametrize("name", CASES)
def test_against_opencv(name: str, tmp_path: Path) -> None:
    text, blobs = CASES[name]
    path = write(tmp_path, DATA + text, blobs)
    x = image()
    got, (wanted,) = interpreted(path, x), opencv(path, {"data": x})
    near(got, wanted.reshape(got.shape))


SSD = (
    layer("Convolution", CONV.format(12, 3, "pad: 1"), top="loc", name="loc")
    + layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", "loc", "locp", "locp")
    + layer("Flatten", "", "locp", "locf", "locf")
    + layer("Convolution", CONV.format(9, 3, "pad: 1"), top="conf", name="conf")
    + layer("Permute", "permute_param { order: 0 order: 2 order: 3 order: 1 }", "conf", "confp", "confp")
    + layer("Reshape", "reshape_param { shape { dim: 0 dim: -1 dim: 3 } }", "confp", "confr", "confr")
    + layer("Softmax", "softmax_param { axis: 2 }", "confr", "confs", "confs")
    + layer("Flatten", "", "confs", "conff", "conff")
    + layer("PriorBox", "prior_box_param { min_size: 3 max_size: 5 aspect_ratio: 2 flip: false clip: true "
            "variance: 0.1 variance: 0.1 variance: 0.2 variance: 0.2 }", "loc data", "priors", "priors")
    + layer("DetectionOutput", "detection_output_param { num_classes: 3 share_location: true "
            "nms_param { nms_threshold: 0.3 top_k: 60 } code_type: CENTER_SIZE keep_top_k: 20 "
            "confidence_threshold: 0.2 background_label_id: 0 }", "locf conff priors", "found", "found")
)  # fmt: skip


SSD_BLOBS: Blobs = {"loc": [(12, 6, 3, 3), (12,)], "conf": [(9, 6, 3, 3), (9,)]}
ONE = DATA.replace("dim: 2", "dim: 1")


def test_detections_of_ssd(tmp_path: Path) -> None:
    path = write(tmp_path, ONE + SSD, SSD_BLOBS)
    exe = jangin.compile(path, threads=1, cache=False)
    for seed in range(3):
        x = image(seed, (1, 6, 11, 9))
        got, (wanted,) = exe(x), opencv(path, {"data": x})
        assert (wanted[0, 0, :, 2] > 0.2).sum() > 5
        near(got, wanted)


def test_regions_are_pooled(tmp_path: Path) -> None:
    two = 'input: "data"\ninput: "rois"\ninput_shape { dim: 1 dim: 6 dim: 11 dim: 9 }\n'
    two += "input_shape { dim: 3 dim: 5 }\n"
    pool = layer(
        "ROIPooling", "roi_pooling_param { pooled_h: 3 pooled_w: 2 spatial_scale: 0.5 }", "data rois"
    )
    path = write(tmp_path, two + pool, {})
    rois = np.array([[0, 0, 0, 17, 21], [0, 4, 2, 9, 9], [0, 1, 1, 14, 6]], np.float32)
    x = image(0, (1, 6, 11, 9))
    near(jangin.compile(path, threads=1, cache=False)(x, rois), opencv(path, {"data": x, "rois": rois})[0])


def test_regions_are_pooled_by_groups(tmp_path: Path) -> None:
    """R-FCN's pooling is compared with NumPy, cell by cell."""
    two = 'input: "data"\ninput: "rois"\ninput_shape { dim: 2 dim: 8 dim: 11 dim: 9 }\n'
    two += "input_shape { dim: 3 dim: 5 }\n"
    text = layer(
        "PSROIPooling", "psroi_pooling_param { output_dim: 2 group_size: 2 spatial_scale: 0.5 }", "data rois"
    )
    rois = np.array([[0, 0, 0, 17, 21], [1, 4, 2, 9, 9], [0, 30, 30, 40, 40]], np.float32)
    x = image(0, (2, 8, 11, 9))
    wanted = np.zeros((3, 2, 2, 2))
    for n, (which, *corners) in enumerate(rois):
        low, high = np.array(corners[:2]) * 0.5, (np.array(corners[2:]) + 1) * 0.5
        step = np.maximum(high - low, 0.1) / 2
        for c, i, j in np.ndindex(2, 2, 2):
            begin = np.clip(np.floor([i * step[1] + low[1], j * step[0] + low[0]]), 0, (11, 9)).astype(int)
            end = np.clip(
                np.ceil([(i + 1) * step[1] + low[1], (j + 1) * step[0] + low[0]]), 0, (11, 9)
            ).astype(int)
            cell = x[int(which), (c * 2 + i) * 2 + j, begin[0] : end[0], begin[1] : end[1]]
            wanted[n, c, i, j] = cell.mean() if cell.size else 0
    got = jangin.compile(write(tmp_path, two + text, {}), threads=1, cache=False)(x, rois)
    near(got, wanted)
    assert not got[2].any() and got[:2].all()


def squash(v: Any) -> Any:
    return 1 / (1 + np.exp(-v))


@pytest.mark.parametrize("kind", ["LSTM", "RNN"])
@pytest.mark.parametrize("exposed", [False, True])
def test_recurrent_layers(kind: str, exposed: bool, tmp_path: Path) -> None:
    """Recurrent layers are compared with NumPy in f64: sequences that begin anew, an input that all steps
    share, and states."""
    steps, rows, size, hidden, states = 4, 2, 5, 3, 2 if kind == "LSTM" else 1
    shapes = [
        (steps, rows, size),
        (steps, rows),
        (rows, 2),
        *[(1, rows, hidden)] * (states if exposed else 0),
    ]
    names = ["data", "cont", "still", "h", "c"][: len(shapes)]
    text = "".join(
        f'input: "{n}"\ninput_shape {{ {" ".join(f"dim: {d}" for d in s)} }}\n'
        for n, s in zip(names, shapes, strict=True)
    )
    param = f"recurrent_param {{ num_output: {hidden} expose_hidden: {str(exposed).lower()} }}"
    tops = ["y", "h2", "c2"][: 1 + (states if exposed else 0)]
    text += layer(kind, param, " ".join(names), " ".join(tops))
    wide = hidden * (4 if kind == "LSTM" else 1)
    blobs = [
        (wide, size),
        (wide,),
        (wide, 2),
        (wide, hidden),
        *([] if kind == "LSTM" else [(hidden, hidden), (hidden,)]),
    ]
    path = write(tmp_path, text, {"l": blobs})
    rng = np.random.default_rng(0)
    given = [rng.uniform(0.05, 0.4, shape).astype("<f4").astype(np.float64) for shape in blobs]
    feeds = [image(n, s) for n, s in enumerate(shapes)]
    feeds[1] = np.float32([[0, 0], [1, 1], [1, 0], [1, 1]])
    h, c = (feeds[3][0], feeds[-1][0]) if exposed else (np.zeros((rows, hidden)),) * 2
    wanted = []
    for x, on in zip(feeds[0], feeds[1][..., None], strict=True):
        sums = x @ given[0].T + given[1] + feeds[2] @ given[2].T + on * h @ given[3].T
        if kind == "LSTM":
            i, f, o, g = np.split(sums, 4, 1)
            c = on * squash(f) * c + squash(i) * np.tanh(g)
            h = squash(o) * np.tanh(c)
            wanted.append(h)
        else:
            h = np.tanh(sums)
            wanted.append(np.tanh(h @ given[4].T + given[5]))
    got = jangin.compile(path, threads=1, cache=False).run(dict(zip(names, feeds, strict=True)))
    near(got["y"], np.stack(wanted))
    if exposed:
        near(got["h2"][0], h)


def test_maxima_are_put_back(tmp_path: Path) -> None:
    """The unpooling of a fork (SegNet's) is compared with NumPy."""
    text = layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", top="p mask", name="p")
    text += layer("Upsample", "upsample_param { upsample_h: 10 upsample_w: 8 scale: 2 }", "p mask", name="u")
    path = write(tmp_path, DATA.replace("11", "10").replace("9", "8") + text, {})
    x = image(0, (2, 6, 10, 8))
    windows = x.reshape(2, 6, 5, 2, 4, 2)
    wanted = np.where(windows == windows.max((3, 5), keepdims=True), windows, 0).reshape(x.shape)
    np.testing.assert_array_equal(jangin.compile(path, threads=1, cache=False)(x), wanted)


def test_first_and_second_syntax(tmp_path: Path) -> None:
    """Old syntaxes give the same as the last one, from their own form of caffemodel."""
    new = layer("Convolution", CONV.format(4, 3, "pad: 1"), top="c", name="c") + layer(
        "ReLU", "", "c", "c", "r"
    )
    new += layer("InnerProduct", "inner_product_param { num_output: 3 }", "c", "f", "f") + layer(
        "Softmax", "", "f", "y"
    )
    blobs: Blobs = {"c": [(4, 6, 3, 3), (4,)], "f": [(3, 396), (3,)]}
    old = (
        'layers { name: "c" type: CONVOLUTION bottom: "data" top: "c" blobs_lr: 1 blobs_lr: 2 '
        "convolution_param { num_output: 4 kernel_size: 3 pad: 1 } }\n"
        'layers { name: "r" type: RELU bottom: "c" top: "c" }\n'
        'layers { name: "f" type: INNER_PRODUCT bottom: "c" top: "f" '
        "inner_product_param { num_output: 3 } }\n"
        'layers { name: "l" type: SOFTMAX bottom: "f" top: "y" }\n'
    )
    first = (
        'layers { layer { name: "c" type: "conv" num_output: 4 kernelsize: 3 pad: 1 } '
        'bottom: "data" top: "c" }\n'
        'layers { layer { name: "r" type: "relu" } bottom: "c" top: "c" }\n'
        'layers { layer { name: "f" type: "innerproduct" num_output: 3 } bottom: "c" top: "f" }\n'
        'layers { layer { name: "l" type: "softmax" } bottom: "f" top: "y" }\n'
    )
    x = image()
    dims = DATA.replace(
        "input_shape { dim: 2 dim: 6 dim: 11 dim: 9 }", "input_dim: 2 input_dim: 6 input_dim: 11 input_dim: 9"
    )
    wanted = jangin.compile(write(tmp_path, DATA + new, blobs), threads=1, cache=False)(x)
    for text in (old, first):
        exe = jangin.compile(write(tmp_path, dims + text, blobs, "layers"), threads=1, cache=False)
        np.testing.assert_array_equal(exe(x), wanted)


def test_the_phase_is_test(tmp_path: Path) -> None:
    """Layers of training are left out. The inputs of losses and accuracies become outputs."""
    text = (
        'layer { name: "d" type: "Data" top: "data" top: "label" include { phase: TRAIN } }\n'
        'layer { name: "d" type: "MemoryData" top: "data" top: "label" include { phase: TEST }\n'
        "  memory_data_param { batch_size: 2 channels: 6 height: 11 width: 9 } }\n"
        + layer("Dropout", "exclude { phase: TEST }", top="data", name="n")
        + layer("TanH", top="y", name="t")
        + layer("SoftmaxWithLoss", "", "y label", "loss", "loss")
        + layer("Accuracy", "include { phase: TEST }", "y label", "accuracy", "accuracy")
    )
    exe = jangin.compile(write(tmp_path, text, {}), threads=1, cache=False)
    x = image()
    (name,) = exe.run({"data": x})
    assert name == "y"
    near(exe(x), np.tanh(x))


def test_sizes_may_be_changed(tmp_path: Path) -> None:
    path = write(tmp_path, DATA + CASES["conv"][0], CASES["conv"][1])
    exe = jangin.compile(path, threads=1, cache=False, shapes={"data": ("batch", 6, 8, 8)})
    whole = exe(image(0, (5, 6, 8, 8)))
    assert whole.shape == (5, 8, 4, 4)
    np.testing.assert_array_equal(exe(image(0, (5, 6, 8, 8))[1:2])[0], whole[1])


def test_weights_elsewhere(tmp_path: Path) -> None:
    path = write(tmp_path, DATA + CASES["conv"][0], CASES["conv"][1])
    wanted = jangin.compile(path, threads=1, cache=False)(image())
    other = path.with_suffix(".caffemodel").rename(tmp_path / "other.bin")
    for cache in (False, tmp_path / "cache", tmp_path / "cache"):
        exe = jangin.compile(path, weights=other, threads=1, cache=cache)
        np.testing.assert_array_equal(exe(image()), wanted)
    with pytest.raises(jangin.CompileError, match=r"whose weights should lie beside it as .*net\.caffemodel"):
        jangin.compile(path, cache=False)
    with pytest.raises(jangin.CompileError, match=r"there is no such file as .*missing"):
        jangin.compile(path, weights=tmp_path / "missing", cache=False)


@pytest.mark.parametrize(
    "text, reason",
    [
        (layer("Wonder") + layer("Marvel", name="m"),
            r"(?s)2 nodes are not supported.*Wonder 'l' .*Marvel 'm'"),
        (layer("Pooling", "pooling_param { kernel_size: 2 wonder: 3 }"),
            "pooling_param.wonder are not supported"),
        (layer("Convolution", CONV.format(4, 3, "")),
            "the caffemodel has no weights of a layer of this name"),
        (layer("ReLU", bottom="other"), r"ReLU 'l' \(line 4\) reads the blob 'other', which no layer"),
        ("layer { dim: 2 }", "the layer '' in line 4 has no type"),
        ('layer { type: "Wonder" }' + layer("ReLU"), r"Wonder \(line 4\).* not supported"),
        ("layer { name: \n", "line 4 of the prototxt: a value should stand here, not 'the end'"),
        ("layer { } }", "line 4 of the prototxt: a field's name should stand here, not '}'"),
        (layer("LRN", "lrn_param { local_size: 4 }"), "local_size is 4, and must be odd"),
        ("layers { type: RELU }" + layer("ReLU"), "which belong to different syntaxes"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(text: str, reason: str, tmp_path: Path) -> None:
    with pytest.raises(jangin.CompileError, match=reason):
        jangin.compile(write(tmp_path, DATA + text, {}), cache=False)


def test_damaged_files_give_one_error(refused: Any, tmp_path: Path) -> None:
    blobs = {**CASES["in_place"][1], **SSD_BLOBS}
    path = write(tmp_path, ONE + CASES["in_place"][0] + SSD, blobs)
    assert refused(path, [path, path.with_suffix(".caffemodel")]) > 0.5
