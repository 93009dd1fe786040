"""A small model of each kind of executable, with inputs of two sizes and NumPy's results."""

from __future__ import annotations

import io
import struct
import tarfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser

import jangin

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Any]
RNG = np.random.default_rng(0)
W = (RNG.standard_normal((8, 8)) / 4).astype(np.float32)
CLOSE = 1e-5
"""The relative difference allowed for values near 1, because eight products may be summed in another
order."""


@dataclass(frozen=True)
class Kind:
    """A kind of executable.

    `feeds` has the inputs of runs. `expected` returns the outputs in order for inputs. `options` are for
    compiling. `own` tells if it has operators of the caller's, which loading takes too. `keeps` tells if it
    has state, so that a run's outputs depend on earlier runs. `needs` is a package that reads it."""

    name: str
    model: bytes
    feeds: Sequence[Feeds]
    expected: Callable[..., Sequence[Any]]
    options: Mapping[str, Any] = field(default_factory=dict)
    own: Sequence[Any] = ()
    keeps: bool = False
    needs: str = "onnx"

    @property
    def missing(self) -> str:
        """Return the reason why it can't be compiled here, or ""."""
        return "" if find_spec(self.needs) else f"the package {self.needs} isn't installed"

    def compiled(self, **options: Any) -> Any:
        own = {"operators": self.own} if self.own else {}
        return jangin.compile(self.model, **{"threads": 2, "cache": False, **self.options, **own, **options})

    def loaded(self, path: Any, **options: Any) -> Any:
        return jangin.load(path, **{"threads": 2, "operators": self.own, **options})

    def check(self, exe: Any, feeds: Feeds) -> None:
        """Raise AssertionError if a run's outputs aren't the expected ones."""
        if self.keeps:
            exe.reset()
        self.confirm(exe.run(feeds), feeds)

    def confirm(self, results: Mapping[str, Any], feeds: Feeds) -> None:
        """Check the outputs of a finished run, as `check` does."""
        same(list(results.values()), self.expected(**feeds))


def same(found: Any, wanted: Any) -> None:
    """Compare results. Numbers may differ slightly; everything else must be equal."""
    if isinstance(wanted, Mapping):
        assert found.keys() == wanted.keys()
        same(list(found.values()), [wanted[k] for k in found])
    elif isinstance(wanted, (list, tuple)):
        assert len(found) == len(wanted)
        for one, other in zip(found, wanted, strict=True):
            same(one, other)
    elif isinstance(wanted, str) or wanted is None:
        assert found == wanted
    else:
        wanted = np.asarray(wanted)
        assert np.shape(found) == wanted.shape
        if wanted.dtype == object:
            assert np.array_equal(found, wanted)
        else:
            np.testing.assert_allclose(
                np.asarray(found, np.float64), wanted.astype(np.float64), rtol=CLOSE, atol=CLOSE
            )


def model(text: str, **constants: Any) -> bytes:
    """Return a graph in ONNX's text form, with the constants that it names."""
    made = parser.parse_model(
        '<ir_version: 10, opset_import: ["" : 21, "ai.onnx.ml" : 3, "mine" : 1]>\n' + text
    )
    made.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(a), name) for name, a in constants.items()
    )
    found: bytes = made.SerializeToString()
    return found


def random(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(0))
    found: Array = e / e.sum(0)
    return found


# --- numbers: plans, variants, steps

_LAYERS = (
    "g (float[{n},8] x) => (float[{n},8] y) {{ a = MatMul(x, w) b = Softmax <axis = 0> (a) c = MatMul(b, w)"
    " y = Softmax <axis = 0> (c) }}"
)


def _layers(x: Array) -> Sequence[Array]:
    return [softmax(softmax(x @ W) @ W)]


def _pooled(x: Array) -> Sequence[Array]:
    return [x.mean((2, 3)).squeeze()]


def _positive(x: Array) -> Sequence[Array]:
    return [np.stack(np.nonzero(np.maximum(x, 0)))]


_SCAN = (
    "g (float[n,8] h, float[120,n,8] x) => (float[n,8] last, float[120,n,8] all) { last, all = Scan"
    " <num_scan_inputs = 1, body = step (float[n,8] a, float[n,8] s) => (float[n,8] next, float[n,8] part)"
    " { m = MatMul(a, w) t = Add(m, s) next = Tanh(t) part = Neg(next) }> (h, x) }"
)


