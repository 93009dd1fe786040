"""Compile a model to code that runs without Jangin: an object file, a shared library or C, each with a C
API."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from jangin.ahead.bindings import APIS
from jangin.ahead.board import BOARDS, firmware_files
from jangin.ahead.cmake import cmake_lists
from jangin.ahead.header import example, header
from jangin.ahead.link import shared_library
from jangin.ahead.model import Model, Quantization, identifier
from jangin.ahead.objects import model_object, threads_object
from jangin.ahead.output import Content, write_files
from jangin.ahead.packages import PACKAGES
from jangin.ahead.patches import arena_bytes, cheap, fitted
from jangin.ahead.source import Compiled, compiled, model_source, threads_source, weights_files
from jangin.ahead.wasm import is_wasm, loader, wasm_module
from jangin.ahead.wasm_workers import worker
from jangin.ahead.web import web_files
from jangin.ahead.web_candidates import ways
from jangin.ahead.web_shards import sharded
from jangin.compiler.cases import cases, loaded, with_uneven
from jangin.compiler.pipeline import lowered_plan
from jangin.compiler.request import with_winners
from jangin.environment import origin
from jangin.frontends.dialect import Imported
from jangin.frontends.format import Paired
from jangin.ir.graph import CompileError, Graph
from jangin.ir.limits import within
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.options import Common, Options, takes
from jangin.passes.partition import has_steps
from jangin.runtime.compiled import warn_of_time
from jangin.targets import Target
from jangin.targets.systems import system_of

if TYPE_CHECKING:
    from jangin.compiler.request import Progress
    from jangin.frontends.format import ModelSource

KINDS = ("object", "shared", "c", "web")
CONSTANTS = ("inside", "beside")


@dataclass(frozen=True)
class Emitted:
    """The result of `emit`.

    `files` are contents by name. `code` is the bytes of machine code, or None if it isn't made here. `ram` is
    the bytes of working memory of a run on one thread, for the sizes `at` of the model's symbols. It
    includes the weights that are transformed as they are loaded. `stack` is the most bytes of stack of such a
    run, or None if no compiler tells it."""

    model: Model
    files: Mapping[str, Content]
    code: int | None
    ram: int
    at: Mapping[str, int]
    stack: int | None = None

    @property
    def weights(self) -> int:
        return self.model.weights.bytes

    @property
    def state(self) -> int:
        """The bytes of memory that is kept from run to run."""
        return 0 if self.model.state is None else self.model.state.size

    def extended(self, api: Collection[str], package: str, shards: int | None = None) -> Emitted:
        """Return this with declarations for other languages, and with a package's files. The weights of a
        package for WebGPU are divided into files of at most `shards` bytes."""
        if shards is not None:
            if f"{self.model.prefix}.wgsl" not in self.files:
                raise ValueError(
                    "shards= is for packages of the kind 'web' with a WebGPU target: leave shards= out"
                )
            return replace(self, files=sharded(self.files, self.model.prefix, shards))
        texts: dict[str, str] = {}
        for name in api:
            texts |= APIS[name](self.model)
        texts |= PACKAGES[package](self.model) if package else {}
        return replace(self, files={**self.files, **{n: [t.encode()] for n, t in texts.items()}})

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the files to a folder, all or none.

        Raises FileExistsError if one of them exists, unless `force` replaces it. Raises OSError if the folder
        can't be written."""
        write_files(Path(folder), self.files, force=force)


@takes(Common)
def emit(
    model: ModelSource,
    kind: str = "object",
    target: str | Target | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    constants: str = "inside",
    api: Collection[str] = (),
    package: str = "",
    ram: int | None = None,
    candidates: bool = False,
    shards: int | None = None,
    progress: Progress | None = None,
    **given: Unpack[Common],
) -> Emitted:
    """Compile a model ahead of time, to code with a C API that needs no part of Jangin.

    `Emitted.save` writes the code.
    `kind` is "object" (a relocatable object file), "shared" (a shared library) or "c" (C11 with GNU's vector
    types). For the target "webgpu" it is "web" (an npm package of shaders and JavaScript), and for
    "webgpu+wasm32" also WebAssembly, for browsers without WebGPU. A linker on this machine links the shared
    library. `name` begins all names in C; the default is the model's name.
    `constants` says if the weights lie "inside" the code or in a file "beside" the code. The program maps
    the file. For macOS, iOS and Windows they are beside object files and libraries. The code uses tuning
    results for one thread. `api` adds declarations for other languages: "cpp", "rust" or "csharp". `package`
    adds what makes the folder a "cmake" package or a "zephyr" module. `ram` is how many bytes a run on one
    thread may take, with 1 KB of stack and without inputs and outputs. The first layers run patch by patch if
    the model takes more. Without `ram`, they do so for microcontrollers if this saves a tenth of the memory
    for at most 2 % more estimated cycles. With `candidates`, a package for WebGPU has other schedules of its
    kernels, which `load({tune: true})` measures. Its weights are in files of at most `shards` bytes, which it
    checks by their digests. The other arguments mean the same as for `jangin.build`.
    Raises CompileError that names the node if the model runs in steps. Raises ValueError if the target or
    kind is unknown, if a library is to be called, or if the model takes more than `ram`. Raises LinkError if
    nothing here can link."""
    if given.get("weights") in CONSTANTS:
        constants = str(given.pop("weights"))
        warnings.warn(f"weights={constants!r} is called constants= now", DeprecationWarning, stacklevel=3)
    options = Options(target, shapes, 1, **given)
    check_extras(options, kind, api, package)
    made = emit_by(options, model, kind, name, constants, progress, ram, candidates=candidates)
    return made.extended(api, package, shards)


