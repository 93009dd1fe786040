"""Schedules the kernels of a fused graph. Each different kernel is a job, which is carried out once."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from jangin.backends.backend import backend_of
from jangin.compiler.cache import key
from jangin.ir import limits
from jangin.ir.core import Kernel, LoopNest
from jangin.ir.expr import Buffer, Expr, Var, const
from jangin.ir.graph import CompileError, Graph, Node
from jangin.ir.loop import Func, Store, statements
from jangin.ir.records import dataclass
from jangin.ir.simplify import Range, interval, simplify, terms
from jangin.ir.sources import NO_SOURCE, Sources
from jangin.ir.te import Stage
from jangin.ir.text import print_func, print_ranges
from jangin.ir.traversal import free_vars, loads, substitute
from jangin.ir.verify import checked, verify_func
from jangin.libraries import candidates as library_kernels
from jangin.options import Options
from jangin.passes.fusion.stages import (
    canonical,
    is_opaque,
    opaque_func,
    opaque_params,
    opaque_stages,
    stages,
    structure,
    with_symbols,
)
from jangin.passes.memory.updates import Pairs, overwritten, pairs_of, updating
from jangin.passes.memory.views import (
    Part,
    func_over_wholes,
    parameter_parts,
    stages_over_wholes,
    views,
)
from jangin.passes.work import nest_work, stages_work
from jangin.runtime.libraries import FINDERS
from jangin.schedule.checks import ScheduleError
from jangin.templates.choose import Match, candidates, choose, opaque
from jangin.templates.scheduled import Scheduled
from jangin.templates.template import Candidate, Template, Workload

Chosen = Mapping[str, tuple[Scheduled, tuple[str, ...]]]
"""For each kernel node, by the name of its first result: the scheduled kernel, and the names of its
arguments."""

FUNCTION_DIGITS = 24
"""A function's name contains this many hexadecimal digits of its kernel's identity. Their 96 bits are enough
to be unique: among a billion kernels, two are equal by chance once in 10^11 times."""

MANY = 4
"""The most symbols in a sum that a kernel keeps as its size. A longer sum becomes one new symbol, so that
kernels don't grow with the number of concatenated tensors."""

STORE_SECONDS = 0.0038
"""Estimated seconds to make and compile a loop nest, for each of its stores. Measured on a Zen 3 processor:
the mean of Winograd's transforms of SqueezeNet and of a text detector."""
STAGES_SECONDS, PRODUCT_SECONDS = 0.025, 0.06
"""Estimated seconds to make and compile a kernel of tensor expressions. The second number is added if it sums
products. Measured on a Zen 3 processor: means of MobileNetV2, SqueezeNet, MiniLM and a text detector. Most
kernels take between half and twice the mean."""


@dataclass(frozen=True)
class Job:
    """A job that makes one kernel. `name` is the kernel's name in this model.

    `identity` is a digest of everything that determines the result: tensor expressions or nest, ranges of
    sizes, candidate and target. Equal kernels of different models have the same identity. `seconds` estimates
    the time for the kernel and its code. `sources` are the first nodes of the model that it computes."""

    name: str
    identity: str
    make: Callable[[], Scheduled]
    seconds: float = 1.0
    sources: Sources = NO_SOURCE

    def __call__(self) -> Scheduled:
        limits.at(self.sources)
        try:
            return replace(self.make(), function=self.function)
        except ScheduleError as error:
            defect = "a schedule doesn't fit its kernel, a defect of Jangin: report it with the model"
            raise CompileError(f"{self.sources or self.name}: {error}; {defect}") from error

    @property
    def function(self) -> str:
        """The exported name of the kernel's code. It doesn't depend on the model, so that other models can
        share the code."""
        return f"k_{self.identity[:FUNCTION_DIGITS]}"


def schedule_kernels(
    graph: Graph, options: Options, make: Callable[[Sequence[Job]], Sequence[Scheduled]] | None = None
) -> Chosen:
    """Schedule every kernel of a fused graph, once for equal ones. `make` carries out the jobs; by default
    they run here, one after another."""
    jobs = _Jobs(graph, options)
    wanted = {n.outputs[0]: jobs.add(n) for n in graph.nodes if n.op == "kernel"}
    todo = [*jobs.by_text.values()]
    kernels = dict(zip(jobs.by_text, make(todo) if make else [job() for job in todo], strict=True))
    return {
        result: (replace(kernels[text], sizes=jobs.sizes.get(result, {})), args)
        for result, (text, args) in wanted.items()
    }