def _scan(h: Array, x: Array) -> Sequence[Array]:
    parts = []
    for step in x:
        h = np.tanh(h @ W + step)
        parts.append(-h)
    return [h, np.stack(parts)]


_COUNTED = (
    "g (int64 start, float[n,8] x) => (int64[k] numbers, float[k,n,8] rows) { last, numbers, rows = Loop"
    " <body = step (int64 i, bool c, int64 v) => (bool going, int64 next, int64 number, float[n,8] row)"
    " { next = Sub(v, one) going = Greater(next, zero) number = Identity(v)"
    " scale = Cast <to = 1> (v) row = Mul(x, scale) }> (, , start) }"
)


def _counted(start: Array, x: Array) -> Sequence[Array]:
    numbers = np.arange(int(start), 0, -1)
    return [numbers, numbers.astype(np.float32)[:, None, None] * x]


def _branches(c: Array, x: Array) -> Sequence[Array]:
    return [x @ W if c else np.tanh(x)]


# --- what is no array of numbers


def _text(x: Array, z: Array) -> Sequence[Any]:
    joined = np.array([a + b for a, b in zip(x, z, strict=True)], object)
    return [joined, np.array([{"ab": 1}.get(t, -1) for t in joined])]


def _parts(x: Array) -> Sequence[Any]:
    return [[np.maximum(x, 0)[n : n + 1] for n in range(len(x))]]


def _zipped(x: Array) -> Sequence[Any]:
    scores = np.exp(x - x.max(1, keepdims=True))
    scores /= scores.sum(1, keepdims=True)
    return [[{"cat": float(a), "dog": float(b)} for a, b in scores]]


def _classes(x: Array) -> Sequence[Any]:
    right = x[:, 0] > 0.5
    return [np.array(["dog" if r else "cat" for r in right], object), np.stack([~right, right], 1) * 1.0]


_TREES = (
    "g (float[n,2] x) => (string[n] label, float[n,2] scores) {"
    " label, scores = ai.onnx.ml.TreeEnsembleClassifier <classlabels_strings = ['cat', 'dog'],"
    " nodes_treeids = [0,0,0], nodes_nodeids = [0,1,2], nodes_featureids = [0,0,0],"
    " nodes_modes = ['BRANCH_LEQ', 'LEAF', 'LEAF'], nodes_values = [0.5, 0.0, 0.0],"
    " nodes_truenodeids = [1,0,0], nodes_falsenodeids = [2,0,0], class_treeids = [0,0],"
    " class_nodeids = [1,2], class_ids = [0,1], class_weights = [1.0, 1.0]> (x) }"
).replace("'", '"')


def _small(x: Array) -> Sequence[Any]:
    return [x.astype(ml_dtypes.float8_e4m3fn), x @ (np.arange(64).reshape(8, 8) % 16 - 8).astype(np.float32)]


def _small_model() -> bytes:
    text = (
        "g (float[n,8] x) => (float8e4m3fn[n,8] y, float[n,8] z) { y = Cast <to = 17> (x)"
        " w = DequantizeLinear(q, one) z = MatMul(x, w) }"
    )
    made = onnx.ModelProto.FromString(model(text, one=np.float32(1)))
    values = (np.arange(64) % 16 - 8).tolist()
    made.graph.initializer.append(helper.make_tensor("q", TensorProto.INT4, [8, 8], values))
    found: bytes = made.SerializeToString()
    return found


# --- of the caller's own, and what keeps state


@jangin.operator("Twice", domain="mine")
def twice(b: Any, x: Any) -> Any:
    return b.map(lambda v: v + v, x)


@jangin.hosted("Median", domain="mine", infer=lambda x, **_: [(x.dtype, x.shape[:-1])])
def median(x: Array) -> Any:
    return np.median(x, -1).astype(x.dtype)


def _sum(x: Array) -> Sequence[Array]:
    return [x]


_STATE = (
    "version 1.0; graph G(x) -> (sum) { x = external<scalar>(shape = [2, 8]); "
    "a = variable<scalar>(shape = [2, 8], label = 'a'); sum = add(a, x); next = update(a, sum); }"
)


