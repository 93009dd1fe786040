"""A compiled PyTorch module, which is called like the original module, with PyTorch's tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from jangin.frontends.format import Example
from jangin.frontends.torch.model import Output, Traced
from jangin.frontends.torch.recurrent import free_steps
from jangin.frontends.torch.tensors import on_tensors
from jangin.frontends.torch.trace import traced
from jangin.ir.graph import CompileError


def exported(module: torch.nn.Module, example: Example) -> ExportedProgram:
    """Return a module as an exported program, in evaluation mode, for inputs like the example's.

    Raises CompileError if the example is missing or if a part of the module can't be exported. Its message
    names the part."""
    args, named = _tensors(example)
    if not args and not named:
        raise CompileError(f"a {type(module).__name__} is read by running it: give example_inputs=(...)")
    training = module.training
    if training:
        what = f"{type(module).__name__} is in training mode and is compiled as in evaluation mode"
        warnings.warn(f"{what}: call its eval() before, to say so", stacklevel=7)
    module.eval()
    try:
        with torch.no_grad(), free_steps():
            if isinstance(module, torch.jit.ScriptModule):
                return _of_script(module, args, named, example)
            return torch.export.export(
                module, args, named, dynamic_shapes=example.dynamic_shapes, strict=False
            )
    except CompileError:
        raise
    except Exception as error:  # PyTorch's exporter passes on any exception of the module's code
        raise CompileError(f"PyTorch can't export {type(module).__name__}: {_first_lines(error)}") from error
    finally:
        module.train(training)


def _tensors(example: Example) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return an example's positional and keyword arguments, with NumPy arrays converted to tensors. An
    example that is a single array or tensor needn't be a tuple."""
    alone = isinstance(example.args, (torch.Tensor, np.ndarray))
    args = (example.args,) if alone else tuple(example.args)
    positional, named = pytree.tree_map(_as_tensor, (args, dict(example.kwargs)))
    return positional, named


def _as_tensor(value: Any) -> Any:
    return torch.from_numpy(np.ascontiguousarray(value)) if isinstance(value, np.ndarray) else value


def _of_script(
    module: torch.jit.ScriptModule, given: tuple[Any, ...], named: dict[str, Any], example: Example
) -> ExportedProgram:
    """Export a TorchScript module by PyTorch's own converter. All sizes are fixed to the example's. Raises
    CompileError if `dynamic_shapes` is given."""
    from torch._export.converter import TS2EPConverter

    if example.dynamic_shapes is not None:
        raise CompileError("a TorchScript module has the example's sizes: leave out dynamic_shapes")
    program: ExportedProgram = TS2EPConverter(module, given, named).convert()
    return program


def _first_lines(error: Exception) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:3]) or type(error).__name__


class PreparedModule:
    """A module that is exported and traced, ready to be compiled."""

    def __init__(self, module: Any, example: Example) -> None:
        program = isinstance(module, ExportedProgram)
        self.source = None if program or isinstance(module, torch.jit.ScriptModule) else module
        self.program = module if program else exported(module, example)
        self.traced: Traced = traced(self.program, _names(self.program, example))
        self.buffers = {} if program else dict(module.named_buffers())

    @property
    def model(self) -> Any:
        return self.traced.model

    def finished(self, executable: Any, again: Callable[[], Any]) -> CompiledModule:
        return CompiledModule(executable, self.traced, self.program, self.buffers, self.source, again)


def _names(program: ExportedProgram, example: Example) -> dict[Any, str]:
    """Return the names of the `torch.export.Dim`s in the example's `dynamic_shapes`, by PyTorch's symbols for
    them."""
    shapes = example.dynamic_shapes
    if shapes is None:
        return {}
    if isinstance(shapes, (tuple, list)):
        shapes = dict(enumerate(shapes))
    nodes = [n for n in program.graph.nodes if n.op == "placeholder" and n.name in _inputs(program)]
    flat = {n.name: n for n in nodes}
    names: dict[Any, str] = {}
    for place, (key, dims) in enumerate(shapes.items()):
        node = flat.get(key) if isinstance(key, str) else nodes[place] if place < len(nodes) else None
        tensor = node.meta.get("val") if node is not None else None
        if not isinstance(tensor, torch.Tensor) or not dims:
            continue
        for axis, dim in dims.items() if isinstance(dims, dict) else enumerate(dims):
            name, size = getattr(dim, "__name__", ""), tensor.shape[axis]
            if name and not isinstance(size, int) and size.node.expr.is_Symbol:
                names.setdefault(size.node.expr, name)
    return names


