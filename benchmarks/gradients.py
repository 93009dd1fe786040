"""Compare gradients of all of PyTorch's operators and modules with autograd's.

    python benchmarks/gradients.py --out rows.jsonl [--set float64] [--write]

The operators are those of PyTorch's own OpInfo database that have gradients in float64, with its sample
inputs. `float64` interprets four calls of each, and `float32` compiles two. `modules` are those of
`module_db`, with four calls in each mode. An operator that has a row in the file isn't run again. Each has a
process of its own, which ends after some minutes of processor time. The script needs the extras `torch` and
`test`.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sections import Section, Table

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS), str(TESTS / "gradients")]

SECONDS = 240
"""Processor time of an operator. The interpreter takes about a second for most."""
Row = dict[str, Any]
KINDS = ("right", "explained", "wrong", "another result", "failed", "refused", "not read", "PyTorch has none",
         "too long", "ended")  # fmt: skip
"""Outcomes in the order of the table."""


def sets() -> dict[str, tuple[dict[str, Callable[[], Iterator[Any]]], Any]]:
    """Return each set's calls by operator, and how they are run."""
    import torch
    from opinfo import calls, modules, operators, title
    from outcomes import compiled
    from torch.testing._internal.common_modules import module_db

    from jangin.ops.interpret import run_graph

    infos = {title(i): i for i in operators()}
    return {
        "float64": ({n: lambda i=i: calls([i], 4) for n, i in infos.items()}, run_graph),
        "float32": ({n: lambda i=i: calls([i], 2, torch.float32) for n, i in infos.items()}, compiled),
        "modules": ({i.name: lambda i=i: modules((i.name,)) for i in module_db}, run_graph),
    }


def compare(name: str, calls: Callable[[], Iterator[Any]], run: Any, send: Any) -> None:
    """Send the outcome of each call of an operator."""
    from outcomes import explained, outcome

    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    warnings.filterwarnings("ignore")
    for call in calls():
        how, words = outcome(call, run)
        send.send((str(call), "explained" if how == "wrong" and explained(call) else how, words))
    send.send(None)


def row(name: str, calls: Callable[[], Iterator[Any]], run: Any) -> Row:
    """Compare an operator in a process of its own."""
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    began = time.perf_counter()
    child = context.Process(target=compare, args=(name, calls, run, send))
    child.start()
    send.close()
    outcomes: list[Sequence[str]] = []
    try:
        while (sent := receive.recv()) is not None:
            outcomes.append(sent)
    except EOFError:  # the process ended before
        child.join()
        how = "too long" if child.exitcode in (-24, -9) else "ended"
        outcomes.append((name, how, f"exit status {child.exitcode}"))
    child.join()
    return {"name": name, "outcomes": outcomes, "seconds": round(time.perf_counter() - began, 1)}


def section(rows: Sequence[Row]) -> Section:
    """Return the counts of all sets, and the names behind them."""
    parts: list[str | Table] = [
        "`python benchmarks/gradients.py --out rows.jsonl --write`: gradients of calls from PyTorch's OpInfo "
        "database and `module_db`, beside autograd in float64. *float64*: interpreted, within 1e-10. "
        "*float32*: compiled, within 1e-5 or four times the error of PyTorch's own. *right*: as a share of "
        "the calls that were read and compared."
    ]
    counts = {s: Counter(o[1] for r in rows if r["set"] == s for o in r["outcomes"]) for s in _names(rows)}
    kinds = [k for k in KINDS if any(c[k] for c in counts.values())]
    cells = []
    for name, count in counts.items():
        compared = sum(
            count[k] for k in ("right", "explained", "wrong", "another result", "failed", "refused")
        )
        operators = sum(r["set"] == name for r in rows)
        share = f"{count['right'] / max(compared, 1):.1%}"
        cells.append([name, str(operators), *(str(count[k]) for k in kinds), share])
    parts.append(Table(["set", "operators", *kinds, "share"], cells))
    for how in kinds[1:]:
        names = sorted({r["name"] for r in rows for o in r["outcomes"] if o[1] == how})
        parts.append(f"*{how}*: {', '.join(names)}.")
    return Section("Gradients of PyTorch's operators", parts)


def _names(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(r["set"] for r in rows))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True, help="where rows are kept, a line each")
    parser.add_argument("--set", action="append", help="float64, float32 or modules; default: all")
    parser.add_argument("--names", help="operators to run, with commas between; default: all")
    parser.add_argument("--write", action="store_true", help="keep the tables in benchmarks/results")
    asked = parser.parse_args()
    lines = asked.out.read_text().splitlines() if asked.out.exists() else []
    rows: list[Row] = [json.loads(line) for line in lines]
    done = {(r["set"], r["name"]) for r in rows}
    import torch

    torch.set_num_threads(1)  # a forked process has no other threads of PyTorch's
    for kind, (operators, run) in sets().items():
        for name, calls in operators.items() if not asked.set or kind in asked.set else ():
            if (kind, name) in done or (asked.names and name not in asked.names.split(",")):
                continue
            rows.append({"set": kind, **row(name, calls, run)})
            with asked.out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            if bad := [o for o in rows[-1]["outcomes"] if o[1] not in ("right", "explained")]:
                print(kind, name, *bad, sep="\n    ", flush=True)
    made = section(rows)
    print(made.markdown())
    if asked.write:
        made.save("gradients")


if __name__ == "__main__":
    main()
