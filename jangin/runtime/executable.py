"""A compiled model, loaded and ready to run."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from jangin.ir.graph import Array
from jangin.ir.plan import Plan
from jangin.mapped import release
from jangin.runtime.addressed import Addressed, Lender, is_addressable
from jangin.runtime.artifact import Artifact
from jangin.runtime.called import Called, joined, ordered
from jangin.runtime.device import Device, LoadError, Memory, Module, NativeCall, device_of
from jangin.runtime.idle import kept, renewed_in_children
from jangin.runtime.layout import LAYOUTS, Frame, Layout
from jangin.runtime.pickled import Loaded
from jangin.runtime.profile import Launches, LaunchTime
from jangin.runtime.sizes import Evaluator, Signature, Sizes, TensorSpec, converting
from jangin.runtime.tensors import Readable, Receiver, Taken, is_on_gpu, on_host, shape_of
from jangin.runtime.threads import counted

_array = np.ndarray
"""NumPy's array type. A module's own name is found sooner than NumPy's attribute, in each call."""
SHAPES = 64
"""The most input shapes whose layout is kept, so that they needn't be checked again. Servers alternate among
fewer."""


class Executable(Called, Loaded[Artifact]):
    """Runs a compiled model: `exe(x, y)` with arrays in input order, `exe(y=y, x=x)` by name, or
    `exe.run({"x": x, "y": y})`.

    Arrays are NumPy's, or any that offer DLPack on the CPU. A model on an NVIDIA GPU also takes tensors of
    other libraries on it, and then returns tensors on it (see
    `runtime.devices.cuda_tensors.DeviceTensor`). A run changes the arrays of inputs that the plan
    updates (`Plan.updates`), and returns them as outputs. Several threads may call one Executable at once;
    each call then has its own working memory.

    `threads`: threads of a call, the caller included (None: as many as the process may use). `share`: another
    Executable, whose threads are used instead. `device`: a caller's own device. Raises LoadError if the
    device can't run the model.
    """

    def __init__(
        self,
        artifact: Artifact,
        threads: int | None = None,
        share: Executable | None = None,
        device: Device | None = None,
    ) -> None:
        count = counted(threads)
        runs = device or device_of(artifact.device)
        check(runs, artifact.device, artifact.plan.target)
        self._artifact, self._given = artifact, (threads, None, device)
        self._check = artifact.check
        self._module: Module = runs.load(
            artifact.plan, artifact.objects, count, share._module if share else None
        )
        self._signature = Signature(artifact.plan)
        self._names, self._outputs = artifact.plan.inputs, artifact.plan.outputs
        self._copiers = {n: _copier(artifact.plan, n) for n in self._outputs}
        self._updated = [artifact.plan.inputs.index(n) for n in artifact.plan.updates.values()]
        self._are_fresh = not any(self._copiers.values())
        self._expected = [(s, s.dtype, s.shape) for s in self.inputs]
        self._frame = Frame(artifact.plan, self._module.alignment)
        self._static = Layout(self._frame, (), Evaluator({})) if artifact.plan.is_static else None
        self._layouts: OrderedDict[Sizes, Layout] = OrderedDict()
        self._fitting: dict[tuple[Sizes, ...], Layout] = {}
        self._lock = threading.Lock()
        self._idle: list[Memory] = []
        self._kept = kept()
        self._picked = _picker(self._names)
        renewed_in_children(self)

    @property
    def plan(self) -> Plan:
        return self._artifact.plan

    @property
    def name(self) -> str:
        return self._artifact.plan.name

    @property
    def threads(self) -> int:
        return self._module.threads

    @property
    def inputs(self) -> tuple[TensorSpec, ...]:
        return self._signature.inputs

    @property
    def outputs(self) -> tuple[TensorSpec, ...]:
        return self._signature.outputs

    @property
    def working(self) -> int | None:
        """Bytes of a run's intermediate memory, or None if a size is unknown (see `arena_bytes`)."""
        return None if self._static is None else self._static.placement.arena

    def release(self) -> None:
        """Drop the working memory of finished runs. The next run takes new memory."""
        self._idle.clear()

    def renew(self) -> None:
        """Drop locks and working memory, in a forked process (see `jangin.runtime.idle`)."""
        self._lock = threading.Lock()
        self.release()

    def arena_bytes(self, **sizes: int) -> int:
        """Return the bytes of a run's intermediate memory, given every size symbol by name."""
        names = [v.name for v in self._signature.symbols]
        if set(sizes) != set(names):
            wanted = ", ".join(names) or "nothing, as every size is known"
            raise ValueError(f"give each of the sizes: {wanted}; given: {', '.join(sizes) or 'none'}")
        return self._layout(tuple(sizes[n] for n in names)).placement.arena

    def __call__(self, /, *arrays: Any, **named: Any) -> Array | tuple[Array, ...]:
        """Run the model. Return the output array, or a tuple if there are several. Raises TypeError for a
        wrong dtype, and ValueError for a wrong count or shape."""
        results = self._listed(self._run(joined(self.inputs, arrays, named) if named else arrays))
        return results[0] if len(results) == 1 else tuple(results)

    def run(self, feeds: Mapping[str, Any]) -> dict[str, Array]:
        """Run the model with inputs and outputs by name."""
        outputs = self.again(feeds)
        if outputs is not None:
            return outputs
        names = self._names
        try:
            arrays = [feeds[n] for n in names]
        except KeyError:
            arrays = []
        if len(feeds) != len(names) or len(arrays) != len(names):
            arrays = ordered(self.inputs, feeds)
        return self._run(arrays)

    def again(self, feeds: Mapping[str, Any]) -> dict[str, Array] | None:
        """Run the model in the fewest steps, on arrays like the last run's. Return None, without running, if
        they differ from the last run's or there was no run."""
        if not self._are_fresh or len(feeds) != len(self._names):
            return None
        try:
            memory = self._idle.pop()
        except IndexError:
            return None
        try:
            return memory.again(self._picked(feeds))
        except KeyError:
            return None
        finally:
            if len(self._idle) < self._kept:
                self._idle.append(memory)

    def profile(self, feeds: Mapping[str, Any], repeats: int = 20) -> list[LaunchTime]:
        """Time each launch over `repeats` runs, and return the times in order (see `runtime.profile`)."""
        return self.launches(feeds).times(repeats)

    def launches(self, feeds: Mapping[str, Any]) -> Launches:
        """Prepare a run on these inputs, whose launches can then be made and timed one by one."""
        memory = self._module.memory()
        arrays = self.accept([feeds[s.name] for s in self.inputs], memory)
        for place in self._updated:
            arrays[place] = arrays[place].copy()
        sizes = () if self._static is not None else self._signature.bind([a.shape for a in arrays])
        chosen = self._layout(sizes)
        self._confirm()
        return memory.launches(chosen, arrays)

    def native_call(self, sizes: Sequence[int]) -> NativeCall:
        """Return a call by which native code runs the model, with its own working memory. Raises ValueError
        for sizes that the plan wasn't made for."""
        self._confirm()
        return self._module.native_call(self._layout(tuple(sizes)))

    def addressed(self, lender: Lender | None = None) -> Addressed | None:
        """Return a runner on memory given by address, or None if a run needs more than addresses. Its runs
        take the threads of `lender` instead of the model's own."""
        if self._artifact.device != "cpu" or not is_addressable(self._artifact.plan):
            return None
        return Addressed(self._artifact.plan, lambda: self.native_call(()), lender)

    def execute(self, arrays: Sequence[Array], sizes: Sizes) -> list[Array]:
        """Run the plan on contiguous arrays that are known to fit, and return the outputs as a list. `sizes`
        are the symbols' values in the plan's order. Programs call this."""
        self._confirm()
        memory = self._lent()
        try:
            return self._listed(self._run_in(memory, self._layout(sizes), arrays))
        finally:
            if len(self._idle) < self._kept:
                self._idle.append(memory)

    def to_device(self, value: Any) -> Any:
        """Return a copy of an array in the memory of the model's NVIDIA GPU. A run whose inputs have such a
        tensor leaves its outputs there too. Raises ValueError for a model on another device."""
        uploaded = getattr(self._module, "uploaded", None)
        if uploaded is None:
            raise ValueError(
                f"the device {self._artifact.device!r} takes arrays of the host: give them as is"
            )
        return uploaded(np.ascontiguousarray(value))

    def _run(self, given: Sequence[Any]) -> dict[str, Array]:
        """Check the inputs, run the plan, and return the outputs by name, in the plan's order."""
        if self._check is not None:
            self._confirm()
        memory = self._lent()
        try:
            outputs = memory.again(given) if self._are_fresh else None
            if outputs is not None:
                return outputs
            arrays = self.accept(given, memory)
            chosen = self._static
            if chosen is None:
                shapes = tuple([a.shape for a in arrays])
                chosen = self._fitting.get(shapes) or self._fit(shapes)
            return self._run_in(memory, chosen, arrays)
        finally:
            if len(self._idle) < self._kept:
                self._idle.append(memory)

    def _lent(self) -> Memory:
        """Take working memory that no other run uses. The caller returns it to `_idle`."""
        try:
            return self._idle.pop()
        except IndexError:
            return self._module.memory()

    def _run_in(self, memory: Memory, chosen: Layout, arrays: Sequence[Array]) -> dict[str, Array]:
        memory.prepare(chosen)
        outputs = memory.run(chosen, arrays)
        if self._are_fresh or len(outputs) == len(self._copiers):  # a device may have copied them itself
            return outputs
        return {
            n: copy(memory, chosen, arrays, outputs) if copy else outputs[n]
            for n, copy in self._copiers.items()
        }

    def _confirm(self) -> None:
        """Wait until constants are checked. Raises ArtifactError if one is damaged. The pages of constants
        that the device has copied leave this process's memory."""
        if self._check is not None:
            self._check()
            self._check = None
            if self._module.copies:
                release(self._artifact.plan.constants.values())

    def _listed(self, made: Mapping[str, Array]) -> list[Array]:
        """Return the outputs as a list. If the model names an output twice, the second is a copy."""
        if len(made) == len(self._outputs):
            return list(made.values())
        return [made[n].copy() if n in self._outputs[:i] else made[n] for i, n in enumerate(self._outputs)]

    def accept(self, given: Sequence[Any], memory: Memory | None = None) -> list[Any]:
        """Return the inputs as contiguous arrays, or as tensors on the device if `memory` takes them. Raises
        TypeError for a wrong dtype, and ValueError for a wrong count. Shapes are checked here for a model of
        fixed sizes only."""
        if len(given) != len(self._expected):
            raise ValueError(f"expected {len(self._expected)} inputs, got {len(given)}; {self._signature}")
        static = self._static is not None
        arrays: list[Any] = []
        for a, (want, dtype, shape) in zip(given, self._expected, strict=True):
            if type(a) is not _array:
                a = received(a, want, memory)
            if a.dtype is not dtype and a.dtype != dtype:
                raise TypeError(f"input {want} got dtype {a.dtype}; {self._signature}: {converting(want)}")
            if static and a.shape != shape:
                self._signature.bind([shape_of(g) for g in given])
            arrays.append(a if type(a) is Taken or a.flags.c_contiguous else np.ascontiguousarray(a))
        for place in self._updated:
            if not arrays[place].flags.writeable:
                arrays[place] = arrays[place].copy()
        return arrays

    def _fit(self, shapes: tuple[Sizes, ...]) -> Layout:
        """Return the layout for inputs of these shapes, after checking them. It is kept, because the check
        takes long compared with a small model's run."""
        layout = self._layout(self._signature.bind(shapes))
        with self._lock:
            if len(self._fitting) >= SHAPES:
                self._fitting.clear()
            self._fitting[shapes] = layout
        return layout

    def _layout(self, sizes: Sizes) -> Layout:
        if self._static is not None:
            return self._static
        with self._lock:
            layout = self._layouts.get(sizes)
            if layout is None:
                value = self._signature.check(dict(zip(self._signature.symbols, sizes, strict=True)))
                layout = self._layouts[sizes] = Layout(self._frame, sizes, value)
                if len(self._layouts) > LAYOUTS:
                    self._layouts.popitem(last=False)
            self._layouts.move_to_end(sizes)
        return layout


