"""`torch.compile(model, backend="jangin")`: compile TorchDynamo's graphs.

PyTorch finds the back end by the entry point `torch_dynamo_backends`. PyTorch's own rules govern graph
breaks, guards and recompilation. `torch.compile`'s `options` are those of `jangin.compile`
(`options={"threads": 1}`). Compiled graphs are cached, for other processes too. An operator that can't be
compiled splits its graph: PyTorch runs the operator, and the parts around it are compiled.

With gradients, AOTAutograd gives a forward and a backward graph whose inputs are the parameters. Under
`torch.no_grad()` and `torch.inference_mode()` the parameters are constants."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import has_free_unbacked_symbols

import jangin
from jangin.compiler.local import confirm
from jangin.frontends.torch.attention import keep_attention
from jangin.frontends.torch.element_types import number_tensor
from jangin.frontends.torch.openmp import lender
from jangin.frontends.torch.parts import copied, is_said, refused, split, unknown
from jangin.frontends.torch.saved import as_traced, channels_last, read_as_they_lie
from jangin.frontends.torch.sizes import FAR, Sizes, numbers
from jangin.frontends.torch.tensors import Run, on_tensors
from jangin.frontends.torch.trace import OPERANDS, placeholders, traced_graph
from jangin.frontends.torch.training import training_table
from jangin.frontends.torch.views import Views, part_views
from jangin.ir.graph import CompileError
from jangin.ir.own_names import own_name
from jangin.options import Given, Options, refuse_unknown

Boxed = Callable[[list[Any]], list[Any]]
Numbers = Callable[[Sequence[Any]], list[Any]]


def backend(graph: torch.fx.GraphModule, inputs: Sequence[Any], **given: Any) -> Callable[..., Any]:
    """Compile a graph for `torch.compile`. PyTorch runs the operators that can't be compiled, and a warning
    names each of them once."""
    options = _options(given.get("options") or {})
    parts: list[_Compiled] = []

    def inference(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Boxed:
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        return compiled(lowered, [] if metadata is None else metadata.static_input_indices, lent=False)

    def forward(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Boxed:
        context = torch._guards.TracingContext.try_get()
        metadata = None if context is None else context.fw_metadata
        return compiled(lowered, [], None if metadata is None else metadata.num_forward)

    def backward(lowered: torch.fx.GraphModule, example: Sequence[Any]) -> Boxed:
        return compiled(lowered, [])  # the optimizer changes parameters after each call

    def compiled(
        lowered: torch.fx.GraphModule, static: Sequence[int], returned: int | None = None, lent: bool = True
    ) -> Boxed:
        """`returned` is the number of results that the program sees. None means all."""
        _fix_numbers(lowered)
        results = next(iter(reversed(lowered.graph.nodes))).args[0]
        hidden = range(len(results) if returned is None else returned, len(results))
        parts.append(_Compiled(lowered, static, options, hidden, lent))
        return _boxed(parts[-1])

    if not torch.is_grad_enabled():
        keep_attention(graph)
    compiler: Callable[..., Any] = aot_autograd(
        fw_compiler=forward, bw_compiler=backward, inference_compiler=inference,
        partition_fn=min_cut_rematerialization_partition, decompositions=training_table(),
    )(graph, inputs)  # fmt: skip
    for part in parts:
        part.settle(inputs)
    return compiler


def _options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `jangin.compile`. Raises TypeError for an unknown one, ValueError for a wrong
    value, and LoadError for a target that this machine can't run. Graphs aren't left to PyTorch for these."""
    refuse_unknown("torch.compile", given, ("target", "threads", *Given.__annotations__))
    options = {"threads": torch.get_num_threads(), **given}
    confirm(Options(options.get("target"), None, **{n: v for n, v in options.items() if n != "target"}))
    return options


def _say_once(what: str, error: object) -> None:
    if what not in _SAID:
        _SAID.add(what)
        text = " ".join(str(error).split())
        if isinstance(error, Exception) and not isinstance(error, CompileError):
            text = f"an error of Jangin's own, which is worth a report: {type(error).__name__}: {text}"
        short = text if len(text) <= REASON else f"{text[:REASON]} ..."
        warnings.warn(f"jangin leaves {what} to PyTorch: {short}", stacklevel=2)


_SAID: set[str] = set()
"""The operators and graphs left to PyTorch that a warning in this process has named."""
REASON = 300
"""The most characters of a reason that are shown. The rest is about the surroundings."""


def _boxed(fn: Boxed) -> Boxed:
    fn._boxed_call = True  # type: ignore[attr-defined]
    return fn


def _fix_numbers(lowered: torch.fx.GraphModule) -> None:
    """Make fractions that follow from sizes constants. PyTorch then compiles the graph again for other sizes.

    Operands of elementwise operators and fill values of tensors stay variable."""
    for node in lowered.graph.nodes:
        value = node.meta.get("val")
        known = isinstance(value, torch.SymFloat) and not has_free_unbacked_symbols(value)
        if known and not all(_takes_fraction(user, node) for user in node.users):
            node.meta["val"] = float(value)


