"""Products of small integers in the form that the machine does best; their sums stay exact.

One instruction may add up two products of int16, or four of bytes (`Machine.products`). Operands are then
kept as int16 or as bytes. A product reads pairs or fours of their channels, or of their columns, as words. A
word is the same bytes as an i32, and has several terms of a sum. A product of integers then has the loops of
a product of f32, and a half or a quarter of the terms. Weights become words here.

8-bit numbers less a zero point may be out of the range of the instruction's bytes. An offset is then taken
from the numbers to bring them into the range. The offset times the weights' sum is added to the product.

Some instructions multiply two rows by two columns of eight bytes. A word then has eight bytes if the product
has several rows, and if words of eight bytes are fewer. With few channels, words of eight bytes may be no
fewer. `integer_readings` decides which numbers are in a word. `integer_words` decides which Product makes a
product.

Elsewhere a product is one of f32 if f32 holds its sums exactly. A product may also be the i32 sum of a few
products of f32 over runs of the terms. Multiply-adds of f32 are preferred because they are quicker than
multiply-adds of i32. If a multiply-add takes int16, depthwise convolutions use int16
(`Machine.wide_products`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add

import numpy as np

from jangin.ir.core import Concat, Conv, Map, MatMul, Pad, Reshape, Slice, Transpose
from jangin.ir.dtype import F32, I16, I32, U16, DType
from jangin.ir.expr import Cast, Expr, Var, cast, const
from jangin.ir.graph import Graph, Node, static_shape
from jangin.ir.simplify import simplify
from jangin.ir.sources import Sources
from jangin.ir.traversal import free_vars, rewrite, substitute
from jangin.ops.editor import Editor
from jangin.ops.numbers import Numbers
from jangin.passes.algebra.dce import dce
from jangin.passes.algebra.simplify_map import simplify_body
from jangin.passes.precision.clamped import in_integers
from jangin.passes.precision.integer_blocks import blocks_by_target
from jangin.passes.precision.integer_readings import axes, reading_of, words_of
from jangin.passes.precision.integer_words import Choice, Words, dot_of_floats, is_small, offset
from jangin.passes.precision.rescaled import by_factors
from jangin.targets.target import Target

EXACT = 1 << 24
"""f32 represents every whole number up to this one. Sums below are exact in f32, in any order."""
FEWEST_CHANNELS = 4
"""A depthwise convolution multiplies int16 if its channels are a multiple of this number. Vectors of 128 bits
have four lanes of i32, which these channels fill."""
MOST_STEPS = 64
"""Most expression nodes of consecutive maps that are merged to find a common factor. The search takes time
with the expression's size, and rescaling takes a few dozen nodes."""
MOST_RUNS = 16
"""Most f32 products into which one integer product is split, so that the sums of each are exact."""


def integers(graph: Graph, target: Target) -> Graph:
    """Return the graph with its products of integers of at most 16 bits in the form that the machine computes
    fastest."""
    graph = blocks_by_target(graph, target)
    if not any(is_small(node, graph) for node in graph.nodes):
        return graph
    graph = _narrowed_first(graph)
    words = Words(graph, target)
    chosen = words.choices()
    whole = {words.read(n.inputs[0])[0] for n in graph.nodes if _of_bytes(n, chosen)}
    if not target.machine.issue_bound:  # otherwise bytes take more instructions than int16
        whole |= words.bare(chosen)
    run = Integers(_offsets_kept(graph, whole), chosen, whole, target)
    for node in run.graph.nodes:
        run.visit(node)
    return dce(run.rewritten(graph))


