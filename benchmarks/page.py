"""Make the sections of `run.py`'s results, and the table of docs/reference/measured.md, from its figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from catalogue import CATALOGUE
from figures import BEST, PEERS, Comparison, Figures, fastest_peer, geometric_mean, ratio, ratios, result
from sections import Section, Table

from jangin.bench.engines import TITLES
from jangin.ir.dtype import I32, DType
from jangin.targets import resolve
from jangin.targets.target import Target

NAMES = {**TITLES, BEST: "the best of all"}
MODES = {
    "untuned": "Untuned: what `jangin.compile` gives by itself",
    "tuned": "Tuned",
    "int8": "Quantized to int8 by ONNX Runtime (QDQ, per channel), untuned",
    "int8_reduced": "Quantized likewise, with weights of 7 bits, untuned",
    "float16": "In float16, untuned",
    "bfloat16": "In bfloat16, untuned",
}
OF_HALVES = (
    "of models that `benchmarks/make_halves.py` made, all of whose floats are of 16 bits but for inputs and "
    "outputs; times and ratios as above. *Jangin's float32*: the model as it was before. *Error*: of that "
    "model's output in ONNX Runtime, so that it has what rounding the weights costs. *Weights*: what Jangin "
    "keeps of them in memory, and of the float32 model's."
)
OF_BYTES = (
    "made; times and ratios as above. *Jangin's float32*: the model as it was before. *The bound*: "
    "milliseconds of its products by the instruction that adds up several, if each takes as long as a "
    "multiply-add of float32."
)
REDUCED = (
    "Weights are from -64 to 64, as ONNX Runtime advises for AVX2 without VNNI: sums of two products with "
    "bytes fit 16 bits there, so that no engine has to saturate. All engines have the same files."
)
SMALL = {
    "int8": f"of models that `benchmarks/make_quantized.py` {OF_BYTES}",
    "int8_reduced": f"of models that `benchmarks/make_quantized.py --reduce-range` {OF_BYTES} {REDUCED}",
    "float16": OF_HALVES,
    "bfloat16": OF_HALVES,
}
"""The modes of smaller number types, with their descriptions."""
OWN = {"tuned": ("untuned",), **dict.fromkeys(SMALL, ("float32",))}
"""Jangin's own modes with which a mode is compared."""


DRAWN = {"onnxruntime": "ONNX Runtime", "openvino": "OpenVINO", BEST: "the best of all peers"}
"""The peers whose ratios a picture shows, with their titles there."""


def section(figures: Figures, mode: str) -> Section:
    """Return the section of one mode."""
    title, said = MODES[mode], opening(figures)
    if mode in SMALL:
        title, said = small(figures, mode)
    tuning = " (with tuning)" if mode == "tuned" else ""
    compiling = f"Compiling{tuning}, memory, rounding:"
    tables = [means(figures, mode), times(figures, mode), compiling, costs(figures, mode)]
    return Section(title, [*said, *tables], drawn(figures, mode))


def small(figures: Figures, mode: str) -> tuple[str, list[str]]:
    """Return the title and the first paragraphs for a mode of smaller number types (`--precision`)."""
    title, target, held = MODES[mode], figures.machine["target"], figures.machine.get("held")
    title += f", {target}"
    options = f"--precision {mode}"
    if held:
        title += " on a processor that has more"
        options += f" --target {target}` (OpenVINO with `{held}"
    made = f"Made by `python benchmarks/run.py {options}`{')' if held else ''}, {SMALL[mode]}"
    return title, [run_on(figures, [mode]), made]


def drawn(figures: Figures, mode: str) -> dict[str, dict[str, dict[str, float]]]:
    """Return how many times as fast Jangin is, by peer, number of threads and model."""
    found: dict[str, dict[str, dict[str, float]]] = {}
    for name, n, c in by_model(figures, mode):
        for peer, title in DRAWN.items():
            if (value := ratio(c, peer)) is not None:
                found.setdefault(title, {}).setdefault(str(n), {})[CATALOGUE[name].title] = round(value, 2)
    return found


NEIGHBOUR = (
    "Milliseconds a run with 1 and 2 threads, and with 2 while another process loads one core fully, all in "
    "turns. *Scaling*: how many times as fast 2 threads are; *disturbed*: the time of the disturbed run as a "
    "share of the quiet one with 1 thread."
)


def run_on(figures: Figures, modes: Sequence[str]) -> str:
    """Return the machine, the engines, the date, and the states of the source."""
    machine = figures.machine
    versions: dict[str, str] = {}
    comparisons = [c for mode in modes for c in figures.comparisons.get(mode, {}).values()]
    for c in comparisons:
        versions |= {TITLES[r["engine"]]: r["version"] for r in c["results"] if r["version"]}
    records = [*comparisons, *(figures.neighbours.values() if SMALL.keys().isdisjoint(modes) else ())]
    dates, revisions = ({c[what] for c in records} for what in ("date", "revision"))
    engines = ", ".join(f"{name} {version}" for name, version in versions.items())
    days = min(dates) if len(dates) == 1 else f"{min(dates)} to {max(dates)}"
    return (
        f"{machine['processor']} ({machine['target']}), {machine['system']}, Python {machine['python']}; "
        f"{engines}; {days}, source {', '.join(sorted(revisions))}."
    )


