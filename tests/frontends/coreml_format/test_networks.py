"""Core ML's branches, loops, recurrent layers and images, made by hand or by coremltools' builders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jangin

ct = pytest.importorskip("coremltools", reason="coremltools isn't installed: the extra `coreml` brings it")

from coreml_models import package  # noqa: E402
from coremltools.converters.mil import Builder as mb  # noqa: E402
from coremltools.converters.mil.mil import types  # noqa: E402

from jangin.frontends.coreml.schema import module  # noqa: E402

KINDS = ["mlprogram", "neuralnetwork"]


def converted(program: Any, kind: str) -> Any:
    return ct.convert(
        program, convert_to=kind, compute_precision=ct.precision.FLOAT32 if kind == "mlprogram" else None,
        skip_model_load=True, minimum_deployment_target=ct.target.iOS15 if kind == "mlprogram" else None,
    ).get_spec()  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_a_loop_until_a_sum_is_reached(kind: str) -> None:
    @mb.program(input_specs=[mb.TensorSpec(shape=(3,), dtype=types.fp32)])
    def program(x: Any) -> Any:
        def going(n: Any, held: Any) -> Any:
            return mb.less(x=mb.reduce_sum(x=held), y=np.float32(100.0))

        def step(n: Any, held: Any) -> Any:
            return mb.add(x=n, y=np.float32(1.0)), mb.mul(x=mb.add(x=held, y=x), y=np.float32(1.5))

        return mb.while_loop(_cond=going, _body=step, loop_vars=(np.zeros(1, np.float32), mb.identity(x=x)))

    exe = jangin.compile(converted(program, kind), threads=1, cache=False)
    for scale in (0.1, 7.0, 90.0):
        x = np.array([1, 2, 3], np.float32) * np.float32(scale)
        n, held = np.float32(0), x
        while held.sum() < 100:
            n, held = n + 1, (held + x) * np.float32(1.5)
        got = exe(x)
        assert got[0].reshape(()) == n
        np.testing.assert_allclose(got[1], held, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_branch_inside_a_branch(kind: str) -> None:
    @mb.program(input_specs=[mb.TensorSpec(shape=(4,), dtype=types.fp32)])
    def program(x: Any) -> Any:
        total = mb.reduce_sum(x=x, keep_dims=False)
        y = mb.mul(x=x, y=np.float32(2.0))

        def small() -> Any:
            return mb.cond(
                pred=mb.less(x=total, y=np.float32(-1.0)),
                _true_fn=lambda: mb.sub(x=x, y=y), _false_fn=lambda: mb.relu(x=y),
            )  # fmt: skip

        return mb.cond(
            pred=mb.less(x=total, y=np.float32(1.0)), _true_fn=small, _false_fn=lambda: mb.exp(x=x)
        )

    exe = jangin.compile(converted(program, kind), threads=1, cache=False)
    for x in ([-3, 1, 0, 0], [0.5, -0.25, 0, 0.5], [1, 1, 1, 1]):
        given = np.array(x, np.float32)
        total = given.sum()
        wanted = -given if total < -1 else np.maximum(2 * given, 0) if total < 1 else np.exp(given)
        np.testing.assert_allclose(exe(given), wanted, rtol=1e-6)


def network(shape: list[int], exact: bool = True) -> tuple[Any, Any]:
    """Return an empty network of an input "x" and an output "y", and its message."""
    message = module("Model_pb2").Model(specificationVersion=4)
    array = message.description.input.add(name="x").type.multiArrayType
    array.dataType = 65568
    array.shape.extend(shape)
    message.description.output.add(name="y").type.multiArrayType.dataType = 65568
    message.neuralNetwork.arrayInputShapeMapping = int(exact)
    return message, message.neuralNetwork


def test_a_loop_of_so_many_steps_writes_a_blob_again() -> None:
    message, net = network([3])
    first = net.layers.add(name="start", input=["x"], output=["y"])
    first.copy.SetInParent()
    loop = net.layers.add(name="again").loop
    loop.maxLoopIterations = 5
    double = loop.bodyNetwork.layers.add(name="double", input=["y", "y"], output=["twice"])
    double.addBroadcastable.SetInParent()
    back = loop.bodyNetwork.layers.add(name="less", input=["twice", "x"], output=["y"])
    back.subtractBroadcastable.SetInParent()
    x = np.array([1, -2, 0.5], np.float32)
    got = jangin.compile(message, threads=1, cache=False)(x)
    wanted = x
    for _ in range(5):
        wanted = wanted + wanted - x
    np.testing.assert_array_equal(got, wanted)


def test_layers_out_of_loops_are_named() -> None:
    message, net = network([3])
    loop = net.layers.add(name="round").loop
    loop.maxLoopIterations = 2
    loop.bodyNetwork.layers.add(name="out").loopBreak.SetInParent()
    net.layers.add(name="twist", input=["x"], output=["y"]).sliceDynamic.SetInParent()
    with pytest.raises(jangin.CompileError, match=r"(?s)2 nodes are not.*loopBreak.*sliceDynamic 'twist'"):
        jangin.compile(message, cache=False)


def test_damaged_parameters_are_refused(tmp_path: Path) -> None:
    """Mutants found these parameters: an enumeration's value of a later version, a name with a zero byte."""
    message, net = network([1, 3, 6, 6])
    pool = net.layers.add(name="pool", input=["x"], output=["y"]).pooling
    pool.type, pool.globalPooling = 268435455, True
    with pytest.raises(jangin.CompileError, match="the type 268435455 of a layer is none"):
        jangin.compile(message, cache=False)
    for name, content in package().items():
        path = tmp_path / "net.mlpackage" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.replace(b"weights/weight.bin", b"weights\0weight.bin"))
    with pytest.raises(jangin.CompileError, match="which is no file of the package"):
        jangin.compile(tmp_path / "net.mlpackage", cache=False)


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def activation(message: Any, name: str) -> None:
    getattr(message, name).SetInParent()


