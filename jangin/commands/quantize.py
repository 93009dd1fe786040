"""`jangin quantize`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich.progress import BarColumn, TimeElapsedColumn
from rich.table import Table

from jangin.commands.common import Settings, bar_with, check_output, terminal
from jangin.commands.quantize_report import page, table
from jangin.commands.quantize_report import summary as reported
from jangin.compiler.cases import imported
from jangin.files import write_text
from jangin.frontends.lower import lower
from jangin.frontends.tflite import format as tflite
from jangin.ir.dtype import I8
from jangin.ir.limits import within
from jangin.quantization.job import Quantized
from jangin.quantization.parts import prepared
from jangin.quantization.quantize import quantize
from jangin.visible import visible

FILES = (".onnx", ".jgn")
"""The files that are written if the output's name has no ending."""


def run(
    model: Path, settings: Settings, data: Path, kind: str, drop: str, output: Path, shapes: Sequence[str],
    threads: int | None, *, method: str | None, labels: Path | None, block: int, pixels: str | None,
    crop: float, tokenizer: Path | None, limit: int | None, html: Path | None,
    smooth: float | None, equalize: bool, weight_bits: int | None,
) -> Quantized:  # fmt: skip
    """Quantize a model, write it, and print the cost. If the output's name has no ending, an .onnx and a .jgn
    file are written. Return the quantized model."""
    if output.suffix not in ("", ".tflite", *FILES):
        raise ValueError(f"-o {output}: a quantized model is written as NAME.onnx, NAME.tflite or NAME.jgn")
    if html is not None and kind != "auto":
        raise ValueError(
            "--html is the report of --auto, which decides part by part: give --auto, or leave --html out"
        )
    files = [output] if output.suffix else [output.with_name(output.name + kind) for kind in FILES]
    for file in files:
        check_output(file, model)
    options = settings.options(None, shapes, threads)
    if output.suffix == ".tflite":  # errors of the format come before anything is measured
        with within(options.limits):
            tflite.check(prepared(lower(imported(model, options))))
        if kind == "int8":  # LiteRT is no quicker with fewer bits
            weight_bits = weight_bits or I8.bits
    with bar() as tell:
        quantized = quantize(
            model, data, kind, drop=parse_share(drop) if drop else None, method=method,
            labels=labels, block=block, pixels=pixels, crop=crop, tokenizer=tokenizer, limit=limit,
            shapes=options.shapes, threads=threads, progress=tell, smooth=smooth, equalize=equalize,
            weight_bits=weight_bits, **settings.given,
        )  # fmt: skip
    console = terminal()
    if quantized.report is not None:
        console.print(table(quantized.report))
        console.print(reported(quantized.report), soft_wrap=True)
        if html is not None:
            write_text(html, visible(page(f"{model.stem} in smaller numbers", quantized.report)))
            console.print(f"{html}: the report")
    console.print(summary(quantized))
    for file in files:
        file.parent.mkdir(parents=True, exist_ok=True)
        quantized.save(file)
        console.print(f"{file}: {file.stat().st_size / 1e6:.1f} MB")
    return quantized


def parse_share(text: str) -> float:
    """Return a share: "0.5%" and "0.005" both give 0.005."""
    try:
        return float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        raise ValueError(f"--drop {text!r} is no share: write 0.5% or 0.005") from None


def summary(found: Quantized) -> Table:
    """Return a table of the kinds of numbers, and of the loss of quality."""
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    counts = Counter(c.kind for c in found.chosen.values())
    table.add_row("parts", ", ".join(f"{n} in {kind}" for kind, n in counts.items()) or "all in float32")
    if found.bits < I8.bits:
        table.add_row("weights", f"{found.bits} bits: quicker here (--weight-bits 8 for finer ones)")
    table.add_row("measured", found.quality.title)
    if found.quality.reference:
        table.add_row("the model's own", found.quality.reference)
    table.add_row("drop", f"{found.drop:.3%}")
    return table


@contextmanager
def bar() -> Iterator[Callable[[float, float, str], None]]:
    """Inside this context, show a progress bar on stderr. The context's value is the function to be called
    with the progress."""
    with bar_with("{task.description:<12}", BarColumn(), TimeElapsedColumn()) as shown:
        task = shown.add_task("import", total=1.0)

        def tell(done: float, total: float, what: str) -> None:
            shown.update(task, completed=done, total=total, description=what)

        yield tell
