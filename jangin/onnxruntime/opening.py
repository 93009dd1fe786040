"""Compile or load a session's model, and show the progress in a terminal's line."""

from __future__ import annotations

import os
import sys
import time
from typing import Any

from jangin.frontends.onnx.format import OnnxFormat
from jangin.frontends.onnx.nchwc import UnknownBlock
from jangin.ir.errors import CompileError, FormatError
from jangin.onnxruntime.errors import InvalidGraph, InvalidProtobuf, ModelLoadCanceled, NoSuchFile
from jangin.onnxruntime.model import keep, own_block, with_options
from jangin.onnxruntime.options import WAIT, SessionOptions
from jangin.onnxruntime.process import global_threads
from jangin.runtime.load import Runnable
from jangin.runtime.threads import counted

PATIENCE = 1.0
"""Seconds of compiling after which the line of progress (`Line`) appears, so that quick models show none."""
WIDTH = 79
"""The width of the line of progress in characters. A line of 80 would wrap in some terminals."""


class Line:
    """Progress on one line of a terminal. The line is cleared when the work is done."""

    def __init__(self, name: str) -> None:
        self._name, self._began = name, time.monotonic()

    def __call__(self, done: int, total: int, what: str) -> None:
        if time.monotonic() - self._began < PATIENCE:
            return
        text = f"jangin compiles {self._name}: {done} of {total}, {what}"
        sys.stderr.write("\r" + ("" if done >= total else text)[:WIDTH].ljust(WIDTH) + "\r")
        sys.stderr.flush()


def _name(model: Any) -> str:
    return os.path.basename(model) if isinstance(model, (str, os.PathLike)) else "a model"


def opened(model: Any, options: SessionOptions) -> Runnable:
    """Compile or load the model, and return it ready to run. Raises ONNX Runtime's exceptions, which are
    Jangin's too."""
    if not isinstance(model, (str, os.PathLike, bytes)) and not hasattr(model, "SerializeToString"):
        raise TypeError(f"Unable to load from type '{type(model)}'")
    if getattr(options, "canceled", False):
        raise ModelLoadCanceled.said("loading was canceled by set_load_cancellation_flag")
    try:
        return _open(model, options)
    except CompileError as error:
        if isinstance(model, (str, os.PathLike)) and not os.path.exists(model):
            raise NoSuchFile.said(
                f"Load model from {os.fspath(model)} failed: there is no such file"
            ) from None
        kind = InvalidProtobuf if isinstance(error, FormatError) else InvalidGraph
        raise kind.said(error) from error


def _open(model: Any, options: SessionOptions) -> Runnable:
    import jangin

    asked = options.intra_op_num_threads or (0 if options.use_per_session_threads else global_threads())
    threads = None if asked == 0 and not isinstance(asked, bool) else counted(asked, "intra_op_num_threads")
    if not isinstance(model, bytes) and str(model).endswith(".jgn"):
        loaded: Runnable = jangin.load(model, threads=threads)
        return loaded
    source = with_options(model, options)
    shapes = dict(getattr(options, "shapes", {}))
    shown: Any = {"progress": Line(_name(model))} if sys.stderr.isatty() else {}
    shown["wait"] = getattr(options, "config", {}).get(WAIT) == "1"
    try:
        compiled: Runnable = jangin.compile(source, threads=threads, shapes=shapes, **shown)
    except UnknownBlock:  # ONNX Runtime itself assumes that such a file was made for this processor
        formats = [OnnxFormat(block=own_block())]
        compiled = jangin.compile(source, threads=threads, shapes=shapes, formats=formats, **shown)
    if options.optimized_model_filepath:
        keep(source, options.optimized_model_filepath, getattr(options, "config", {}))
    return compiled
