"""Mutants of models in formats other than ONNX. The files of a model are mutated, and the texts in them.

`FORMATS` has a line for each format: the packages that it needs, and its models. A model is a mapping from
names to files. The first file is the one to compile.
"""

from __future__ import annotations

import importlib.util
import io
import random
import re
import struct
import sys
import tarfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

import numpy as np

from . import mutants, seeds

Files = Mapping[str, bytes]
TESTS = Path(__file__).parents[1] / "frontends"
BUFFERS = (".mlmodel", ".caffemodel")
"""Suffixes of files that are protocol buffers."""
TEXTS = (".cfg", ".nnef", ".quant", ".prototxt")
NUMBERS = (0, 1, 2, 3, 7, 127, 255, 1 << 15, 1 << 24, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, (1 << 32) - 2)
HARM = ("../../etc/passwd", "/dev/zero", "nan", "1e999", "[]", "99999999999999999999", "a" * 5000, "(" * 3000)


PACKAGE = ".mlpackage"
"""The suffix of a folder that is a model."""


@dataclass(frozen=True)
class Kind:
    """A format's mutants. `needs`: packages without which there are none. `models` makes the originals."""

    needs: Sequence[str]
    models: Callable[[], Iterator[Files]]

    @property
    def here(self) -> bool:
        return all(importlib.util.find_spec(n) for n in self.needs)


def mutant(files: Files, rng: random.Random) -> Files:
    """Return the model with one or two of its files changed, cut, lengthened, exchanged or missing."""
    changed = dict(files)
    for _ in range(rng.choice((1, 1, 2))):
        name = rng.choice(list(changed))
        how = rng.random()
        if rng.random() < 0.3:
            changed[name] = _huge(name, changed[name], rng)
        elif how < 0.05 and len(changed) > 1:
            del changed[name]
        elif how < 0.1:
            changed[name] = changed[name] + rng.randbytes(rng.choice((1, 4, 1000)))
        elif how < 0.2:
            changed[name] = changed[name][: rng.randrange(len(changed[name]) + 1)]
        elif how < 0.25:
            changed[name] = changed[rng.choice(list(changed))]
        elif name.endswith(TEXTS) and how < 0.85:
            changed[name] = _text(changed[name], rng)
        elif how < 0.6:
            changed[name] = _words(changed[name], rng)
        else:
            changed[name] = seeds.damage(changed[name], rng)
    return changed