def opening(figures: Figures) -> list[str]:
    """Return paragraphs about the machine, the engines, and how to read the single-precision figures."""
    return [
        run_on(figures, [m for m in MODES if m not in SMALL]),
        "Made by `python benchmarks/run.py`. Single precision where nothing else is said; batch 1 unless the "
        "model's name says otherwise. Times are milliseconds a run: medians of interleaved turns in "
        "processes of their own, "
        "with quartiles in brackets; turns during which the core ran slowly or others used the machine are "
        "left out. A ratio over 1 means that Jangin is the faster. *Error*: the largest difference to ONNX "
        "Runtime's output with its optimizations off, as a share of its largest value. *Memory*: the "
        "most that the process which asked for the model and ran it ever held. Jangin's compiler runs in "
        "processes of its own, which end before the model runs: the most that the largest of them held "
        "stands beside. *Loaded*: a process that loads what Jangin compiled and saved before.",
    ]


def means(figures: Figures, mode: str) -> Table:
    """Return geometric means at batch 1, and the model where Jangin does worst."""
    rows = []
    peers = [*PEERS, BEST, *OWN.get(mode, ())]
    for peer in peers:
        by_count = {n: ratios(figures, mode, n, peer) for n in counts(figures, mode)}
        every = [(value, name, n) for n, found in by_count.items() for name, value in found.items()]
        if not every:
            continue
        value, name, n = min(every)
        lowest = f"{value:.2f}× ({CATALOGUE[name].title}, {count_text(n)})"
        shares = [times_text(geometric_mean(found.values())) for found in by_count.values()]
        overall = times_text(geometric_mean(v for v, *_ in every))
        wins = sum(v > 1 for v, *_ in every)
        rows.append([NAMES[peer], *shares, f"**{overall}**", f"{wins} of {len(every)}", lowest])
    header = ["Jangin against", *map(count_text, counts(figures, mode)), "geometric mean", "faster", "lowest"]
    return Table(header, rows)


def times(figures: Figures, mode: str) -> Table:
    """Return a row for each model and number of threads: every engine's time, and its ratio to Jangin's."""
    rows = []
    peers = measured(figures, mode)
    for name, n, c in by_model(figures, mode):
        cells = [CATALOGUE[name].title, str(n), timing(c, "jangin")]
        for peer in peers:
            share = ratio(c, peer)
            cells.append(timing(c, peer) + ("" if share is None else f" **{share:.2f}×**"))
        best = fastest_peer(c)
        cells.append(f"**{times_text(ratio(c, BEST))}** {NAMES[best]}" if best else "–")
        rows.append([*cells, *([bound(figures, c)] if mode.startswith("int8") else [])])
    header = ["model", "threads", "Jangin", *(NAMES[p] for p in peers), "the best"]
    return Table([*header, *(["the bound"] if mode.startswith("int8") else [])], rows)


def bound(figures: Figures, c: Comparison) -> str:
    """Return the milliseconds of a model's products on all cores, by the instruction that adds several
    products. The instruction is assumed to take as long as a multiply-add of f32."""
    terms = products_at_once(resolve(figures.machine["target"]), I32)
    return f"{c['flops'] / (terms * c['core'] * c['threads']) * 1e3:.2f}" if c["core"] else "–"


def products_at_once(target: Target, sums: DType) -> float:
    """Return how many products of small numbers take the time of one multiply-add, if their sums are of type
    `sums`."""
    lanes = target.machine.lanes(sums.bytes)
    rows = {p: target.product_row(p, lanes) for p in target.machine.products if p.row_type is sums}
    found = (p.terms / row.multiplies for p, row in rows.items() if row is not None)
    return max([1.0, *found])


def costs(figures: Figures, mode: str) -> Table:
    """Return a row for each model: its scaling, compile time, peak memory and errors, also for ONNX Runtime
    and OpenVINO."""
    rows, halves = [], SMALL.get(mode) is OF_HALVES
    engines = ("jangin", "onnxruntime", "openvino")
    for name, c in figures.of(mode, 1):
        two = figures.comparisons[mode].get(f"{name}/2")
        cells = [CATALOGUE[name].title, *(scaling(c, two, e) for e in engines), share_of_sgemm(c)]
        cells += [cell(c, e, "compile_seconds", "{:.1f} s") for e in engines]
        cells += [cell(c, "jangin", "loaded_bytes", "{:.0f} MB", 1e-6)]
        cells += [cell(c, e, "peak_bytes", "{:.0f} MB", 1e-6) for e in engines]
        cells += [compiler_memory(c)]
        cells += [weights(c, e) for e in ("jangin", *OWN[mode])] if halves else []
        cells += [cell(c, e, "error", "{:.0e}") for e in engines]
        rows.append(cells)
    groups = {
        "1 → 2 threads": 3,
        "of SGEMM": 1,
        "compile": 3,
        "memory, Jangin loaded": 1,
        "memory": 3,
        "memory, Jangin's compiler": 1,
        **({"weights, Jangin": 1, "weights, float32": 1} if halves else {}),
        "error": 3,
    }
    short = ("Jangin", "ORT", "OpenVINO")
    header = ["model"]
    for title, width in groups.items():
        header += [f"{title}, {short[i]}" if width > 1 else title for i in range(width)]
    return Table(header, rows)