class _Jobs:
    """Collects the jobs that make a graph's kernels. `by_text` maps a kernel's text to its job; equal kernels
    have the same text. `sizes` maps a kernel's result to the graph's expressions for the kernel's symbols."""

    def __init__(self, graph: Graph, options: Options) -> None:
        self.graph, self.options = graph, options
        self.found = views(graph)
        self.updates = {**graph.updates, **overwritten(graph)}
        self.by_text: dict[str, Job] = {}
        self.nests: dict[object, str] = {}
        self.equal: dict[Hashable, tuple[str, Mapping[Var, Expr]]] = {}
        self.sizes: dict[str, Mapping[Var, Expr]] = {}

    def add(self, node: Node) -> tuple[str, tuple[str, ...]]:
        """Add the job that makes the node's kernel, unless an equal kernel has one. Return the job's key in
        `by_text` and the names of the kernel's arguments. A view is replaced by the value whose memory it
        uses."""
        limits.at(node.source)
        name = f"{_kernel_name(node)}_{len(self.by_text)}"
        text, args = (self._nest if is_opaque(node) else self._stages)(node, name)
        return text, tuple(self.found[n].base if n in self.found else n for n in args)

    def _nest(self, node: Node, name: str) -> tuple[str, tuple[str, ...]]:
        """Add the job of a loop nest, and return its key and arguments. Nodes whose nest is the same object
        share its text, because printing takes long."""
        graph, params, args = self.graph, opaque_params(node), (*node.inputs, node.outputs[0])
        parts = parameter_parts(params[:-1], params[-1:], args, self.found, graph)
        body = node.of(Kernel).body
        alone = id(body.nodes[0].of(LoopNest).body) if len(body.nodes) == 1 else node.name
        known = alone, params, tuple(body.symbols.items()), _wholes(parts)
        if known not in self.nests:
            func = replace(func_over_wholes(opaque_func(node), parts), name=name)
            text = self.nests[known] = print_func(replace(func, name="nest"))
            fixed = [p.name for p, i in zip(params, node.inputs, strict=False) if i in graph.constants]
            symbols, target = dict(func.symbols), self.options.target
            workload = Workload(name, opaque_stages(node), func.inputs, symbols, fixed, target)
            stores = sum(isinstance(s, Store) for s in statements(func.body))
            make = partial(_nest, func, params, workload, self.options)
            self._job(text, node, workload, None, make, stores * STORE_SECONDS)
        return self.nests[known], args

    def _stages(self, node: Node, name: str) -> tuple[str, tuple[str, ...]]:
        """Add the job of tensor expressions, and return its key and arguments. Kernels of equal structure
        share a job, unless they access views. Comparing structures is quick."""
        args = (*node.of(Kernel).body.inputs, *node.outputs)
        plain = not any(n in self.found for n in args)
        fixed = tuple(n in self.graph.constants for n in args)
        known = (structure(node), fixed, pairs_of(node, self.updates)) if plain else node.outputs
        if known not in self.equal:
            self.equal[known] = self._made(node, name)
        text, sizes = self.equal[known]
        if sizes:
            self.sizes[node.outputs[0]] = sizes
        return text, args

    def _made(self, node: Node, name: str) -> tuple[str, Mapping[Var, Expr]]:
        """Add a kernel's job. Return its key, and the graph's expressions for the kernel's symbols."""
        graph, options = self.graph, self.options
        text, workload, args = kernel_workload(node, graph, options, name)
        candidate, pairs = options.choices.get(text), pairs_of(node, self.updates)
        if parts := parameter_parts(workload.inputs, workload.results, args, self.found, graph):
            workload = _over_wholes(workload, parts, graph.symbols)
            text += _wholes(parts)
        workload, sums = _over_sums(workload)
        sizes: dict[Var, Expr] = {}
        if names := _canonical_sizes(workload, {*graph.symbols, *sums}):
            text, workload = _over_sizes(workload, names)
            sizes = {new: sums.get(old, old) for old, new in names.items()}
        text += f" updates {pairs}" if pairs else ""
        make = partial(_kernel, workload, options, candidate, pairs)
        self._job(text, node, workload, candidate, make, _seconds(workload.stages))
        return text, sizes

    def _job(
        self,
        text: str,
        node: Node,
        workload: Workload,
        candidate: Candidate | None,
        make: Callable[[], Scheduled],
        seconds: float,
    ) -> None:
        if text not in self.by_text:
            identity = _identity(text, workload, candidate, self.options)
            self.by_text[text] = Job(workload.name, identity, make, seconds, node.source)


