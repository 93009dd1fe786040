"""Import Core ML's models of all types as graphs. A pipeline's models follow one another in one graph."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jangin.frontends.assemble import ShapeBindings, Symbols, model_graph
from jangin.frontends.coreml.layers import LAYERS
from jangin.frontends.coreml.layers.control import layers_of
from jangin.frontends.coreml.layers.network import EXACT, Layer, Network
from jangin.frontends.coreml.mil.program import Program
from jangin.frontends.coreml.mil.values import Weights
from jangin.frontends.coreml.rows.messages import READ
from jangin.ir.dtype import F16, F32, F64, I32, I64, DType
from jangin.ir.graph import Array, CompileError, Graph, ImportedAttributes, Node, Value
from jangin.ir.sources import Sources

ARRAYS: Mapping[int, DType] = {65552: F16, 65568: F32, 65600: F64, 131104: I32}
"""Element types by their numbers in Core ML's ArrayFeatureType."""
WORDS: Mapping[DType, str] = {F16: "fp16", F32: "fp32", F64: "fp64", I32: "int32"}
"""MIL's names of the element types."""
COLOURS = {0: ("grey", 1), 10: ("grey", 1), 20: ("RGB", 3), 30: ("BGR", 3), 40: ("grey", 1)}
"""The name and the number of an image's colour planes, by the number of its colour space in Core ML's
ImageFeatureType."""
PIPELINES = ("pipeline", "pipelineClassifier", "pipelineRegressor")
PROGRAM = "mlProgram"
NETWORKS = ("neuralNetwork", "neuralNetworkClassifier", "neuralNetworkRegressor")


