"""BLAS ahead of time: a library or C sources of chosen routines, with CBLAS's and Fortran's symbols."""

from __future__ import annotations

import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from jangin.ahead.header import header as model_header
from jangin.ahead.link import LinkError, linker
from jangin.ahead.model import Model
from jangin.ahead.objects import kernel_object
from jangin.ahead.output import Content, write_files
from jangin.ahead.source import model_source
from jangin.blas.calls import all_routines
from jangin.blas.interface import C_TYPES, Compiled, header, source
from jangin.blas.kernel import Kernel
from jangin.blas.routine import Routine
from jangin.compiler.pipeline import lowered_plan
from jangin.options import Options
from jangin.runtime.threads import default_threads
from jangin.targets import Target
from jangin.targets.systems import system_of

KINDS = ("c", "shared")
Progress = Callable[[int, int, str], None]


def chosen(names: Sequence[str]) -> list[tuple[str, Routine]]:
    """Return the letters and routines of names. A name without a type's letter, such as gemm, means every
    type that C has; no names mean all routines. Raises ValueError for an unknown name."""
    known = {n: (t, r) for n, (t, r) in all_routines().items() if t in C_TYPES}
    routines: dict[str, tuple[str, Routine]] = {}
    for name in names or sorted(known):
        several = {n: (t, r) for n, (t, r) in known.items() if name in (n, r.name)}
        if not several:
            raise ValueError(f"there is no routine {name!r}; known: {', '.join(sorted(known))}")
        routines |= several
    return list(routines.values())


def emit(
    folder: Path,
    names: Sequence[str] = (),
    kind: str = "shared",
    options: Options | None = None,
    *,
    force: bool = False,
    progress: Progress | None = None,
) -> list[str]:
    """Compile routines, and write a library or sources into `folder`. Return the names of the files.

    The code runs on one thread, and `options` name its target. Raises ValueError for an unknown kind or
    routine, LinkError if there is no C compiler for a library, and FileExistsError as `jangin.emit` does."""
    if kind not in KINDS:
        raise ValueError(f"nothing is emitted as {kind!r}; known: {', '.join(KINDS)}")
    asked = chosen(names)
    options = Options(threads=1) if options is None else options
    made_of = {"c": "c", "shared": "object"}[kind]
    if made_of not in options.target.outputs or (kind == "shared" and not system_of(options.target).elf):
        raise ValueError(
            f"BLAS can't be emitted as {kind!r} for {options.target.name}: choose another kind or target"
        )
    options = options.but(target=options.target.of_c if kind == "c" else options.target.emitted)
    compiled: list[Compiled] = []
    models = _models(asked, options, compiled, progress)
    files: dict[str, Content] = {}
    if kind == "c":
        for m in models:
            files[f"{m.prefix}.c"] = [model_source(m).encode()]
            files[f"{m.prefix}.h"] = [model_header(m).encode()]
        files["jangin_blas.c"] = [source(compiled).encode()]
    else:
        objects = [*_objects(models)]
        if progress is not None:
            progress(len(asked), len(asked), "interfaces")
        text, head = source(compiled), header(compiled)
        files["libjangin_blas.so"] = [_linked(objects, text, head, options.target)]
    files["jangin_blas.h"] = [header(compiled).encode()]
    write_files(folder, files, force=force)
    return sorted(files)


def _models(
    asked: Sequence[tuple[str, Routine]],
    options: Options,
    compiled: list[Compiled],
    progress: Progress | None,
) -> Iterator[Model]:
    """Yield the kernels of all routines. Each routine is added to `compiled` with its kernels' names."""
    for n, (letter, routine) in enumerate(asked):
        if progress is not None:
            progress(n, len(asked), routine.named(letter))
        models = [*_variants(letter, routine, options)]
        inputs, symbols = tuple(t.name for t in models[0].inputs), models[0].symbols
        compiled.append(Compiled(routine, letter, tuple(m.prefix for m in models), inputs, symbols))
        yield from models


def _variants(letter: str, routine: Routine, options: Options) -> Iterator[Model]:
    """Yield the compiled kernel of each variant."""
    for variant in routine.variants():
        name = "_".join(filter(None, ("jangin", routine.named(letter), "".join(variant.values()).lower())))
        plan = lowered_plan(Kernel(routine, letter, variant, options.target.machine).graph(), options)
        yield Model.of(name, name, options.target, [(plan, {})], beside=False)


def _objects(models: Iterable[Model]) -> Iterator[bytes]:
    """Yield the object file of each kernel. Threads make machine code while later kernels are described."""
    threads = default_threads()
    running: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        for model in models:
            running.append(pool.submit(kernel_object, model))
            if len(running) > 2 * threads:
                yield running.popleft().result()
        while running:
            yield running.popleft().result()


def _linked(objects: Sequence[bytes], text: str, head: str, target: Target) -> bytes:
    """Compile the interfaces, and link them with the kernels. Return the library's bytes."""
    command = _compiler(target)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "jangin_blas.h").write_text(head)
        (folder / "jangin_blas.c").write_text(text)
        paths = [folder / f"{n}.o" for n in range(len(objects))]
        for path, data in zip(paths, objects, strict=True):
            path.write_bytes(data)
        library = folder / "libjangin_blas.so"
        (folder / "objects").write_text("\n".join(map(str, paths)))
        flags = ["-O2", "-fPIC", "-shared", "-Wl,-soname,libjangin_blas.so", "-o", str(library)]
        arguments = [*command, *flags, str(folder / "jangin_blas.c"), f"@{folder / 'objects'}"]
        done = subprocess.run(arguments, capture_output=True, text=True)
        if done.returncode:
            raise LinkError(f"{' '.join(command)} failed: {done.stderr.strip()[:2000]}")
        return library.read_bytes()


def _compiler(target: Target) -> Sequence[str]:
    """Return the command of a C compiler that links for a target. Raises LinkError if there is none."""
    command = linker(target.triple)
    if command[-1] == "ld.lld":
        return [*command[:-1], "cc", "-target", target.triple.split("-")[0] + "-linux-gnu"]
    if command[-1].endswith("ld.lld"):
        raise LinkError("a library of BLAS needs a C compiler: pip install 'jangin[aot]', or install gcc")
    return command


__all__ = ["KINDS", "chosen", "emit"]