class Weights:
    """Random weights, written to a message and kept."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng(0)

    def __call__(self, field: Any, *shape: int) -> Any:
        made = self.rng.standard_normal(shape).astype(np.float32) * 0.5
        field.floatValue.extend(made.reshape(-1).tolist())
        return made.astype(np.float64)


@pytest.mark.parametrize("backwards", [False, True])
def test_gru(backwards: bool) -> None:
    steps, batch, size, hidden = 4, 2, 3, 5
    message, net = network([steps, batch, size, 1, 1])
    gru = net.layers.add(name="gru", input=["x"], output=["y"]).gru
    gru.inputVectorSize, gru.outputVectorSize, gru.sequenceOutput = size, hidden, True
    gru.hasBiasVectors, gru.reverseInput = True, backwards
    activation(gru.activations.add(), "sigmoid")
    activation(gru.activations.add(), "tanh")
    random = Weights()
    gates = ("update", "reset", "output")
    w = {g: random(getattr(gru, f"{g}GateWeightMatrix"), hidden, size) for g in gates}
    r = {g: random(getattr(gru, f"{g}GateRecursionMatrix"), hidden, hidden) for g in gates}
    b = {g: random(getattr(gru, f"{g}GateBiasVector"), hidden) for g in gates}
    x = random.rng.standard_normal((steps, batch, size, 1, 1)).astype(np.float32)
    h, wanted = np.zeros((batch, hidden)), np.zeros((steps, batch, hidden))
    for t in reversed(range(steps)) if backwards else range(steps):
        row = x[t, :, :, 0, 0]
        z, reset = (sigmoid(row @ w[g].T + h @ r[g].T + b[g]) for g in ("update", "reset"))
        new = np.tanh(row @ w["output"].T + reset * (h @ r["output"].T) + b["output"])
        h = (1 - z) * new + z * h
        wanted[t] = h
    got = jangin.compile(message, threads=1, cache=False)(x)
    assert got.shape == (steps, batch, hidden, 1, 1)
    np.testing.assert_allclose(got[..., 0, 0], wanted, atol=2e-6)


@pytest.mark.parametrize("exact", [True, False])
def test_lstm_with_states_peepholes_and_a_limit(exact: bool) -> None:
    """A network of images takes one step, between states that the caller keeps."""
    size, hidden, limit = 3, 4, 0.3
    shape = [1, 1, size, 1, 1] if exact else [size]
    message, net = network(shape, exact)
    names = ["h", "c"]
    for name in names:
        array = message.description.input.add(name=name).type.multiArrayType
        array.dataType = 65568
        array.shape.extend([1, 1, hidden, 1, 1] if exact else [hidden])
        message.description.output.add(name=f"{name}2").type.multiArrayType.dataType = 65568
    layer = net.layers.add(name="lstm", input=["x", *names], output=["y", "h2", "c2"])
    lstm = layer.uniDirectionalLSTM
    lstm.inputVectorSize, lstm.outputVectorSize = size, hidden
    for name in ("sigmoid", "tanh", "tanh"):
        activation(lstm.activations.add(), name)
    p = lstm.params
    p.sequenceOutput = p.hasBiasVectors = p.forgetBias = p.hasPeepholeVectors = True
    p.cellClipThreshold = limit
    random, weights = Weights(), lstm.weightParams
    gates = ("inputGate", "forgetGate", "blockInput", "outputGate")
    w = {g: random(getattr(weights, f"{g}WeightMatrix"), hidden, size) for g in gates}
    r = {g: random(getattr(weights, f"{g}RecursionMatrix"), hidden, hidden) for g in gates}
    b = {g: random(getattr(weights, f"{g}BiasVector"), hidden) for g in gates}
    peep = {g: random(getattr(weights, f"{g}PeepholeVector"), hidden) for g in gates if g != "blockInput"}
    x, h, c = (random.rng.standard_normal((1, n)) for n in (size, hidden, hidden))
    sums = {g: x @ w[g].T + h @ r[g].T + b[g] for g in gates}
    enter = sigmoid(sums["inputGate"] + peep["inputGate"] * c)
    keep = sigmoid(sums["forgetGate"] + 1 + peep["forgetGate"] * c)
    cell = np.clip(keep * c + enter * np.tanh(sums["blockInput"]), -limit, limit)
    out = sigmoid(sums["outputGate"] + peep["outputGate"] * cell) * np.tanh(cell)
    assert (np.abs(cell) == limit).any()
    lead = (1, 1) if exact else (1,)
    feeds = {k: v.astype(np.float32).reshape(*lead, -1, 1, 1) for k, v in (("x", x), ("h", h), ("c", c))}
    got = jangin.compile(message, threads=1, cache=False).run(feeds)
    for name, wanted in (("y", out), ("h2", out), ("c2", cell)):
        assert got[name].shape == (*lead, hidden, 1, 1)
        np.testing.assert_allclose(got[name].reshape(-1), wanted.reshape(-1), atol=2e-6)


@pytest.mark.parametrize("whole", [True, False])
def test_lstm_both_ways(whole: bool) -> None:
    """The layer has states of each direction, forward first. It gives all steps, or each direction's last
    one."""
    steps, batch, size, hidden = 4, 2, 3, 5
    message, net = network([steps, batch, size, 1, 1])
    names = ["h", "c", "back_h", "back_c"]
    for name in names:
        array = message.description.input.add(name=name).type.multiArrayType
        array.dataType = 65568
        array.shape.extend([1, batch, hidden, 1, 1])
        message.description.output.add(name=f"{name}2").type.multiArrayType.dataType = 65568
    layer = net.layers.add(name="lstm", input=["x", *names], output=["y", *(f"{n}2" for n in names)])
    lstm = layer.biDirectionalLSTM
    lstm.inputVectorSize, lstm.outputVectorSize = size, hidden
    lstm.params.sequenceOutput, lstm.params.hasBiasVectors = whole, True
    for given in (lstm.activationsForwardLSTM, lstm.activationsBackwardLSTM):
        for name in ("sigmoid", "tanh", "tanh"):
            activation(given.add(), name)
    random, gates = Weights(), ("inputGate", "forgetGate", "blockInput", "outputGate")
    x = random.rng.standard_normal((steps, batch, size))
    wanted, feeds, ys = {}, {"x": x}, []
    for turn, (h_name, c_name) in enumerate((names[:2], names[2:])):
        weights = lstm.weightParams.add()
        w = {g: random(getattr(weights, f"{g}WeightMatrix"), hidden, size) for g in gates}
        r = {g: random(getattr(weights, f"{g}RecursionMatrix"), hidden, hidden) for g in gates}
        b = {g: random(getattr(weights, f"{g}BiasVector"), hidden) for g in gates}
        h, c = feeds[h_name], feeds[c_name] = random.rng.standard_normal((2, batch, hidden))
        y = np.zeros((steps, batch, hidden))
        for t in reversed(range(steps)) if turn else range(steps):
            i, f, g, o = (x[t] @ w[k].T + h @ r[k].T + b[k] for k in gates)
            c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
            h = y[t] = sigmoid(o) * np.tanh(c)
        wanted |= {f"{h_name}2": h, f"{c_name}2": c}
        ys.append(y if whole else h[None])
    wanted["y"] = np.concatenate(ys, 2)
    given = {k: v.astype(np.float32).reshape(-1, batch, v.shape[-1], 1, 1) for k, v in feeds.items()}
    got = jangin.compile(message, threads=1, cache=False).run(given)
    for name, value in wanted.items():
        np.testing.assert_allclose(got[name][..., 0, 0].reshape(value.shape), value, atol=2e-6)


def test_images_are_prepared() -> None:
    """Images are scaled and shifted by colour, in the image's own order."""
    message = module("Model_pb2").Model(specificationVersion=1)
    image = message.description.input.add(name="photo").type.imageType
    image.width, image.height, image.colorSpace = 5, 4, 30
    message.description.output.add(name="y").type.multiArrayType.dataType = 65568
    net = message.neuralNetwork
    scaler = net.preprocessing.add().scaler
    scaler.channelScale, scaler.redBias, scaler.greenBias, scaler.blueBias = 0.5, 1, 2, 3
    net.layers.add(name="negative", input=["photo"], output=["y"]).activation.linear.alpha = -1
    exe = jangin.compile(message, threads=1, cache=False)
    x = np.random.default_rng(0).uniform(0, 255, (2, 3, 4, 5)).astype(np.float32)
    wanted = -(x * 0.5 + np.array([3, 2, 1], np.float32).reshape(-1, 1, 1))
    np.testing.assert_allclose(exe(x), wanted, rtol=1e-6)
    assert "image of 4 x 5, BGR from 0 to 255" in str(exe.artifact.metadata)