def _state_model() -> bytes:
    """Return a model with a variable of zeros, in an archive."""
    head = bytearray(128)
    struct.pack_into("<BBBBIIII", head, 0, 0x4E, 0xEF, 1, 0, 64, 2, 2, 8)
    struct.pack_into("<II", head, 44, 32, 0)
    files = {"graph.nnef": _STATE.encode(), "a.dat": bytes(head) + bytes(64)}
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as archive:
        for name, data in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return out.getvalue()


def rows(*counts: int) -> list[Feeds]:
    return [{"x": random(n, 8)} for n in counts]


def _texts(n: int) -> Feeds:
    return {"x": np.array(["a"] * n, object), "z": np.array(["b", *"c" * (n - 1)], object)}


KINDS = [
    Kind("plan", model(_LAYERS.format(n=4), w=W), rows(4, 4), _layers),
    Kind("symbolic", model(_LAYERS.format(n="n"), w=W), rows(3, 600), _layers),
    Kind(
        "variants",
        model(
            "g (float[n,3,4,4] x) => (float[a] y) { m = ReduceMean <keepdims = 1> (x, axes) y = Squeeze(m) }",
            axes=np.array([2, 3]),
        ),
        [{"x": random(n, 3, 4, 4)} for n in (1, 900)],
        _pooled,
    ),
    Kind(
        "steps",
        model("g (float[n,8] x) => (int64[2,k] y) { r = Relu(x) y = NonZero(r) }"),
        rows(2, 300),
        _positive,
    ),
    Kind(
        "flow",
        model(_SCAN, w=W),
        [{"h": random(n, 8), "x": random(120, n, 8)} for n in (2, 90)],
        _scan,
    ),
    Kind(
        "counted",
        model(_COUNTED, one=np.array(1), zero=np.array(0)),
        [{"start": np.array(s), "x": random(n, 8)} for s, n in ((3, 2), (70, 9))],
        _counted,
    ),
    Kind(
        "branches",
        model(
            "g (bool c, float[n,8] x) => (float[n,8] y) { y = If (c) <then_branch = t () => (float[n,8] a)"
            " { a = MatMul(x, w) }, else_branch = e () => (float[n,8] b) { b = Tanh(x) }> }",
            w=W,
        ),
        [{"c": np.array(c), "x": random(n, 8)} for c, n in ((True, 2), (False, 70))],
        _branches,
    ),
    Kind("small types", _small_model(), rows(3, 50), _small),
    Kind(
        "text",
        model(
            "g (string[n] x, string[n] z) => (string[n] y, int64[n] l) { y = StringConcat(x, z)"
            ' l = ai.onnx.ml.LabelEncoder <keys_strings = ["ab"], values_int64s = [1], default_int64 = -1>'
            " (y) }"
        ),
        [_texts(2), _texts(40)],
        _text,
    ),
    Kind(
        "sequence",
        model("g (float[n,8] x) => (seq(float[1,8]) y) { r = Relu(x) y = SplitToSequence <axis = 0> (r) }"),
        rows(2, 30),
        _parts,
    ),
    Kind(
        "maps",
        model(
            "g (float[n,2] x) => (seq(map(string, float)) y) { s = Softmax <axis = 1> (x)"
            ' y = ai.onnx.ml.ZipMap <classlabels_strings = ["cat", "dog"]> (s) }'
        ),
        [{"x": random(n, 2)} for n in (2, 30)],
        _zipped,
    ),
    Kind("trees", model(_TREES), [{"x": random(n, 2)} for n in (2, 30)], _classes),
    Kind(
        "optional",
        model("g (float[n,8] x) => (optional(float[n,8]) y) { r = Neg(x) y = Optional(r) }"),
        rows(2, 30),
        lambda x: [-x],
    ),
    Kind(
        "own operators",
        model("g (float[n,8] x) => (float[n] y) { t = mine.Twice(x) m = mine.Median(t) y = Neg(m) }"),
        rows(2, 30),
        lambda x: [-np.median(x + x, -1)],
        own=[twice, median],
    ),
    Kind("state", _state_model() if find_spec("nnef") else b"", rows(2, 2), _sum, keeps=True, needs="nnef"),
]


def kind(name: str) -> Kind:
    return next(k for k in KINDS if k.name == name)