def _seconds(stages: Sequence[Stage]) -> float:
    """Return the estimated seconds to make a kernel of these stages. Kernels with several sums of products
    take longer than their number tells, because one is tiled and unrolled inside another."""
    products = sum(bool(s.reduce_axes) and len(loads(s.body)) > 1 for s in stages)
    return STAGES_SECONDS + PRODUCT_SECONDS * products**2


def _identity(text: str, workload: Workload, candidate: Candidate | None, options: Options) -> str:
    ranges, constants = print_ranges(workload.symbols.items()), ",".join(workload.constants)
    return key([text, ranges, constants, str(candidate), options.libraries, repr(options.target)])


def _nest(func: Func, params: Sequence[Buffer], workload: Workload, options: Options) -> Scheduled:
    operations, moved = nest_work(replace(func, params=tuple(params)), workload.stages)
    return _verified(replace(opaque(func, workload), flops=operations, bytes=moved), options)


def _kernel(workload: Workload, options: Options, candidate: Candidate | None, pairs: Pairs) -> Scheduled:
    return _verified(updating(make_kernel(workload, options, candidate), pairs), options)


def _verified(kernel: Scheduled, options: Options) -> Scheduled:
    if options.verify:
        checked(f"the template {kernel.template}", verify_func, kernel.func)
        if kernel.call is not None and kernel.call.rest is not None:
            checked(f"the rest of {kernel.template}", verify_func, kernel.call.rest)
    return kernel


def _wholes(parts: Mapping[str, Part]) -> str:
    return "".join(f" {n}:{m.whole.shape}@{m.start}" for n, m in parts.items())


def _over_wholes(workload: Workload, parts: Mapping[str, Part], known: Mapping[Var, Range]) -> Workload:
    """Return the kernel, with each operand that is part of a larger buffer replaced by the whole buffer. The
    buffers' sizes may add symbols."""
    inputs = tuple(parts[b.name].whole if b.name in parts else b for b in workload.inputs)
    sizes = used_symbols((), [part.whole for part in parts.values()], known)
    symbols = {**sizes, **workload.symbols}
    for part in parts.values():
        symbols |= part.symbols
    return replace(
        workload, stages=stages_over_wholes(workload.stages, parts), inputs=inputs, symbols=symbols
    )


def _over_sums(workload: Workload) -> tuple[Workload, dict[Var, Expr]]:
    """Replace each input size that is a sum of more than `MANY` symbols by one new symbol. Return the kernel
    and the new symbols' sums. The kernel then doesn't grow with the number of tensors concatenated before
    it."""
    sums: dict[Var, Expr] = {}
    values: dict[Var, Expr] = {}
    symbols = dict(workload.symbols)
    for size in dict.fromkeys(d for b in workload.inputs for d in b.shape if len(free_vars(d)) > MANY):
        left = simplify(substitute(size, values))
        member = _member(left, workload.symbols)
        if member is None or len(free_vars(left)) <= MANY:
            continue
        own = Var(f"sum{len(sums)}")
        low, high = interval(size, workload.symbols)
        symbols[own] = (None if low is None else const(low), None if high is None else const(high))
        value = {member: own - (left - member)}
        values = {v: simplify(substitute(e, value)) for v, e in values.items()} | value
        sums[own] = size
    if not sums:
        return workload, sums
    stages, inputs = with_symbols(workload.stages, workload.inputs, values, symbols)
    symbols = used_symbols(stages, (*inputs, *(s.out for s in stages[-workload.outputs :])), symbols)
    return replace(workload, stages=stages, inputs=inputs, symbols=symbols), sums


def _member(size: Expr, symbols: Container[Var]) -> Var | None:
    """Return a symbol that is a term of a size by itself, with coefficient 1, and occurs in no other term.
    Return None if there is none."""
    for coefficient, atoms in terms(size):
        var = atoms[0] if len(atoms) == 1 else None
        if coefficient == 1 and isinstance(var, Var) and var in symbols:
            return None if var in free_vars(simplify(size - var)) else var
    return None


