"""Convert a neural network's layers (Core ML's specifications 1 to 5) to nodes of MIL's operations. MIL's
operations have the lowerings.

Layers pass values to each other as blobs, which have names. The body of a loop or branch may write an
existing blob again. Each write makes a new value, and `Network.now` has each blob's current value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.frontends.coreml.layers.asked import IDLE, Asked
from jangin.ir.graph import Array, CompileError, ImportedAttributes, Node
from jangin.ir.records import dataclass
from jangin.ir.sources import NO_SOURCE, Sources

EXACT = 1
"""Core ML's number of the mapping that takes inputs' shapes as declared. The mapping 0 takes them as
sequence, batch, channels, rows and columns."""


@dataclass(frozen=True)
class Layer:
    """The names of the values that a layer reads and writes."""

    input: tuple[str, ...]
    output: tuple[str, ...]


class Network:
    """The conversion of a network's layers to nodes. `table` has a function for each kind of layer.

    `now` has the names of the blobs' current values, and `taken` has all names of values that are in use.
    Shapes are as declared if the network is `exact`. Otherwise arrays have four axes, and the first one is
    the batch."""

    def __init__(
        self, table: Mapping[str, Say], exact: bool, now: Mapping[str, str], taken: set[str]
    ) -> None:
        self.table, self.exact = table, exact
        self.now, self.taken = dict(now), taken
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.source, self.name = NO_SOURCE, ""

    def read(self, layers: Sequence[Any]) -> None:
        """Convert layers in order to nodes. An unknown layer becomes a node that the dialect reports."""
        for layer in layers:
            kind = layer.WhichOneof("layer") or "empty"
            self.name, self.source = layer.name, Sources.of(kind, layer.name)
            if not layer.output and kind not in CONTROL:
                raise CompileError(f"{self.source} has no outputs")
            renamed = Layer(
                tuple(self.now.get(n, n) for n in layer.input), tuple(map(self.fresh, layer.output))
            )
            if kind in self.table:
                self._say(kind, renamed, getattr(layer, kind))
            else:  # no layer of the table; all unknown layers are reported together
                unknown = ImportedAttributes(f"coreml.nn.{kind}")
                name = self.fresh(layer.name)
                self.nodes.append(Node(name, renamed.input, renamed.output, unknown, self.source))
            self.now.update(zip(layer.output, renamed.output, strict=True))

    def _say(self, kind: str, layer: Layer, message: Any) -> None:
        source = self.source
        if kind in BODIES:
            self._called(source, kind, layer, message)
            return
        m = Asked(message)
        self._called(source, kind, layer, m)
        unread = [name for name in m.unread() if name.split(".")[0] not in IDLE.get(kind, ())]
        if unread:
            raise CompileError(f"{source}: its parameters {', '.join(unread)} are not supported")

    def _called(self, source: Sources, kind: str, layer: Layer, m: Any) -> None:
        try:
            self.table[kind](self, layer, m)
        except CompileError:
            raise
        except Exception as error:  # parameters that the layer doesn't define
            raise CompileError(f"{source} is malformed: {type(error).__name__}: {error}") from error

    def fresh(self, name: str) -> str:
        """Return a value's name that isn't taken yet, made from a blob's name. It is taken from then on."""
        unique, count = name, 1
        while unique in self.taken:
            count += 1
            unique = f"{name}#{count}"
        self.taken.add(unique)
        return unique

    # -- nodes ----------------------------------------------------------------------------------

    def add(
        self, layer: Layer, kind: str, given: Mapping[str, Any] | None = None, *,
            inputs: Sequence[str] = ("x",),
        start: str = "", end: str = "",
    ) -> str:  # fmt: skip
        """Add a node of MIL's operation `kind` for the current layer, and return its first output's name.

        `inputs` are MIL's names of the layer's inputs, and `given` has the other arguments (constants and
        texts). `start` is read in place of the layer's first input, and `end` is written in place of its
        first output."""
        names = list(layer.input)
        if start:
            names[:1] = [start]
        if len(names) < len(inputs):
            raise CompileError(f"{self.source} needs {len(inputs)} inputs, and has {len(names)}")
        operands = {n: [name] for n, name in zip(inputs, names, strict=False)}
        return self.node(f"mil.{kind}", operands, [end] if end else layer.output, given or {})

    def node(
        self,
        kind: str,
        inputs: Mapping[str, list[str]],
        outputs: Sequence[str],
        given: Mapping[str, Any] | None = None,
    ) -> str:
        whole = {k: list(v) for k, v in inputs.items()}
        texts = {}
        for key, value in (given or {}).items():
            if isinstance(value, str):
                texts[key] = value
            elif value is not None:
                name = f"{key} of {outputs[0]}"
                self.constants[name] = np.asarray(value)
                whole[key] = [name]
        lists = tuple((k, len(v)) for k, v in whole.items())
        attrs = ImportedAttributes(f"coreml.{kind}", {**texts, "inputs": lists})
        read = tuple(n for v in whole.values() for n in v)
        self.nodes.append(Node(outputs[0], read, tuple(outputs), attrs, self.source))
        return outputs[0]

    def several(self, layer: Layer, kind: str, given: Mapping[str, Any]) -> None:
        """Add a node of MIL's operation `kind` that takes all inputs of the layer as one list, `values`."""
        self.node(f"mil.{kind}", {"values": list(layer.input)}, layer.output, given)

    def chain(self, layer: Layer, kind: str, end: str = "") -> str:
        """Combine all inputs of a layer by an operation of two inputs, from the first input to the last.
        Return the result's name, which is `end` if given."""
        so_far, last = layer.input[0], end or layer.output[0]
        for n, name in enumerate(layer.input[1:], 1):
            output = last if n == len(layer.input) - 1 else f"{last} {n}"
            so_far = self.node(f"mil.{kind}", {"x": [so_far], "y": [name]}, [output])
        return so_far

    def weights(self, message: Any, shape: Sequence[int], what: str) -> Array:
        """Return weights in f32 with this shape. The message may hold them as f32, as f16 or quantized.
        Raises CompileError if their number is wrong."""
        count = int(np.prod(shape))
        if len(message.floatValue):
            array = np.array(message.floatValue, np.float32)
        elif message.float16Value:
            array = np.frombuffer(message.float16Value, np.float16).astype(np.float32)
        elif message.rawValue:
            array = _unpacked(message, shape, count, f"{what} of {self.source}")
        else:
            array = np.zeros(0, np.float32)
        if array.size != count:
            raise CompileError(f"{self.source}: its {what} are {array.size}, and should be {list(shape)}")
        return array.reshape(shape)