class Importer:
    """The import of one model. `folder` is the folder with the model's files of weights, or None if it has
    none."""

    def __init__(self, model: Any, folder: Path | None) -> None:
        self.model = model
        self.folder = folder
        self.kind = model.WhichOneof("Type") or "empty"
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.current: dict[str, str] = {}
        """The values of features, by the features' names."""
        self.taken: set[str] = set()
        self.state: dict[str, str] = {}
        """Maps each input that is kept from run to run to the output that is its next value."""

    def imported(self, shapes: ShapeBindings) -> Graph:
        symbols = Symbols(shapes)
        inputs = self._inputs(symbols)
        self.current = {v.name: v.name for v in inputs}
        self.taken = set(self.current)
        self._model(self.model, "model")
        outputs = [self.current[f.name] for f in self.model.description.output if f.name in self.current]
        outputs += self.state.values()
        return model_graph("model", inputs, outputs, self.nodes, self.constants, symbols)

    def metadata(self) -> Mapping[str, Any]:
        """Return the model's description of itself: author, licence, version and others, without empty ones.
        `state` lists the states of a model that has them."""
        said = self.model.description.metadata
        texts = {
            "description": said.shortDescription, "version": said.versionString, "author": said.author,
            "license": said.license, "specification": str(self.model.specificationVersion),
            **{f"feature {f.name}": _said(f) for f in self.model.description.input},
            **dict(said.userDefined),
        }  # fmt: skip
        said_so: dict[str, Any] = {key: text for key, text in texts.items() if text}
        return said_so | ({"state": self.state} if self.state else {})

    # -- inputs ---------------------------------------------------------------------------------

    def _inputs(self, symbols: Symbols) -> list[Value]:
        if self.kind == PROGRAM:
            program = Program(self.model.mlProgram, Weights(self.folder))
            types = {**program.types(), **program.states()}
            self.state = {n: f"{n}.next" for n in program.states()}
            return [Value(n, t, symbols.shape(n, sizes)) for n, (t, sizes) in types.items()]
        values = []
        for feature in self.model.description.input:
            dtype, sizes = self._feature(feature)
            values.append(Value(feature.name, dtype, symbols.shape(feature.name, sizes)))
        return values

    def _feature(self, feature: Any) -> tuple[DType, list[int | str]]:
        """Return a feature's element type and sizes. A size is a number, or a name if any size is allowed. A
        single number becomes a vector of any length, and a vector becomes a matrix of any number of rows."""
        kind = feature.type.WhichOneof("Type")
        if kind in ("doubleType", "int64Type"):
            return (F64 if kind == "doubleType" else I64), ["rows"]
        if kind == "imageType":
            return F32, self._image(feature.type.imageType)
        if kind != "multiArrayType":
            raise CompileError(f"the input '{feature.name}' is a {kind or 'nothing'}, which is not supported")
        array = feature.type.multiArrayType
        if array.dataType not in ARRAYS:
            raise CompileError(f"the input '{feature.name}' is of data type {array.dataType}, not supported")
        sizes = [int(n) for n in array.shape]
        if self.kind not in NETWORKS:
            return ARRAYS[array.dataType], ["rows", *sizes]
        network = getattr(self.model, self.kind)
        if network.arrayInputShapeMapping != EXACT:  # a batch of images, or a batch of vectors as channels
            return ARRAYS[array.dataType], ["batch", *sizes, *([1, 1] if len(sizes) == 1 else [])]
        return ARRAYS[array.dataType], list(sizes)

    def _image(self, image: Any) -> list[int | str]:
        """Return the sizes of an image input: the batch, planes, rows and columns. Its elements go from 0 to
        255, and the planes are in the order of the image's colour space."""
        exact = self.kind in NETWORKS and getattr(self.model, self.kind).arrayInputShapeMapping == EXACT
        return [1 if exact else "batch", *_planes(image)]

    # -- models ---------------------------------------------------------------------------------

    def _model(self, model: Any, name: str) -> None:
        """Add the nodes that compute a model's output features from its input features."""
        kind = model.WhichOneof("Type") or "empty"
        if kind in PIPELINES:
            pipeline = model.pipeline if kind == "pipeline" else getattr(model, kind).pipeline
            for n, part in enumerate(pipeline.models):
                self._model(part, f"{name}.{n}")
        elif kind == PROGRAM:
            self._program(model)
        elif kind in NETWORKS:
            self._network(model, kind, name)
        else:
            self._rows(model, kind, name)

    def _program(self, model: Any) -> None:
        program = Program(model.mlProgram, Weights(self.folder))
        if any(self.current.get(n) != n for n in (*program.types(), *program.states())):
            raise CompileError("a program behind other models of a pipeline is not supported")
        outputs = program.read()
        self.nodes += program.nodes
        self.constants |= program.constants
        self.current |= {n: n for n in outputs}

    def _network(self, model: Any, kind: str, name: str) -> None:
        """Add the nodes of a network's layers. A classifier also gives the classes' probabilities and the
        likeliest class."""
        message = getattr(model, kind)
        network = Network(LAYERS, message.arrayInputShapeMapping == EXACT, self.current, self.taken)
        for feature in model.description.input:
            if _declared(feature) != F32 and feature.name in network.now:
                _converted(network, feature.name, network.fresh(f"{feature.name} in f32"), "fp32")
        results = self._results(model, message)
        network.taken |= results.keys()
        for image in message.preprocessing:
            prepare(network, image, model.description)
        network.read(message.layers)
        for feature, dtype in results.items():
            if feature in network.now:
                _converted(network, feature, feature, WORDS[dtype])
        self.nodes += network.nodes
        self.constants |= network.constants
        held = {f.name: network.now[f.name] for f in model.description.output if f.name in network.now}
        self.current |= held
        if kind == "neuralNetworkClassifier":
            last = message.layers[-1].output[0]
            scores = network.now.get(message.labelProbabilityLayerName or last, last)
            labels = tuple((message.stringClassLabels or message.int64ClassLabels).vector)
            said = model.description
            names = {n: f"{n}@{name}" if n in held else n
                    for n in (said.predictedFeatureName, said.predictedProbabilitiesName)}  # fmt: skip
            attrs = ImportedAttributes("coreml.ml.likeliest", {"labels": labels})
            self.nodes.append(
                Node(name, (scores,), tuple(names.values()), attrs, Sources.of("labels", scores))
            )
            self.current |= names

    def _results(self, model: Any, message: Any) -> Mapping[str, DType]:
        """Return the declared types of those outputs that need an additional node. These are the outputs
        whose type isn't f32, and those whose blob is written by several layers."""
        written = Counter(n for layer in layers_of(message) for n in layer.output)
        types = {f.name: _declared(f) for f in model.description.output}
        return {
            n: dtype for n, dtype in types.items()
            if (dtype != F32 or written[n] > 1) and n not in self.taken
        }  # fmt: skip

    def _rows(self, model: Any, kind: str, name: str) -> None:
        """Add a model of rows as one node. A model of an unknown type is added too. The dialect reports it
        later, together with all other unknown operators."""
        source = Sources.of(kind, name)
        attrs = READ[kind](getattr(model, kind)) if kind in READ else {}
        description = model.description
        inputs = [f.name for f in description.input]
        missing = [n for n in inputs if n not in self.current]
        if missing:
            raise CompileError(f"{source} reads the feature '{missing[0]}', which no model before it gives")
        outputs = [f.name for f in description.output]
        if "labels" in attrs:
            outputs = [description.predictedFeatureName, description.predictedProbabilitiesName]
        names = tuple(f"{n}@{name}" if n in self.current.values() else n for n in outputs if n)
        self.nodes.append(
            Node(
                name,
                tuple(self.current[n] for n in inputs),
                names,
                ImportedAttributes(f"coreml.ml.{kind}", attrs),
                source,
            )
        )
        self.current |= dict(zip((n for n in outputs if n), names, strict=True))


