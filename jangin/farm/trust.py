"""Answers of devices, and whose signature they must have."""

from __future__ import annotations

import json
import math
import os
from pathlib import Path
from typing import Any

from jangin.farm.jobs import Answer, Job
from jangin.farm.work import CONTEXT
from jangin.runtime.signing import is_signed


class Trust:
    """The owners of public keys whose answers count. Without keys every answer counts."""

    def __init__(self, path: str | os.PathLike[str] | None) -> None:
        """Take a PEM file, or all `.pem` files of a folder. Raises FileNotFoundError if there is none."""
        paths = [] if path is None else [Path(path)]
        self._keys = [k for p in paths for k in (sorted(p.glob("*.pem")) if p.is_dir() else [p])]
        if path is not None and not (self._keys and self._keys[0].is_file()):
            raise FileNotFoundError(f"--trust {path} is no public key, and no folder of .pem files")

    def answer(self, message: bytes, signature: bytes, job: Job, task: str) -> Answer:
        """Return a device's answer to a job of a task, after checking its signature. Raises ValueError if no
        trusted owner has signed it, or if it answers another job."""
        by = ""
        if self._keys:
            signers = (k for k in self._keys if signature and is_signed(CONTEXT + message, signature, k))
            by = next((k.stem for k in signers), "")
            if not by:
                raise ValueError("its answer isn't signed by a trusted key")
        try:
            return _answer(json.loads(message), by, message, signature, job, task)
        except (KeyError, TypeError, AttributeError):
            raise ValueError("its answer can't be read: install the same Jangin on all devices") from None


def _answer(told: Any, by: str, message: bytes, signature: bytes, job: Job, task: str) -> Answer:
    if (told["task"], told["kernel"], (*told["candidates"],)) != (task, job.kernel, job.candidates):
        raise ValueError("its answer is to another race")
    ratios = tuple(None if r is None else float(r) for r in told["ratios"])
    figures = [float(told[name]) for name in ("seconds", "before", "after")]
    if len(ratios) != len(job.candidates):
        raise ValueError("its answer lacks candidates")
    if not all(math.isfinite(f) and f >= 0 for f in [*figures, *(r for r in ratios if r is not None)]):
        raise ValueError("its answer has figures that no clock gives")
    proof = {"message": message.decode(), "signature": signature.hex()}
    seconds, before, after = figures
    return Answer(ratios, seconds, before, after, by, tuple(map(str, told["defects"])), proof)
