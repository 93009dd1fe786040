"""Computes elementwise operators and convolutions by NumPy on whole arrays.

These operators take most of the time of a model that NumPy runs. Threads share the blocks of a large
convolution, and a thread without a processor holds up no other one.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cache, lru_cache
from threading import Thread
from typing import Any, NamedTuple, TypeVar

import numpy as np

from jangin.ir.arithmetic import BINARY_OPS, apply, convert
from jangin.ir.core import Concat, Conv, Map
from jangin.ir.dtype import F32, F64, I32, DType, from_numpy
from jangin.ir.expr import Binary, Call, Cast, Const, Expr, Select, Var
from jangin.ir.flat import postorder
from jangin.ir.graph import Array, Node
from jangin.ir.quick import EXACT, EXACT_F32, IN_F32, largest

BLOCK = 1 << 18
"""The elements of a block of channels, 1 MiB. Threads take turns with Python's lock at each operation, which
costs more than it gains if operations are smaller."""
COLUMNS = 1 << 20
"""The most elements of the matrix that is made of the windows of a block. Its 4 MiB of f32 stay in most
processors' L3 cache between writing and reading."""
SHARED, SHARED_ALONE = 1 << 27, 1 << 24
"""The fewest multiplications that threads share: in products of matrices, and in channels by themselves. Both
take about 3 ms. A thread that waits for Python's lock may take 0.1 ms to go on, and waits dozens of times."""
PLAIN = ("add", "sub", "mul", "min", "max")
"""Operations of floats that NumPy does in one pass."""
KEPT = (1 << 25) - (1 << 16)
"""The bytes of the largest array whose memory glibc keeps for the next one, once such an array was freed. The
limit is 32 MiB (DEFAULT_MMAP_THRESHOLD_MAX), of which 64 KiB are left for glibc's own fields."""
LARGE, PIECE = 1 << 20, (1 << 25) + (1 << 21)
"""The bytes from which on arrays are large, and those of their pieces of memory: more than glibc keeps."""
IN_LIST = 2
"""The references to an object that only a list or a mapping holds: its own, and the counting call's."""
T = TypeVar("T")


def quick_node(
    node: Node,
    dtype: DType,
    inputs: Sequence[Array],
    symbols: Mapping[str, int],
    memory: Memory,
    threads: int,
    unused: Collection[int] = (),
) -> Array | None:
    """Return the result of a node, whose type is `dtype`, on up to `threads` threads. Return None if this
    module can't compute the node. Products of matrices must take one thread meanwhile. The result may take
    the memory of the inputs at the places `unused`."""
    with np.errstate(all="ignore"):
        if isinstance(node.attrs, Map):
            return _map(node.attrs, dtype, inputs, symbols, memory, threads, unused)
        if isinstance(node.attrs, Conv):
            x, w = inputs
            if dtype is I32 and x.dtype.kind in "iu" and w.dtype.kind in "iu":
                return _conv_of_integers(node.attrs, x, w, memory, threads)
            return _conv(node.attrs, dtype, x, w, memory, threads)
        if isinstance(node.attrs, Concat):
            return _concat(node.attrs, dtype, inputs, memory)
    return None


class Memory:
    """The memory of large arrays of a run. Arrays that nobody holds any more leave theirs to the next ones.

    The first access to each page of new memory may cost more than the arithmetic. A piece is therefore so
    large that NumPy asks the system for large pages. Only the pages that are used take memory."""

    def __init__(self) -> None:
        self._pieces: list[Array] = []
        np.empty(KEPT, np.uint8)  # glibc keeps freed memory up to the size of the largest that it saw

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        """Return an array of undefined contents."""
        size = math.prod(shape) * dtype.itemsize
        if size < LARGE:
            return np.empty(shape, dtype)
        pieces = self._pieces
        for place in range(len(pieces)):
            if sys.getrefcount(pieces[place]) == IN_LIST and pieces[place].size >= size:
                break
        else:
            place = len(pieces)
            pieces.append(np.empty(max(size, PIECE), np.uint8))
        array: Array = pieces[place][:size].view(dtype).reshape(shape)
        return array

    def ends(self, values: Mapping[str, Array], names: Sequence[str], dead: Collection[str]) -> list[int]:
        """Return the places of those names whose arrays may be overwritten. They are dead afterwards, and
        only `values` holds their memory. The graph's constants, the caller or a view would hold it too."""
        ends = (n in dead and names.count(n) == 1 and self._is_alone(values, n) for n in names)
        return [i for i, end in enumerate(ends) if end]

    def _is_alone(self, values: Mapping[str, Array], name: str) -> bool:
        if sys.getrefcount(values[name]) != IN_LIST:
            return False
        if values[name].base is None:
            return True
        return sys.getrefcount(values[name].base) == IN_LIST + 1 and self._has(values[name].base)

    def _has(self, piece: Any) -> bool:
        return any(piece is p for p in self._pieces)


