"""The machine code of products, read by NVIDIA's disassembler. Multiply-adds, or products of matrices, fill
the hottest loop, and shared memory is read 16 bytes at a time."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import Counter
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest
from templates.kernels import attention, conv, matmul, small_conv, small_matmul, workload
from test_cuda_bytes import product
from test_cuda_compile import _able
from test_cuda_warps import of_product

from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import source
from jangin.compiler.kernels import kernel_workload
from jangin.compiler.pipeline import optimize
from jangin.ir.dtype import U8
from jangin.ir.products import DOT1BF, DOT1H, READY
from jangin.options import Options
from jangin.targets import Target, resolve
from jangin.templates.choose import choose
from jangin.templates.gpu import warps
from jangin.templates.gpu.table import TEMPLATES
from jangin.templates.scheduled import Scheduled

LEAST, OF_WINDOWS = 0.70, 0.55
"""The share of float32 multiply-adds in the loop over panels. The others load operands, copy panels and
count. Windows' addresses take a third of their loop: each is a sum of 64 bits."""


def _disassembler() -> str | None:
    found = find_spec("nvidia")
    folders = map(Path, (found.submodule_search_locations or ()) if found else ())
    brought = [str(file) for folder in folders for file in folder.glob("*/bin/nvdisasm")]
    return next(iter(brought), None) or shutil.which("nvdisasm")


DISASSEMBLER = _disassembler()
pytestmark = pytest.mark.skipif(
    DISASSEMBLER is None or not _able("sm_80"),
    reason="NVIDIA's compiler or disassembler isn't here: pip install 'jangin[cuda]' nvidia-cuda-nvdisasm",
)


def hottest(cubin: bytes, folder: Path, counted: str = "FFMA") -> Counter[str]:
    """The instructions of the innermost loop with most of those whose name begins with `counted`, by name."""
    (folder / "k.cubin").write_bytes(cubin)
    command = [str(DISASSEMBLER), "-c", str(folder / "k.cubin")]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    instructions, labels = list[str](), dict[str, int]()
    for line in text.splitlines():
        if label := re.match(r"(\.L_x_\w+):", line):
            labels[label[1]] = len(instructions)
        found = re.match(r"\s+/\*[0-9a-f]+\*/\s+(@!?\S+ )?(.*?);", line)
        if found and found[1] not in ("@!PT ", "@!UPT "):  # these never run: they fill gaps
            instructions.append(found[2])
    jumps = [(n, re.search(r"BRA.*`\((\.L_x_\w+)\)", i)) for n, i in enumerate(instructions)]
    loops = [(labels[to[1]], n) for n, to in jumps if to and labels.get(to[1], n) < n]
    inner = [(a, b) for a, b in loops if not any((c, d) != (a, b) and a <= c and d <= b for c, d in loops)]
    counts = [Counter(i.split()[0] for i in instructions[a : b + 1]) for a, b in inner]
    return max(counts, key=lambda c: of_kind(c, counted))


def of_kind(loop: Counter[str], kind: str) -> int:
    return sum(count for name, count in loop.items() if name.split(".")[0] == kind)


@pytest.mark.parametrize("target", ["cuda:sm_80", pytest.param("cuda:sm_90a", marks=pytest.mark.slow)])
def test_multiply_adds_fill_the_hottest_loop(target: str, tmp_path: Path) -> None:
    on = resolve(target)
    for name, built, constants in (
        ("product", matmul((512, 512), (512, 512)), []),
        ("weights", matmul((512, 512), (512, 512)), ["w"]),
        ("pointwise", conv((56, 56), 64, 256, 1), ["w"]),
        ("window", conv((28, 28), 64, 64, 3), ["w"]),
        ("attention", attention(2, 128, 128, 64, 64), []),
    ):
        made = choose(workload(built, constants=constants, target=on), templates=TEMPLATES)
        assert made.template in ("contraction", "attention"), name
        cubin = nvrtc.for_architecture(on.cpu).compiled(source(made.func, on), on.cpu).cubin
        loop = hottest(cubin, tmp_path)
        least = OF_WINDOWS if name == "window" else LEAST
        assert loop["FFMA"] >= least * loop.total(), (name, made.label, loop)
        # NVRTC loads one word again in a window's loop, instead of keeping it
        words = name == "window"
        assert loop["LDS"] <= words < loop["LDS.128"], (name, "shared memory is read word by word", loop)


MATRICES = 0.50
"""The share of products of matrices in the loop over panels of a large tile. The others load matrices, copy
panels and count."""


@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_products_of_matrices_fill_the_hottest_loop(target: str, tmp_path: Path) -> None:
    """Nothing is spilled, panels are copied 16 bytes at a time, and shared memory is read by matrices."""
    on = resolve(f"cuda:{target}")
    for name, built, constants in (
        ("product", small_matmul(DOT1BF, 4096, 4096, 4096), []),
        ("transposed", small_matmul(DOT1H, 4096, 4096, 4096, transposed=True), []),
        ("weights", small_matmul(DOT1H, 4096, 4096, 4096), ["w"]),
    ):
        made = choose(workload(built, constants=constants, target=on), templates=TEMPLATES)
        check_loop(name, made, on, tmp_path, MATRICES)


def check_loop(
    name: str, made: Scheduled, on: Target, folder: Path, least: float, kind: str = "HMMA"
) -> Counter[str]:
    """Return the instructions of a kernel's hottest loop. Check that at least this share of them multiplies
    matrices, and that nothing is spilled."""
    assert made.template == "warps", name
    compiled = nvrtc.for_architecture(on.cpu).compiled(source(made.func, on), on.cpu)
    assert (compiled.usage.spilled, compiled.usage.stack) == (0, 0), (name, compiled.usage)
    loop = hottest(compiled.cubin, folder, kind)
    assert of_kind(loop, kind) >= least * loop.total(), (name, made.label, loop)
    check_copies(loop)
    return loop