def _declared(feature: Any) -> DType:
    """Return the declared type of a feature. A network computes in f32 whatever the type is."""
    is_array = feature.type.WhichOneof("Type") == "multiArrayType"
    return ARRAYS.get(feature.type.multiArrayType.dataType, F32) if is_array else F32


def _converted(network: Network, name: str, made: str, dtype: str) -> None:
    """Convert a blob to another type, as the value `made`."""
    network.name, network.source = f"type of '{name}'", Sources.of("type", name)
    network.now[name] = network.node("mil.cast", {"x": [network.now[name]]}, [made], {"dtype": dtype})


def _planes(image: Any) -> list[int]:
    """Return the number of an image's colour planes, its height and its width."""
    if image.colorSpace not in COLOURS:
        raise CompileError(f"an image is of the colour space {image.colorSpace}, which is not supported")
    return [COLOURS[image.colorSpace][1], int(image.height), int(image.width)]


def _said(feature: Any) -> str:
    """Return a feature's description as text. An image's description ends with its size and its colours."""
    words = [feature.shortDescription]
    if feature.type.WhichOneof("Type") == "imageType":
        image = feature.type.imageType
        words.append(f"image of {image.height} x {image.width}, {COLOURS[image.colorSpace][0]} from 0 to 255")
    return "; ".join(filter(None, words))


def prepare(network: Network, message: Any, description: Any) -> None:
    """Add the preprocessing of an image: a scale and a bias for each colour, or the subtraction of a mean
    image."""
    images = {f.name: f.type.imageType for f in description.input if f.type.WhichOneof("Type") == "imageType"}
    name = message.featureName or next(iter(images), "")
    if name not in images:
        raise CompileError(f"the preprocessing is for '{name}', which is no image: convert the model again")
    order, _ = COLOURS[images[name].colorSpace]
    network.name, network.source = f"preprocessing of '{name}'", Sources.of("preprocessing", name)
    layer = Layer((network.now[name],), (network.fresh(f"{name} prepared"),))
    if message.WhichOneof("preprocessor") == "meanImage":
        mean = np.array(message.meanImage.meanImage, np.float32)
        sizes = _planes(images[name])
        if mean.size != math.prod(sizes):
            raise CompileError(f"the mean of the image '{name}' has {mean.size} numbers, not {sizes}")
        network.add(layer, "sub", {"y": mean.reshape(sizes)})
    else:
        s = message.scaler
        by_colour = {"R": s.redBias, "G": s.greenBias, "B": s.blueBias}
        bias = [s.grayBias] if order == "grey" else [by_colour[c] for c in order]
        scaled = network.add(layer, "mul", {"y": np.float32(s.channelScale)}, end=f"{layer.output[0]} scaled")
        shift = np.array(bias, np.float32).reshape(-1, 1, 1)
        network.add(layer, "add", {"y": shift}, start=scaled)
    network.now[name] = layer.output[0]