def _canonical_sizes(workload: Workload, symbols: Collection[Var]) -> dict[Var, Var]:
    """Return canonical names (size0, size1, ...) for the graph's symbols that a kernel mentions, in the order
    of mention."""
    own = [v for v in workload.symbols if v in symbols]
    buffers = (*workload.inputs, *(s.out for s in workload.stages))
    mentions = [v for b in buffers for d in b.shape for v in own if v in free_vars(d)]
    return {v: Var(f"size{i}") for i, v in enumerate(dict.fromkeys((*mentions, *own)))}


def _over_sizes(workload: Workload, names: Mapping[Var, Var]) -> tuple[str, Workload]:
    """Rename the kernel's symbols, and return its text and the kernel. Kernels that differ only in the names
    of their sizes get the same text."""

    def bound(e: Expr | None) -> Expr | None:
        return None if e is None else substitute(e, names)

    ranges = {new: workload.symbols[v] for v, new in names.items()} | {
        v: r for v, r in workload.symbols.items() if v not in names
    }
    symbols = {v: (bound(low), bound(high)) for v, (low, high) in ranges.items()}
    stages, inputs = with_symbols(workload.stages, workload.inputs, names, symbols)
    workload = replace(workload, stages=stages, inputs=inputs, symbols=symbols)
    text = f"{canonical(stages, inputs, workload.results, symbols)[3]}:{','.join(workload.constants)}"
    return "".join([text, *(f"@{s.at}" for s in stages if s.at)]), workload


def kernel_workload(
    node: Node, graph: Graph, options: Options, name: str = "kernel"
) -> tuple[str, Workload, tuple[str, ...]]:
    """Return the digest, the workload and the argument names of a kernel that isn't a loop nest. Equal
    kernels have the same digest."""
    parts, inputs, results = stages(node)
    symbols = used_symbols(parts, (*inputs, *results), graph.symbols)
    renamed, params, _, digest = canonical(parts, inputs, results, symbols)
    fixed = tuple(p.name for p, b in zip(params, inputs, strict=True) if b.name in graph.constants)
    workload = Workload(name, renamed, params, symbols, fixed, options.target, len(results))
    return f"{digest}:{','.join(fixed)}", workload, tuple(b.name for b in (*inputs, *results))


def make_kernel(workload: Workload, options: Options, candidate: Candidate | None = None) -> Scheduled:
    """Return the kernel that the candidate makes, with the numbers of its operations and moved bytes.

    Without a candidate, or if it doesn't fit, a library that the options name makes the kernel if it can.
    Otherwise the template with the least estimated time makes it."""
    called, templates = _library_kernels(workload, options), _templates(options)
    if called and candidate is None and not FINDERS.keys().isdisjoint(options.libraries.split(",")):
        candidate = Candidate(called[0].name, called[0].space()[0])
    p = workload
    operations, moved = stages_work(p.stages, p.inputs, p.symbols, p.outputs)
    return replace(choose(p, candidate, called, templates), flops=operations, bytes=moved)


def kernel_candidates(workload: Workload, options: Options) -> list[tuple[Candidate, float]]:
    """Return all candidates for a kernel with their estimated seconds, the quickest first. They come from
    templates and from the libraries that the options allow."""
    return candidates(workload, _library_kernels(workload, options), _templates(options))


def _templates(options: Options) -> Mapping[str, Match]:
    return backend_of(options.target).templates(options.target)


def _library_kernels(workload: Workload, options: Options) -> list[Template]:
    return library_kernels(workload, options.libraries, backend_of(options.target).libraries)


def _kernel_name(node: Node) -> str:
    """Return a C identifier made from the node's name, at most 42 characters long."""
    text = "".join(c if c.isalnum() and c.isascii() else "_" for c in node.name)
    return f"k_{text[:40]}"


def used_symbols(
    parts: Sequence[Any], buffers: Sequence[Buffer], symbols: Mapping[Var, Range]
) -> dict[Var, Range]:
    """Return the size symbols, with their ranges, that a kernel's stages or buffers mention, in the order of
    `symbols`."""
    exprs = [d for b in buffers for d in b.shape]
    for stage in parts:
        exprs += [stage.body, stage.result, *(a.extent for a in (*stage.axes, *stage.reduce_axes))]
    mentions = frozenset[Var]().union(*map(free_vars, exprs))
    return {v: r for v, r in symbols.items() if v in mentions}
