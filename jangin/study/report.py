"""Write a study's report: one page with plots, the same tables as Markdown, and all rows as CSV and as
Parquet."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jangin.files import write_text, write_whole
from jangin.study.page import page
from jangin.study.products import Product, by_name
from jangin.study.rows import Row
from jangin.study.settings import RECORD
from jangin.study.tables import Table, as_csv, as_records, plain, tables

PAGE, MARKDOWN, CSV, PARQUET = "index.html", "report.md", "rows.csv", "rows.parquet"


def write(folder: Path, rows: Sequence[Row], engines: Sequence[str], baseline: str) -> list[Table]:
    """Write the report of all rows into the study's folder, and return its tables.

    Raises ModuleNotFoundError, after Markdown and CSV are written, if the library of plots isn't
    installed."""
    record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    products, rows = by_name([Product(**sizes) for sizes in record["products"]]), ordered(record, rows)
    all_tables = tables(rows, engines, baseline, products)
    about = describe(record, rows)
    text = "\n".join(
        ["# Study of engines", "", plain(about), "", *(table.markdown() for table in all_tables)]
    )
    write_text(folder / MARKDOWN, text)
    write_text(folder / CSV, as_csv(rows))
    if find_spec("pyarrow") is not None:
        _write_parquet(folder / PARQUET, rows)
    write_text(folder / PAGE, page(about, all_tables, rows, engines, products))
    return all_tables


def ordered(record: Mapping[str, Any], rows: Sequence[Row]) -> list[Row]:
    """Return a study's rows in the order of its settings. The order in which they were measured doesn't
    matter."""
    settings = [[*record[n]] for n in ("models", "precisions", "batches", "threads", "devices", "engines")]

    def place(row: Row) -> list[int]:
        values = (row.model, row.precision, row.batch, row.threads, row.device, row.engine)
        both = zip(values, settings, strict=True)
        return [known.index(v) if v in known else len(known) for v, known in both]

    return sorted(rows, key=place)


def _write_parquet(path: Path, rows: Sequence[Row]) -> None:
    """Write the columns of the CSV file as a Parquet file."""
    import pyarrow
    from pyarrow import parquet

    table = pyarrow.Table.from_pylist(as_records(rows))
    write_whole(path, lambda file: parquet.write_table(table, file))


def describe(record: dict[str, Any], rows: Sequence[Row]) -> str:
    """Return sentences about the machine on which a study was made, and about its energy measurements."""
    machine = record["machine"]
    told = [
        f"Measured on {machine['processor']} ({machine['target']}), {machine['system']}, "
        f"Python {machine['python']}, Jangin {record['jangin']}.",
        f"Engines took {record['rounds']} turns of {record['seconds']:g} s each, in changing order.",
    ]
    if not record["energy"]:
        told.append("Energy wasn't asked for.")
    elif not any(r.energy for r in rows):
        reasons = dict.fromkeys(r.no_energy for r in rows if r.no_energy)
        told.append(f"Energy wasn't measured: {'; '.join(reasons) or 'no engine ran'}.")
    if any(not r.whole for r in rows):
        told.append("The study was interrupted: the same command goes on with it.")
    return " ".join(told)
