"""Compile a model to one relocatable object file by LLVM: kernels, the API's functions and the weights."""

from __future__ import annotations

from jangin.ahead import wasm
from jangin.ahead.api import Api
from jangin.ahead.declarations import PARALLEL, signatures
from jangin.ahead.elf import code_bytes, with_bytes
from jangin.ahead.interface import write_api
from jangin.ahead.model import Model
from jangin.ahead.threads import signatures as thread_signatures
from jangin.ahead.threads import write_threads
from jangin.backends.llvm.module import emit_kernel
from jangin.backends.llvm.objects import compile_modules, section_bytes
from jangin.backends.llvm.plain import LlvmFunctions
from jangin.backends.llvm.pool import pool_module
from jangin.targets.systems import system_of


def model_object(model: Model) -> tuple[bytes, int]:
    """Compile the model to one object file. Return its bytes, and the number of bytes of code in it."""
    writer = LlvmFunctions(model.prefix, model.target)
    write_api(model, writer)
    object_file = _compiled(model, writer)
    code = _code_bytes(object_file, model)
    if not model.beside:
        object_file = with_bytes(object_file, f"{model.prefix}_weights", model.weights.chunks())
    return object_file, code


def kernel_object(model: Model) -> bytes:
    """Compile a model to an object file that has only its functions `run` and `arena_bytes`, and its
    weights."""
    writer = LlvmFunctions(model.prefix, model.target)
    Api(model, writer).write_runs()
    return with_bytes(_compiled(model, writer), f"{model.prefix}_weights", model.weights.chunks())


def _compiled(model: Model, writer: LlvmFunctions) -> bytes:
    """Compile the functions that were written for a model, and its kernels, to one object file."""
    target, p = model.target, model.prefix
    texts = [(p, writer.text())]
    texts += [(func.name, emit_kernel(func, target, name)) for name, func in model.kernels.items()]
    parallel = PARALLEL.replace("{p}", p).split("(")[0].split()[-1]
    return compile_modules(texts, target, {*(s.name for s, _ in signatures(model).values()), parallel})


def _code_bytes(made: bytes, model: Model) -> int:
    """Return the bytes of an object that are in memory when it runs, apart from data that it changes."""
    if wasm.is_wasm(model):
        return wasm.code_bytes(made)
    if system_of(model.target).elf:
        return code_bytes(made)
    return section_bytes(made)


def threads_object(model: Model) -> bytes:
    """Return the object file of a thread pool. A program that links it runs the model on several threads."""
    writer = LlvmFunctions(f"{model.prefix}_threads", model.target)
    write_threads(model, writer)
    exported = {s.name for s in thread_signatures(model)}
    texts = [("pool", pool_module(model.target)), ("threads", writer.text())]
    return compile_modules(texts, model.target, exported)
