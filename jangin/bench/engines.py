"""The engines that a benchmark worker can time: Jangin, its peers, and two measures of the machine's
speed."""

from __future__ import annotations

import ctypes
import json
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jangin.bench import peers
from jangin.bench.engine import Engine, Job
from jangin.bench.llamacpp import llama_cpp
from jangin.ir.graph import Array
from jangin.ir.records import dataclass
from jangin.ir.sources import operators
from jangin.runtime.system.usage import children_bytes

if TYPE_CHECKING:
    from jangin.runtime.executable import Executable


def make(job: Job) -> Engine:
    """Compile the job's model in its engine, and return it ready to run. Raises ModuleNotFoundError if a peer
    isn't installed.

    An engine of one's own is named `module:function`. The function does what those of `ENGINES` do."""
    module, own, function = job.engine.partition(":")
    if own:
        engine: Engine = getattr(import_module(module), function)(job)
        return engine
    return ENGINES[job.engine](job)


def _jangin(job: Job) -> Engine:
    import jangin
    from jangin.compiler.driver import compile_by

    feeds = job.feeds()
    start = time.perf_counter()
    exe = compile_by(job.options.but(threads=job.threads), job.model)
    seconds = time.perf_counter() - start
    memory = {"compiler": children_bytes()}
    libraries: tuple[str, ...] = ()
    if isinstance(exe, jangin.Executable):
        libraries = exe.plan.libraries
        memory["weights"] = sum(a.nbytes for a in exe.plan.constants.values())
        if exe.plan.is_static:
            memory["arena"] = exe.arena_bytes()
    layers = partial(_layers, exe, feeds) if isinstance(exe, jangin.Executable) else None
    call = _calls(exe, feeds)
    return Engine(call, jangin.__version__, seconds, 0.0, memory, exe.save, libraries, layers)


def _layers(exe: Executable, feeds: Mapping[str, Array]) -> Mapping[str, float]:
    """Return the seconds of a run by operator. A kernel of several has their names with "+" between them."""
    by_operator: dict[str, float] = {}
    for taken in exe.launches(feeds).times(LAYER_RUNS):
        name = operators(taken.launch.sources)
        by_operator[name] = by_operator.get(name, 0.0) + taken.seconds
    return by_operator


LAYER_RUNS = 10
"""Runs over which the time of each operator is averaged. They take little time beside the turns of a
measurement."""


def _loaded(job: Job) -> Engine:
    """Return an engine that loads a model which Jangin saved as `job.model`, and runs it without
    compiling."""
    import jangin

    return Engine(_calls(jangin.load(job.model, job.threads), job.feeds()), jangin.__version__)


def _calls(exe: Any, feeds: Mapping[str, Array]) -> Callable[[], Mapping[str, Array]]:
    arrays = [feeds[spec.name] for spec in exe.inputs]
    names = [spec.name for spec in exe.outputs]

    def call() -> Mapping[str, Array]:
        result = exe(*arrays)
        return dict(zip(names, result if isinstance(result, tuple) else (result,), strict=True))

    return call


def _untuned(job: Job) -> Engine:
    """Return Jangin's engine with tuning turned off, for comparison with the tuned model."""
    return _jangin(replace(job, compiling=Job.packed(job.options.but(tune=None))))


def _with_library(job: Job) -> Engine:
    """Return Jangin's engine with all products by another maker's library. Raises ModuleNotFoundError if the
    library isn't installed, and ValueError if the model has no product that it can compute."""
    from jangin.runtime.libraries import absent, find

    if find(job.engine) is None:
        raise ModuleNotFoundError(absent(job.engine))
    engine = _jangin(replace(job, compiling=Job.packed(job.options.but(libraries=job.engine))))
    if engine.libraries != (job.engine,):
        raise ValueError(f"{TITLES[job.engine]} can compute none of this model's products")
    return engine


def _aot(job: Job) -> Engine:
    from jangin.bench.emitted import emitted  # imports the compiler, which would count in the peers' memory

    return emitted(job)


def _im2col(job: Job) -> Engine:
    """Return the model computed by NumPy, operator by operator. Its windows are copied to matrices (im2col),
    and OpenBLAS multiplies them, as in Caffe."""
    from jangin.compiler.interpreted import interpreted

    feeds = job.feeds()
    start = time.perf_counter()
    exe = interpreted(job.model, job.options.but(threads=job.threads), lambda: False, alone=True)
    seconds = time.perf_counter() - start
    return Engine(_calls(exe, feeds), metadata.version("numpy"), seconds)


