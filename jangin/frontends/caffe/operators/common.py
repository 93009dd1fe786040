"""The arguments of a Caffe layer's lowering: its bottoms, blobs and parameters.

`frontends.registry.lowers` declares a lowering under the layer's type. A lowering takes a `Layer` and returns
a Tensor, or one for each top."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from jangin.ir.expr import Const
from jangin.ir.graph import Array, CompileError
from jangin.ir.records import dataclass
from jangin.ops.builder import Builder
from jangin.ops.values import Tensor

UNSAID = frozenset({"engine", "force_nd_im2col", "share_in_parallel", "moving_average_fraction"})
"""Parameters that are ignored, because they change no result."""


@dataclass(frozen=True)
class Layer:
    """A layer that is being lowered: its bottoms, its own blobs, and its parameters by path
    ("convolution_param.pad").

    Parameters that the lowering doesn't read are an error (`unread`)."""

    b: Builder
    inputs: tuple[Tensor, ...]
    blobs: tuple[Tensor, ...]
    params: Mapping[str, tuple[Any, ...]]
    tops: int
    read: set[str] = field(default_factory=set)

    def x(self, i: int = 0) -> Tensor:
        """Return the bottom number `i`. Raises CompileError if there is none."""
        if i >= len(self.inputs):
            raise CompileError(f"it needs {i + 1} bottoms, and has {len(self.inputs)}")
        return self.inputs[i]

    def blob(self, i: int, what: str) -> Tensor:
        """Return the layer's own blob number `i`, called `what` in errors. Raises CompileError if the
        caffemodel lacks it."""
        if i >= len(self.blobs):
            raise CompileError(f"the caffemodel has no {what} of a layer of this name")
        return self.blobs[i]

    def constant(self, i: int, what: str) -> Array:
        return self.b.require_constant(self.blob(i, what), what)

    # -- parameters -----------------------------------------------------------------------------

    def all(self, name: str) -> tuple[Any, ...]:
        """Return the values of a parameter that may be repeated."""
        self.read.add(name)
        return self.params.get(name, ())

    def number(self, name: str, default: float = 0.0) -> float:
        return float(self._last(name, default, (int, float)))

    def whole(self, name: str, default: int = 0) -> int:
        value = self._last(name, default, (int, float))
        if value != int(value):
            raise CompileError(f"{name} is {value}, and should be a whole number")
        return int(value)

    def wholes(self, name: str) -> list[int]:
        return [int(v) for v in self.all(name)]

    def flag(self, name: str, default: bool) -> bool:
        return bool(self._last(name, default, (bool, int)))

    def choice(self, name: str, names: Sequence[str], default: str) -> str:
        """Return one of the words `names`. The prototxt may give it by its number. Raises CompileError for
        any other value."""
        value = self._last(name, default, (str, int))
        if isinstance(value, int) and 0 <= value < len(names):
            return names[value]
        if value not in names:
            raise CompileError(f"{name} is {value}, and should be one of {', '.join(filter(None, names))}")
        return str(value)

    def axis(self, name: str, default: int, rank: int | None = None) -> int:
        """Return the axis that a parameter gives, counted from 0. In the prototxt, a negative axis counts
        from the end."""
        rank = self.x().rank if rank is None else rank
        axis = self.whole(name, default)
        if not -rank <= axis < rank:
            raise CompileError(f"{name} is {axis}, and should be from {-rank} to {rank - 1}")
        return axis % rank

    def _last(self, name: str, default: Any, kinds: tuple[type, ...]) -> Any:
        values = self.all(name)
        if not values:
            return default
        if not isinstance(values[-1], kinds):
            wanted = " or ".join(k.__name__ for k in kinds)
            raise CompileError(f"{name} is {values[-1]!r}, and should be of the type {wanted}")
        return values[-1]

    def pair(self, prefix: str, plain: str, tall: str, wide: str, default: int | None) -> tuple[int, int]:
        """Return a size of rows and of columns. They come from the parameter `plain`, given once or twice, or
        from the parameters `tall` and `wide`."""
        both = self.wholes(prefix + plain)
        apart = [self.wholes(prefix + name) for name in (tall, wide)]
        if any(apart):
            if not all(apart) and default is None:
                raise CompileError(f"{tall} and {wide} must be given together")
            return tuple(a[-1] if a else default or 0 for a in apart)  # type: ignore[return-value]
        if len(both) > 2 or (not both and default is None):
            raise CompileError(f"{prefix}{plain} is given {len(both)} times, for 2 spatial axes")
        if not both:
            both = [default or 0]
        return both[0], both[-1]

    def unread(self) -> list[str]:
        """Return the names of parameters that the lowering didn't read, except those that only training
        uses."""
        last = {name: name.split(".")[-1] for name in self.params}
        return [
            name for name, end in last.items()
            if name not in self.read and end not in UNSAID and "_filler." not in name
        ]  # fmt: skip


def sizes_of(x: Tensor, what: str) -> list[int]:
    """Return the sizes of a tensor, called `what` in errors. Raises CompileError if they aren't known."""
    if not all(isinstance(d, Const) for d in x.shape):
        raise CompileError(f"{what} {x} must be of known sizes: give them with shapes=")
    return [int(d.value) for d in x.shape if isinstance(d, Const)]
