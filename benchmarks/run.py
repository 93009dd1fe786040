"""Measure the benchmark models against all peers, and keep what was found in benchmarks/results.

    .venv/bin/pip install '.[bench,peers]' && .venv/bin/pip install --no-deps pnnx
    .venv/bin/python benchmarks/run.py --inductor .venv-export/bin/python

The models come from benchmarks/make_models.py, which describes its use. A peer that isn't installed is left
out and reported as absent. ncnn's converter pnnx names PyTorch as a dependency, but works without it.
Inductor has an environment of its own, with PyTorch and a C++ compiler.

Figures are stored in .cache/benchmarks.json after each model. `--resume` measures only what is missing there,
and `--render` measures nothing. `--tune 120s` tunes Jangin first and measures the untuned model too.
`--neighbour` measures how the engines scale, and how stable they stay while another process loads a core.
`--target x86-64-v3` restricts Jangin and OpenVINO to this level on a newer processor.
"""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date
from pathlib import Path

from catalogue import CATALOGUE, HALVES, HALVES_OF, QUANTIZED, ROOT, Model, halved, program, quantized
from figures import PEERS, STORE, Figures
from page import MODES, SMALL, neighbours, section, short
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from jangin import bench
from jangin.bench.report import machine
from jangin.options import Options

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
INT8 = ("int8", "int8_reduced")
HELD = {"x86-64-v3": {"ONEDNN_MAX_CPU_ISA": "AVX2"}, "x86-64-v4": {"ONEDNN_MAX_CPU_ISA": "AVX512_CORE"}}
"""The levels to which a run can be restricted, with the settings that restrict OpenVINO. Other peers can't be
restricted."""
CALM = ("mobilenetv2", "resnet50", "bert_base")
"""The models that are measured beside a busy neighbour, and whose scaling is measured in turns."""

Tell = Callable[[int, str], None]


def model_of(name: str, args: argparse.Namespace) -> Model:
    model = CATALOGUE[name]
    if args.precision in HALVES:
        return halved(model, args.precision)
    return quantized(model, args.precision) if args.precision in INT8 else model


def options(name: str, model: Model, args: argparse.Namespace) -> bench.Options:
    files = {"inductor": program(name), "litert": model.tflite}
    there = {peer: path.is_file() for peer, path in files.items()}
    there["inductor"] &= bool(args.inductor)
    peers = [p for p in args.peers.split(",") if there.get(p, True)]
    own = ["untuned"] if args.tune else ["float32"] if args.precision in SMALL else []
    # the comparisons that show the whole cost of rounding
    before = ["float32", "reference"][: 2 if args.precision in HALVES else 1]
    return bench.Options(
        (*own, *peers),
        args.rounds,
        args.seconds,
        dict(model.sizes),
        compiling=Options(args.target),
        files={**files, **dict.fromkeys(before, CATALOGUE[name].path)},
        pythons={"inductor": args.inductor},
        tune=args.tune,
    )


def operations(model: Model) -> int:
    from jangin.compiler.pipeline import import_model
    from jangin.passes.work import flops
    from jangin.targets import resolve

    graph = import_model(model.path, Options(resolve("cpu"), dict(model.sizes)), until="fuse")
    return flops(graph) or 0