def _blis(job: Job) -> Engine:
    """Return BLIS for a model that is one matrix product of its inputs. BLIS takes its number of threads from
    the environment."""
    import numpy as np

    a, b, name = _factors(job)
    library = _first_library(BLIS)
    library.bli_info_get_version_str.restype = ctypes.c_char_p
    (rows, depth), columns = a.shape, b.shape[1]
    c = np.empty((rows, columns), np.float32)
    x, y, z = (array.ctypes.data_as(ctypes.c_void_p) for array in (a, b, c))  # they hold the arrays
    one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
    sizes = rows, columns, depth

    def call() -> Mapping[str, Array]:
        library.cblas_sgemm(ROW_MAJOR, PLAIN, PLAIN, *sizes, one, x, depth, y, columns, zero, z, columns)
        return {name: c}

    return Engine(call, library.bli_info_get_version_str().decode())


BLIS = ("libblis.so.4", "libblis.so.5", "libblis-mt.so.5")
"""The names of BLIS with CBLAS's interface. Debian's libblis4 has the first."""
ROW_MAJOR, PLAIN = 101, 111
"""CBLAS's numbers for the order of rows, and for a matrix that isn't transposed."""


def _first_library(names: Sequence[str]) -> ctypes.CDLL:
    """Return the first of some system libraries that is there. Raises ModuleNotFoundError if none is."""
    for name in names:
        try:
            return ctypes.CDLL(name)
        except OSError:
            continue
    raise ModuleNotFoundError(f"{names[0]} is not installed")


def _factors(job: Job) -> tuple[Array, Array, str]:
    """Return the factors of a model that is one matrix product of its two inputs, and its output's name.
    Raises ValueError for other models."""
    import onnx

    (*_, node), feeds = onnx.load(job.model).graph.node, job.feeds()
    if node.op_type != "MatMul" or list(node.input) != list(feeds):
        raise ValueError("the library computes only models that are one matrix product of two inputs")
    a, b = feeds.values()
    return a, b, node.output[0]


def _numpy(job: Job) -> Engine:
    """Return NumPy for a model that is one matrix product of its inputs. OpenBLAS, which computes it, takes
    its number of threads from the environment."""
    import numpy as np

    a, b, name = _factors(job)
    c = np.matmul(a, b)
    return Engine(lambda: {name: np.matmul(a, b, out=c)}, np.__version__)


def _onnxruntime(job: Job) -> Engine:
    return _session(job, optimized=True)


def _reference(job: Job) -> Engine:
    """Return ONNX Runtime with its optimizations turned off. Errors are measured against its outputs."""
    return _session(job, optimized=False)


def _float64(job: Job) -> Engine:
    """Return the model in float64. Errors of a study are measured against its outputs."""
    from jangin.bench.double import float64  # imports onnx, which would count in the peers' memory

    return float64(job)


def _session(job: Job, optimized: bool) -> Engine:
    import onnxruntime as ort

    feeds = job.feeds()
    start = time.perf_counter()
    options = ort.SessionOptions()
    options.intra_op_num_threads = job.threads
    options.inter_op_num_threads = 1
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    for name, size in job.shapes.items():
        options.add_free_dimension_override_by_name(name, size)
    session = ort.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])
    seconds = time.perf_counter() - start
    names = [o.name for o in session.get_outputs()]

    def layers() -> Mapping[str, float]:
        with tempfile.TemporaryDirectory() as folder:
            options.enable_profiling, options.profile_file_prefix = True, f"{folder}/profile"
            profiled = ort.InferenceSession(job.model, options, providers=["CPUExecutionProvider"])
            for _ in range(LAYER_RUNS):
                profiled.run(names, feeds)
            events = json.loads(Path(profiled.end_profiling()).read_bytes())
        by_operator: dict[str, float] = {}
        for event in events:
            if event["name"].endswith("_kernel_time"):
                name = event["args"]["op_name"]
                by_operator[name] = by_operator.get(name, 0.0) + event["dur"] / 1e6 / LAYER_RUNS
        return by_operator

    def call() -> Mapping[str, Array]:
        return dict(zip(names, session.run(names, feeds), strict=True))

    return Engine(call, ort.__version__, seconds, layers=layers)


