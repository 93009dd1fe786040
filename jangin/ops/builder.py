"""Builds core graphs; operators lower themselves with it.

Every method adds at most one core node, and folds it if all inputs are constants. The known contents of small
integer tensors are kept in `Tensor.data`. Chains of Shape, Gather, Concat and Reshape therefore vanish while
the graph is built.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ir import core
from jangin.ir.dtype import BOOL, F32, I32, I64, DType
from jangin.ir.expr import (
    Buffer,
    Const,
    Expr,
    ExprLike,
    Var,
    cast,
    const,
    eq,
    is_const,
    maximum,
    minimum,
    ne,
    select,
    wrap,
)
from jangin.ir.graph import MAX_SIZE, CompileError, Graph, Node, Shape, Value, static_shape
from jangin.ir.loop import Stmt
from jangin.ir.simplify import Range, prove, simplify
from jangin.ir.sources import Sources
from jangin.ir.te import Stage, compute, reduction
from jangin.ir.traversal import row_major, substitute
from jangin.ops.bounds import accesses, limits, parts
from jangin.ops.core import CORE
from jangin.ops.operands import broadcast
from jangin.ops.register_tiles import ANY_MACHINE, RegisterTile
from jangin.ops.values import DATA_LIMIT, OwnGradient, Tensor, Values, object_array

MOST_SYMBOLIC = 8
"""Most inputs of unknown sizes that one kernel concatenates. Each input finds its place among sums of
sizes, so the kernel grows with the square of their number."""
LARGEST_KNOWN, MOST_OF_PRODUCT = 1000, 20_000
"""The most parts of an expression whose tensor's contents are followed, and the largest product of its
operands' numbers of parts. When multiplied out, a product of sums may have as many parts. Contents beyond
these limits are computed at run time."""
MOST_JOINED = 256
"""Most inputs of known sizes that one kernel concatenates. The kernel has one nested choice an input, and
compilers' time grows with the nesting."""
FAR = 1 << 62
"""Positions from here on, if computed at run time, mean the end of their axis. An i64 has room for a size on
top."""