def stamp() -> dict[str, str]:
    """Return the date and the state of the source by git, which is empty outside a clone."""
    command = ["git", "describe", "--always", "--dirty"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return {"date": date.today().isoformat(), "revision": done.stdout.strip()}


def measure(figures: Figures, args: argparse.Namespace) -> None:
    """Measure every model at every thread count, into `figures` and its file."""
    mode = args.precision if args.precision in SMALL else "tuned" if args.tune else "untuned"
    found = figures.comparisons.setdefault(mode, {})
    names = [(name, n) for name in args.only for n in args.threads]
    wanted = [(name, n) for name, n in names if not (args.resume and f"{name}/{n}" in found)]
    with progress(len(wanted) * args.rounds) as tell:
        for i, (name, n) in enumerate(wanted):
            model = model_of(name, args)
            work = operations(model)
            c = bench.compare(
                model.path,
                n,
                options(name, model, args),
                work,
                lambda done, _, what, at=i * args.rounds: tell(at + done, what),
            )
            (record,) = bench.as_json([c])["comparisons"]
            found[f"{name}/{n}"] = record | stamp()
            figures.save(args.json)


def measure_neighbours(figures: Figures, args: argparse.Namespace) -> None:
    from neighbour import measure as beside

    names = [name for name in CALM if name in args.only]
    with progress(len(names) * args.rounds) as tell:
        for i, name in enumerate(names):
            model = model_of(name, args)
            engines = beside(
                model.path,
                options(name, model, args),
                lambda done, at=i * args.rounds, what=name: tell(at + done, f"{what}: beside a neighbour"),
            )
            figures.neighbours[name] = {"engines": engines, **stamp()}
            figures.save(args.json)


@contextmanager
def progress(total: int) -> Iterator[Tell]:
    """Show a bar on a terminal, and a line for each new step elsewhere."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        said = [""]

        def tell(done: int, what: str) -> None:
            bar.update(task, completed=done, description=what)
            if not console.is_terminal and what != said[0]:
                print(f"{done}/{total} {what}", flush=True)
            said[0] = what

        yield tell


def write(figures: Figures, table: bool, precision: str = "float32") -> None:
    """Write a file for each mode that has figures. The files of smaller number types are named after the
    processor's level, too."""
    level = figures.machine["target"] + ("-held" if figures.machine.get("held") else "")
    for mode in (precision,) if precision in SMALL else [m for m in MODES if m not in SMALL]:
        if figures.comparisons.get(mode):
            path = section(figures, mode).save(f"{mode}_{level}" if mode in SMALL else mode)
            print(f"written to {path.relative_to(ROOT)}")
    if figures.neighbours:
        neighbours(figures.neighbours).save("neighbour")
    if table:
        path = ROOT / "docs" / "reference" / "measured.md"
        before, rest = path.read_text().split(BEGIN)
        path.write_text(f"{before}{BEGIN}\n{short(figures)}\n{END}{rest.split(END)[1]}")


def names_of(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in CATALOGUE]:
        raise argparse.ArgumentTypeError(f"unknown model {unknown[0]!r}; known: {', '.join(CATALOGUE)}")
    return names


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", type=names_of, metavar="MODEL,...", help="default: all of the precision")
    parser.add_argument(
        "--precision", choices=("float32", *SMALL), default="float32",
        help="int8: the models of make_quantized.py, untuned; int8_reduced: of its --reduce-range; float16, "
        "bfloat16: those of make_halves.py",
    )  # fmt: skip
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--inductor", default="", metavar="PYTHON", help="an interpreter that has PyTorch")
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=20, help="turns that each engine takes")
    parser.add_argument("--seconds", type=float, default=0.25, help="length of a turn")
    parser.add_argument(
        "--target", default="cpu", choices=("cpu", *HELD), help="a lower level, beside OpenVINO"
    )
    parser.add_argument("--tune", default="", metavar="TIME", help="tune Jangin for this long, e.g. 120s")
    parser.add_argument(
        "--neighbour", action="store_true", help="measure scaling, and beside a busy neighbour, instead"
    )
    parser.add_argument("--resume", action="store_true", help="measure only what has no figures yet")
    parser.add_argument("--render", action="store_true", help="measure nothing, write the results again")
    parser.add_argument(
        "--table", action="store_true", help="fill the table of docs/reference/measured.md too"
    )
    parser.add_argument("--json", type=Path, default=STORE, help="where figures are kept")
    args = parser.parse_args()
    every = {"float32": CATALOGUE, **dict.fromkeys(INT8, QUANTIZED)}
    if args.target in HELD:
        args.peers = "openvino"
        os.environ.update(HELD[args.target])
    args.only = args.only or list(every.get(args.precision, HALVES_OF))
    if args.precision in SMALL and args.tune:
        parser.error(f"{args.precision} models are measured untuned")
    missing = [str(path) for n in args.only if not (path := model_of(n, args).path).is_file()]
    if missing and not args.render:
        makers = {"float32": "make_models.py", **dict.fromkeys(INT8, "make_quantized.py")}
        maker = makers.get(args.precision, "make_halves.py")
        parser.error(f"missing: {', '.join(missing)}; benchmarks/{maker} makes them")
    figures = Figures.load(args.json)
    if not args.render:
        by = " ".join(map("=".join, HELD.get(args.target, {}).items()))
        figures.machine = machine() | ({"target": args.target, "held": by} if by else {})
        (measure_neighbours if args.neighbour else measure)(figures, args)
    write(figures, args.table, args.precision)


if __name__ == "__main__":
    main()