def _openvino(job: Job) -> Engine:
    import openvino as ov

    feeds = job.feeds()
    start = time.perf_counter()
    core = ov.Core()
    model = core.read_model(job.model)
    if job.shapes:
        model.reshape({name: list(array.shape) for name, array in feeds.items()})
    settings = {
        "INFERENCE_NUM_THREADS": job.threads,
        "INFERENCE_PRECISION_HINT": "f32",
        "PERFORMANCE_HINT": "LATENCY",
        "ENABLE_CPU_PINNING": False,
    }
    request = core.compile_model(model, "CPU", settings).create_infer_request()
    seconds = time.perf_counter() - start
    names = [o.get_any_name() for o in model.outputs]

    def call() -> Mapping[str, Array]:
        results = request.infer(feeds)
        return {name: results[i] for i, name in enumerate(names)}

    return Engine(call, metadata.version("openvino"), seconds)


SGEMM_SIZE = 1024
"""Rows and columns of the matrices of the reference product. It takes some 20 ms on one core, long enough to
be timed and short beside the other engines."""


def _sgemm(job: Job) -> Engine:
    """Return a float32 matrix product by NumPy's OpenBLAS, as a yardstick. OpenBLAS takes its number of
    threads from the environment."""
    import numpy as np

    rng = np.random.default_rng(0)
    a, b = (rng.random((SGEMM_SIZE, SGEMM_SIZE), np.float32) for _ in "ab")
    c = np.empty_like(a)
    return Engine(lambda: {"c": np.matmul(a, b, out=c)}, np.__version__, work=2.0 * SGEMM_SIZE**3)


FMA_CHAINS = 12
FMA_LOOPS = 200_000
"""Independent sums of a loop, and the loop's iterations. Cores with two units of four cycles' latency need
eight sums, and those with five cycles' latency ten."""


def _fma(job: Job) -> Engine:
    """Return a loop of FMAs on registers alone, as wide as the host's vectors. It measures the current speed
    of one core."""
    from jangin.llvm import binding
    from jangin.targets import resolve

    llvm = binding()

    target = resolve("cpu")
    lanes = target.processor.lanes(4)
    kind = f"<{lanes} x float>"
    one = "splat (float 0.5)"
    call = f"call {kind} @llvm.fma.v{lanes}f32({kind} %a{{0}}, {kind} {one}, {kind} {one})"
    phis = [f"  %a{i} = phi {kind} [ {one}, %start ], [ %b{i}, %loop ]" for i in range(FMA_CHAINS)]
    steps = [f"  %b{i} = {call.format(i)}" for i in range(FMA_CHAINS)]
    stores = [f"  store volatile {kind} %b{i}, ptr %out, align 64" for i in range(FMA_CHAINS)]
    text = "\n".join(
        [
            f"declare {kind} @llvm.fma.v{lanes}f32({kind}, {kind}, {kind})",
            f'define void @fma(ptr %out) "prefer-vector-width"="{8 * target.processor.vector_bytes}" {{',
            "start:\n  br label %loop\nloop:",
            "  %n = phi i64 [ 0, %start ], [ %m, %loop ]",
            *phis,
            *steps,
            "  %m = add i64 %n, 1",
            f"  %more = icmp ult i64 %m, {FMA_LOOPS}",
            "  br i1 %more, label %loop, label %end\nend:",
            *stores,
            "  ret void\n}",
        ]
    )
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=target.cpu, features=target.features
    )
    jit = llvm.create_mcjit_compiler(llvm.parse_assembly(text), machine)
    jit.finalize_object()
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(jit.get_function_address("fma"))
    storage = ctypes.create_string_buffer(192)
    at = (ctypes.addressof(storage) + 63) // 64 * 64

    def run() -> Mapping[str, Array]:
        function(at)
        return {}

    run.keep = (jit, storage)  # type: ignore[attr-defined]
    return Engine(run, "", work=2.0 * lanes * FMA_CHAINS * FMA_LOOPS)