def check_extras(options: Options, kind: str, api: Collection[str], package: str) -> None:
    """Raise ValueError for an unknown language or package, or one that isn't made for this kind of code."""
    if unknown := [name for name in api if name not in APIS]:
        raise ValueError(f"api={unknown[0]!r} is unknown; known: {', '.join(APIS)}")
    if package not in ("", *PACKAGES):
        raise ValueError(f"package={package!r} is unknown; known: {', '.join(PACKAGES)}")
    if (api or package) and (kind == "web" or "wasm" in options.target.triple):
        raise ValueError(
            f"api= and package= are for C and object code, not for {options.target.name}: leave them out"
        )
    if package and kind != "c":
        raise ValueError(f"package={package!r} is made of C: ask for the kind 'c', not {kind!r}")


def emit_by(
    options: Options,
    model: ModelSource,
    kind: str,
    name: str,
    constants: str,
    progress: Progress | None,
    ram: int | None = None,
    *,
    candidates: bool = False,
) -> Emitted:
    """Do what `emit` does, with the options in one record."""
    if ram is not None and kind == "web":
        raise ValueError("ram= is for C and object code, not for the kind 'web': leave ram= out")
    if candidates and kind != "web":
        raise ValueError(
            f"candidates= is for the kind 'web', not for {kind!r}: leave it out, and choose kernels by tune="
        )
    if len(parts := options.parts) > 1:
        for_kind(options, kind, constants)
        return _with_fallback(parts, model, name, constants, progress, candidates)
    described = model_by(options, model, kind, name, constants, progress, ram, candidates=candidates)
    if ram is not None and described.ram > ram:
        raise ValueError(
            f"{described.name} takes {described.ram:,} bytes of RAM with its stack, and there are {ram:,}: "
            f"{described.patches}; `jangin inspect --ram {ram}` shows each layer"
        )
    return emitted(described, kind)


def model_by(
    options: Options,
    model: ModelSource,
    kind: str,
    name: str,
    constants: str,
    progress: Progress | None,
    ram: int | None = None,
    *,
    candidates: bool = False,
) -> Model:
    """Return the description from which `emit_by` makes its files. No code is written yet. If the model takes
    more bytes than `ram`, its first layers run in patches. Without `ram`, they do so for microcontrollers if
    this saves much memory and costs next to no time. With `candidates` it also has other plans."""
    options = for_kind(options, kind, constants)
    small = options.target.is_microcontroller
    with within(options.limits):
        whole = loaded(model, options)
        kept = whole.metadata.get("state", {}) if kind != "web" else {}
        graphs, plans = list[Graph](), list[tuple[Plan, Mapping[str, int]]]()
        for graph, sizes in _graphs(whole, kept, options, progress):
            plans.append((lowered_plan(graph, options, progress), sizes))
            if small or ram is not None or candidates:
                graphs.append(graph)  # otherwise its constants are released
        title = _title(model) or plans[0][0].name or "model"
        beside = lies_beside(options.target, kind, constants)
        parameters = whole.metadata.get("quantization", {})
        quantization = {n: Quantization(float(scale), int(zero)) for n, (scale, zero) in parameters.items()}
        describe = partial(Model.of, title, identifier(name or title), options.target)
        made = describe(plans, beside, kept, quantization)
        if candidates:
            made = replace(made, ways=tuple(lowered_plan(graphs[0], o, progress) for o in ways(options)))
        if (ram is None and not small) or (ram is not None and made.ram <= ram):
            return made
        smaller = [
            cheap(graph, plan, options, progress)
            if ram is None
            else fitted(graph, plan, options, arena_bytes(plan) - made.ram + ram, progress)
            for graph, (plan, _) in zip(graphs, plans, strict=True)
        ]
        plans = [(f.plan, sizes) for f, (_, sizes) in zip(smaller, plans, strict=True)]
        return replace(
            describe(plans, beside, kept, quantization), patches="; ".join(f.text for f in smaller if f.text)
        )


