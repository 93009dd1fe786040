"""Loading compiled models of every kind."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from jangin.host.table import HostFunction
from jangin.runtime.compiled import Compiled, read_artifact
from jangin.runtime.device import Device, LoadError
from jangin.runtime.executable import Executable
from jangin.runtime.several_artifact import SeveralArtifact
from jangin.runtime.variants import VariantsExecutable, single

if TYPE_CHECKING:
    from jangin.runtime.program import ProgramExecutable
    from jangin.runtime.several import SeveralExecutable
    from jangin.runtime.stateful import StatefulExecutable

Loaded: TypeAlias = "Executable | ProgramExecutable | VariantsExecutable | SeveralExecutable"
Runnable: TypeAlias = "Loaded | StatefulExecutable"
"""A compiled model of any kind, ready to run."""


def executable(
    artifact: Compiled,
    threads: int | None = None,
    functions: Mapping[str, HostFunction] | None = None,
    device: Device | None = None,
) -> Runnable:
    """Make an artefact of any kind ready to run. Raises LoadError if this machine can't run it."""
    loaded = _loaded(artifact, threads, functions, device)
    state = artifact.metadata.get("state")
    if not state:
        return loaded
    from jangin.runtime.stateful import StatefulExecutable, checked_state

    return StatefulExecutable(loaded, checked_state(loaded, state))


def _loaded(
    artifact: Compiled,
    threads: int | None,
    functions: Mapping[str, HostFunction] | None,
    device: Device | None,
) -> Loaded:
    if not isinstance(artifact, SeveralArtifact):
        return single(artifact, threads, functions, device)
    if device is not None:
        raise LoadError("the model was compiled for several devices: it can't be loaded with device=")
    from jangin.runtime.several import SeveralExecutable

    return SeveralExecutable(artifact, threads, functions)


def load(
    path: str | os.PathLike[str],
    threads: int | None = None,
    operators: Sequence[Any] = (),
    device: Device | None = None,
    trust: str | os.PathLike[str] | None = None,
    key: str | os.PathLike[str] | None = None,
    mapped: bool | None = None,
) -> Runnable:
    """Load a `.jgn` file, and return a model that is ready to run.

    - `operators` are a caller's own operators that run in Python (see `jangin.hosted`).
    - `device` is a caller's own device (see `jangin.runtime.device`).
    - `trust` is the PEM file of a public key. Only a file that its owner signed is loaded (`jangin compile
      --sign`).
    - `key` is the file of the key by which the model is encrypted (`--encrypt`). `trust` and `key` need the
      extra `crypto`.
    - `mapped`: True leaves the weights in the file, which nobody may cut short or overwrite while it is in
      use (see SECURITY.md). False reads all of it now. By default, files of more than 128 MiB are mapped.

    Raises FileNotFoundError for a missing file. Raises ArtifactError for a file that isn't an artefact, is
    damaged or lacks the signature. Raises LoadError if this machine can't run its code, and ValueError for a
    key of another kind."""
    return executable(read_artifact(path, trust, key, mapped), threads, host_functions(operators), device)


def host_functions(operators: Sequence[Any]) -> dict[str, HostFunction]:
    """Return the Python functions of a caller's own operators, by their names in programs."""
    return {o.host_name: o.function for o in operators if o.function is not None}
