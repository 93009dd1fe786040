"""The registers, spills and occupancy of CUDA kernels of networks, as NVIDIA's compiler makes them. No GPU is
needed.

python benchmarks/cuda_kernels.py [--targets cuda:sm_80 cuda:sm_90a] [--kinds float32 tf32] [--save]

With --save each row replaces that of the same network, type and architecture in benchmarks/results.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

from gpu_networks import BYTES, NETWORKS, arguments
from sections import Section, Table, rows_of

from jangin.backends.cuda import nvrtc
from jangin.backends.cuda.backend import source
from jangin.backends.cuda.dialect import asked_shared
from jangin.compiler.pipeline import plan_model
from jangin.ir.groups import threads
from jangin.options import Options
from jangin.runtime.threads import default_threads
from jangin.targets import resolve
from jangin.targets.cuda import ARCHITECTURES

NAME = "cuda_kernels"
"""The name of the file of figures."""
KINDS = ("float32", "tf32", "bfloat16", "float16", BYTES)
"""The kinds of numbers. Products of tf32 are an option of networks in float32."""


@dataclass(frozen=True)
class Counted:
    """One kernel. `label` is its template and parameters. `occupancy` is its share of the most work-items of
    a multiprocessor."""

    label: str
    usage: nvrtc.Usage
    occupancy: float


def counted(network: str, kind: str, target_name: str) -> Iterator[Counted]:
    """Yield each distinct kernel of a network."""
    target = resolve(target_name)
    model = NETWORKS[network]("float32" if kind == "tf32" else kind)
    architecture, compiler = ARCHITECTURES[target.cpu], nvrtc.for_architecture(target.cpu)
    plans = plan_model(model, Options(target, tf32=kind == "tf32")).plans
    labels = {launch.kernel: launch.template for plan in plans for launch in plan.launches}
    funcs = [func for plan in plans for func in plan.kernels.values()]

    def one(func: Any) -> Counted:
        usage = compiler.compiled(source(func, target), target.cpu).usage
        usage = replace(usage, shared=usage.shared + asked_shared(func))
        share = architecture.occupancy(threads(func), usage.registers, usage.shared)
        return Counted(labels.get(func.name, ""), usage, share)

    with ThreadPoolExecutor(default_threads()) as pool:
        yield from pool.map(one, funcs)


def row(network: str, kind: str, target: str) -> list[str]:
    found = [*counted(network, kind, target)]
    registers = sorted(k.usage.registers for k in found)
    spilled, stack = (sum(getattr(k.usage, n) for k in found) for n in ("spilled", "stack"))
    share = [k.occupancy for k in found]
    return [
        network, kind, target.partition(":")[2], str(len(found)),
        f"{registers[0]} / {statistics.median_low(registers)} / {registers[-1]}", str(spilled), str(stack),
        str(max(k.usage.shared for k in found)), f"{min(share):.2f} / {statistics.median(share):.2f}",
    ]  # fmt: skip


COLUMNS = (
    "network", "type", "architecture", "kernels", "registers, least / median / most", "bytes spilled",
    "bytes of stack", "shared bytes, most", "occupancy, least / median",
)  # fmt: skip


def table(rows: Sequence[Sequence[str]]) -> Section:
    compilers = ", ".join(map(str, nvrtc.found()))
    return Section("CUDA kernels, counted", [
        f"Counted by {compilers} (`python benchmarks/cuda_kernels.py --save`); no GPU was there, and "
        "nothing was timed. Occupancy follows from registers, shared memory and group sizes, by NVIDIA's "
        "public tables.",
        Table(COLUMNS, rows),
    ])  # fmt: skip


def main() -> None:
    parser = arguments(__doc__)
    parser.add_argument("--targets", nargs="+", default=["cuda:sm_80", "cuda:sm_90a"])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=[*KINDS])
    args = parser.parse_args()
    rows = {tuple(r[:3]): r for r in rows_of(NAME)}
    for target in args.targets:
        for network in args.networks:
            for kind in args.kinds:
                made = row(network, kind, target)
                rows[tuple(made[:3])] = made
                print(" | ".join(made), flush=True)
                if args.save:
                    table([*rows.values()]).save(NAME)


if __name__ == "__main__":
    main()
