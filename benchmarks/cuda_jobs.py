"""The jobs of benchmarks/cuda.py by name, in the order of their value."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from cuda_peers import Row, absent_engines
from cuda_place import TF32, Place
from cuda_training import training_error, training_time
from cuda_work import (
    bytes_error,
    compilers_time,
    copied,
    estimates,
    launch_time,
    library_time,
    network_error,
    network_time,
    product_error,
    product_time,
    sanitized,
    shapes_time,
    triton_time,
    windows_error,
)
from gpu_networks import BYTES

Job = Callable[[Place], Row]
Shape = tuple[int, int, int]
KINDS = "bfloat16", "float32", "float16", TF32
BATCHES = (
    ("resnet50", (1, 64)), ("bert", (1, 32)), ("gpt2", (1,)), ("unet", (1,)), ("mobilenetv2", (1,)),
    ("squeezenet", (1,)),
)  # fmt: skip
"""Networks, the most valuable first, and the batches that are timed."""
SIZES = 256, 384, 512, 768, 1024, 1536, 2048, 3072, 4096, 6144, 8192
"""The sides of square products: powers of two, and sizes between them."""
SHAPES: Mapping[str, Sequence[Shape]] = {
    "resnet50": (
        *((3136, k, n) for k, n in ((64, 64), (576, 64), (64, 256), (256, 64), (256, 128))),
        *((784, k, n) for k, n in ((1152, 128), (128, 512), (512, 128), (512, 256))),
        *((196, k, n) for k, n in ((2304, 256), (256, 1024), (1024, 256), (1024, 512))),
        *((49, k, n) for k, n in ((4608, 512), (512, 2048), (2048, 512))), (12544, 147, 64), (1, 2048, 1000),
    ),
    "bert": tuple((m, k, n) for m in (128, 4096) for k, n in ((768, 768), (768, 3072), (3072, 768))),
    "gpt2": tuple((1, k, n) for k, n in ((768, 768), (768, 3072), (3072, 768), (768, 50257))),
}  # fmt: skip
"""Rows, terms and columns of networks' products: a convolution's pixels, window and channels."""
CHOOSING = 60.0
"""Seconds for which candidates of a network's kernels are measured, a third of a part."""
LIBRARIES = {"cublas": "bert", "cudnn": "resnet50"}
"""NVIDIA's libraries that Jangin itself can call (`libraries=`), and the network with which each is
measured."""


def parts(small: bool) -> tuple[dict[str, Job], ...]:
    """Return the jobs by name, in parts. The most valuable come first."""
    jobs: list[dict[str, Job]] = []
    for part in (first_part, second_part, third_part, fourth_part, fifth_part):
        earlier = {name for known in jobs for name in known}
        jobs.append({name: job for name, job in part(small).items() if name not in earlier})
    return tuple(jobs)


def first_part(small: bool) -> dict[str, Job]:
    """Return the jobs that tell whether results are right: fragments of matrices, shared tiles, networks."""
    jobs: dict[str, Job] = {}
    whole, odd = (64, 17) if small else (512, 333)
    for kind in ("bfloat16", "float16", TF32):  # whole tiles of the tensor cores
        jobs[f"errors/matrices/{kind}"] = _product(kind, whole, whole, whole)
    jobs["errors/bytes/int8"] = partial(bytes_error, rows=whole, terms=whole, columns=whole)
    for kind in ("float32", "bfloat16", "float16", TF32):
        jobs[f"errors/product/{kind}"] = _product(kind, odd, odd + 8, odd - 2)
        jobs[f"errors/shared/{kind}"] = _product(kind, 33, 80 * odd, 40)  # groups share tiles
        jobs[f"errors/windows/{kind}"] = partial(windows_error, kind=kind)
    for name, kind in ((n, k) for n in ("resnet50", "bert") for k in ("float32", "bfloat16")):
        jobs[f"errors/{name}/{kind}"] = partial(network_error, name=name, kind=kind, small=small)
    for tool in ("memcheck", "racecheck"):
        jobs[f"sanitizer/{tool}"] = partial(sanitized, tool=tool)
    return jobs