def shared(work: Callable[[T], None], blocks: Iterable[T], threads: int) -> None:
    """Call `work` for each of the blocks, on up to `threads` threads."""
    waiting, errors = deque(blocks), deque[BaseException]()

    def drain() -> None:
        try:
            with np.errstate(all="ignore"):
                while not errors and (block := _next(waiting)) is not None:
                    work(block)
        except BaseException as error:  # the thread that waits raises it
            errors.append(error)

    others = [Thread(target=drain) for _ in range(min(threads, len(waiting)) - 1)]
    for other in others:
        other.start()
    drain()
    for other in others:
        other.join()
    if errors:
        raise errors[0]


def _next(waiting: deque[T]) -> T | None:
    try:
        return waiting.popleft()
    except IndexError:  # other threads took the last block
        return None


def _concat(attrs: Concat, dtype: DType, inputs: Sequence[Array], memory: Memory) -> Array:
    shape = list(inputs[0].shape)
    shape[attrs.axis] = sum(v.shape[attrs.axis] for v in inputs)
    return np.concatenate(inputs, attrs.axis, out=memory.empty(shape, dtype.numpy))


# --- elementwise -----------------------------------------------------------------------------


def _map(
    attrs: Map, dtype: DType, inputs: Sequence[Array], symbols: Mapping[str, int], memory: Memory,
    threads: int, unused: Collection[int],
) -> Array:  # fmt: skip
    shape = np.broadcast_shapes(*(v.shape for v in inputs))
    names = [_operand(i, v.dtype) for i, v in enumerate(inputs)]
    sizes = {Var(name): np.int64(size) for name, size in symbols.items() if Var(name) in attrs.body._free}

    known = {**sizes, **dict(zip(names, inputs, strict=True))}
    free = [i for i in unused if inputs[i].shape == shape and inputs[i].flags.writeable]
    chain = sum(1 for step in _steps(attrs.body) if step.kids) > 1
    if chain and math.prod(shape) >= 2 * BLOCK:
        return _map_blocks(attrs.body, dtype, known, {names[i] for i in free}, shape, memory, threads)
    value = _Value(attrs.body, shape, memory, {names[i] for i in free}).of(known)
    return _spread(convert(value, dtype), shape)


def _map_blocks(
    body: Expr, dtype: DType, known: Mapping[Var, Any], free: Collection[Var], shape: tuple[int, ...],
    memory: Memory, threads: int,
) -> Array:  # fmt: skip
    """Compute a map block by block, so that intermediate results stay in caches. Threads share the blocks.
    The result takes the memory of a free operand if one has its type."""
    own = next((v for v in free if known[v].dtype == dtype.numpy), None)
    out: Array = memory.empty(shape, dtype.numpy) if own is None else known[own]

    def work(index: tuple[slice, ...]) -> None:
        target = out[index]
        parts = {v: _at(value, index, len(shape)) for v, value in known.items()}
        blocks = _Blocks(target if own is None else None)
        value = convert(_Value(body, target.shape, blocks, free, large=True).of(parts), dtype)
        if value is not target and (own is None or value is not parts[own]):
            target[...] = value

    shared(work, _blocks(shape), threads)
    return out


class _Blocks:
    """The memory of a block's results. The first one of the right type lies in the block `target`."""

    def __init__(self, target: Array | None) -> None:
        self._target = target

    def empty(self, shape: Sequence[int], dtype: Any) -> Array:
        target = self._target
        if target is None or target.dtype != dtype:
            return np.empty(shape, dtype)
        self._target = None
        return target


