"""Other makers' libraries that compiled models may call, loaded when needed.

Machine code changes nothing that the rest of the process uses. NumPy's own OpenBLAS is loaded a second time
for it, from a copy, so that its number of threads can be set.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np

from jangin.environment import cuda_home
from jangin.ir.records import dataclass
from jangin.runtime.device import LoadError
from jangin.runtime.system import in_children

PREFIX = "jangin_"
"""The beginning of the names by which machine code calls a library's functions: jangin_LIBRARY_FUNCTION."""


@dataclass(frozen=True)
class Library:
    """A loaded library. `functions` maps the names by which machine code calls its functions to their
    addresses."""

    name: str
    version: str
    functions: Mapping[str, int]


def bind(symbol: str) -> int:
    """Return the address of a function that machine code calls as `jangin_LIBRARY_FUNCTION`. Raises LoadError
    if the library is missing."""
    name = symbol.split("_")[1]
    library = find(name)
    if library is None:
        raise LoadError(f"the model was compiled to call another library: {absent(name)}")
    return library.functions[symbol]


def absent(name: str) -> str:
    """Return a text that says that a library is missing, with a remedy."""
    how = SYSTEMS.get(name, f"pip install 'jangin[{name}]'")
    return (
        f'{TITLES.get(name, name)} is not installed here: {how}, or compile the model with libraries="never"'
    )


@cache
def find(name: str) -> Library | None:
    """Load a library, whose name is in FINDERS, and return it. Return None if it is missing."""
    try:
        return FINDERS[name]()
    except (KeyError, OSError, AttributeError):
        return None


def _openblas() -> Library | None:
    """Load scipy-openblas32, which nothing else uses, or a copy of NumPy's OpenBLAS. Return None if both are
    missing."""
    import shutil  # models that call no library are loaded without these modules
    import tempfile
    from importlib.util import find_spec

    spec = find_spec("scipy_openblas32")
    beside = Path(np.__file__).parent
    own = (
        [] if spec is None or spec.origin is None else Path(spec.origin).parent.glob("lib/libscipy_openblas*")
    )
    for path in sorted(own):
        return _blas(ctypes.CDLL(str(path)), "")
    for path in sorted(beside.with_name("numpy.libs").glob("libscipy_openblas64_*")):
        with tempfile.TemporaryDirectory() as folder:
            return _blas(ctypes.CDLL(shutil.copy(path, folder)), "64_")
    return None


_products = threading.Lock()
"""The lock of `_single`."""
_single = [0, 0]
"""The number of contexts `on_one_thread`, and NumPy's number of threads before the first of them."""


def _renew() -> None:
    """Begin anew in a forked process, which has none of the threads that were in a context."""
    global _products
    _products = threading.Lock()
    threads = _threads_of_numpy() if _single[0] else None
    if threads is not None:
        threads[1](_single[1])
    _single[0] = 0


in_children(_renew)


@contextmanager
def on_one_thread() -> Iterator[None]:
    """Inside this context, NumPy's matrix products use one thread, in the whole process.

    Threads of OpenBLAS wait for each other without sleeping. If another process has one of their cores, a
    small product takes 50 ms instead of 0.1."""
    threads = _threads_of_numpy()
    if threads is None:
        yield
        return
    get, put = threads
    with _products:
        if not _single[0]:
            _single[1] = get()
            put(1)
        _single[0] += 1
    try:
        yield
    finally:
        with _products:
            _single[0] -= 1
            if not _single[0]:
                put(_single[1])


@cache
def _threads_of_numpy() -> tuple[Any, Any] | None:
    """Return the functions that get and set the number of threads of NumPy's OpenBLAS, or None if NumPy has
    another library."""
    for path in Path(np.__file__).parent.with_name("numpy.libs").glob("libscipy_openblas64_*"):
        loaded = ctypes.CDLL(str(path))
        return tuple(loaded[f"scipy_openblas_{of}_num_threads64_"] for of in ("get", "set"))  # type: ignore[return-value]
    return None


def _blas(loaded: ctypes.CDLL, suffix: str) -> Library:
    """Return a loaded OpenBLAS, set to one thread, because Jangin's own threads share the work. Machine code
    passes 64-bit sizes, which a library with 32-bit sizes takes too: both use whole registers or stack
    slots."""
    loaded[f"scipy_openblas_set_num_threads{suffix}"](1)
    config = loaded[f"scipy_openblas_get_config{suffix}"]
    config.restype = ctypes.c_char_p
    version = config().decode().split()[1]
    return Library("openblas", version, _addresses(loaded, OPENBLAS, "scipy_{}" + suffix))


def _onednn() -> Library | None:
    for path in _files("onednn-cpu-gomp", "libdnnl.so"):
        loaded = ctypes.CDLL(str(path))
        version = loaded["dnnl_version"]
        version.restype = ctypes.POINTER(ctypes.c_int * 3)
        text = ".".join(map(str, version().contents))
        return Library("onednn", text, _addresses(loaded, ONEDNN, "{}"))
    return None