def _huge(name: str, data: bytes, rng: random.Random) -> bytes:
    """Make one of a file's integers huge: in a text, in a protocol buffer, or in words of 4 or 8 bytes."""
    if name.endswith(TEXTS):
        numbers = list(re.finditer(r"\b\d+\b", data.decode("utf-8", "replace")))
        if not numbers:
            return data
        text, found = data.decode("utf-8", "replace"), rng.choice(numbers)
        return (text[: found.start()] + str(rng.choice(seeds.HUGE)) + text[found.end() :]).encode()
    if name.endswith(BUFFERS):
        return seeds.huge_varint(data, rng)
    if name.endswith(".gguf"):
        return _huge_setting(data, rng)
    changed, size = bytearray(data), rng.choice((4, 8))
    if len(changed) >= size:
        at = rng.randrange((len(changed) - size) // 4 + 1) * 4
        changed[at : at + size] = (rng.choice(seeds.HUGE) % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(changed)


def _huge_setting(data: bytes, rng: random.Random) -> bytes:
    """Make a setting of a GGUF file huge. A setting is a name, followed by its type and its value."""
    settings = list(re.finditer(rb"llama\.[a-z_.]+(?=[\x04\x05\x06]\0\0\0)", data))
    if not settings:
        return data
    at = rng.choice(settings).end() + 4
    return data[:at] + (rng.choice(seeds.HUGE) % (1 << 32)).to_bytes(4, "little") + data[at + 4 :]


def _text(data: bytes, rng: random.Random) -> bytes:
    text = data.decode("utf-8", "replace")
    if not text.split():
        return data
    if rng.random() < 0.2:
        place = rng.randrange(len(text))
        return (text[:place] + rng.choice(HARM) + text[place:]).encode()
    return mutants.words(text, rng).encode()


def _words(data: bytes, rng: random.Random) -> bytes:
    """Change some aligned 4-byte words, which are offsets, lengths and codes, to other numbers."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 3))):
        if len(changed) < 8:
            break
        at = rng.randrange(len(changed) // 4) * 4
        (old,) = struct.unpack_from("<I", bytes(changed[at : at + 4]).ljust(4, b"\0"))
        near = rng.random() < 0.5
        new = (old + rng.choice((-4, -1, 1, 4))) % (1 << 32) if near else rng.choice(NUMBERS)
        changed[at : at + 4] = struct.pack("<I", new)
    return bytes(changed)


# -- models --------------------------------------------------------------------------------------


def _module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = found
    spec.loader.exec_module(found)
    return found


def _tflite() -> Iterator[Files]:
    """Yield a quantized convolution, products, operators that read shapes and indices from tensors,
    TensorFlow's gradients, a state, and complex numbers."""
    made = _module(TESTS / "tflite_format" / "files.py")
    t, o, random = made.Tensor, made.Operator, np.random.default_rng(0)
    image = t([1, 6, 6, 3], "int8", [0.05], [3])
    filters = t([4, 3, 3, 3], "int8", [0.01] * 4, [0] * 4, 0, random.integers(-9, 9, (4, 3, 3, 3)))
    bias = t([4], "int32", [0.0005] * 4, [0] * 4, 0, random.integers(-9, 9, 4))
    window = {"StrideH": 1, "StrideW": 1, "DilationHFactor": 1, "DilationWFactor": 1}
    conv = o("CONV_2D", [0, 1, 2], [3], "Conv2DOptions", window)
    yield {
        "conv.tflite": made.written(
            [image, filters, bias, t([1, 6, 6, 4], "int8", [0.2], [0])], [conv], [0], [3]
        )
    }
    parts = [
        t([2, 6]), t([5, 6], data=random.standard_normal((5, 6))), t([2, 5]), t([2], "int32", data=[5, 2]),
        t([5, 2]), t([3], "int32", data=[4, 0, 2]), t([3, 2]),
    ]  # fmt: skip
    steps = [
        o("FULLY_CONNECTED", [0, 1, -1], [2], "FullyConnectedOptions", {}), o("RESHAPE", [2, 3], [4]),
        o("GATHER", [4, 5], [6], "GatherOptions", {"Axis": 0}),
    ]  # fmt: skip
    yield {"dense.tflite": made.written(parts, steps, [0], [6])}
    cut = [t([2, 6]), *(t([2], "int32", data=d) for d in ([0, 1], [2, 6], [1, 2])), t([2, 3]), t([2, 3])]
    steps = [
        o("STRIDED_SLICE", [0, 1, 2, 3], [4], "StridedSliceOptions", {}),
        o("SOFTMAX", [4], [5], "SoftmaxOptions", {"Beta": 1.0}),
    ]
    yield {"cut.tflite": made.written(cut, steps, [0], [5])}
    image, pooled = t([1, 4, 4, 2]), t([1, 2, 2, 2])
    window = {"ksize": [1, 2, 2, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    steps = [made.flex("MaxPoolGrad", [0, 1, 1], [2], **window), made.flex("ReluGrad", [2, 0], [3], T=1)]
    yield {"gradients.tflite": made.written([image, pooled, image, image], steps, [0, 1], [3])}
    waves = [
        t([1, 1, 9]), t([2], "int32", data=[1, 8]), t([1, 1, 5], "complex64"), t([1, 5], "complex64"),
        t([1, 5]),
        t([4, 5], data=random.standard_normal((4, 5))), t([4, 3], data=random.standard_normal((4, 3))),
        t([2], data=[1, 2]), t([1, 12], variable=True), t([1, 2]),
    ]  # fmt: skip
    steps = [
        o("RFFT2D", [0, 1], [2], version=1),
        o("SQUEEZE", [2], [3], "SqueezeOptions", {"SqueezeDims": [1]}, 1),
        o("COMPLEX_ABS", [3], [4], version=1), o("SVDF", [4, 5, 6, 7, 8], [9], "SVDFOptions", {"Rank": 2}, 1),
    ]  # fmt: skip
    yield {"waves.tflite": made.written(waves, steps, [0], [9])}


def _nnef() -> Iterator[Files]:
    """Yield models with fragments and variables as a folder and as an archive, a quantized one, a state, and
    regions."""
    from jangin.frontends.nnef.tensors import tensor_bytes

    made = _module(TESTS / "nnef_format" / "test_nnef_models.py")
    filters = tensor_bytes(made.FILTER)
    folder = {"graph.nnef": made.TEXT.encode(), "conv1/filter.dat": filters}
    yield folder
    yield {"graph.nnef": made.TEXT.encode(), "conv1/filter.dat": filters, "graph.quant": QUANTIZED}
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for name, content in folder.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    yield {"net.nnef.tgz": held.getvalue()}
    yield {"graph.nnef": STATEFUL, "v.dat": tensor_bytes(np.ones((2, 1, 5, 7), np.float32))}


STATEFUL = b"""version 1.0;
graph net( x, r, i ) -> ( p, q, u )
{
    x = external<scalar>(shape = [2, 1, 5, 7]);
    r = external<scalar>(shape = [3, 4]);
    i = external<integer>(shape = [3, 1]);
    v = variable<scalar>(shape = [2, 1, 5, 7], label = 'v');
    sum = add(v, x);
    n = update(v, sum);
    p = avg_roi_pool(n, r, i, output_size = [2, 2]);
    q = max_roi_align(x, r, i, output_size = [2, 3], sampling_rate = [2, 1], resize_method = 'aligned');
    u = avg_unpool(p, size = [1, 1, 2, 2], stride = [1, 1, 2, 2], padding = [(0,0), (0,0), (0,0), (0,0)]);
}
"""
QUANTIZED = b'"a": linear_quantize(min = 0.0, max = 9.5, bits = 8, signed = true, symmetric = false);\n'


def _darknet() -> Iterator[Files]:
    """Yield a cfg and its weights for each group of layers."""
    made = _module(TESTS / "darknet_format" / "test_darknet.py")
    for text in made.NETWORKS.values():
        with TemporaryDirectory() as folder:
            path = made.write(Path(folder), made.NET + text)
            yield {p.name: p.read_bytes() for p in (path, path.with_suffix(".weights"))}


def _torch() -> Iterator[Files]:
    """Yield a traced convolution, parts of a transformer with an open size, and PyTorch's own archive."""
    import torch

    from jangin.frontends.torch.trace import traced

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = torch.nn.Conv2d(3, 4, 3, padding=1), torch.nn.LayerNorm(4)

        def forward(self, x: Any) -> Any:
            y = self.norm(torch.relu(self.conv(x)).flatten(2).transpose(1, 2))
            return torch.nn.functional.scaled_dot_product_attention(y, y, y)[:, ::2]

    for shapes in (None, {"x": {0: torch.export.Dim("n", min=2, max=9)}}):
        program = torch.export.export(Net().eval(), (torch.randn(3, 3, 5, 4),), dynamic_shapes=shapes)
        yield {"traced": traced(program).model.SerializeToString()}
    held = io.BytesIO()
    torch.export.save(program, held)
    yield {"model.pt2": held.getvalue()}


def _caffe() -> Iterator[Files]:
    """Yield a prototxt and its blobs, with layers that have weights and layers without."""
    made = _module(TESTS / "caffe_format" / "test_caffe.py")
    convolution = "convolution_param { num_output: 4 kernel_size: 3 pad: 1 }"
    layers = [
        made.layer("Convolution", convolution, "data", "c", "c"), made.layer("BatchNorm", "", "c", "n", "n"),
        made.layer("Pooling", "pooling_param { kernel_size: 2 stride: 2 }", "n", "p", "p"),
        made.layer("InnerProduct", "inner_product_param { num_output: 3 }", "p", "d", "d"),
        made.layer("Softmax", "", "d", "y", "y"),
    ]  # fmt: skip
    blobs = {"c": [(4, 6, 3, 3), (4,)], "n": [(4,), (4,), (1,)], "d": [(3, 120), (3,)]}
    with TemporaryDirectory() as folder:
        path = made.write(Path(folder), made.DATA + "".join(layers), blobs)
        yield {p.name: p.read_bytes() for p in (path, path.with_suffix(".caffemodel"))}


def _coreml() -> Iterator[Files]:
    """Yield a network with a loop, and the package of a program with a branch and a file of weights."""
    made = _module(TESTS / "coreml_format" / "coreml_models.py")
    yield {"net.mlmodel": made.network()}
    yield {f"net.mlpackage/{name}": content for name, content in made.package().items()}


def _gguf() -> Iterator[Files]:
    """Yield a small LLaMA with plain weights, and one with block-quantized weights."""
    from gguf import GGMLQuantizationType as Kind

    made = _module(TESTS.parent / "models" / "gguf_files.py")
    for kind in (Kind.F32, Kind.Q4_0):
        with TemporaryDirectory() as folder:
            made.write(path := Path(folder) / "net.gguf", kind=kind)
            yield {path.name: path.read_bytes()}


FORMATS: Mapping[str, Kind] = {
    "tflite": Kind(("tflite", "flatbuffers"), _tflite),
    "nnef": Kind(("nnef",), _nnef),
    "darknet": Kind((), _darknet),
    "torch": Kind(("torch",), _torch),
    "caffe": Kind((), _caffe),
    "coreml": Kind(("coremltools",), _coreml),
    "gguf": Kind(("gguf",), _gguf),
}


def prepare(folder: Path) -> None:
    """Write the models of all available formats, each to its own folder."""
    for name, kind in FORMATS.items():
        for i, files in enumerate(kind.models() if kind.here else ()):
            save(files, folder / name / str(i))


def save(files: Files, folder: Path) -> Path:
    """Write a model, and return the path to compile. The file `order` beside the model names it."""
    for name, content in files.items():
        path = folder / "files" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (folder / "order").write_text("\n".join(files))
    first = folder / "files" / next(iter(files))
    return first.parent if first.parent.suffix == PACKAGE else first


def saved(folder: Path) -> Files:
    names = (folder / "order").read_text().splitlines()
    return {name: (folder / "files" / name).read_bytes() for name in names}