def columns_of(made: Scheduled) -> int:
    """Return the columns of a group's tile, of 8 for each matrix of products."""
    return 8 * int(made.params["wn"]) * int(made.params["tn"])


def check_copies(loop: Counter[str]) -> None:
    """Check that matrices are loaded by their instruction, and panels copied 16 bytes at a time."""
    assert of_kind(loop, "LDS") == 0 < of_kind(loop, "LDSM"), loop
    beside, fetched = (sum(loop[n] for n in loop if n.startswith(wide)) for wide in WIDE)
    assert (beside, fetched, fetched) == tuple(of_kind(loop, n) for n in ("LDGSTS", "LDG", "STS")), loop
    assert loop["STS.128"] == fetched and beside + fetched > 0, loop


WIDE = "LDGSTS.E.BYPASS.128", "LDG.E.128"
"""The names of copies of 16 bytes. Loads of memory that nobody writes have a longer one."""


CHANNELS = 64
"""Channels of the result of ResNet-50's first layer."""
FEW = 0.30
"""The same share in windows of 7 x 7 over 8 channels, of products that are of use. Each load there is another
tap's, with its own row and column of the image. A tile of twice the columns that exist has 0.37, and half of
its products are for nothing."""
TF32: Mapping[str, Mapping[str, float]] = {
    "sm_80": {"both": 0.37, "pointwise": 0.43, "window": 0.34, "stored window": 0.49},
    "sm_90a": {"window": 0.41, "stored window": 0.49},
}
"""The same share for tf32, if it is less than `MATRICES`. Before 9.0, three instructions round a number that
is copied, as NVIDIA's own conversion does: those of the left operand, or of both. For two operands, these are
1.1 for each product of matrices. Panels of windows have 16 terms, so half as many products share the tests
for the image's border. Constant weights are rounded before, and most left operands are stored rounded."""


@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_convolutions_fill_the_hottest_loop_with_matrices(target: str, tmp_path: Path) -> None:
    """Images are gathered 16 bytes at a time, also at their borders and in windows that don't fill panels."""
    on = resolve(f"cuda:{target}")
    for name, built, least in (
        ("pointwise", small_conv(DOT1BF, (14, 14), 1024, 256, 1, batch=64), MATRICES),
        ("padded", small_conv(DOT1BF, (28, 28), 128, 128, 3, batch=64), MATRICES),
        ("strided", small_conv(DOT1H, (56, 56), 128, 128, 3, 2, batch=64), MATRICES),
        ("96 channels", small_conv(DOT1H, (28, 28), 96, 192, 3, batch=64), MATRICES),
        ("first", small_conv(DOT1BF, (224, 224), 8, CHANNELS, 7, 2, batch=64), FEW),
    ):
        made = choose(workload(built, constants=["w"], target=on), templates=TEMPLATES)
        useful = min(1, CHANNELS / columns_of(made)) if name == "first" else 1
        check_loop(name, made, on, tmp_path, least / useful)


@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_products_of_bytes_fill_the_hottest_loop(target: str, tmp_path: Path) -> None:
    """Panels of words of four bytes are copied beside the products, and loaded as matrices."""
    options = Options(resolve(f"cuda:{target}"))
    made = optimize(product(U8, 512, 1024, 8192), options)
    node = next(n for n in made.nodes if of_product(n))
    kernel = choose(kernel_workload(node, made, options)[1], templates=TEMPLATES)
    loop = check_loop("bytes", kernel, options.target, tmp_path, MATRICES, "IMMA")
    assert sum(n for name, n in loop.items() if name.startswith("LDGSTS")) > 0 == of_kind(loop, "STS"), loop


@pytest.mark.parametrize("target", ["sm_80", pytest.param("sm_90a", marks=pytest.mark.slow)])
def test_products_of_tf32_are_rounded_when_they_are_copied(target: str, tmp_path: Path) -> None:
    """A number is rounded once for each panel, and not for each product. A number that is stored rounded is
    copied as it is."""
    on = resolve(f"cuda:{target}")
    dot = next(p for p in on.gpu.products if p.rounds)
    large, wide, window = (4096, 4096, 4096), ((14, 14), 1024, 256, 1), ((28, 28), 128, 128, 3)
    for name, built, constants, rounded in (
        ("weights", small_matmul(dot, *large), ["w"], 1),
        ("both", small_matmul(dot, *large, transposed=True), [], 2),
        ("pointwise", small_conv(dot, *wide, batch=64), ["w"], 1),
        ("window", small_conv(dot, *window, batch=64), ["w"], 1),
        ("stored", small_conv(READY[dot], *wide, batch=64), ["w"], 0),
        ("stored window", small_conv(READY[dot], *window, batch=64), ["w"], 0),
    ):
        made = choose(workload(built, constants=constants, target=on), templates=TEMPLATES)
        loop = check_loop(name, made, on, tmp_path, TF32[target].get(name, MATRICES))
        q = made.params
        rows, columns = q["wm"] * q["tm"] * 16, q["wn"] * q["tn"] * 8
        items = 32 * q["wm"] * q["wn"]
        panels = 2 if q["ahead"] in warps.TWICE else 1
        copied = (rows * (rounded > 0) + columns * (rounded == 2)) * q["bk"] * panels // items
        counted = loop["FSETP.NAN.AND"] + sum(n for name, n in loop.items() if name.startswith("F2FP.TF32"))
        assert counted == copied, (name, made.label, loop)