def _narrowed_first(graph: Graph) -> Graph:
    """Return the graph with each quantizing map behind a Concat moved to the Concat's operands."""
    run, users, small = (
        Editor(graph.symbols, graph.values, graph.constants),
        graph.consumers(),
        graph.producers(),
    )

    def joined(node: Node) -> Node | None:
        """Return the Concat whose result only this narrowing map reads. Return None for any other node."""
        if not isinstance(node.attrs, Map) or len(node.inputs) != 1 or node.inputs[0] in graph.outputs:
            return None
        (name,), (out,) = node.inputs, node.outputs
        before, less = small.get(name), graph.dtype(out).bytes < graph.dtype(name).bytes
        alone = less and before is not None and isinstance(before.attrs, Concat) and len(users[name]) == 1
        return before if alone else None

    narrow = {n.outputs[0]: c for n in graph.nodes if (c := joined(n)) is not None}
    gone = {c.outputs[0] for c in narrow.values()}
    for node in graph.nodes:
        (out, *_) = node.outputs
        if out in narrow:
            parts = [run.add(node.of(Map), [p], f"{p}.small", node.source) for p in narrow[out].inputs]
            run.emit(replace(narrow[out], inputs=tuple(parts), outputs=node.outputs))
        elif out not in gone:
            run.emit(node)
    return run.rewritten(graph) if narrow else graph


# --- offsets ---------------------------------------------------------------------------------


def _of_bytes(node: Node, chosen: Mapping[str, Choice]) -> bool:
    return node.outputs[0] in chosen and chosen[node.outputs[0]].dot.of_bytes


def _offsets_kept(graph: Graph, whole: Collection[str]) -> Graph:
    """Return the graph with 8-bit numbers stored only as int16, less their zero point, if some node wants
    them in this form.

    Other readers add the zero point again. Numbers that are read as bytes (`whole`) stay unchanged.
    """
    run = Editor(graph.symbols, graph.values, graph.constants)
    users, defined = graph.consumers(), {o for n in graph.nodes for o in n.outputs if o not in whole}
    wanted: dict[str, Node] = {}
    for node in graph.nodes:
        if offset(node, graph) is not None and defined.issuperset(node.inputs):
            wanted.setdefault(node.inputs[0], node)
    wanted = {q: n for q, n in wanted.items() if len(users[q]) > 1 and q not in graph.outputs}
    if not wanted:
        return graph
    kept = {n.outputs[0] for n in wanted.values()}

    def read(name: str) -> str:
        if name not in wanted:
            return name
        (whole,), zero = wanted[name].outputs, offset(wanted[name], graph)
        body = cast(graph.dtype(name), Var("x0", I16) + const(zero or 0, I16))
        return run.add(Map(body), [whole], f"{name}.again", Sources.of(f"{name} again"))

    for node in graph.nodes:
        if node.outputs[0] in kept:
            continue
        run.emit(replace(node, inputs=tuple(map(read, node.inputs))))
        for name in node.outputs:
            if name in wanted:
                run.emit(wanted[name])
    return run.rewritten(graph)


