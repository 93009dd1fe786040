"""Models with variables: their state is an input and an output of each run."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.runtime.artifact import ArtifactError
from jangin.runtime.called import Called, joined
from jangin.runtime.compiled import Compiled
from jangin.runtime.sizes import TensorSpec


def checked_state(model: Any, state: Any) -> Mapping[str, str]:
    """Return the state that a file's metadata describes, after checking it. Raises ArtifactError unless it
    pairs inputs of fixed sizes with outputs of the same type and shape."""
    inputs, outputs = ({s.name: s for s in specs} for specs in (model.inputs, model.outputs))
    fits = isinstance(state, dict) and all(n in inputs and o in outputs for n, o in state.items())
    if fits:
        pairs = ((inputs[n], outputs[o]) for n, o in state.items())
        fits = all(a.dtype == b.dtype and a.shape == b.shape and _fixed(a) for a, b in pairs)
    if not fits:
        raise ArtifactError("its metadata names state that its inputs and outputs don't have")
    names: Mapping[str, str] = state
    return names


def _fixed(spec: TensorSpec) -> bool:
    return all(isinstance(d, int) for d in spec.shape)


class StatefulExecutable(Called):
    """Runs a compiled model as `Executable` does, one run after another, and keeps its state. The state is
    zeros before the first run.

    `model` is the executable. `state` maps each input that is kept to the output that is its next value."""

    def __init__(self, model: Any, state: Mapping[str, str]) -> None:
        self.model = model
        self._next = dict(state)
        self._specs = {s.name: s for s in model.inputs if s.name in state}
        self._lock = threading.Lock()
        self._held: dict[str, Array] = {}
        self.reset()

    def __getstate__(self) -> dict[str, Any]:
        with self._lock:
            return {name: value for name, value in self.__dict__.items() if name != "_lock"}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        self.__dict__.update(state, _lock=threading.Lock())

    def reset(self) -> None:
        """Set the state to zeros, as before the first run."""
        self._held.update((n, np.zeros(s.shape, s.dtype)) for n, s in self._specs.items())

    def share(self, other: StatefulExecutable) -> None:
        """Have one state with another executable from now on, beginning with the other's. Variables are the
        same by their names, such as those of a TFLite file's signatures. Raises ValueError for a variable
        whose type or shape the other has otherwise."""
        with other._lock:
            self._check({n: a for n, a in other._held.items() if n in self._specs})
            for name, array in self._held.items():
                other._held.setdefault(name, array)
        self._held, self._lock = other._held, other._lock

    def _check(self, arrays: Mapping[str, Array]) -> None:
        for name, array in arrays.items():
            spec = self._specs[name]
            if (array.dtype, array.shape) != (spec.dtype, tuple(spec.shape)):
                raise ValueError(
                    f"the state {spec} got {array.dtype}{list(array.shape)}: give an array of its type and "
                    "shape"
                )

    @property
    def state(self) -> dict[str, Array]:
        """Copies of the state for the next run, by the inputs' names."""
        return {name: self._held[name].copy() for name in self._specs}

    @state.setter
    def state(self, arrays: Mapping[str, Array]) -> None:
        """Set the state that the next run begins with. Raises ValueError unless all arrays are there, with
        their types and shapes."""
        if arrays.keys() != self._specs.keys():
            raise ValueError(
                f"the state consists of {', '.join(self._specs)}, and {', '.join(arrays) or 'nothing'} was "
                "given"
            )
        self._check(arrays)
        with self._lock:
            self._held.update((name, array.copy()) for name, array in arrays.items())

    @property
    def name(self) -> str:
        return str(self.model.name)

    @property
    def threads(self) -> int:
        return int(self.model.threads)

    @property
    def artifact(self) -> Compiled:
        compiled: Compiled = self.model.artifact
        return compiled

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return tuple(s for s in self.model.inputs if s.name not in self._next)

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return tuple(s for s in self.model.outputs if s.name not in self._next.values())

    @property
    def working(self) -> int | None:
        count: int | None = getattr(self.model, "working", None)
        return count

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `.jgn` file that `jangin.load` reads. The file doesn't contain the state."""
        self.model.save(path)

    def release(self) -> None:
        """Drop the working memory of finished runs. The state is kept."""
        self.model.release()

    def explain_shapes(self) -> str:
        return str(self.model.explain_shapes())

    def __call__(self, /, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run the model. Return the output array, or a tuple if there are several. State isn't among them."""
        if named:
            arrays = tuple(joined(self.inputs, arrays, named))
        if len(arrays) != len(self.inputs):
            raise ValueError(f"the model takes {len(self.inputs)} arrays, not {len(arrays)}")
        outputs = tuple(self.run({s.name: a for s, a in zip(self.inputs, arrays, strict=True)}).values())
        return outputs[0] if len(outputs) == 1 else outputs

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model with inputs and outputs by name. If the run fails, the state stays as it was."""
        with self._lock:
            held = {name: self._held[name] for name in self._next}
            outputs: dict[str, Array] = self.model.run({**held, **feeds})
            self._held.update((name, outputs[after]) for name, after in self._next.items())
        return {n: a for n, a in outputs.items() if n not in self._next.values()}