def compiler_memory(c: Comparison) -> str:
    """Return the memory of the compiler's largest process. These processes end before the model runs."""
    size = (result(c, "jangin") or {}).get("memory", {}).get("compiler")
    return f"{size / 1e6:.0f} MB" if size else "–"


def weights(c: Comparison, engine: str) -> str:
    """Return the bytes of a model's weights that one of Jangin's engines keeps."""
    size = (result(c, engine) or {}).get("memory", {}).get("weights")
    return f"{size / 1e6:.1f} MB" if size else "–"


def neighbours(found: Mapping[str, Mapping[str, Any]]) -> Section:
    rows = []
    for name in CATALOGUE:
        for engine, r in found.get(name, {"engines": {}})["engines"].items():
            one, two, loaded = (r[state]["median"] for state in ("quiet/1", "quiet/2", "loaded/2"))
            cells = [spread(r[state]) for state in ("quiet/1", "quiet/2", "loaded/2")]
            shares = [f"**{one / two:.2f}×**", f"**{loaded / one:.2f}×**"]
            rows.append([CATALOGUE[name].title, NAMES[engine], *cells, *shares])
    states = ["quiet, 1 thread", "quiet, 2 threads", "disturbed, 2 threads"]
    table = Table(["model", "engine", *states, "scaling", "disturbed"], rows)
    return Section("Scaling, and a busy neighbour", [NEIGHBOUR, table])


def short(figures: Figures) -> str:
    """Return the table at a glance: Jangin's times and ratios, and their geometric means."""
    mode = "untuned" if figures.comparisons.get("untuned") else "tuned"
    peers = ("onnxruntime", "openvino", BEST)
    found = counts(figures, mode)
    rows = []
    for name, model in CATALOGUE.items():
        of = [figures.comparisons[mode].get(f"{name}/{n}") for n in found]
        if any(of):
            rows.append([model.title, *(text for c in of for text in brief(c, peers))])
    last = []
    for n in found:
        shares = [times_text(geometric_mean(ratios(figures, mode, n, p).values())) for p in peers]
        last += ["", *(f"**{share}**" for share in shares)]
    rows.append(["**geometric mean, batch 1**", *last])
    header = ["model"]
    for n in found:
        header += [f"{count_text(n)}: Jangin", "ONNX Runtime", "OpenVINO", "best peer"]
    machine = figures.machine
    return (
        f"Milliseconds a run, single precision, {mode}, on {machine['processor']} ({machine['target']}), and "
        f"how many times as fast Jangin is as each peer:\n\n{Table(header, rows)}"
    )


def brief(c: Comparison | None, peers: Sequence[str]) -> list[str]:
    ours = result(c, "jangin") if c else None
    if c is None or ours is None:
        return ["–"] * (1 + len(peers))
    return [f"{ours['median']:.1f}", *(times_text(ratio(c, p)) for p in peers)]


def by_model(figures: Figures, mode: str) -> Iterator[tuple[str, int, Comparison]]:
    for name in CATALOGUE:
        for n in counts(figures, mode):
            if c := figures.comparisons[mode].get(f"{name}/{n}"):
                yield name, n, c


def counts(figures: Figures, mode: str) -> list[int]:
    return sorted({c["threads"] for c in figures.comparisons[mode].values()})


def measured(figures: Figures, mode: str) -> list[str]:
    """Return the engines besides Jangin that were installed."""
    found = figures.comparisons[mode].values()
    present = {r["engine"] for c in found for r in c["results"] if not r["absent"]}
    return [peer for peer in ("untuned", "float32", *PEERS) if peer in present]


def timing(c: Comparison, engine: str) -> str:
    r = result(c, engine)
    if r is None:
        problem = next((r for r in c["results"] if r["engine"] == engine), None)
        return "failed" if problem and not problem["absent"] else "–"
    return spread(r)


def spread(r: Mapping[str, Any]) -> str:
    return f"{r['median']:.2f} ({r['low']:.2f}–{r['high']:.2f})"


def cell(c: Comparison, engine: str, what: str, form: str, scale: float = 1.0) -> str:
    r = result(c, engine)
    return "–" if r is None or r[what] is None else form.format(r[what] * scale)


def scaling(one: Comparison, two: Comparison | None, engine: str) -> str:
    a, b = result(one, engine), result(two, engine) if two else None
    return times_text(a["median"] / b["median"] if a and b else None)


def share_of_sgemm(c: Comparison) -> str:
    ours = result(c, "jangin")
    if not ours or not c["sgemm"]:
        return "–"
    return f"{c['flops'] / ours['median'] * 1e3 / c['sgemm']:.0%}"


def times_text(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}×"


def count_text(threads: int) -> str:
    return "1 thread" if threads == 1 else f"{threads} threads"