def _clblast() -> Library | None:
    """Load the system's CLBlast, or return None if it is missing. Only its file's name tells its version."""
    from ctypes.util import find_library

    name = find_library("clblast")
    if name is None:
        return None
    return Library("clblast", name.rpartition(".so.")[2], _addresses(ctypes.CDLL(name), CLBLAST, "{}"))


TOOLKITS = "13", "12"
"""Versions of NVIDIA's toolkit whose libraries Jangin calls."""


def nvidia_libraries(name: str, versions: Sequence[str] = TOOLKITS) -> list[str]:
    """Return the places of a library of NVIDIA's toolkit. Those in CUDA_HOME come first, then those that pip
    installed, then the system's. The earlier of the versions come first among each."""
    from importlib.util import find_spec

    home, brought = cuda_home(), find_spec("nvidia")
    folders = [home / "lib64", home / "lib"] if home is not None else []
    for folder in map(Path, brought.submodule_search_locations or ()) if brought else ():
        folders += sorted(folder.glob("*/lib"), reverse=True)
    names = [*(f"lib{name}.so.{version}" for version in versions), f"lib{name}.so"]
    files = [folder / file for file in names for folder in folders]
    if home is not None:  # what is named comes first, whichever it is
        files.sort(key=lambda file: home not in file.parents)
    return [*(str(file) for file in files if file.exists()), *names]


def _nvidia(library: str, name: str, functions: Sequence[str], *versions: str) -> Library | None:
    """Load a library of NVIDIA's, whose functions begin with `name`, or return None if it is missing."""
    for place in nvidia_libraries(name, versions):
        try:
            loaded = ctypes.CDLL(place)
        except OSError:
            continue
        get_version = loaded[f"{name}GetVersion"]
        get_version.restype = ctypes.c_size_t
        number = get_version()
        version = f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return Library(library, version, _addresses(loaded, {n: n for n in functions}, f"{name}{{}}"))
    return None


def _files(package: str, name: str) -> Iterator[Path]:
    """Yield the paths of those files of an installed package that are called `name`."""
    from importlib import metadata  # it imports thirty modules, and few calls need it

    try:
        package_files = metadata.files(package) or []
    except metadata.PackageNotFoundError:
        return
    yield from (Path(str(f.locate())) for f in package_files if f.name == name)


def _addresses(loaded: ctypes.CDLL, functions: Mapping[str, str], pattern: str) -> dict[str, int]:
    addresses = {}
    for ours, theirs in functions.items():
        name = theirs if theirs.startswith("omp_") else pattern.format(theirs)
        addresses[ours] = ctypes.cast(loaded[name], ctypes.c_void_p).value or 0
    return addresses


OPENBLAS = {"jangin_openblas_sgemm": "cblas_sgemm"}
ONEDNN = {
    "jangin_onednn_sgemm": "dnnl_sgemm",
    "jangin_onednn_threads": "omp_get_max_threads",
    "jangin_onednn_set_threads": "omp_set_num_threads",
}
CLBLAST = {
    "jangin_clblast_sgemm": "CLBlastSgemm",
    "jangin_clblast_batch": "CLBlastSgemmStridedBatched",
}
CUBLAS = (
    "Create", "MatmulDescCreate", "MatmulDescDestroy", "MatmulDescSetAttribute", "MatrixLayoutCreate",
    "MatrixLayoutDestroy", "MatrixLayoutSetAttribute", "MatmulPreferenceCreate", "MatmulPreferenceDestroy",
    "MatmulPreferenceSetAttribute", "MatmulAlgoGetHeuristic", "Matmul",
)  # fmt: skip
CUDNN = (
    "Create", "SetStream", "GetErrorString", "CreateTensorDescriptor", "DestroyTensorDescriptor",
    "SetTensor4dDescriptorEx", "CreateFilterDescriptor", "DestroyFilterDescriptor", "SetFilter4dDescriptor",
    "CreateConvolutionDescriptor", "DestroyConvolutionDescriptor", "SetConvolution2dDescriptor",
    "SetConvolutionGroupCount", "SetConvolutionMathType", "GetConvolutionForwardAlgorithm_v7",
    "ConvolutionForward",
)  # fmt: skip
FINDERS: Mapping[str, Callable[[], Library | None]] = {
    "openblas": _openblas, "onednn": _onednn, "clblast": _clblast,
    "cublas": partial(_nvidia, "cublas", "cublasLt", CUBLAS, *TOOLKITS),
    "cudnn": partial(_nvidia, "cudnn", "cudnn", CUDNN, "9"),
}  # fmt: skip
TITLES = {
    "openblas": "OpenBLAS", "onednn": "oneDNN", "clblast": "CLBlast", "cublas": "cuBLAS", "cudnn": "cuDNN",
}  # fmt: skip
SYSTEMS = {
    "clblast": "install your system's package of it (Debian's is libclblast1)",
    "cublas": "pip install nvidia-cublas, or set CUDA_HOME to a CUDA toolkit's folder",
    "cudnn": "pip install nvidia-cudnn-cu12 (or -cu13, as the driver's CUDA)",
}
"""The remedy for libraries without a Python package."""
