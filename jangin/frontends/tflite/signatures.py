"""The signatures of a TFLite file: sub-graphs that a caller runs by name, such as "train" and "infer"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import tflite

from jangin.ir.graph import CompileError


class Signature(NamedTuple):
    """A signature of the sub-graph `graph`. `names` has its names of inputs and outputs, by the numbers of
    their tensors."""

    key: str
    graph: int
    names: Mapping[int, str]


def signatures_of(model: Any) -> list[Signature]:
    """Return the signatures of a file, in its order."""
    return [_signature(model.SignatureDefs(i)) for i in range(model.SignatureDefsLength())]


def signature_of(data: Any, key: str) -> Signature:
    """Return a signature by its name. Raises CompileError if the file has none of this name."""
    by_key = {s.key: s for s in signatures_of(tflite.Model.GetRootAs(data, 0))}
    if key not in by_key:
        known = ", ".join(map(repr, by_key)) or "none"
        raise CompileError(f"the TFLite model has no signature {key!r}; there is {known}")
    return by_key[key]


def _signature(table: Any) -> Signature:
    outputs = [table.Outputs(i) for i in range(table.OutputsLength())]
    inputs = [table.Inputs(i) for i in range(table.InputsLength())]
    names = {end.TensorIndex(): _text(end.Name()) for end in (*outputs, *inputs)}
    return Signature(_text(table.SignatureKey()), table.SubgraphIndex(), names)


def _text(data: bytes | None) -> str:
    return (data or b"").decode(errors="replace")