class Integers(Editor):
    """One run over a graph.

    - `chosen`: the choice for each product of words, by result.
    - `whole`: numbers that are read as bytes.
    - `made`: values converted to other types or to words, by their origin.
    - `shifted`: (product, constant) of sums of a product and a constant.
    - `floats`: f32 twins of i32 sums, rounded unless they are in `exact`.
    """

    def __init__(
        self, graph: Graph, chosen: Mapping[str, Choice], whole: Collection[str], target: Target
    ) -> None:
        super().__init__(graph.symbols, graph.values, graph.constants)
        self.target = target
        self.graph, self.chosen, self.whole, self.producers = graph, chosen, whole, graph.producers()
        self.numbers, self.users = Numbers(self.constants, self.producers, self.dtype), graph.consumers()
        self.made: dict[object, str] = {}
        self.shifted: dict[str, tuple[str, str]] = {}
        self.exact: dict[str, str] = {}
        self.floats: dict[str, str] = {}

    def visit(self, node: Node) -> None:
        if isinstance(node.attrs, Map):
            self.emit(self.clamped(self.in_floats(self.rescaled(self.added(node)))))
        elif not is_small(node, self.graph):
            self.emit(node)
        elif node.outputs[0] in self.chosen:
            self.in_words(node, self.chosen[node.outputs[0]])
        elif dot_of_floats(node, self.graph):
            own = replace(node.of(Conv) if isinstance(node.attrs, Conv) else node.of(MatMul), dot=None)
            self.emit(replace(node, inputs=tuple(self.cast(n, F32) for n in node.inputs), attrs=own))
        elif self.target.machine.wide_products and _of_channels(node, self.graph):
            self.emit(replace(node, inputs=tuple(self.cast(n, I16) for n in node.inputs)))
        elif self.target.machine.floats:
            self.summed(node)
        else:
            self.emit(node)

    def cast(self, name: str, dtype: DType) -> str:
        """Return the value in another type."""
        return self.reduced(name, 0, dtype)

    def reduced(self, name: str, less: int, dtype: DType) -> str:
        """Return the value minus `less`, in another type."""
        if self.dtype(name) is dtype and not less:
            return name
        made_by = self.producers.get(name)
        alone = dtype.bits == 8 and len(self.users.get(name, ())) == 1
        if made_by is not None and offset(made_by, self.graph) == -less:
            (whole,) = made_by.inputs
            if (alone or whole in self.whole) and (self.dtype(whole) is dtype or not less):
                return self.reduced(whole, 0, dtype)
        key = name, less, dtype
        if key not in self.made:
            moves = _moves(made_by, less) if made_by is not None and alone else None
            if made_by is not None and moves is not None:
                parts = [self.reduced(part, less, dtype) for part in made_by.inputs]
                self.made[key] = self.add(moves, parts, f"{name}.{dtype}", made_by.source)
            elif name in self.constants:
                numbers = self.constants[name].astype(np.int64) - less if less else self.constants[name]
                self.made[key] = self.constant(numbers.astype(dtype.numpy), f"{name}.{dtype}")
            else:
                own = self.dtype(name)
                body = cast(dtype, Var("x0", own) - const(less, own) if less else Var("x0", own))
                self.made[key] = self.add(
                    Map(body), [name], f"{name}.{dtype}", Sources.of(f"{dtype} of {name}")
                )
        return self.made[key]

    # --- words

    def in_words(self, node: Node, choice: Choice) -> None:
        attrs, w, less, (_, of) = node.attrs, node.inputs[1], choice.less, axes(node, self.graph)
        inputs, own = reading_of(node, choice.dot, self.graph).operands(self, less)
        if not less:
            self.emit(replace(node, inputs=tuple(inputs), attrs=own))
            return
        (out,), known = node.outputs, self.constants[w].astype(np.int32)
        if isinstance(attrs, Conv):
            sums = known.sum(tuple(range(1, known.ndim)), dtype=np.int32)
        else:
            sums = known.sum(of, dtype=np.int32, keepdims=known.ndim > 2)
            sums = np.swapaxes(sums, -1, -2) if of == known.ndim - 1 and known.ndim > 2 else sums
        product = self.add(own, inputs, f"{out}.product", node.source)
        more = self.constant(sums * np.int32(less), f"{out}.more")
        self.shifted[out] = product, more
        self.emit(Node(out, (product, more), (out,), Map(Var("x0", I32) + Var("x1", I32)), node.source))

    def added(self, node: Node) -> Node:
        """Return the node with its constant addend merged with the constant that is added to a product
        already. Return other nodes unchanged."""
        (left, right), out = (node.inputs, node.outputs[0]) if len(node.inputs) == 2 else (("", ""), "")
        known = self.constants.get(right)
        if left not in self.shifted or known is None or node.of(Map).body != Var("x0", I32) + Var("x1", I32):
            return node
        product, more = self.shifted[left]
        return replace(node, inputs=(product, self.constant(known + self.constants[more], f"{out}.more")))

    def padded(self, name: str, pads: Sequence[int], value: int) -> str:
        """Return a channels-last image with a border of `value`, as wide as a convolution's `pads`."""
        key = name, tuple(pads), value
        if key not in self.made and self.by_words(name):
            self.made[key] = self.padded_words(name, pads, value)
        elif key not in self.made:
            begins, ends = pads[: len(pads) // 2], pads[len(pads) // 2 :]
            around = (const(0), *map(const, begins), const(0), const(0), *map(const, ends), const(0))
            self.made[key] = self.add(
                Pad(around, value=value), [name], f"{name}.padded", Sources.of(f"padded {name}")
            )
        return self.made[key]

    def by_words(self, name: str) -> bool:
        """Return whether a value of bytes is padded as words of four bytes. Its last axis must then be a
        multiple of four, so that no word spans two pixels."""
        few = self.target.machine.fusion.small_values and self.dtype(name).bits == 8
        return few and int(str(self.shape(name)[-1])) % I32.bytes == 0

    def padded_words(self, name: str, pads: Sequence[int], value: int) -> str:
        """Return the name of a value of bytes, padded as `padded` does it, but computed in words of four
        bytes."""
        dtype, (*around, channels) = self.dtype(name), self.shape(name)
        whole = (*around, simplify(channels // const(I32.bytes)))
        words = self.add(Reshape(whole, I32), [name], f"{name}.words", Sources.of(f"words of {name}"))
        word = int(np.full(I32.bytes, value, dtype.numpy).view(np.int32)[0])
        padded = self.padded(words, pads, word)
        count = (*self.shape(padded)[:-1], channels)
        return self.add(Reshape(count, dtype), [padded], f"{name}.padded", Sources.of(f"padded {name}"))

    def filled(self, name: str, narrow: str, more: int) -> str:
        """Return the bytes of a value with `more` zeros behind each row of the last axis."""
        if not more:
            return narrow
        pads = (*[const(0)] * (2 * len(self.shape(narrow)) - 1), const(more))
        return self.add(Pad(pads), [narrow], f"{name}.whole", Sources.of(f"whole {name}"))

    def words(self, name: str, axis: int, dtype: DType, word: DType, less: int = 0) -> str:
        """Return the numbers minus `less`, along an axis, packed into words of numbers of `dtype`; the last
        word is padded with 0.

        For a value that isn't constant, this axis becomes the last one.
        """
        key = name, word, axis, dtype, less
        if key not in self.made:
            if name in self.constants:
                known = self.constants[name]
                numbers = known.astype(np.int64) - less if less else known
                self.made[key] = self.constant(words_of(numbers, axis, dtype, word), f"{name}.words")
            else:
                self.made[key] = self.view(self.turned(name, axis, dtype), dtype, word, less)
        return self.made[key]

    def turned(self, name: str, axis: int, dtype: DType) -> str:
        """Return the value with an axis moved to the end. Integers are transposed as int16, which holds them
        after any subtraction."""
        rank = len(self.shape(name))
        if axis == rank - 1:
            return name
        perm = (*(a for a in range(rank) if a != axis), axis)
        return self.add(
            Transpose(perm),
            [self.cast(name, dtype if dtype.is_float else I16)],
            f"{name}.turned",
            Sources.of(f"turned {name}"),
        )

    def view(self, name: str, dtype: DType, word: DType, less: int) -> str:
        """Return the last axis of a value, minus `less`, reinterpreted as words. Padding around the value is
        done in words."""
        if word is dtype:
            return name
        shape, pad, terms = self.shape(name), self.producers.get(name), word.bytes // dtype.bytes
        words, rest = divmod(int(str(shape[-1])), terms)
        if pad is not None and not rest and _around(pad.attrs):
            inside = self.words(pad.inputs[0], len(shape) - 1, dtype, word, less)
            border = words_of(np.full(terms, -less), 0, dtype, word)
            own = replace(pad.of(Pad), value=int(border[0]))
            return self.add(own, [inside], f"{name}.words", pad.source)
        narrow = self.filled(name, self.reduced(name, less, dtype), -rest % terms)
        count = (*shape[:-1], const(words + (rest > 0)))
        return self.add(Reshape(count, word), [narrow], f"{name}.words", Sources.of(f"words of {name}"))

    # --- sums in f32

    def summed(self, node: Node) -> None:
        """Emit one f32 product if its sums are exact, else the i32 sum of f32 products over runs of the
        terms. Without suitable runs the product stays one of i32."""
        (x, w), (out,), (at, of) = node.inputs, node.outputs, axes(node, self.graph)
        runs = self.runs(node, of)
        if not runs:
            self.emit(node)
            return
        own = replace(node.of(Conv) if isinstance(node.attrs, Conv) else node.of(MatMul), dtype=F32)
        left, right = self.cast(x, F32), self.cast(w, F32)
        parts = [
            self.add(own, [self.cut(left, at, r), self.cut(right, of, r)], f"{out}.sum", node.source)
            for r in (runs if len(runs) > 1 else [None])
        ]
        total = reduce(add, (cast(I32, Var(f"x{n}", F32)) for n in range(len(parts))))
        if len(parts) == 1:
            self.exact[out] = self.floats[out] = parts[0]
        self.emit(Node(out, tuple(parts), (out,), Map(total), node.source))

    def in_floats(self, node: Node) -> Node:
        """Let a map that converts an i32 sum to f32 read the sum's f32 twin, and return it. Return other maps
        unchanged.

        A sum with an added constant has a twin too. Both parts are exact in f32, so the result is rounded
        once, as in a conversion from i32.
        """
        body, (out,) = node.of(Map).body, node.outputs
        if body == Var("x0", I32) + Var("x1", I32) and node.inputs[0] in self.exact:
            sums, known = node.inputs
            if known in self.constants and self.numbers.reach(known) <= EXACT:
                parts = [self.exact[sums], self.cast(known, F32)]
                self.floats[out] = self.add(Map(Var("x0", F32) + Var("x1", F32)), parts, f"{out}.f32")
        named = {f"x{n}": name for n, name in enumerate(node.inputs) if name in self.floats}
        plain_body = rewrite(body, lambda e: _uncast(e, named))
        if plain_body == body or any(v.name in named and v.dtype is I32 for v in free_vars(plain_body)):
            return node
        inputs = tuple(self.floats.get(name, name) for name in node.inputs)
        return replace(node, inputs=inputs, attrs=Map(plain_body))

    def clamped(self, node: Node) -> Node:
        """Let a map that rounds and clamps floats clamp i32, if the numbers fit, and return it.

        A map that another map reads stays unchanged, because fusion goes on in floats.
        """
        readers = [n for out in node.outputs for n in self.users.get(out, ()) if isinstance(n.attrs, Map)]
        if any(offset(n, self.graph) is None for n in readers):
            return node
        known = {f"x{n}": self.constants.get(name) for n, name in enumerate(node.inputs)}
        reach = {
            v: float(np.abs(a.astype(np.float64)).max(initial=0)) for v, a in known.items() if a is not None
        }
        return replace(node, attrs=Map(in_integers(node.of(Map).body, reach)))

    def rescaled(self, node: Node) -> Node:
        """Return the node merged with the maps before it that scale the same small integers, by one factor.
        Return other nodes unchanged."""
        body, name, rest = node.of(Map).body, node.inputs[0], node
        while (before := self.producers.get(name)) and isinstance(before.attrs, Map):
            if len(node.inputs) > 1 or len(before.inputs) > 1 or body.size > MOST_STEPS:
                break
            whole = substitute(body, {Var("x0", self.dtype(name)): before.attrs.body})
            body, (name,) = by_factors(whole), before.inputs
            if body != whole:
                body = simplify_body(body)
                rest = replace(node, inputs=before.inputs, attrs=Map(body))
        return rest

    def cut(self, name: str, axis: int, run: range | None) -> str:
        """Return the elements of a run along one axis."""
        if run is None:
            return name
        if name in self.constants:
            part = np.take(self.constants[name], np.arange(run.start, run.stop), axis)
            return self.constant(part, f"{name}.part")
        shape = self.shape(name)
        starts = tuple(const(run.start if a == axis else 0) for a in range(len(shape)))
        sizes = tuple(const(len(run)) if a == axis else d for a, d in enumerate(shape))
        return self.add(
            Slice(starts, (1,) * len(shape), sizes), [name], f"{name}.part", Sources.of(f"part of {name}")
        )

    def runs(self, node: Node, axis: int) -> list[range]:
        """Return the runs of terms along `axis` of the right operand whose sums f32 holds exactly.

        The list is empty if there are too many runs, or if exactness can't be shown.
        """
        (x, w), attrs = node.inputs, node.attrs
        over = range(1, len(self.shape(w))) if isinstance(attrs, Conv) else [axis]
        known, sizes = self.constants.get(w), static_shape(tuple(self.shape(w)[a] for a in over))
        if sizes is None:
            return []
        size = sizes[list(over).index(axis)]
        if known is None:
            terms = np.full((1, size), self.numbers.reach(w) * math.prod(sizes) // max(1, size), np.int64)
        else:
            others = tuple(a for a in over if a != axis)
            terms = np.abs(known.astype(np.int64)).sum(others, keepdims=True)
            terms = np.moveaxis(terms, axis, -1).reshape(-1, size)
        grouped = isinstance(attrs, Conv) and attrs.groups > 1
        for count in range(1, min(1 if grouped else MOST_RUNS, size) + 1):
            starts = range(0, size, -(-size // count))
            if self.numbers.reach(x) * np.add.reduceat(terms, list(starts), -1).max(initial=0) < EXACT:
                return [range(n, min(n + starts.step, size)) for n in starts]
        return []


def _of_channels(node: Node, graph: Graph) -> bool:
    """Return whether a product of small integers is a depthwise convolution that reads whole vectors of
    channels."""
    attrs, channels = node.attrs, static_shape(graph.shape(node.inputs[1])[:2])
    if not isinstance(attrs, Conv) or attrs.groups == 1 or channels is None or attrs.layout != "last":
        return False
    if any(graph.dtype(n) is U16 for n in node.inputs) or node.inputs[1] not in graph.constants:
        return False
    return channels[0] % FEWEST_CHANNELS == 0 and channels[1] == 1 and channels[0] == attrs.groups


def _moves(node: Node, less: int) -> Concat | Pad | Reshape | Slice | Transpose | None:
    """Return the attributes of a node that only moves numbers, for these numbers minus `less`. Return None
    for any other node."""
    attrs = node.attrs
    if isinstance(attrs, Pad):
        return replace(attrs, value=attrs.value - less) if attrs.mode == "constant" else attrs
    if isinstance(attrs, Reshape) and attrs.dtype is not None:
        return None
    return attrs if isinstance(attrs, (Concat, Reshape, Slice, Transpose)) else None


def _uncast(e: Expr, names: Collection[str]) -> Expr | None:
    """Return the f32 twin of a variable, for a cast of the variable to f32; else None."""
    inner = e.a if isinstance(e, Cast) and e.dtype is F32 else None
    return Var(inner.name, F32) if isinstance(inner, Var) and inner.name in names else None


def _around(attrs: object) -> bool:
    """Return whether an operator puts zeros around all axes but the last."""
    if not isinstance(attrs, Pad) or attrs.mode != "constant" or attrs.value != 0:
        return False
    half = len(attrs.pads) // 2
    return attrs.pads[half - 1] == attrs.pads[-1] == const(0)