class Builder(Values):
    """The editor that lowers imported nodes.

    `source`, `results` and `scope` are set for the current imported node: its name for messages, its number
    of outputs, and the values it may name. `unchecked`: runs don't check indices. `whole`: the graph is
    written, not run, so recurrences and suppressions stay single nodes that call a function of the same name
    (`ops.nontensor.host`). `layers`: the graph is interpreted, so recurrences call the functions of
    `ops.layers`. `trained`: operators that are random in training draw from an input
    (`ops.dropout`).
    """

    def __init__(
        self,
        name: str,
        symbols: Mapping[Var, Range],
        tile: RegisterTile = ANY_MACHINE,
        unchecked: bool = False,
        whole: bool = False,
        trained: bool = False,
        layers: bool = False,
    ) -> None:
        super().__init__(symbols)
        self.name = name
        self.tile, self.unchecked, self.whole, self.trained = tile, unchecked, whole, trained
        self.layers = layers
        self.draws: list[str] = []
        """The input that random numbers follow from, once for each node that draws some."""
        self.own_gradients: list[OwnGradient] = []
        """Uses of operators with gradients of their own, in the order of the nodes."""
        self.results = 1
        self.bound: dict[tuple[str, bool], list[Var]] = {}
        self.conditions: dict[str, Expr] = {}
        """Single truth values that depend on sizes alone, as expressions by tensor name."""
        self.scope: Mapping[str, Any] = {}

    # -- values ---------------------------------------------------------------------------------

    def require_sizes(
        self, t: Tensor | None, what: str, low: int = 0, *, positions: bool = False
    ) -> list[Expr]:
        """Return a 1-D integer tensor's contents as expressions.

        Contents that are computed at run time become symbols. A run checks that they are from `low` to
        MAX_SIZE; `positions` may have any value and sign. Raises CompileError if not even their number is
        known. Messages call the contents `what`.
        """
        known = t.data if t is not None and t.data is not None else self.constant_value(t)
        if known is not None:
            sizes = [wrap(v) for v in known.reshape(-1).tolist()]
            beyond = [d for d in sizes if isinstance(d, Const) and abs(d.value) > FAR and not positions]
            if beyond:
                raise CompileError(f"{what}: no tensor has a size of {beyond[0]}")
            return sizes
        if t is None or not t.dtype.is_int or static_shape(t.shape) is None:
            raise CompileError(f"the number of {what} must be known; here it is computed at run time ({t})")
        parts = self.joined(t)
        if parts:
            return [d for p in parts for d in self.require_sizes(p, what, low, positions=positions)]
        return self.bind(t, low, positions=positions)

    def bind(self, t: Tensor, low: int = 0, *, positions: bool = False) -> list[Expr]:
        """Return the elements of an integer tensor of static shape as symbols, whose values a run reads once
        they are computed. Sizes must be from `low` to MAX_SIZE. `positions` are clamped to within FAR of
        0."""
        key = (t.name, positions)
        done = self.bound.get(key)
        if done is None:
            count = math.prod(static_shape(t.shape) or ())
            if count > DATA_LIMIT:
                raise CompileError(f"{t} has too many elements to be sizes")
            limits = (-FAR, FAR) if positions else (low, MAX_SIZE)
            whole = self.cast(t, I64)
            source = self.map(lambda v: minimum(maximum(v, -FAR), FAR), whole) if positions else whole
            source = self.materialize(source)
            done = self.bound[key] = [self.symbol(*limits) for _ in range(count)]
            self.step(core.BindStep(), [source.name], [])
        return list(done)

    def materialize(self, t: Tensor) -> Tensor:
        """Return the tensor as a value of the graph: known contents become a constant or a node."""
        if t.name:
            return t
        assert t.data is not None
        value = self.constant_value(t)
        if value is not None:
            return self.const(value)
        out = Buffer("out", t.dtype, t.shape)
        flat = list(t.data.flat)

        def at(*index: Expr) -> Expr:
            position = row_major(index, t.shape)
            body: Expr = flat[-1]
            for n in reversed(range(len(flat) - 1)):
                body = select(eq(position, n), flat[n], body)
            return cast(t.dtype, body)

        tensor = self.node(core.Compute((compute(out, at),)), ())
        self.known[tensor.name] = t.data
        return tensor

    # -- nodes ----------------------------------------------------------------------------------

    def node(self, attrs: core.CoreAttributes, inputs: Sequence[Tensor]) -> Tensor:
        """Add a core node, or fold it, and return its result. The result's type comes from the operator's
        inference."""
        real = [self.materialize(t) for t in inputs]
        for part in parts(attrs):
            self._check_accesses(part, real)
        name = self.add(attrs, [t.name for t in real], self.prefix, self.source, fold=True)
        return self._constant_tensor(name) if name in self.constants else Tensor(name, *self.typed(name))

    def _check_accesses(self, part: Stage | Stmt, inputs: Sequence[Tensor]) -> None:
        """Raise CompileError if an input's rank or size isn't the one that the operator reads."""
        tensors = {f"x{i}": t for i, t in enumerate(inputs)}
        for load in accesses(part):
            tensor, shape = tensors.get(load.buffer.name), load.buffer.shape
            if len(load.index) != len(shape) or (tensor is not None and len(shape) != tensor.rank):
                what = tensor or f"a buffer of rank {len(shape)}"
                raise CompileError(f"{what} should be of rank {len(load.index)}")
            for declared, real in zip(shape, tensor.shape if tensor else shape, strict=True):
                if prove(ne(declared, real), self.symbols):
                    raise CompileError(f"{tensor} should have {declared} entries where it has {real}")
        for needed, there in limits(part):
            if prove(needed > there, self.symbols):
                raise CompileError(
                    f"the shapes don't fit: {needed} entries are needed along an axis of {there}"
                )

    def map(self, fn: Callable[..., ExprLike], *inputs: Tensor, corner: str | None = None) -> Tensor:
        """Apply `fn` to the elements of the inputs, which broadcast. `fn` takes one scalar expression for
        each input; the expression that it returns has the result's dtype. `corner`: see `ir.core.Map`."""
        if all(t.data is not None for t in inputs) and inputs:
            known = self._map_data(fn, inputs)
            if known is not None:
                return known
        return self._mapped(fn, inputs, corner)

    def _mapped(
        self, fn: Callable[..., ExprLike], inputs: Sequence[Tensor], corner: str | None = None
    ) -> Tensor:
        operands = [Var(f"x{i}", t.dtype) for i, t in enumerate(inputs)]
        body = wrap(fn(*operands), inputs[0].dtype if inputs else F32)
        return self.node(core.Map(body, corner), self._broadcastable(inputs))

    def _broadcastable(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Return the inputs, reshaped to broadcast. A size that can't equal the result's must be 1, which a
        run checks."""
        out = broadcast(*(t.shape for t in inputs))

        def fitted(t: Tensor) -> Tensor:
            pairs = list(zip(t.shape, out[len(out) - t.rank :], strict=True))
            ones = [d != o and not is_const(d) and prove(ne(d, o), self.symbols) for d, o in pairs]
            dims = [const(1) if one else d for one, d in zip(ones, t.shape, strict=True)]
            return self.reshape(t, dims) if any(ones) else t

        return [fitted(t) for t in inputs]

    def _map_data(self, fn: Callable[..., ExprLike], inputs: Sequence[Tensor]) -> Tensor | None:
        """Return the map of tensors of known contents, or None if the result isn't an integer or has too
        large expressions. The result's contents stay known."""
        operands = [Var(f"x{i}", t.dtype) for i, t in enumerate(inputs)]
        body = wrap(fn(*operands), inputs[0].dtype)
        if body.dtype not in (I64, I32, BOOL) or any(t.dtype is not I64 for t in inputs):
            return None
        arrays = np.broadcast_arrays(*[t.data for t in inputs if t.data is not None])
        out = np.empty(arrays[0].shape, object)
        for at in np.ndindex(out.shape):
            known: dict[Var, Any] = {v: a[at] for v, a in zip(operands, arrays, strict=True)}
            if math.prod(e.size for e in known.values()) > MOST_OF_PRODUCT:
                return None
            out[at] = simplify(substitute(body, known), self.symbols)
            if out[at].size > LARGEST_KNOWN or (out.size > DATA_LIMIT and not isinstance(out[at], Const)):
                return None
        if body.dtype is BOOL:
            if not all(isinstance(e, Const) for e in out.flat):
                tensor = self._mapped(fn, inputs)
                if out.size == 1:
                    self.conditions[tensor.name] = out.flat[0]
                return tensor
            return self.const(np.array([e.value for e in out.flat], bool).reshape(out.shape))
        return self.sizes(out, body.dtype)

    def cast(self, x: Tensor, dtype: DType) -> Tensor:
        if x.dtype == dtype:
            return x
        if x.data is not None and dtype in (I64, I32):
            return Tensor("", dtype, x.shape, x.data)
        return self.map(lambda v: cast(dtype, v), x)

    def compute(
        self, dtype: DType, shape: Iterable[ExprLike], inputs: Sequence[Tensor], fn: Callable[..., Any]
    ) -> Tensor:
        """Return a tensor of injective elements: `fn(bufs, *index)` returns the element at an index. `bufs`
        are the inputs as buffers; indexing one loads from it."""
        real = [self.materialize(t) for t in inputs]
        bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(real)]
        out = Buffer("out", dtype, tuple(simplify(wrap(d), self.symbols) for d in shape))
        return self.stages([compute(out, lambda *index: fn(bufs, *index))], real)

    def reduction(
        self, dtype: DType, shape: Iterable[ExprLike], extents: Sequence[ExprLike], combiner: str,
        inputs: Sequence[Tensor], fn: Callable[..., Expr], epilogue: Callable[..., ExprLike] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return a tensor of reductions: `fn(bufs, index, k)` returns the term; see `te.reduction`."""
        real = [self.materialize(t) for t in inputs]
        bufs = [Buffer(f"x{i}", t.dtype, t.shape) for i, t in enumerate(real)]
        out = Buffer("out", dtype, tuple(simplify(wrap(d), self.symbols) for d in shape))
        stage = reduction(out, extents, combiner, lambda index, k: fn(bufs, index, k), epilogue)
        return self.stages([stage], real)

    def requiring(self, x: Tensor, condition: Expr) -> Tensor:
        """Return a copy of x, made by a kernel that refuses sizes that don't meet the condition."""
        x = self.materialize(x)
        source, out = Buffer("x0", x.dtype, x.shape), Buffer("out", x.dtype, x.shape)
        copy = compute(out, lambda *index: source[index])
        return self.node(core.Compute((copy,), (condition,)), [x])

    def stages(
        self, stages: Sequence[Stage], inputs: Sequence[Tensor], requires: Sequence[Expr] = ()
    ) -> Tensor:
        """Return the result of a `compute` node of several stages over buffers x0, x1, ...; it is the last
        stage. The sizes must meet the conditions `requires`."""
        return self.node(core.Compute(tuple(stages), tuple(requires)), inputs)

    def reduce(
        self, combiner: str, x: Tensor, axes: Sequence[int], keepdims: bool = False, ties: str | None = None
    ) -> Tensor:
        axes = tuple(sorted(a % max(x.rank, 1) for a in axes))
        if not axes:
            return x
        return self.node(core.Reduce(combiner, axes, keepdims, ties), [x])

    def matmul(
        self,
        a: Tensor,
        b: Tensor,
        *,
        transpose_a: bool = False,
        transpose_b: bool = False,
        dtype: DType | None = None,
    ) -> Tensor:
        """Return the batched matrix product of operands of rank 2 or more, whose batch dimensions
        broadcast."""
        return self.node(core.MatMul(transpose_a, transpose_b, dtype), [a, b])

    def conv(
        self,
        x: Tensor,
        w: Tensor,
        *,
        strides: Sequence[int],
        dilations: Sequence[int],
        pads: Sequence[int],
        groups: int = 1,
        dtype: DType | None = None,
    ) -> Tensor:
        """Return the convolution of x[N, C, ...] with w[M, C/groups, ...], whose kernel size is known.

        `pads`: begins of the spatial axes, then ends, none negative. `dtype`: of the result and the
        accumulator (for integers).
        """
        kernel = static_shape(w.shape[2:])
        if kernel is None:
            raise CompileError(f"the kernel size of a convolution must be known, its weights are {w}")
        attrs = core.Conv(kernel, tuple(strides), tuple(dilations), tuple(pads), groups, "first", dtype)
        return self.node(attrs, [x, w])

    def pool(
        self, x: Tensor, *, combiner: str, kernel: Sequence[int], strides: Sequence[int],
        dilations: Sequence[int], pads: Sequence[int], extents: Sequence[Expr], average: str = "",
        layout: str = "first",
    ) -> Tensor:  # fmt: skip
        """Return a reduction over sliding windows (see `ir.core.Pool`)."""
        window = tuple(kernel), tuple(strides), tuple(dilations), tuple(pads)
        return self.node(core.Pool(combiner, *window, tuple(extents), average, layout), [x])

    def loop_nest(
        self,
        inputs: Sequence[Tensor],
        body: Stmt,
        dtype: DType,
        shape: Sequence[Expr],
        requires: Sequence[Expr] = (),
    ) -> Tensor:
        """Return the result of an imperative nest over buffers x0, x1, ... and `out`. The sizes must meet the
        conditions `requires`."""
        return self.node(core.LoopNest(body, dtype, tuple(shape), tuple(requires)), inputs)

    def softmax(self, x: Tensor, axis: int, log: bool = False, blind: bool = False) -> Tensor:
        return self.node(core.Softmax(axis % x.rank, log, blind), [x])

    def normalize(self, x: Tensor, axes: Sequence[int], epsilon: float, rms: bool = False) -> Tensor:
        axes = tuple(sorted(a % x.rank for a in axes))
        return self.node(core.Normalize(axes, float(epsilon), rms), [x])

    # -- moving data ----------------------------------------------------------------------------

    def reshape(self, x: Tensor, shape: Iterable[ExprLike]) -> Tensor:
        """Return the same elements in another shape. Every dimension is given; -1 isn't allowed."""
        dims = tuple(simplify(wrap(d), self.symbols) for d in shape)
        if dims == x.shape:
            return x
        if x.data is not None and (size := static_shape(dims)) is not None:
            return Tensor(
                "" if not x.name else self._reshaped(x, dims).name, x.dtype, dims, x.data.reshape(size)
            )
        return self._reshaped(x, dims)

    def _reshaped(self, x: Tensor, dims: Shape) -> Tensor:
        old, new = static_shape(x.shape), static_shape(dims)
        if old is not None and new is not None and math.prod(old) != math.prod(new):
            to = ", ".join(map(str, dims))
            raise CompileError(
                f"{x} can't be reshaped to [{to}]: it has {math.prod(old)} elements, not {math.prod(new)}"
            )
        return self.node(core.Reshape(dims), [x])

    def transpose(self, x: Tensor, perm: Sequence[int]) -> Tensor:
        if list(perm) == list(range(x.rank)):
            return x
        if x.data is not None:
            return self.sizes(np.transpose(x.data, perm), x.dtype)
        return self.node(core.Transpose(tuple(perm)), [x])

    def expand(self, x: Tensor, shape: Sequence[ExprLike]) -> Tensor:
        """Return x broadcast to `shape`, as numpy.broadcast_to does."""
        dims = tuple(simplify(wrap(d), self.symbols) for d in shape)
        if dims == x.shape:
            return x
        size = static_shape(dims)
        if x.data is not None and size is not None and math.prod(size) <= DATA_LIMIT:
            return self.sizes(np.broadcast_to(x.data, size).copy(), x.dtype)
        return self.node(core.Expand(dims), [x])

    def slice(
        self, x: Tensor, starts: Sequence[ExprLike], shape: Sequence[ExprLike], steps: Sequence[int]
    ) -> Tensor:
        """Return a slice: element i of each axis is x[starts + i * steps]. There is one entry an axis, starts
        are in range, and the result's shape is given."""
        begin = tuple(simplify(wrap(s), self.symbols) for s in starts)
        dims = tuple(simplify(wrap(d), self.symbols) for d in shape)
        if dims == x.shape and all(is_const(s, 0) for s in begin) and all(s == 1 for s in steps):
            return x
        at, size = static_shape(begin), static_shape(dims)
        if x.data is not None and at is not None and size is not None:
            index = [[s + i * t for i in range(n)] for s, n, t in zip(at, size, steps, strict=True)]
            return self.sizes(x.data[np.ix_(*index)] if index else x.data, x.dtype)
        return self.node(core.Slice(begin, tuple(steps), dims), [x])

    def concat(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        axis %= xs[0].rank
        xs = [x for x in xs if not is_const(x.shape[axis], 0)] or list(xs[:1])
        if len(xs) == 1:
            return xs[0]
        if all(x.data is not None for x in xs):
            return self.sizes(np.concatenate([x.data for x in xs if x.data is not None], axis), xs[0].dtype)
        unknown = sum(not isinstance(x.shape[axis], Const) for x in xs) > MOST_SYMBOLIC
        most = MOST_SYMBOLIC if unknown else MOST_JOINED
        if len(xs) > most:
            groups = [xs[i : i + most] for i in range(0, len(xs), most)]
            return self.concat([self._concat_alone(g, axis) for g in groups], axis)
        return self.node(core.Concat(axis), xs)

    def _concat_alone(self, xs: Sequence[Tensor], axis: int) -> Tensor:
        """Return a concatenation as its own kernel, so that no consumer computes it again."""
        real, attrs = [self.materialize(x) for x in xs], core.Concat(axis)
        dtype, shape = self.infer(attrs, [x.name for x in real])
        buffers = [Buffer(f"x{i}", x.dtype, x.shape) for i, x in enumerate(real)]
        pairs = [
            (d, o) for x in real for i, (d, o) in enumerate(zip(x.shape, shape, strict=True)) if i != axis
        ]
        fits = tuple(eq(d, o) for d, o in pairs if d != o)
        return self.node(
            core.Compute(CORE[attrs.op].te(buffers, Buffer("out", dtype, shape), attrs), fits), real
        )

    def pad(self, x: Tensor, pads: Sequence[ExprLike], mode: str = "constant", value: float = 0) -> Tensor:
        """Return x padded along every axis. `pads`: the numbers of elements before each axis, then those
        after each. `mode`: as in `ir.core.Pad`. `value`: of the padding in mode "constant"."""
        amounts = tuple(wrap(p) for p in pads)
        if all(is_const(p, 0) for p in amounts):
            return x
        return self.node(core.Pad(amounts, mode, value), [x])

    def gather(self, x: Tensor, indices: Tensor, axis: int) -> Tensor:
        axis %= x.rank
        at = self.constant_value(indices)
        if x.data is not None and at is not None:
            size = x.data.shape[axis]
            if at.size and (at.min() < -size or at.max() >= size):
                raise CompileError(f"index {at.tolist()} is out of range for axis {axis} of {x}")
            taken = np.take(x.data, at.astype(np.int64) % max(size, 1), axis)
            whole = taken if isinstance(taken, np.ndarray) else object_array([taken]).reshape(())
            return self.sizes(whole, x.dtype)
        return self.node(core.Gather(axis), [x, indices])

    def graph(self, outputs: Sequence[Tensor], names: Sequence[str]) -> Graph:
        """Return the finished graph. Each output is its own value, with its name in the model."""
        results: list[str] = []
        for t, name in zip(outputs, names, strict=True):
            real = self.materialize(t)
            if real.name != name:
                self.values[name] = Value(name, real.dtype, real.shape)
                self.emit(
                    Node(name, (real.name,), (name,), core.Reshape(real.shape), Sources.of("graph output"))
                )
            results.append(name)
        whole = Graph(self.name, tuple(self.inputs), tuple(results), (), {}, {}, self.symbols)
        return self.rewritten(whole)