def _blocks(shape: Sequence[int]) -> Iterator[tuple[slice, ...]]:
    """Yield the indices of blocks of at most `BLOCK` elements. Each is a piece of one axis, with all
    elements of the axes behind it."""
    axis = next(i for i in range(len(shape)) if math.prod(shape[i + 1 :]) <= BLOCK)
    count = -(-math.prod(shape[axis:]) // BLOCK)
    for outer in np.ndindex(*shape[:axis]):
        for at in _rows(shape[axis], -(-shape[axis] // count)):
            yield (*(slice(i, i + 1) for i in outer), slice(at[0], sum(at)))


def _at(value: Any, index: tuple[slice, ...], rank: int) -> Any:
    """Return the part of an operand that belongs to a block of a result of this rank."""
    axes = np.shape(value)
    if not axes:
        return value
    own = index[rank - len(axes) :]  # fewer slices than axes, because the last axes are whole
    return value[tuple(s if n > 1 else slice(None) for s, n in zip(own, axes, strict=False))]


@cache
def _operand(place: int, dtype: Any) -> Var:
    """Return the variable by which a map's body names an operand of this NumPy dtype."""
    return Var(f"x{place}", from_numpy(dtype))


def _spread(value: Array, shape: tuple[int, ...]) -> Array:
    return value if value.shape == shape else np.broadcast_to(value, shape)


class _Step(NamedTuple):
    """One operation of this type. `kids` are the places of its operands among all values. If the operation
    can store its result, `inside` are those operands of its type that nothing needs later."""

    compute: Callable[..., Any]
    dtype: DType
    kids: tuple[int, ...]
    inside: tuple[int, ...] | None
    variable: Var | None


class _Value:
    """The evaluation of a scalar expression for arrays, which gives an array of this shape. The variables
    `free` have arrays of the shape, which may be overwritten."""

    def __init__(
        self, body: Expr, shape: tuple[int, ...], memory: Memory | _Blocks, free: Collection[Var],
        large: bool = False,
    ) -> None:  # fmt: skip
        self._steps, self._shape, self._memory, self._free = _steps(body), shape, memory, free
        self._large = large or math.prod(shape) * F32.bytes >= LARGE

    def of(self, known: Mapping[Var, Any]) -> Any:
        values: list[Any] = []
        own: set[int] = set()
        for place, (compute, dtype, kids, inside, variable) in enumerate(self._steps):
            if variable is not None:
                values.append(known[variable])
                if variable in self._free:
                    own.add(place)
                continue
            operands = [values[k] for k in kids]
            if inside is None or not self._large or self._shape not in map(np.shape, operands):
                values.append(compute(*operands))
                own -= {k for k in kids if k in own and np.may_share_memory(values[k], values[-1])}
                continue
            target = next((values[k] for k in inside if k in own), None)
            if target is None:
                target = self._memory.empty(self._shape, dtype.numpy)
            values.append(compute(*operands, out=target))
            own.add(place)
        return values[-1]


@lru_cache(1 << 10)
def _steps(body: Expr) -> tuple[_Step, ...]:
    order = list(dict.fromkeys(postorder(body)))
    places = {e: i for i, e in enumerate(order)}
    last = {k: e for e in order for k in e._kids}
    steps = []
    for e in order:
        compute, inside = _operation(e), None
        if isinstance(compute, np.ufunc):
            ends = (k for k in e._kids if last[k] is e and k.dtype is e.dtype and not isinstance(k, Const))
            inside = tuple(places[k] for k in ends)
        kids, variable = tuple(places[k] for k in e._kids), e if isinstance(e, Var) else None
        steps.append(_Step(compute, e.dtype, kids, inside, variable))
    return tuple(steps)


def _operation(e: Expr) -> Callable[..., Any]:
    """Return a function of the operands' values. It is NumPy's own if this gives the right type."""
    dtype = e.dtype
    if isinstance(e, (Const, Var)):
        number = convert(e.value, dtype) if isinstance(e, Const) else None
        return lambda: number
    if isinstance(e, Select):
        return np.where
    if isinstance(e, Cast):
        return lambda v: convert(v, dtype)
    assert isinstance(e, (Binary, Call))
    fn = e.op if isinstance(e, Binary) else e.fn
    quick: Any = IN_F32.get(fn) if dtype is F32 else None
    if quick is None and fn in PLAIN and dtype in (F32, F64):
        quick = BINARY_OPS[fn]
    return quick or (lambda *kids: apply(fn, kids, dtype))


# --- convolutions ----------------------------------------------------------------------------


def _conv_of_integers(attrs: Conv, x: Array, w: Array, memory: Memory, threads: int) -> Array | None:
    """Return a convolution of integers by floats in which all of its sums are exact, or None."""
    if not (x.size and w.size):
        return None
    most = largest(x) * largest(w) * math.prod(w.shape[1:])
    if most >= EXACT:
        return None
    dtype = F32 if most < EXACT_F32 else F64
    result = _conv(attrs, dtype, x.astype(dtype.numpy), w.astype(dtype.numpy), memory, threads)
    whole = np.int32 if dtype is F32 else np.int64  # of which the lowest bits are taken
    return None if result is None else result.astype(whole).astype(np.int32, copy=False)


def _conv(attrs: Conv, dtype: DType, x: Array, w: Array, memory: Memory, threads: int) -> Array | None:
    """Return a convolution of floats over one or two axes, or None for any other."""
    plain = attrs.layout == "first" and attrs.dot is None and dtype in (F32, F64)
    if not plain or not x.dtype == w.dtype == dtype.numpy or x.ndim not in (3, 4):
        return None
    if not x.size or min(attrs.pads) < 0:
        return None
    settings = attrs.kernel, attrs.strides, attrs.dilations, attrs.pads
    kernel, strides, dilations, pads = settings
    if x.ndim == 3:  # a row is an image of one line
        kernel, strides, dilations = (1, *kernel), (1, *strides), (1, *dilations)
        pads = (0, pads[0], 0, pads[1])
    x, w = x.reshape(*x.shape[:2], -1, x.shape[-1]), w.reshape(*w.shape[:2], *kernel)
    spans = [(k - 1) * d for k, d in zip(kernel, dilations, strict=True)]
    padded = [n + pads[i] + pads[i + 2] for i, n in enumerate(x.shape[2:])]
    extents = [(n - span - 1) // s + 1 for n, span, s in zip(padded, spans, strides, strict=True)]
    out = memory.empty((len(x), len(w), *extents), x.dtype)
    each = w.shape[1] == 1 and len(w) == attrs.groups == x.shape[1]
    if not out.size or (attrs.groups > 1 and w.shape[1] == 1 and not each):
        return None
    windows = _Windows(x, kernel, strides, dilations, pads, extents, memory)
    method, least = (_each_channel, SHARED_ALONE) if each else (_dense, SHARED)
    few = out.size * math.prod(w.shape[1:]) < least
    method(windows, w, attrs.groups, out, 1 if few else threads)
    return out[:, :, 0] if len(attrs.kernel) == 1 else out


class _Windows:
    """The windows of a convolution over padded images.

    `planes` has [phases of rows and columns, N, C, pixels]: a plane has the pixels that are a stride apart.
    Rows of a plane lie one behind the other, `pitch` pixels each. For each place of the kernel, the operand
    of all outputs is therefore one piece of a plane, from a certain pixel on. Results have the same pitch,
    and the pixels behind each row's end aren't used."""

    def __init__(
        self, x: Array, kernel: Sequence[int], strides: Sequence[int], dilations: Sequence[int],
        pads: Sequence[int], extents: Sequence[int], memory: Memory,
    ) -> None:  # fmt: skip
        rows, pitch = (-(-(n + pads[i] + pads[i + 2]) // strides[i]) for i, n in enumerate(x.shape[2:]))
        self.pitch, self.extents = pitch, extents
        self.places = [
            ((i * dilations[0]) % strides[0], (j * dilations[1]) % strides[1],
             i * dilations[0] // strides[0] * pitch + j * dilations[1] // strides[1])
            for i in range(kernel[0]) for j in range(kernel[1])
        ]  # fmt: skip
        if (*kernel, *strides, *pads) == (1, 1, 1, 1, 0, 0, 0, 0):
            self.planes = np.ascontiguousarray(x).reshape(1, 1, *x.shape[:2], -1)
            return
        tail = (kernel[1] - 1) * dilations[1] // strides[1]
        self.planes = memory.empty((*strides, *x.shape[:2], rows * pitch + tail), x.dtype)
        self.planes.fill(0)
        images = self.planes[..., : rows * pitch].reshape(*self.planes.shape[:4], rows, pitch)
        for a, b in np.ndindex(*strides):
            first = [-(-(pads[i] - at) // strides[i]) for i, at in enumerate((a, b))]
            row, column = (max(0, n) for n in first)
            source = x[
                :, :, row * strides[0] + a - pads[0] :: strides[0],
                column * strides[1] + b - pads[1] :: strides[1],
            ]  # fmt: skip
            images[a, b, :, :, row : row + source.shape[2], column : column + source.shape[3]] = source

    def at(self, place: tuple[int, int, int], image: int, channels: slice, first: int, rows: int) -> Array:
        """Return the operand of one place of the kernel, for `rows` rows of outputs from `first` on."""
        a, b, offset = place
        begin = first * self.pitch + offset
        piece: Array = self.planes[a, b, image, channels, begin : begin + rows * self.pitch]
        return piece

    def put(self, result: Array, out: Array, first: int, rows: int) -> None:
        """Store the results of some rows in `out`, which has [channels, rows, columns]."""
        wide = result.reshape(len(result), rows, self.pitch)
        out[:, first : first + rows] = wide[:, :, : self.extents[1]]


def _each_channel(windows: _Windows, w: Array, groups: int, out: Array, threads: int) -> None:
    """Convolve each channel with weights of its own: add up the products for each place of the kernel."""
    factors = w.reshape(len(w), -1)

    def work(block: tuple[int, slice, int, int]) -> None:
        image, channels, first, rows = block
        pieces = [windows.at(p, image, channels, first, rows) for p in windows.places]
        total = pieces[0] * factors[channels, :1]
        term = np.empty_like(total)
        for k, piece in enumerate(pieces[1:], 1):
            total += np.multiply(piece, factors[channels, k : k + 1], out=term)
        windows.put(total, out[image, channels], first, rows)

    rows = max(1, min(windows.extents[0], BLOCK // windows.pitch))
    step = max(1, BLOCK // (rows * windows.pitch))
    blocks = (
        (image, slice(c, min(c + step, len(w))), *some)
        for image in range(len(out))
        for c in range(0, len(w), step)
        for some in _rows(windows.extents[0], rows)
    )
    shared(work, blocks, threads)


def _dense(windows: _Windows, w: Array, groups: int, out: Array, threads: int) -> None:
    """Convolve by products of matrices, whose columns are the windows of some rows of outputs."""
    count, depth, places = len(w) // groups, w.shape[1], len(windows.places)
    matrices = w.reshape(groups, count, depth, places).transpose(0, 1, 3, 2).reshape(groups, count, -1)

    def work(block: tuple[int, int, int, int]) -> None:
        image, group, first, rows = block
        channels = slice(group * depth, (group + 1) * depth)
        if places == 1:
            columns = windows.at(windows.places[0], image, channels, first, rows)
        else:
            columns = np.empty((places * depth, rows * windows.pitch), w.dtype)
            for k, place in enumerate(windows.places):
                columns[k * depth : (k + 1) * depth] = windows.at(place, image, channels, first, rows)
        product = np.matmul(matrices[group], columns)
        windows.put(product, out[image, group * count : (group + 1) * count], first, rows)

    rows = max(1, COLUMNS // (max(places * depth, count) * windows.pitch))
    if threads > 1:
        rows = min(rows, -(-windows.extents[0] // threads))
    blocks = (
        (image, group, *some)
        for image in range(len(out))
        for group in range(groups)
        for some in _rows(windows.extents[0], rows)
    )
    shared(work, blocks, threads)


def _rows(count: int, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first row and the number of rows of each block."""
    return ((at, min(most, count - at)) for at in range(0, count, most))
