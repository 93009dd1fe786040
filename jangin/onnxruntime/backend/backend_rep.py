"""`OnnxRuntimeBackendRep`: a session as ONNX's backend interface has it."""

from __future__ import annotations

from typing import Any

from onnx.backend.base import BackendRep

from jangin.onnxruntime.options import RunOptions
from jangin.onnxruntime.session import InferenceSession


class OnnxRuntimeBackendRep(BackendRep):  # type: ignore[misc]
    """A session that is ready to run."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session

    def run(self, inputs: Any, **kwargs: Any) -> list[Any]:
        """Return the outputs for a list of all inputs, or for the only input. Logging options are taken by
        name, and other names are ignored.

        Raises RuntimeError for another number of inputs."""
        options = RunOptions()
        for name in {*kwargs} & {"log_severity_level", "log_verbosity_level", "logid"}:
            setattr(options, name, kwargs[name])
        names = [i.name for i in self._session.get_inputs()]
        arrays = inputs if isinstance(inputs, list) else [inputs]
        if len(arrays) != len(names):
            raise RuntimeError(f"Model expect {len(names)} inputs, not {len(arrays)}")
        return self._session.run(None, dict(zip(names, arrays, strict=True)), options)