def _unpacked(message: Any, shape: Sequence[int], count: int, what: str) -> Array:
    """Return quantized weights as floats. Their codes are packed from each byte's highest bit on. A code
    stands for an entry of a table, or is scaled by its output's scale."""
    q, bits = message.quantization, int(message.quantization.numberOfBits)
    if not 1 <= bits <= 8:
        raise CompileError(f"the {what} are of {bits} bits each, which is not supported")
    flags = np.unpackbits(np.frombuffer(message.rawValue, np.uint8))[: count * bits]
    if flags.size != count * bits:
        raise CompileError(f"the {what} are too few")
    codes = (flags.reshape(-1, bits).astype(np.int64) << np.arange(bits)[::-1]).sum(1)
    if q.WhichOneof("QuantizationType") == "lookupTableQuantization":
        table = np.array(q.lookupTableQuantization.floatValue, np.float32)
        return np.asarray(table[np.minimum(codes, max(table.size - 1, 0))])
    scale, bias = (np.array(v, np.float32) for v in (q.linearQuantization.scale, q.linearQuantization.bias))
    rows = codes.reshape(shape[0], -1)
    offset = bias.reshape(-1, 1) if bias.size else np.float32(0)
    return np.asarray(rows * scale.reshape(-1, 1) + offset, np.float32)


Say = Callable[[Network, Layer, Any], Any]
"""A function that converts a layer to nodes. Its arguments are the network, the layer's names and the layer's
parameters."""
BODIES = ("branch", "loop")
"""Layers that contain other layers."""
CONTROL = (*BODIES, "loopBreak", "loopContinue")
"""Layers that may have no outputs of their own."""


def word(m: Any, field: str) -> str:
    """Return the name that Core ML's schema gives to the value of an enumeration. Raises CompileError if
    there is none."""
    known, number = m.DESCRIPTOR.fields_by_name[field].enum_type.values_by_number, getattr(m, field)
    if number not in known:
        raise CompileError(f"the {field} {number} of a layer is none that Core ML has")
    return str(known[number].name)


def same(kind: str, **given: Any) -> Say:
    """Return a function that converts a layer to MIL's operation `kind` of one input, with the arguments
    `given`."""
    return lambda net, layer, m: net.add(layer, kind, given)


def two(kind: str) -> Say:
    """Return a function that converts a layer to MIL's operation `kind` of two inputs."""
    return lambda net, layer, m: net.add(layer, kind, inputs=("x", "y"))
