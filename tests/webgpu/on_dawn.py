"""Packages for WebGPU, run by Dawn in Node. Chromium has Dawn too, and its compiler of shaders is Tint.

The environment's JANGIN_DAWN names the folder of npm's package `webgpu`. VK_ICD_FILENAMES names Vulkan's
driver, and by default it is Chromium's SwiftShader."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import jangin
from jangin.ir.graph import Array, CompileError
from jangin.onnx_backend import specialised

SWIFTSHADER = Path("/usr/lib/chromium/vk_swiftshader_icd.json")
"""The driver that Debian's Chromium brings."""
NONE = (
    "Dawn isn't here: name the folder of npm's package `webgpu` by JANGIN_DAWN, and install Node and a "
    "Vulkan driver with what Dawn needs (Debian's chromium has one)"
)


def folder() -> Path | None:
    """Return the folder of Dawn for Node, or None without one."""
    found = Path(os.environ.get("JANGIN_DAWN", ""))
    return found if shutil.which("node") and (found / "index.js").exists() else None


class Dawn:
    """A process with a device of Dawn."""

    def __init__(self) -> None:
        driver = {"VK_ICD_FILENAMES": str(SWIFTSHADER)} if SWIFTSHADER.exists() else {}
        program = Path(__file__).with_name("dawn.mjs")
        self._process = subprocess.Popen(
            ["node", str(program), str(folder())], env={**driver, **os.environ},
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self.adapter: str = self.ask({})["adapter"]

    def ask(self, what: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer to a request. Raises RuntimeError with the error of WebGPU or of the loader."""
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(what) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"Dawn's process ended with {self._process.wait()}")
        told: dict[str, Any] = json.loads(line)
        if "error" in told:
            raise RuntimeError(told["error"])
        return told

    def run(self, package: Path, inputs: Sequence[Array]) -> list[tuple[bytes, list[int]]]:
        """Return the bytes and the shape of each output of a package, whose module is `model.mjs`."""
        texts = [base64.b64encode(np.ascontiguousarray(a).tobytes()).decode() for a in inputs]
        told = self.ask({"folder": str(package), "inputs": texts})["outputs"]
        return [(base64.b64decode(y["bytes"]), y["shape"]) for y in told]


class Packaged:
    """A model as a package for WebGPU."""

    def __init__(self, model: onnx.ModelProto, shapes: Mapping[str, int], dawn: Dawn) -> None:
        self._made, self._dawn = jangin.emit(model, "web", "webgpu", shapes or None, name="model"), dawn

    def run(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        wanted = self._made.model.inputs
        given = [np.asarray(feeds[t.name]).astype(t.dtype.numpy, copy=False) for t in wanted]
        with tempfile.TemporaryDirectory() as folder:
            self._made.save(folder)
            values = self._dawn.run(Path(folder), given)
        return {
            t.name: np.frombuffer(bytearray(data), t.dtype.numpy).reshape(shape)
            for t, (data, shape) in zip(self._made.model.outputs, values, strict=True)
        }


class DawnRep:
    """A model that ONNX's runner has prepared for Dawn. It is compiled for the shapes of its inputs."""

    def __init__(self, model: onnx.ModelProto, dawn: Dawn) -> None:
        self._model, self._dawn = model, dawn

    def run(self, inputs: Sequence[Any]) -> list[Array]:
        graph = self._model.graph
        if odd := [v.name for v in (*graph.input, *graph.output) if not v.type.HasField("tensor_type")]:
            raise CompileError(f"{odd[0]} is no tensor, and a package takes and gives tensors")
        constants = {t.name for t in graph.initializer}
        given = [i for i in graph.input if i.name not in constants]
        feeds = {i.name: value for i, value in zip(given, inputs, strict=True)}
        sizes = {
            d.dim_param: n
            for i in given
            for d, n in zip(i.type.tensor_type.shape.dim, np.shape(feeds[i.name]), strict=False)
            if d.dim_param
        }
        try:
            exe = Packaged(self._model, sizes, self._dawn)
        except CompileError:  # inputs may decide sizes or axes
            exe = specialised(lambda model: Packaged(model, sizes, self._dawn), self._model, feeds)
        made = exe.run(feeds)
        return [made[o.name] for o in graph.output]