def _takes_fraction(user: torch.fx.Node, fraction: torch.fx.Node) -> bool:
    """Tell if a node passes a fraction on, or can take it like a tensor."""
    if not isinstance(user.target, torch._ops.OpOverload):
        numbers = torch.SymFloat, torch.SymInt, torch.SymBool
        return user.op == "output" or isinstance(user.meta.get("val"), numbers)
    names = [a.name for a in user.target._schema.arguments]
    arguments = {**dict(zip(names, user.args, strict=False)), **user.kwargs}
    used = {name for name, value in arguments.items() if value is fraction}
    taken = OPERANDS if torch.Tag.pointwise in user.target.tags else FILLS.get(user.target, ())
    return bool(used) and used <= {*taken}


FILLS = {
    torch.ops.aten.full.default: ("fill_value",),
    torch.ops.aten.full_like.default: ("fill_value",),
    torch.ops.aten.scalar_tensor.default: ("s",),
}


STEADY = 2
"""How often a graph is compiled with its parameters as constants. Parameters that change again are trained:
from then on they are inputs, and the graph isn't compiled after each change."""


class _Compiled:
    """A graph whose parameters and buffers are constants. `static` has their places among the inputs. A
    backward graph alone reads the results at the places `hidden`. The graph runs on PyTorch's threads if it
    is `lent` them, because PyTorch's operators run before and after it.

    The graph is compiled at its first call, or before if sizes are symbols (see `settle`). It is compiled
    again when one of its constants has changed, at most `STEADY` times."""

    def __init__(
        self, graph: torch.fx.GraphModule, static: Sequence[int], options: Mapping[str, Any],
        hidden: Collection[int] = (), lent: bool = True,
    ) -> None:  # fmt: skip
        self.graph, self.options, self.whole, self.hidden = graph, options, copied(graph), hidden
        self.lent = lent
        self.torch: Callable[..., Any] | None = None
        """The function that runs the graph if the graph can't be compiled as a whole."""
        self.views: Views | None = None
        self.parted = False
        self.orders: dict[int, list[int]] = {}
        """The order of axes in which the graph reads an input, by the input's position."""
        self.inputs, self.traced = placeholders(graph.graph), placeholders(self.whole.graph)
        self.static = [i for i in static if i < len(self.inputs)]
        self.addresses: list[int] | None = None
        self.versions: list[int] = []
        self.times = 0
        self.env = next((s.node.shape_env for n in self.inputs for s in _symbolic(n)), None)

    def settle(self, args: Sequence[Any]) -> None:
        """Compile the graph while PyTorch still accepts guards. `args` are the arguments of the first call.

        If a size can't be a symbol, this graph is compiled for the current size, and PyTorch compiles the
        graph again for other sizes. PyTorch runs the nodes that need the size if the user marked it as
        dynamic."""
        while symbols := set().union(*(s.node.expr.free_symbols for n in self.inputs for s in _sizes(n))):
            fixed = symbols
            problem: Exception | None = None
            if self._takes(args):
                if without := unknown(self.whole):
                    self._part(args, without)
                    return
                try:
                    self._compile(args)
                    return
                except CompileError as error:
                    named = {own_name(v) for v in error.symbols}
                    fixed = (self.sizes.of_names(named) & symbols if named else set()) or symbols
                    problem = error
                except Exception as error:  # the first call meets the error again and reports it
                    fixed, problem = symbols, error
            if problem is not None and fixed & _marked(self.env):
                self._leave(args, problem)
                return
            for size in (s for n in self.inputs for s in _sizes(n)):
                if size.node.expr.free_symbols & fixed:
                    int(size)

    def __call__(self, args: list[Any]) -> list[Any]:
        if self.torch is None:
            addresses = [args[i].data_ptr() for i in self.static]
            if addresses != self.addresses or [args[i]._version for i in self.counted] != self.versions:
                self._compile_or_part(args)
        if self.torch is not None:
            return self._by_torch(self.torch, args)
        given = self.numbers(args)
        if any(isinstance(n, int) and abs(n) > FAR for n in given):  # only a number that another part read
            return self._by_torch(self.whole.forward, args)
        tensors = [args[i].permute(self.orders[i]) if i in self.orders else args[i] for i in self.wanted]
        outputs = list(self.run([*tensors, *map(number_tensor, given)]))
        if self.views is not None:
            viewed = (as_traced(self.traced[i], args[i]) for i in self.views.inputs)
            outputs = list(self.views.make(*viewed, *outputs))
        args.clear()
        return outputs

    def _by_torch(self, run: Callable[..., Any], args: list[Any]) -> list[Any]:
        """Run the graph by PyTorch, whose views need the strides that it was traced with."""
        outputs = [*run(*map(as_traced, self.traced, args))]
        args.clear()
        return outputs

    def _takes(self, args: Sequence[Any]) -> bool:
        """Tell if the constants are known before the first call."""
        if self.static and len(args) != len(self.inputs):
            return False
        arrays = (args[i] for i in self.static)
        return all(isinstance(a, torch.Tensor) and not isinstance(a, FakeTensor) for a in arrays)

    def _compile_or_part(self, args: Sequence[Any]) -> None:
        """Compile the graph, or the parts between nodes that can't be compiled."""
        if without := unknown(self.whole):
            self._part(args, without)
            return
        try:
            self._compile(args)
        except Exception as error:  # PyTorch can run the graph, whatever the error is
            self._leave(args, error)

    def _leave(self, args: Sequence[Any], error: Exception) -> None:
        """Leave the nodes that can't be compiled to PyTorch, or else the whole graph."""
        if without := refused(self.whole, self._held(args), self.env):
            self._part(args, without)
        else:
            _say_once("a graph", error)
            self.torch = self.whole.forward

    def _held(self, args: Sequence[Any]) -> dict[str, torch.Tensor]:
        return {self.inputs[i].name: args[i] for i in self.static}

    def _part(self, args: Sequence[Any], without: Mapping[torch.fx.Node, Exception]) -> None:
        """Split the graph at the nodes `without`, which PyTorch runs. A warning names their operators, except
        for masks of dropout and checks of sizes, which are always PyTorch's."""
        for node, problem in without.items():
            if is_said(node):
                _say_once(str(node.target), problem)
        held = self._held(args)
        parts: list[tuple[_Compiled, list[Any]]] = []

        def compiled(part: torch.fx.GraphModule, places: Mapping[int, str], hidden: set[int]) -> _Compiled:
            static = [i for i, name in places.items() if name in held]
            compiled_part = _Compiled(part, static, self.options, hidden)
            parts.append(
                (compiled_part, [held.get(places.get(i, "")) for i in range(len(compiled_part.inputs))])
            )
            return compiled_part

        self.torch = split(self.whole, without, compiled, self.hidden).forward
        for part, held_values in parts:
            part.settle(held_values)

    def _compile(self, args: Sequence[Any]) -> None:
        if not self.parted:
            self._part_views(args)
        self.times += 1
        if self.times > STEADY:
            self.static = []
        held = self._held(args)
        self.run, self.wanted, self.numbers = self._compiled(held)
        self.counted = [i for i in self.static if not args[i].is_inference()]
        self.versions = [args[i]._version for i in self.counted]
        self.addresses = [args[i].data_ptr() for i in self.static]

    def _part_views(self, args: Sequence[Any]) -> None:
        """Leave views of results to PyTorch, and choose the order of axes in memory where nobody sees it."""
        self.views = part_views(self.graph, channels_last(self.graph.graph, self.hidden))
        if self.env is None and not self.static:
            self.orders = read_as_they_lie(self.graph.graph, self.inputs, args)
        self.parted = True

    def _compiled(self, held: Mapping[str, torch.Tensor]) -> tuple[Run, list[int], Numbers]:
        """Compile the graph. Return the function that runs it, the positions of the inputs that it takes, and
        a function that computes its further inputs. Those are numbers that PyTorch computes from sizes."""
        if not next(iter(reversed(self.graph.graph.nodes))).args[0]:
            return lambda _: (), [], lambda _: []
        self.sizes = Sizes({}, {}, self.env)
        traced = traced_graph(self.graph.graph, held, self.sizes)
        own_numbers = numbers(traced.given, self.inputs)
        executable = jangin.compile(traced.model, **self.options)
        places = {node.name: i for i, node in enumerate(self.inputs)}
        taken = executable.inputs[: len(executable.inputs) - len(traced.given)]
        as_many = executable.threads == torch.get_num_threads()  # others would be started in each call
        run = on_tensors(executable, lender() if self.lent and as_many else None)
        return run, [places[i.name] for i in taken], own_numbers


