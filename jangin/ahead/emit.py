"""From a model to what runs without Jangin: an object file, a shared library or C, each with a C API."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.ahead.cmake import cmake_lists
from jangin.ahead.header import example, header
from jangin.ahead.link import shared_library
from jangin.ahead.model import Model, identifier
from jangin.ahead.objects import model_object, threads_object
from jangin.ahead.output import Content, write_files
from jangin.ahead.source import compiled_bytes, model_source, threads_source, weights_files
from jangin.ahead.wasm import is_wasm, loader, wasm_module
from jangin.compiler.options import Extensions, Options
from jangin.compiler.pipeline import cases, loaded, lowered_plan
from jangin.compiler.request import with_winners
from jangin.frontends.format import Paired
from jangin.ir.graph import CompileError, Graph
from jangin.ir.limits import Limits, within
from jangin.ir.plan import Plan
from jangin.ir.records import dataclass
from jangin.passes.partition import has_steps
from jangin.targets import Target, origin, resolve
from jangin.tune.store import Store

if TYPE_CHECKING:
    from jangin.compiler.request import Progress
    from jangin.custom import CustomOperator
    from jangin.frontends.format import Format, ModelSource

KINDS = ("object", "shared", "c")
WEIGHTS = ("inside", "beside")


@dataclass(frozen=True)
class Emitted:
    """What `emit` made. `files`: contents by name. `code`: bytes of machine code, where it is made
    here; `ram`: bytes of working memory of a run on one thread, for the sizes `at` of its symbols."""

    model: Model
    files: Mapping[str, Content]
    code: int | None
    ram: int
    at: Mapping[str, int]

    @property
    def weights(self) -> int:
        return self.model.weights.bytes

    def save(self, folder: str | Path, *, force: bool = False) -> None:
        """Write the files to a folder, all or none. Raises FileExistsError where one of them is there
        already, unless `force` replaces it, and OSError where the folder can't be written."""
        write_files(Path(folder), self.files, force=force)


def emit(
    model: ModelSource,
    kind: str = "object",
    target: str | Target | None = None,
    shapes: Mapping[str, Any] | None = None,
    *,
    name: str = "",
    weights: str = "inside",
    winograd: bool = True,
    unchecked: bool = False,
    bf16: bool = True,
    operators: Sequence[CustomOperator] = (),
    formats: Sequence[Format] = (),
    cache: bool | str | Path = True,
    progress: Progress | None = None,
    limits: Limits | None = None,
) -> Emitted:
    """Compile a model ahead of time, to code with a C API that needs nothing of Jangin; `save` writes it.

    `kind`: "object" (a relocatable object file), "shared" (a shared library, linked by what is here) or "c"
    (C11 with GNU's vector types). `name`: what all names in C begin with, by default the model's;
    `weights`: "inside" the code, or in a file "beside" it that the program maps; `cache`: where what tuning
    found for one thread is kept. The rest: as for `jangin.build`.
    Raises CompileError that names the node for a model that runs in steps, ValueError for an unknown target
    or kind, LinkError where nothing here can link."""
    if kind not in KINDS:
        raise ValueError(
            f"nothing is emitted as {kind!r}; known: {', '.join(KINDS)}, and jgn, which build makes"
        )
    if weights not in WEIGHTS:
        raise ValueError(f"weights={weights!r} is unknown; known: {', '.join(WEIGHTS)}")
    found = resolve(target).of_c if kind == "c" else resolve(target).emitted
    if kind not in found.outputs:
        raise ValueError(
            f"no {kind!r} is made for {found.name}{origin(target)}: {', '.join(found.outputs)} can be"
        )
    options = Options(found, dict(shapes or {}), winograd, unchecked=unchecked, bf16=bf16)
    if cache is not False:
        options = with_winners(options, 1, Store(None if cache is True else cache))
    own = Extensions(operators, formats, None)
    with within(limits):
        plans = [*_plans(model, options, own, progress)]
    title = plans[0][0].name or "model"
    path = model.structure if isinstance(model, Paired) else model
    if isinstance(path, (str, Path)):
        title = Path(path).stem
    prefix = identifier(name or title)
    made = Model.of(title, prefix, found, plans, beside=weights == "beside" or "wasm" in found.triple)
    files, code = _files(made, kind)
    ram, at = made.typical_bytes()
    return Emitted(made, files, code, ram, at)


def _plans(
    model: ModelSource, options: Options, own: Extensions, progress: Progress | None
) -> Iterator[tuple[Plan, Mapping[str, int]]]:
    """The plans of a model's variants, with the sizes that each alone is for."""
    for case in cases(loaded(model, options, own), options, progress, own).made:
        if has_steps(case.graph):
            raise CompileError(_why_not(case.graph))
        yield lowered_plan(case.graph, options, progress), case.sizes


def _why_not(graph: Graph) -> str:
    """Which nodes keep a model from being compiled ahead of time."""
    steps = [n for n in graph.nodes if n.op in ("host", "bind", "if", "loop")]
    named = "; ".join(f"{n.source or n.name} ({n.op})" for n in steps[:5])
    more = f" and {len(steps) - 5} more" if len(steps) > 5 else ""
    return (
        f"the model can't be compiled ahead of time, as it has steps that depend on its data: {named}{more}; "
        "`jangin inspect MODEL --placement` says why: give sizes with shapes=, take the nodes out of the "
        "model, or save it as .jgn, which runs with Jangin"
    )


def _files(model: Model, kind: str) -> tuple[dict[str, Content], int | None]:
    """The files of a kind, and the bytes of code where there are any."""
    p = model.prefix
    files: dict[str, Content] = {f"{p}.h": [header(model).encode()]}
    code: int | None = None
    if is_wasm(model):
        made, code = model_object(model)
        module = {f"{p}.wasm": [wasm_module(model, made)], f"{p}.mjs": [loader(model).encode()]}
        return {**module, f"{p}.bin": model.weights.chunks()}, code
    if kind == "c":
        files[f"{p}.c"] = [model_source(model).encode()]
        if not model.beside:
            files |= weights_files(model)
        code = compiled_bytes(model)
        if model.has_threads:
            files[f"{p}_threads.c"] = [threads_source(model).encode()]
    else:
        made, code = model_object(model)
        threads = threads_object(model) if model.has_threads else None
        if kind == "shared":
            files[f"lib{p}.so"] = [shared_library(model, [made, *([threads] if threads else [])])]
        else:
            files[f"{p}.o"] = [made]
            if threads is not None:
                files[f"{p}_threads.o"] = [threads]
    if model.beside:
        files[f"{p}.bin"] = model.weights.chunks()
    files["main.c"] = [example(model).encode()]
    files["CMakeLists.txt"] = [cmake_lists(model, kind).encode()]
    return files, code


__all__ = ["KINDS", "WEIGHTS", "Emitted", "emit"]
