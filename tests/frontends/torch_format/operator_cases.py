"""Calls of Core ATen's operators, as the sample inputs of PyTorch's own OpInfo database make them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from opinfo_database import op_db
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

import jangin
from jangin.frontends.dialect import Imported
from jangin.frontends.lower import lower
from jangin.frontends.torch.decompositions import table
from jangin.frontends.torch.dialect import ATEN
from jangin.frontends.torch.element_types import array_of
from jangin.frontends.torch.model import Traced
from jangin.frontends.torch.module import results_of
from jangin.frontends.torch.tensors import tensor_of, torch_type
from jangin.frontends.torch.trace import traced_graph
from jangin.ops.interpret import run_graph

DTYPES = (torch.float32, torch.float64, torch.int64, torch.bool)
TOLERANCES = {torch.float32: (2e-5, 2e-5), torch.float64: (1e-10, 1e-10)}
"""Relative and absolute tolerance by type. Sums of some hundred terms are taken in another order, and
functions differ in the last places."""


def core() -> dict[str, Any]:
    """Return every overload that PyTorch marks as Core ATen, by name ("aten.add.Tensor")."""
    found: dict[str, Any] = {}
    for name in dir(torch.ops.aten):
        packet = getattr(torch.ops.aten, name)
        for overload in packet.overloads() if hasattr(packet, "overloads") else ():
            target = getattr(packet, overload)
            if torch.Tag.core in target.tags:
                found[str(target)] = target
    return found


CORE = core()
TAKEN_APART = table()


@dataclass(frozen=True)
class Case:
    """A call of an operator, with PyTorch's results."""

    target: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    wanted: Any

    @property
    def tensors(self) -> list[Any]:
        return [v for v in pytree.tree_leaves((self.args, self.kwargs)) if isinstance(v, torch.Tensor)]

    @property
    def needs_program(self) -> bool:
        """Return whether the case must be compiled, since sizes depend on data or the interpreter is too
        slow."""
        masks = any(t.dtype in (torch.bool, torch.uint8) for t in self.tensors)
        return (
            "nonzero" in str(self.target)
            or ("index" in str(self.target) and masks)
            or any(t.numel() > 2000 for t in self.tensors)
        )

    def traced(self) -> Traced:
        """Trace a program of this call alone. Its inputs are the tensors."""
        if self.target in TAKEN_APART:
            return self._apart()
        graph = torch.fx.Graph()
        flat, spec = pytree.tree_flatten((self.args, dict(self.kwargs)))
        given = []
        for value in flat:
            if isinstance(value, torch.Tensor):
                node = graph.placeholder(f"x{len(given)}")
                node.meta["val"] = value
                value = node
            given.append(value)
        inputs: Iterable[Any] = given
        args, kwargs = pytree.tree_unflatten(list(inputs), spec)
        call = graph.call_function(self.target, args, kwargs)
        call.meta["val"] = self.wanted
        if isinstance(self.wanted, (tuple, list)):
            items = [(i, w) for i, w in enumerate(self.wanted) if w is not None]
            outputs = [graph.call_function(operator.getitem, (call, i)) for i, _ in items]
            for node, (_, value) in zip(outputs, items, strict=True):
                node.meta["val"] = value
        else:
            outputs = [call]
        graph.output(tuple(outputs))
        return traced_graph(graph, {})

    def _apart(self) -> Traced:
        """Trace the call in smaller operators, as an exported program has it."""
        flat, spec = pytree.tree_flatten((self.args, dict(self.kwargs)))
        at = [i for i, v in enumerate(flat) if isinstance(v, torch.Tensor)]

        def call(*tensors: Any) -> Any:
            given = dict(enumerate(flat)) | dict(zip(at, tensors, strict=True))
            args, kwargs = pytree.tree_unflatten(list(given.values()), spec)
            found = self.target(*args, **kwargs)
            return [f for f in pytree.tree_leaves(found) if f is not None]

        made = make_fx(call, decomposition_table=TAKEN_APART, tracing_mode="fake")(*self.tensors)
        return traced_graph(made.graph, {})

    def feeds(self, traced: Traced) -> dict[str, Any]:
        pairs = zip(traced.inputs, self.tensors, strict=True)
        return {name: np.array(array_of(v)) for name, v in pairs if name}

    def checked(self, run: Callable[[Traced, Mapping[str, Any]], Mapping[str, Any]]) -> None:
        """Run the case and compare the results with PyTorch's. Raises AssertionError if they differ."""
        traced = self.traced()
        feeds = self.feeds(traced)
        made = {n: tensor_of(a, torch_type(a.dtype)) for n, a in run(traced, feeds).items()}
        got = results_of(traced.outputs, made)
        wanted = [w for w in pytree.tree_leaves(self.wanted) if w is not None]
        for g, w in zip(got, wanted, strict=True):
            assert g.dtype == w.dtype and g.shape == w.shape, (
                f"{g.dtype}{[*g.shape]}, not {w.dtype}{[*w.shape]}"
            )
        if str(self.target).startswith(UNSET):
            return
        if str(self.target) in TIES:
            places = 1 if "sort" in str(self.target) else 2
            axis = dict(enumerate(self.args)).get(places, self.kwargs.get("dim", -1))
            got[1] = self.args[0].gather(axis, got[1])
            wanted[1] = wanted[0]
        for g, w in zip(got, wanted, strict=True):
            rtol, atol = TOLERANCES.get(w.dtype, (0, 0))
            torch.testing.assert_close(g, w, rtol=rtol, atol=atol, equal_nan=True)

    def __str__(self) -> str:
        def said(v: Any) -> Any:
            return f"{v.dtype}{[*v.shape]}".removeprefix("torch.") if isinstance(v, torch.Tensor) else v

        return f"{self.target}{pytree.tree_map(said, self.args)} {pytree.tree_map(said, dict(self.kwargs))}"


