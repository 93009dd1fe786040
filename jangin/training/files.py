"""Models of any format for training. Chosen constants become inputs of their graphs."""

from __future__ import annotations

import numpy as np

from jangin.compiler import cases
from jangin.frontends.format import ModelSource
from jangin.ir.graph import CompileError
from jangin.options import Options
from jangin.training.lora import adapted
from jangin.training.parameters import Chosen, Lora, Trainable, lowered, matching


def of_file(model: ModelSource, chosen: Chosen, options: Options) -> Trainable:
    """Return a model of any format that `jangin.compile` takes as a trainable graph. `chosen` must name the
    constants to train. Raises CompileError if it is None."""
    read = cases.imported(model, options)
    floats = [n for n, a in read.graph.constants.items() if a.dtype.kind == "f" and a.size > 1]
    if chosen is None:
        raise CompileError(
            f"say which of the model's constants are to be trained: trainable=[...] of {', '.join(floats)}"
        )
    if isinstance(chosen, Lora):
        return adapted(lowered(read, {}, {}, {}, options), chosen, {n: n for n in floats})
    names = matching(floats, chosen)
    return lowered(read, {n: np.array(read.graph.constants[n]) for n in names}, {}, {}, options)
