"""Candidates in a package for WebGPU. The loader measures them on request, and keeps the winners.

A *way* is a whole plan whose kernels have other schedules. A launch of a way is a candidate for the launch at
the same place of the package's plan. Both must have the same buffers apart from weights. Weights may be
packed in another order, so that a way may bring its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jangin.ahead.web_package import MARK, Package
from jangin.ir.graph import Array, CompileError
from jangin.ir.plan import Launch, Plan
from jangin.options import Options
from jangin.runtime.devices.wgsl import Range, rows
from jangin.targets.webgpu import OTHERS


def ways(options: Options) -> list[Options]:
    """Return the options with which a package's candidates are made."""
    return [options.but(target=options.target.with_figures(**figures)) for figures in OTHERS]


class Way(Package):
    """The plan of a way. `own` has its own weights by the names of their buffers."""

    def __init__(self, plan: Plan, base: Package, number: int) -> None:
        self.base, self.number, self.own = base, number, dict[str, Array]()
        super().__init__(plan, f"w{number}k")

    def _constant(self, name: str, size: int) -> Range:
        array, known = self.plan.constants[name], self.base.plan.constants.get(name)
        if known is not None and known.dtype == array.dtype and np.array_equal(known, array):
            return self.base.places[name]
        handle = f"way {self.number} {name}"
        self.own[handle] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return Range(handle, size)

    def _launched(self, launch: Launch) -> Iterator[dict[str, Any]]:
        try:
            yield from super()._launched(launch)
        except CompileError:  # its weights take one binding too many: no candidate
            return

    def candidates(self) -> dict[int, dict[str, Any]]:
        """Return the launches that may replace some of the package, by the numbers of those they replace."""
        base, chosen, number = self.base, dict[int, dict[str, Any]](), 0
        for n, one in enumerate(base.by_launch):
            other = self.by_launch[n] if n < len(self.by_launch) else []
            if len(one) == len(other) == 1 and self._same_buffers(n):
                chosen[number] = other[0]
            number += len(one)
        return chosen

    def _same_buffers(self, n: int) -> bool:
        """Return whether two launches differ by their schedules, and by their weights at most."""
        one, other = self.base.plan.launches[n], self.plan.launches[n]
        if one.template == other.template or one.sources != other.sources or len(one.args) != len(other.args):
            return False
        for a, b in zip(one.args, other.args, strict=True):
            if b in self.plan.constants:
                continue
            p, q = self.base.places.get(a), self.places[b]
            if p is None or (p.handle, p.start, p.size) != (q.handle, q.start, q.size):
                return False
        return self.buffers.get("scratch", 0) <= self.base.buffers.get("scratch", 0)


class Candidates:
    """The candidates of a package: the data and the shaders of its second module, and its weights."""

    def __init__(self, base: Package, plans: Sequence[Plan], text: bytes) -> None:
        self.ways = [Way(plan, base, n) for n, plan in enumerate(plans)]
        chosen = [way.candidates() for way in self.ways]
        used = {b[0] for one in chosen for launch in one.values() for b in launch["bindings"]}
        self.arrays = {h: a for way in self.ways for h, a in way.own.items() if h in used}
        shaders = [{launch["shader"] for launch in one.values()} for one in chosen]
        self.shaders = {
            name: text
            for way, names in zip(self.ways, shaders, strict=True)
            for name, text in way.shaders.items()
            if name.partition("+")[0] in names
        }
        self._chosen = [[[n, launch] for n, launch in one.items()] for one in chosen]
        self._base = text

    @property
    def code(self) -> bytes:
        return sections(self.shaders)

    def data(self) -> Mapping[str, Any]:
        """Return the second module's data. The digest tells models apart."""
        data = {
            "ways": self._chosen,
            "weights": [[handle, rows(array.nbytes)] for handle, array in self.arrays.items()],
        }
        known = hashlib.sha256(self._base + self.code + json.dumps(data).encode())
        return {"digest": known.hexdigest(), **data}

    def weights(self) -> Iterator[Array]:
        for array in self.arrays.values():
            yield array
            yield np.zeros(rows(array.nbytes) - array.nbytes, np.uint8)


def sections(shaders: Mapping[str, str]) -> bytes:
    """Return shaders as one text, each after a line with its name."""
    return "".join(f"{MARK}{n}\n{text}\n" for n, text in shaders.items()).encode()