TIES = ("aten.topk.default", "aten.sort.default")
"""Operators that may return any of several equal elements."""
UNSET = "aten.empty"
"""Operators whose elements are undefined."""


class Recorder(TorchDispatchMode):  # type: ignore[misc]
    """Records calls of Core ATen's operators with different arguments, at most `limit` of each operator."""

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.limit = limit
        self.cases: dict[str, dict[str, Case]] = {}

    def __torch_dispatch__(self, fn: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = str(fn)
        kept = self.cases.setdefault(name, {}) if name in CORE else None
        if kept is None or len(kept) >= self.limit:
            return fn(*args, **kwargs)
        own, own_kwargs = pytree.tree_map_only(torch.Tensor, lambda t: t.detach().clone(), (args, kwargs))
        result = fn(*args, **kwargs)
        case = Case(fn, own, own_kwargs, pytree.tree_map_only(torch.Tensor, torch.clone, result))
        kept.setdefault(str(case), case)
        return result


def interpreted(traced: Traced, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    """Run a program in the interpreter. Programs with sizes that only a run knows, and long sorts, are
    compiled."""
    graph = lower(Imported(traced.model.bound({}), ATEN, {}))
    steps = any(n.op in ("bind", "host", "if", "loop") for n in graph.nodes)
    if steps or any(np.size(v) > 2000 for v in feeds.values()):
        return compiled(traced, feeds)
    return run_graph(graph, feeds)


def compiled(traced: Traced, feeds: Mapping[str, Any]) -> Mapping[str, Any]:
    return jangin.compile(traced.model, threads=1, cache=False).run(feeds)


def by_hand() -> None:
    """Call the overloads that no OpInfo calls, because PyTorch's own functions take other overloads."""
    ops = torch.ops.aten
    torch.manual_seed(0)
    x, image, video = torch.randn(3, 4), torch.randn(1, 2, 6, 5), torch.randn(1, 2, 4, 5, 6)
    whole = torch.arange(12).reshape(3, 4)
    mean, spread = torch.randn(2), torch.rand(2) + 0.5
    ops._embedding_bag(x, torch.tensor([0, 2, 1, 1, 0]), torch.tensor([0, 2, 2]), mode=1)
    ops._native_batch_norm_legit.no_stats(image, mean, spread, True, 0.1, 1e-5)
    ops._native_batch_norm_legit_no_training(image, mean, spread, mean, spread, 0.1, 1e-5)
    ops.adaptive_avg_pool1d(image[0], [3])
    ops.avg_pool1d(image[0], [3], [2], [1])
    for op in (ops.bitwise_and, ops.bitwise_or, ops.bitwise_xor, ops.fmod):
        op.Scalar(whole, 5)
    ops.fmod.Scalar(x, 0.7)
    ops.gt.Scalar(x, 0.1)
    ops.pow.Scalar(1.5, x)
    ops.copy(x, whole)
    for mode in ("floor", "trunc"):
        ops.div.Scalar_mode(x, 0.3, rounding_mode=mode)
    ops.col2im(torch.randn(1, 8, 20), [6, 5], [2, 2], [1, 1], [0, 0], [1, 1])
    ops.native_dropout(x, 0.5, False)
    ops.reflection_pad2d(image, [1, 2, 3, 0])
    ops.reflection_pad3d(video, [1, 2, 3, 0, 1, 1])
    ops.replication_pad3d(video, [1, 2, 3, 0, 1, 1])
    ops.scatter.value(x, 1, whole % 4, 2.5)
    ops.upsample_bilinear2d.vec(image, [9, 7], False, None)
    ops.upsample_nearest2d.vec(image, None, [2.0, 1.5])
    ops.upsample_linear1d.vec(image[0], None, True, [1.7])  # corners stay, whatever the scale
    ops.upsample_bilinear2d.vec(image, None, True, [1.7, 1.3])
    ops.upsample_bicubic2d.vec(image, None, True, [1.7, 1.3])
    ops.var.dim(x, [1], unbiased=True, keepdim=False)
    ops.embedding_dense_backward(x, torch.tensor([1, 0, 1]), 5, -1, False)
    normal, centre, inverse = ops.native_layer_norm(x, [4], None, None, 1e-5)
    ops.native_layer_norm_backward(normal, x, [4], centre, inverse, x[0], x[1], [True, True, True])
    ops._adaptive_avg_pool2d_backward(torch.randn(1, 2, 3, 2), image)
    ops.avg_pool2d_backward(torch.randn(1, 2, 3, 2), image, [2, 2], [2, 2], [0, 0], False, True, None)
    weight = torch.randn(3, 2, 3, 3)
    grad = torch.randn(1, 3, 4, 3)
    ops.convolution_backward(
        grad, image, weight, [3], [1, 1], [0, 0], [1, 1], False, [0, 0], 1, [True, True, True]
    )
    grouped, centre, inverse = ops.native_group_norm(image, mean, spread, 1, 2, 30, 1, 1e-5)
    ops.native_group_norm_backward(grouped, image, centre, inverse, mean, 1, 2, 30, 1, [True, True, True])
    ops.randperm(5)


def recorded(limit: int, samples: int, names: frozenset[str] | None = None) -> dict[str, list[Case]]:
    """Return recorded cases by operator, with the types in turn. `samples`: the most inputs for each OpInfo
    and type. `names`: the OpInfos to take."""
    by_name: dict[str, list[Case]] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for dtype in DTYPES:
            recorder = Recorder(limit)
            for info in op_db:
                if names is None or info.name.split(".")[-1] in names:
                    for sample in _samples(info, dtype, samples):
                        with recorder:
                            _called(info, sample)
            if dtype is torch.float32:
                with recorder:
                    by_hand()
            for name, kept in recorder.cases.items():
                by_name.setdefault(name, []).extend(kept.values())
    return by_name


def _samples(info: Any, dtype: Any, count: int) -> Iterator[Any]:
    if dtype not in info.supported_dtypes("cpu"):
        return
    torch.manual_seed(0)
    given = iter(info.sample_inputs("cpu", dtype, requires_grad=False))
    for _ in range(count):
        try:
            yield next(given)
        except StopIteration:
            return
        except Exception:  # a few sample generators need libraries that may be absent
            return


def _called(info: Any, sample: Any) -> None:
    try:
        info.op(sample.input, *sample.args, **sample.kwargs)
    except Exception:  # PyTorch itself refuses these samples (a solver without its library)
        return