@dataclass(frozen=True)
class Peer:
    """Another maker's engine. `make` compiles a job's model in it.

    - `packages` are Python packages of which any one brings the engine, the preferred first.
    - `more` are packages that it needs besides.
    - `reads` is the ending of the files that it reads.
    - `partial` tells that it may return only some of the outputs.
    """

    title: str
    make: Callable[[Job], Engine]
    packages: tuple[str, ...]
    more: tuple[str, ...] = ()
    reads: str = ".onnx"
    partial: bool = False


PEERS: Mapping[str, Peer] = {
    "onnxruntime": Peer("ONNX Runtime", _onnxruntime, ("onnxruntime", "onnxruntime-gpu")),
    "openvino": Peer("OpenVINO", _openvino, ("openvino",)),
    "ncnn": Peer("ncnn", peers.ncnn, ("ncnn",), ("pnnx",)),
    "mnn": Peer("MNN", peers.mnn, ("MNN",)),
    "opencv": Peer("OpenCV", peers.opencv, ("opencv-python-headless", "opencv-python")),
    "litert": Peer("LiteRT", peers.litert, ("ai-edge-litert",), reads=".tflite"),
    "inductor": Peer("Inductor", peers.inductor, ("torch",), reads=".pt2"),
    "pytorch": Peer("PyTorch", peers.pytorch, ("torch",), reads=".pt2"),
    "tvm": Peer("TVM, untuned", peers.tvm, ("apache-tvm",)),
    "llamacpp": Peer("llama.cpp", llama_cpp, ("xllamacpp",), reads=".gguf", partial=True),
    "im2col": Peer("im2col + OpenBLAS", _im2col, ("numpy",)),
}
"""The engines that `jangin bench` and `jangin study` set beside Jangin, by name."""
OURS = ("jangin", "tuned", "aot")
"""Jangin's engines of a study: compiled at once, with what tuning found, and ahead of time."""
STUDIED = (*OURS, *PEERS)
"""The engines of a study."""
MULTIPLIERS: tuple[str, ...] = ("openblas", "onednn", "numpy", "blis")
"""Libraries of matrix products, which a study of products adds. Jangin calls the first two."""
DEVICE_MULTIPLIERS: Mapping[str, tuple[str, ...]] = {"opencl": ("clblast",)}
"""Libraries of matrix products on other devices than the processor, by the kind of device. Jangin calls
them."""
ENGINES: Mapping[str, Callable[[Job], Engine]] = {
    "jangin": _jangin,
    "untuned": _untuned,
    "tuned": _jangin,
    "aot": _aot,
    "float32": _jangin,
    "loaded": _loaded,
    **{name: peer.make for name, peer in PEERS.items()},
    "openblas": _with_library,
    "onednn": _with_library,
    "clblast": _with_library,
    "numpy": _numpy,
    "blis": _blis,
    "reference": _reference,
    "float64": _float64,
    "sgemm": _sgemm,
    "fma": _fma,
}
TITLES = {
    "jangin": "Jangin",
    "untuned": "Jangin, untuned",
    "tuned": "Jangin, tuned",
    "aot": "Jangin, emitted",
    "float32": "Jangin's float32",
    **{name: peer.title for name, peer in PEERS.items()},
    "openblas": "OpenBLAS",
    "onednn": "oneDNN",
    "clblast": "CLBlast",
    "numpy": "NumPy",
    "blis": "BLIS",
    "sgemm": "NumPy SGEMM",
}
_OF_ANY_FORMAT = (*OURS, "untuned", "float32", "im2col")


def reads(engine: str) -> str:
    """Return the ending of the files that an engine reads, or "" if it reads every format."""
    if engine in _OF_ANY_FORMAT:
        return ""
    return PEERS[engine].reads if engine in PEERS else ".onnx"


def installed(engine: str) -> str | None:
    """Return the version of a peer, or None if it isn't installed. The further packages that it needs aren't
    tested."""
    return next(filter(None, map(_version, PEERS[engine].packages)), None)


def lacking(engine: str) -> str:
    """Return which packages a peer lacks, with the command that installs them, or "" if it has all."""
    peer = PEERS[engine]
    absent = [] if installed(engine) else [peer.packages[0]]
    absent += [package for package in peer.more if _version(package) is None]
    names = " and ".join(absent)
    return f"{engine} needs {names}: pip install {' '.join(absent)}" if absent else ""


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
