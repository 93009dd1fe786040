"""The C API of what is compiled ahead of time: a model's, or a training step's."""

from __future__ import annotations

from jangin.ahead.api import Api
from jangin.ahead.model import Model
from jangin.ahead.state_api import StateApi
from jangin.ahead.training_api import TrainingApi
from jangin.backends.functions import FunctionWriter


def write_api(model: Model, writer: FunctionWriter) -> None:
    """Write all functions of a model's API, except its kernels."""
    if model.state is None:
        Api(model, writer).write()
    else:
        (StateApi if model.training is None else TrainingApi)(model, writer).write()