def _marked(env: Any) -> set[Any]:
    """Return the symbols of sizes that must not become constants, such as those of `mark_dynamic`."""
    symbols: set[Any] = set()
    for tracked in getattr(env, "tracked_fakes", None) or ():
        limits = getattr(tracked.symbolic_context, "constraint_sizes", None) or ()
        sizes = getattr(tracked.fake, "shape", ())
        for size, limit in zip(sizes, limits, strict=False):
            strict = limit is not None and not getattr(limit, "warn_only", False)
            if strict and isinstance(size, torch.SymInt):
                symbols |= size.node.expr.free_symbols
    return symbols


def _sizes(node: torch.fx.Node) -> list[torch.SymInt]:
    """Return the symbolic integers of a graph's input whose values PyTorch knows when it compiles."""
    return [s for s in _symbolic(node) if isinstance(s, torch.SymInt) and not has_free_unbacked_symbols(s)]


def _symbolic(node: torch.fx.Node) -> list[Any]:
    """Return the symbolic numbers of a graph's input: the input itself, or a tensor's sizes, strides and
    offset."""
    value = node.meta.get("val")
    parts: tuple[Any, ...] = (value,)
    if isinstance(value, torch.Tensor):
        parts = *value.shape, *value.stride(), value.storage_offset()
    return [p for p in parts if isinstance(p, (torch.SymInt, torch.SymFloat))]