def for_kind(options: Options, kind: str, constants: str) -> Options:
    """Return the options with the target that makes this kind of code, and with its tuning results. Raises
    ValueError if it makes none."""
    if kind not in KINDS:
        raise ValueError(
            f"nothing is emitted as {kind!r}; known: {', '.join(KINDS)}, and jgn, which build makes"
        )
    if constants not in CONSTANTS:
        raise ValueError(f"constants={constants!r} is unknown; known: {', '.join(CONSTANTS)}")
    if options.libraries != "never":
        raise ValueError(
            f"libraries={options.libraries!r}: emitted code ({kind}) calls no library: leave libraries= out"
        )
    target = options.target
    if kind not in target.outputs:
        raise ValueError(
            f"no {kind!r} is made for {target.name}{origin(options.asked)}: "
            f"{', '.join(target.outputs)} can be"
        )
    target = target.of_c if kind == "c" else target.emitted
    return with_winners(options.but(target=target), 1)


def lies_beside(target: Target, kind: str, constants: str) -> bool:
    """Return whether the weights are written to a file beside the code."""
    if kind in ("object", "shared") and not system_of(target).elf:
        return True
    return constants == "beside" or "wasm" in target.triple or kind == "web"


def emitted(model: Model, kind: str) -> Emitted:
    """Return the code of a model."""
    files, code_bytes = _files(model, kind)
    ram, at = model.typical_bytes()
    return Emitted(model, files, code_bytes.code, ram + model.weights.made, at, code_bytes.stack)


def _title(model: ModelSource) -> str:
    """Return the name of a model's file without its ending, or "" for a model that isn't a file."""
    path = model.structure if isinstance(model, Paired) else model
    return Path(path).stem if isinstance(path, (str, Path)) else ""


def _with_fallback(
    parts: Sequence[Options],
    model: ModelSource,
    name: str,
    constants: str,
    progress: Progress | None,
    candidates: bool,
) -> Emitted:
    """Emit a package for WebGPU, with the WebAssembly that its loader may use instead."""
    gpu, processor = parts
    name = name or _title(model) or "model"
    package = emit_by(gpu, model, "web", name, constants, progress, candidates=candidates)
    fallback = f"{package.model.prefix}_wasm"
    other = emit_by(processor, model, "shared", fallback, constants, progress)
    files = {n: content for n, content in other.files.items() if not n.endswith(".h")}
    return Emitted(
        package.model, {**files, **web_files(package.model, fallback)}, other.code, package.ram, package.at
    )


def _graphs(
    whole: Imported, kept: Mapping[str, str], options: Options, progress: Progress | None
) -> Iterator[tuple[Graph, Mapping[str, int]]]:
    """Yield the lowered graphs of a model's variants, each with the sizes that it is specialised for. They
    update the inputs `kept` in place if they can. Raises CompileError for a model that runs in steps."""
    updates = {after: name for name, after in kept.items()}
    for case in cases(whole, options, progress).made:
        if has_steps(case.graph):
            raise CompileError(_why_not(case.graph))
        warn_of_time(with_uneven({}, case.graph, options))
        yield replace(case.graph, updates=updates), case.sizes


def _why_not(graph: Graph) -> str:
    """Return the text of the error for a model that runs in steps. It names the nodes that need the steps."""
    steps = [n for n in graph.nodes if n.op in ("host", "bind", "if", "loop")]
    named = "; ".join(f"{n.source or n.name} ({n.op})" for n in steps[:5])
    more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
    return (
        f"the model can't be compiled ahead of time, as it has steps that depend on its data: {named}{more}; "
        "`jangin inspect MODEL --placement` says why: give sizes with shapes=, take the nodes out of the "
        "model, or save it as .jgn, which runs with Jangin"
    )


def _files(model: Model, kind: str) -> tuple[dict[str, Content], Compiled]:
    """Return the files of a kind by name, and what is known of the compiled code."""
    p = model.prefix
    if kind == "web":
        return web_files(model), Compiled()
    if is_wasm(model):
        object_file, code = model_object(model)
        module = {f"{p}.wasm": [wasm_module(model, object_file)], f"{p}.mjs": [loader(model).encode()]}
        if model.has_workers:
            module[f"{p}_worker.mjs"] = [worker(model).encode()]
        return {**module, f"{p}.bin": model.weights.chunks()}, Compiled(code)
    known = compiled(model) if kind == "c" else Compiled()
    files: dict[str, Content] = {f"{p}.h": [header(model, known.stack).encode()]}
    if kind == "c":
        files[f"{p}.c"] = [model_source(model).encode()]
        if not model.beside:
            files |= weights_files(model)
        if model.has_threads:
            files[f"{p}_threads.c"] = [threads_source(model).encode()]
    else:
        object_file, code = model_object(model)
        known = Compiled(code)
        threads = threads_object(model) if model.has_threads else None
        if kind == "shared":
            files[system_of(model.target).library.format(p)] = [
                shared_library(model, [object_file, *([threads] if threads else [])])
            ]
        else:
            files[f"{p}.o"] = [object_file]
            if threads is not None:
                files[f"{p}_threads.o"] = [threads]
    if model.beside:
        files[f"{p}.bin"] = model.weights.chunks()
    if model.target.name in BOARDS and model.training is None:
        return files | firmware_files(model), known
    files["main.c"] = [example(model).encode()]
    files["CMakeLists.txt"] = [cmake_lists(model, kind).encode()]
    return files, known


__all__ = ["CONSTANTS", "KINDS", "Emitted", "emit"]