def second_part(small: bool) -> dict[str, Job]:
    """Return the times of products, and of ResNet-50 and BERT in float32 and bfloat16."""
    jobs: dict[str, Job] = {"copy": partial(copied, count=1 << 12 if small else 1 << 26)}
    for size in (16,) if small else (4096, 1024):
        for kind in ("bfloat16", "float32", TF32):
            jobs[f"products/{size}/{kind}"] = partial(product_time, kind=kind, size=size)
    for kind in ("bfloat16", "float32"):
        jobs |= _networks(BATCHES[:2], kind, small)
    jobs["launches"] = partial(launch_time, count=60)
    return jobs


def third_part(small: bool) -> dict[str, Job]:
    """Return GPT-2's decoding and the U-Net, steps of training, and products of the networks' shapes."""
    jobs: dict[str, Job] = {}
    for kind in ("bfloat16", "float32"):
        jobs |= _networks(BATCHES[2:4], kind, small)
    jobs["errors/training/bert/float32"] = partial(training_error, name="bert", small=True)
    for name, batch in (("bert", 32), ("resnet50", 64)):
        some = min(batch, 2) if small else batch
        jobs[f"training/{name}/{batch}"] = partial(training_time, name=name, batch=some, small=small)
    for kind in ("bfloat16", "float32"):
        jobs |= _shapes(kind, small)
    return jobs


def fourth_part(small: bool) -> dict[str, Job]:
    """Return comparisons with other compilers and libraries: torch.compile, XLA, Triton, cuBLASLt, cuDNN."""
    jobs: dict[str, Job] = {"engines": lambda on: absent_engines()}
    for name, _ in BATCHES[:4]:
        job = partial(compilers_time, name=name, batch=1, kind="bfloat16", small=small)
        jobs[f"compilers/{name}/1/bfloat16"] = job
    size, heads = ((32, 32, 32), (2, 64, 16)) if small else ((4096, 4096, 4096), (12, 1024, 64))
    for kind in ("bfloat16", "float32"):
        jobs[f"triton/product/{kind}"] = partial(triton_time, name="product", kind=kind, shape=size)
        jobs[f"triton/attention/{kind}"] = partial(triton_time, name="attention", kind=kind, shape=heads)
    for library, name in LIBRARIES.items():
        job = partial(library_time, library=library, name=name, small=small)
        jobs[f"libraries/{library}/float32"] = job
    return jobs


def fifth_part(small: bool) -> dict[str, Job]:
    """Return all else: the choice among candidates, other networks, types and sizes."""
    jobs: dict[str, Job] = {}
    chosen, seconds = ("bert", 1.0) if small else ("resnet50", CHOOSING)
    for kind in ("bfloat16", "float32"):
        job = partial(estimates, name=chosen, kind=kind, seconds=seconds, small=small)
        jobs[f"estimates/{chosen}/{kind}"] = job
    for name, _ in BATCHES:
        for kind in KINDS:
            jobs[f"errors/{name}/{kind}"] = partial(network_error, name=name, kind=kind, small=small)
    for kind in (*KINDS, BYTES):
        jobs |= _networks(BATCHES, kind, small)
    sizes = [(n, n, n) for n in ((33,) if small else SIZES)]
    for kind in KINDS:
        jobs[f"shapes/sizes/{kind}"] = partial(shapes_time, shapes=sizes, kind=kind)
        jobs |= _shapes(kind, small)
    return jobs


def _product(kind: str, rows: int, terms: int, columns: int) -> Job:
    return partial(product_error, kind=kind, rows=rows, terms=terms, columns=columns)


def _shapes(kind: str, small: bool) -> dict[str, Job]:
    """Return the products of all networks' shapes. Small ones are two corners of the first shapes."""
    tiny = [tuple(min(n, 24) for n in shape) for shape in SHAPES["resnet50"][:2]]
    return {
        f"shapes/{name}/{kind}": partial(shapes_time, shapes=tiny if small else shapes, kind=kind)
        for name, shapes in SHAPES.items()
    }


def _networks(batches: Sequence[tuple[str, Sequence[int]]], kind: str, small: bool) -> dict[str, Job]:
    return {
        f"networks/{name}/{batch}/{kind}": partial(
            network_time, name=name, batch=batch, kind=kind, small=small
        )
        for name, every in batches
        for batch in every
        if batch == 1 or not small
    }
