"""Lower branches and loops. Their bodies may write the enclosing network's blobs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.assemble import body_graph
from jangin.frontends.bodies import branching, looping
from jangin.frontends.coreml.layers.network import Layer, Network, Say
from jangin.ir.graph import CompileError, Graph


def layers_of(message: Any) -> Iterator[Any]:
    """Yield all layers of a network, including those inside branches and loops."""
    for layer in message.layers:
        yield layer
        if layer.WhichOneof("layer") == "branch":
            yield from layers_of(layer.branch.ifBranch)
            yield from layers_of(layer.branch.elseBranch)
        elif layer.WhichOneof("layer") == "loop":
            yield from layers_of(layer.loop.conditionNetwork)
            yield from layers_of(layer.loop.bodyNetwork)


def _inside(net: Network, *messages: Any) -> Network:
    """Return the network of a body: the layers of the messages, one after another. It starts with the blobs
    that `net` has at this point."""
    inner = Network(net.table, net.exact, net.now, net.taken)
    for message in messages:
        inner.read(message.layers)
    return inner


def _graph(
    net: Network, inner: Network, inputs: Sequence[str], blobs: Sequence[str], heads: Sequence[str] = ()
) -> Graph:
    """Return a body as a graph. Its outputs are `heads`, then a copy of the last value of each of `blobs`."""
    outputs = [
        inner.node("mil.identity", {"x": [inner.now[n]]}, [net.fresh(f"{n} of {net.name}")]) for n in blobs
    ]
    return body_graph(net.name, inputs, [*heads, *outputs], inner.nodes, inner.constants)


def _holds(net: Network, blob: str) -> str:
    """Return the name of a blob's value as a condition: a boolean without axes. Raises CompileError if
    nothing gives the blob."""
    if blob not in net.now:
        raise CompileError(f"{net.source}: no layer before it gives its condition '{blob}'")
    return _truth(net, net.now[blob])


def _truth(net: Network, value: str) -> str:
    """Convert a value of one element to a boolean without axes, and return the new value's name."""
    name = net.fresh(f"{value} holds")
    truth = net.node("mil.cast", {"x": [value]}, [f"{name} once"], {"dtype": "bool"})
    return net.node("mil.reshape", {"x": [truth]}, [name], {"shape": np.zeros(0, np.int32)})


def _branch(net: Network, layer: Layer, m: Any) -> None:
    """Add a branch. Its results are the blobs that both bodies have at their end and that at least one of
    them wrote."""
    name, source = net.name, net.source
    then, orelse = (_inside(net, body) for body in (m.ifBranch, m.elseBranch))
    both = [n for n in then.now if n in orelse.now]
    changed = [n for n in both if then.now[n] != net.now.get(n) or orelse.now[n] != net.now.get(n)]
    if changed:
        bodies = [_graph(net, inner, (), changed) for inner in (then, orelse)]
        outputs = [net.fresh(n) for n in changed]
        condition = _truth(net, layer.input[0])
        net.nodes.append(branching(name, condition, bodies[0], bodies[1], outputs, source))
        net.now.update(zip(changed, outputs, strict=True))


def _loop(net: Network, layer: Layer, m: Any) -> None:
    """Add a loop. Its condition, if it has one, is tested before each iteration. The loop ends if the
    condition is false, or after a maximum count of iterations."""
    name, source, before = net.name, net.source, dict(net.now)
    conditional = bool(m.conditionNetwork.layers)
    net.read(m.conditionNetwork.layers)
    net.name, net.source = name, source
    going = _holds(net, m.conditionVar) if conditional else _true(net)
    parts = (m.conditionNetwork, m.bodyNetwork)
    written = dict.fromkeys(n for p in parts for one in layers_of(p) for n in one.output)
    read = {n for one in layers_of(m.bodyNetwork) for n in one.input}
    carried = [n for n in written if n in before or (n in net.now and n in read)]
    first = [net.now[n] for n in carried]
    formal = [net.fresh(f"{n} carried") for n in carried]
    net.now.update(zip(carried, formal, strict=True))
    inner = _inside(net, m.bodyNetwork, m.conditionNetwork)
    inner.source = source
    again = _holds(inner, m.conditionVar) if conditional else _true(inner)
    inputs = [net.fresh(f"{name} step"), net.fresh(f"{name} on"), *formal]
    net.name = name
    body = _graph(net, inner, inputs, carried, [again])
    trips = ""
    if layer.input:
        trips = net.node(
            "mil.cast", {"x": list(layer.input[:1])}, [net.fresh(f"{name} trips")], {"dtype": "int64"}
        )
    elif m.maxLoopIterations or not conditional:
        trips = net.fresh(f"{name} trips")
        net.constants[trips] = np.array(m.maxLoopIterations, np.int64)
    start = body_graph(name, (), [going], (), {})
    outputs = [net.fresh(n) for n in carried]
    net.nodes.append(looping(name, start, body, first, outputs, source, trips))
    net.now = {n: v for n, v in net.now.items() if n in before}
    net.now.update(zip(carried, outputs, strict=True))


def _true(net: Network) -> str:
    name = net.fresh(f"{net.name} goes on")
    net.constants[name] = np.array(True)
    return name


LAYERS: Mapping[str, Say] = {"branch": _branch, "loop": _loop}
