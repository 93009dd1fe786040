"""Keep the tables of a study as benchmarks/results/study.json.

These commands make the models, the study and the file:

    python benchmarks/study_models.py .cache/study        # with PyTorch
    jangin study .cache/study/*.onnx --engines all --threads 1,2 --batch 1,8 --precision float32,int8 \\
        --rounds 5 --seconds 0.05 -o .cache/report
    python benchmarks/study.py .cache/report

The products of libraries are a study of their own, without a model. Its reference takes a minute for
the order 4096:

    jangin study --engines jangin --threads 1,2 --products 64..2048 -o .cache/products
    jangin study --engines jangin --products 64x144x3025,24x144x3136 -o .cache/windows
    python benchmarks/study.py .cache/products .cache/windows --baseline openblas --name products \\
        --title "Matrix products by library"
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import sections

from jangin.study import report
from jangin.study.products import Product, by_name
from jangin.study.rows import BUSY, Row, RowFile
from jangin.study.settings import RECORD, ROWS
from jangin.study.tables import tables

KEPT = (
    "Milliseconds a call", "Speed-up", "Best engine by time", "Time by operator",
    "GFLOP/s of matrix products", "Engines without figures",
)  # fmt: skip
"""The beginnings of the titles of the tables that are kept."""
REASON = 100
"""The most characters of the reason why an engine has no figures."""


def _parts(folder: Path, baseline: str) -> list[str | sections.Table]:
    """Return a study's description and its tables, without rows that other processes disturbed."""
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    rows: list[Row] = report.ordered(record, RowFile(folder / ROWS).rows)
    rows = [r for r in rows if r.crowd <= BUSY]
    products = by_name([Product(**sizes) for sizes in record["products"]])
    parts: list[str | sections.Table] = [report.describe(record, rows)]
    for table in tables(rows, record["engines"], baseline, products):
        if table.title.startswith(KEPT):
            parts.append(f"**{table.title}.** {table.note}".strip())
            lines = [
                [cell.replace("|", "/").replace("\n", " ")[:REASON] for cell in row] for row in table.rows
            ]
            parts.append(sections.Table(table.columns, lines))
    return parts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("report", type=Path, nargs="+", help="the folders of studies")
    parser.add_argument("--baseline", default="im2col", help="the engine that others are compared with")
    parser.add_argument("--name", default="study", help="the file's name among the results")
    parser.add_argument("--title", default="A study of five networks in all engines")
    args = parser.parse_args()
    parts = [part for folder in args.report for part in _parts(folder, args.baseline)]
    print(sections.Section(args.title, parts).save(args.name))


if __name__ == "__main__":
    main()
