"""Kernels that only pad an image with zeros. Their readers may read the image instead and test for its
border."""

from __future__ import annotations

from jangin.ir.core import Kernel, Pad
from jangin.ir.expr import Const, Select
from jangin.ir.graph import Node
from jangin.ir.te import Stage
from jangin.ir.traversal import free_vars
from jangin.passes.fusion.fuse import producer_class
from jangin.passes.fusion.stages import is_opaque, stages


def padding(kernel: Node) -> tuple[Stage, tuple[str, ...]] | None:
    """Return the stage and inputs of a kernel that only pads rows and columns with zeros; None for any other
    kernel. Cheap elementwise operations may come before the padding."""
    if not isinstance(kernel.attrs, Kernel) or is_opaque(kernel):
        return None
    *maps, pad = kernel.of(Kernel).body.nodes
    if not isinstance(pad.attrs, Pad) or any(producer_class(n) != "cheap" for n in maps):
        return None
    (stage,), inputs, _ = stages(kernel)
    body = stage.body
    if not isinstance(body, Select) or not isinstance(body.b, Const) or body.b.value != 0:
        return None
    spatial = {a.var for a in stage.axes[-3:-1]}
    return (stage, tuple(b.name for b in inputs)) if free_vars(body.cond) <= spatial else None