def _inputs(program: ExportedProgram) -> set[str]:
    return {n for n in program.graph_signature.user_inputs if isinstance(n, str)}


class _Weights(torch.nn.Module):  # type: ignore[misc]
    """A module that has parameters and buffers by their dotted names, in nested modules, like the original
    module."""

    def hold(self, name: str, tensor: torch.Tensor, is_parameter: bool) -> None:
        first, _, rest = name.partition(".")
        if rest:
            if first not in self._modules:
                self.add_module(first, _Weights())
            self._modules[first].hold(rest, tensor, is_parameter)
        elif is_parameter:
            self.register_parameter(first, torch.nn.Parameter(tensor.detach(), requires_grad=False))
        else:
            self.register_buffer(first, tensor)


class CompiledModule(_Weights):
    """A compiled PyTorch module. It is called like the original module, and gives the same results.

    A call takes the same arguments as the original, nested in the same way. It also takes NumPy's arrays for
    tensors. The class is a `torch.nn.Module`. Its parameters are those that were compiled, and mustn't be
    changed. Tensors share memory with the executable's arrays. If the module changes its buffers or its
    inputs, the changes are written back. `executable` runs the module, and `save` writes `executable` to a
    file.

    `train()` trains the original module, `source`, by `torch.compile`: calls then have gradients, and the
    parameters are the original's. `eval()` compiles the module with its new weights, by `again`.

    A call raises ValueError if its arguments are nested in another way. It also raises ValueError if an
    argument that is no tensor differs from its value at export."""

    training: bool

    def __init__(
        self, executable: Any, traced: Traced, program: ExportedProgram, buffers: Mapping[str, torch.Tensor],
        source: torch.nn.Module | None, again: Callable[[], Any],
    ) -> None:  # fmt: skip
        super().__init__()
        self._again = again
        # a plain attribute would make it a part of this module
        self.__dict__["_source"], self.__dict__["_step"] = source, None
        self.executable = executable
        self._inputs = traced.inputs
        spec = program.call_spec
        self._in_spec, self._out_spec = spec.in_spec, spec.out_spec
        args, named = pytree.tree_unflatten([0] * self._in_spec.num_leaves, self._in_spec)
        self._keywords = tuple(named)
        self._is_flat = not named and args == (0,) * len(args)
        user = [n for n in program.graph_signature.input_specs if n.kind.name == "USER_INPUT"]
        self._constants = [getattr(s.arg, "value", None) for s in user]
        state = program.graph_signature.inputs_to_buffers
        buffers = {**program.state_dict, **program.constants, **buffers}
        taken = {i for i in traced.inputs if i}
        self._state = {
            i: buffers[t] for i, t in state.items() if i in traced.model.graph.inputs and i not in taken
        }
        self._kept = buffers
        for name in program.state_dict:
            tensor = buffers[name]
            self.hold(name, tensor, is_parameter=name in program.graph_signature.parameters)
        super().train(False)
        self._run = on_tensors(executable)
        self._order = [i.name for i in executable.inputs]
        self._names = [o.name for o in executable.outputs]
        self._written = [o for o in traced.outputs if o.written]
        self._given = [o for o in traced.outputs if not o.written]

    def save(self, path: Any) -> None:
        """Write the module's machine code, plan and weights to a file for `jangin.load`. The executable that
        is loaded from it has inputs and outputs by name, as arrays. Raises CompileError in training mode."""
        if self.training:
            raise CompileError("the module is being trained: call its eval(), which compiles the new weights")
        self.executable.save(path)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "a compiled module can't be pickled or copied: its `executable` can, and save() writes it"
        )

    def train(self, mode: bool = True) -> Self:
        """Begin to train the original module, or end it and compile the module anew. Return the module.

        Raises CompileError if training is requested for an exported program or a TorchScript module."""
        source: Any = self.__dict__["_source"]
        if mode and source is None:
            raise CompileError(
                "exported programs and TorchScript are for inference: train the module, and compile it again"
            )
        if mode and not self.training:
            self.__dict__["_step"] = torch.compile(
                source, backend="jangin", options={"threads": self.executable.threads}
            )
            self._parameters, self._buffers = source._parameters, source._buffers
            self._modules = source._modules
            self.training = True
        elif not mode and self.training:
            source.eval()
            self.__dict__.update(self._again().__dict__)
        if mode:
            source.train()
        return self

    def _apply(self, fn: Any, recurse: bool = True) -> Self:
        """Check a conversion of all tensors, as by `to`, `half` or `cuda`. Return the module, unchanged.

        Raises CompileError if the conversion would change a type or a device, or if PyTorch can't make it."""
        for tensor in (*self.parameters(), *self.buffers(), torch.empty(0)):
            try:
                converted = fn(tensor)
            except (AssertionError, RuntimeError) as error:  # PyTorch was built without the device
                raise CompileError(
                    f"a compiled module stays as it was compiled, and this PyTorch has no such device "
                    f"({_first_lines(error)}): compile the module again, with target=..."
                ) from error
            if converted.dtype is not tensor.dtype or converted.device != tensor.device:
                raise CompileError(
                    f"a compiled module stays as it was compiled, and can't become {converted.dtype} on "
                    f"{converted.device}: convert the module, and compile it again"
                )
        return self

    def load_state_dict(self, *given: Any, **named: Any) -> Any:
        """Load weights in training mode. Raises CompileError otherwise."""
        if self.training:
            return self.__dict__["_source"].load_state_dict(*given, **named)
        raise CompileError(
            "a compiled module's weights are in its code: load them into the module, and compile it again"
        )

    def register_forward_hook(self, *given: Any, **named: Any) -> NoReturn:
        raise CompileError(
            "a compiled module is one function without modules inside, and calls no hooks: register them "
            "with the module itself, and compile it again"
        )

    register_forward_pre_hook = register_full_backward_hook = register_forward_hook
    register_full_backward_pre_hook = register_backward_hook = register_forward_hook

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self(*args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.training:
            args, kwargs = pytree.tree_map(_as_tensor, (args, kwargs))
            return self.__dict__["_step"](*args, **kwargs)
        flat = self._flattened(args, kwargs)
        feeds = dict(self._state)
        for name, value, constant in zip(self._inputs, flat, self._constants, strict=True):
            if name:
                feeds[name] = value
            elif value != constant:
                raise ValueError(
                    f"an argument is {value!r}, and the module was compiled for {constant!r}: compile it "
                    "again for others"
                )
        outputs = self._run([feeds[n] for n in self._order])
        results = dict(zip(self._names, outputs, strict=True))
        for output in self._written:
            self._write(output, results[output.name], feeds)
        return pytree.tree_unflatten(results_of(self._given, results), self._out_spec)

    def _flattened(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Sequence[Any]:
        """Return a call's arguments as a flat sequence. Simple calls are handled without PyTorch's function,
        which may take longer than a small model's run."""
        tensors = not kwargs and all(isinstance(a, torch.Tensor) for a in args)
        if tensors and self._is_flat and len(args) == len(self._inputs):
            return args
        flat, spec = pytree.tree_flatten((args, self._ordered(kwargs)))
        flat = [*map(_as_tensor, flat)]
        if spec != self._in_spec:
            raise ValueError(
                f"the module was compiled for arguments like {self._in_spec}, not {spec}: compile it again "
                "for others"
            )
        leaves: Sequence[Any] = flat
        return leaves

    def _ordered(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return keyword arguments in the order that they had at the export. Raises ValueError if other ones
        are given."""
        if set(self._keywords) != set(kwargs):
            wanted = ", ".join(self._keywords) or "none"
            raise ValueError(
                f"the module was compiled for the keyword arguments {wanted}, not {list(kwargs)}: compile "
                "it again for others"
            )
        return {name: kwargs[name] for name in self._keywords}

    def _write(self, output: Output, made: torch.Tensor, given: Mapping[str, torch.Tensor]) -> None:
        target = self._kept.get(output.written, given.get(output.written))
        assert target is not None
        with torch.no_grad():
            target.copy_(made)


def results_of(outputs: Sequence[Output], made: Mapping[str, torch.Tensor]) -> list[Any]:
    """Return the results of a run in a program's order. `made` has the run's outputs by name. A result is a
    tensor, an integer or a constant."""
    return [(int(made[o.name]) if o.size else made[o.name]) if o.name else o.constant for o in outputs]