def _picker(names: Sequence[str]) -> Callable[[Mapping[str, Any]], tuple[Any, ...]]:
    """Return a function that takes the arrays of these names out of a mapping, as a tuple in order."""
    if len(names) > 1:
        return itemgetter(*names)
    return (lambda feeds: (feeds[names[0]],)) if names else lambda _: ()


def check(device: Device, wanted: str, target: str) -> None:
    """Raise LoadError if a device can't run code that was made for the device `wanted` and for `target`."""
    reason = device.why_not(target)
    if device.name != wanted.partition(":")[0]:  # which of several is the loader's choice
        reason = f"it is for the device {wanted!r}, not {device.name!r}"
    if reason:
        raise LoadError(f"the model was compiled for another machine: {reason}; compile it again here")


def received(value: Any, want: TensorSpec, memory: Memory | None) -> Readable:
    """Return a caller's input that is no NumPy array, as `as_array` does, or as a tensor on the device if
    `memory` takes them."""
    if isinstance(memory, Receiver) and is_on_gpu(value):
        return memory.received(value, want)
    return as_array(value, want)


def as_array(value: Any, want: TensorSpec) -> Array:
    """Return a caller's input as a NumPy array. An array or tensor keeps its dtype; Python numbers and lists
    get the dtype of `want`. Raises TypeError if the value can't become an array."""
    try:
        if hasattr(value, "__dlpack__") and not isinstance(value, np.ndarray):
            return np.asarray(np.from_dlpack(value))
        if hasattr(value, "__array__"):
            return np.asarray(value)
        return np.asarray(value, want.dtype)  # Python numbers and lists have no dtype of their own
    except (TypeError, ValueError, RuntimeError, BufferError) as error:
        if is_on_gpu(value):
            raise on_host(value, want) from None
        raise TypeError(
            f"input {want} is no array that can be read ({type(value).__name__}: {error})"
        ) from None


_Copier = Callable[[Memory, Layout, Sequence[Array], Mapping[str, Array]], Array]


def _copier(plan: Plan, name: str) -> _Copier | None:
    """Return a function that copies an output from the buffer that it is an alias of. An output that updates
    an input is the input's array itself. Return None for an output that each run makes anew."""
    buffer = plan.buffer(name)
    if buffer.kind == "output":
        return None
    base = plan.buffer(buffer.base) if buffer.kind == "alias" else buffer
    place = plan.inputs.index(base.name) if base.kind == "input" else -1
    if name in plan.updates:
        return lambda memory, chosen, arrays, made: arrays[place]

    def copy(memory: Memory, chosen: Layout, arrays: Sequence[Array], made: Mapping[str, Array]) -> Array:
        if base.kind == "input":
            source = arrays[place]
        elif base.kind == "constant":
            source = plan.constants[base.name]
        elif base.kind == "output":
            source = made[base.name]
        else:
            source = memory.read(chosen, base)
        flat = source.reshape(-1).view(buffer.dtype.numpy)
        return flat.reshape(chosen.shapes[buffer.name]).copy()

    return copy
