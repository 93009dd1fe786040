"""Mutants of `.jgn` files. `mutants.py FOLDER SEED COUNT KIND` reads them in a process of its own.

KIND `bytes` makes accidental damage. KIND `fields` makes deliberate damage: it changes fields of the header
and pieces of the plan's text, and corrects the checksums. Each mutant must be refused with ArtifactError or
LoadError. If a mutant of `bytes` is read, it must give the right results.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import struct
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from jangin.runtime.artifact import ArtifactError
from jangin.runtime.elf import LoadError
from jangin.runtime.executable import Executable
from jangin.runtime.load import load
from jangin.runtime.program import ProgramExecutable

PREFIX = struct.Struct("<8sII32s")
NUMBERS = (0, 1, -1, 3, 63, 64, 2**31 - 1, 2**31, 2**40, 2**62, 2**63, -(2**63), 10**30)
VALUES: tuple[Any, ...] = (*NUMBERS, None, True, 0.5, "", "x", [], {}, [[]], "f32", 1e300)
X = np.arange(1000, dtype=np.float32)


def damage(data: bytes, rng: random.Random) -> bytes:
    """Change, exchange, remove or double bits, runs and blocks."""
    changed = bytearray(data)
    kind, at = rng.randrange(6), rng.randrange(len(data))
    size = rng.choice((1, 4, 64, 4096))
    other = rng.randrange(len(data))
    if kind == 0:
        changed[at] ^= 1 << rng.randrange(8)
    elif kind == 1:
        changed[at : at + size] = rng.randbytes(len(changed[at : at + size]))
    elif kind == 2:
        size = min(size, len(data) - max(at, other))
        changed[at : at + size], changed[other : other + size] = (
            data[other : other + size],
            data[at : at + size],
        )
    elif kind == 3:
        del changed[at : at + size]
    elif kind == 4:
        changed[at:at] = data[other : other + size]
    else:
        del changed[at:]
    return bytes(changed)


def rewrite(data: bytes, rng: random.Random) -> bytes:
    """Change fields of the header, and correct its checksum."""
    magic, version, length, _ = PREFIX.unpack_from(data)
    header = json.loads(data[PREFIX.size : PREFIX.size + length])
    code = data[PREFIX.size + length : PREFIX.size + length + sum(header.get("objects", []))]
    if rng.random() < 0.1 and code:
        spoilt = bytearray(code)
        for _ in range(rng.choice((1, 8, 64))):
            spoilt[rng.randrange(min(len(code), rng.choice((64, 4096, len(code)))))] = rng.randrange(256)
        code = bytes(spoilt)
    else:
        text = rng.choice([k for k in ("plan", "program") if k in header])
        header = _field(header, rng) if rng.random() < 0.4 else {**header, text: words(header[text], rng)}
    new = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    digest = hashlib.sha256(new + code).digest()
    start = -(-(PREFIX.size + len(new) + len(code)) // 64) * 64
    rest = data[-(-(PREFIX.size + length + len(code)) // 64) * 64 :]
    head = PREFIX.pack(magic, version, len(new), digest) + new + code
    return head + bytes(start - len(head)) + rest


def _field(value: Any, rng: random.Random) -> Any:
    """Change, remove or double one entry somewhere in JSON."""
    inside = isinstance(value, (dict, list)) and value and rng.random() < 0.9
    if not inside:
        return rng.choice(VALUES)
    copied = value.copy()
    key = rng.choice(list(copied)) if isinstance(copied, dict) else rng.randrange(len(copied))
    kind = rng.random()
    if kind < 0.1:
        del copied[key]
    elif kind < 0.2 and isinstance(copied, list):
        copied.insert(key, copied[rng.randrange(len(copied))])
    else:
        copied[key] = _field(copied[key], rng)
    return copied


def words(text: str, rng: random.Random) -> str:
    """Change, exchange, remove or double numbers and words of a text."""
    parts = re.split(r"(\s+|[(),:;=\[\]{}])", text)
    places = [i for i, p in enumerate(parts) if p.strip()]
    for _ in range(rng.choice((1, 1, 2))):
        i, j = rng.choice(places), rng.choice(places)
        numbers = [i for i in places if parts[i].lstrip("-").isdecimal()]
        kind = rng.randrange(5)
        if kind < 2 and numbers:
            i = rng.choice(numbers)
            near = rng.random() < 0.4 and len(parts[i]) < 20
            parts[i] = str(int(parts[i]) + rng.choice((-1, 1)) if near else rng.choice(NUMBERS))
        elif kind == 2:
            parts[i], parts[j] = parts[j], parts[i]
        elif kind == 3:
            parts[i] = parts[j]
        else:
            parts[i] = rng.choice(("", parts[i] * 2, parts[i] + " " + parts[j]))
    return "".join(parts)


def is_plain(data: bytes) -> bool:
    """Return whether the file is a plan or a program. `rewrite` knows their headers."""
    return data[:4] in (b"\x8aJGN", b"\x8aJGP")


MUTATORS: dict[str, Callable[[bytes, random.Random], bytes]] = {"bytes": damage, "fields": rewrite}


def results(exe: Executable | ProgramExecutable) -> list[np.ndarray]:
    return [np.asarray(a) for a in exe.run({s.name: X for s in exe.inputs}).values()]


def main(folder: Path, seed: int, count: int, kind: str) -> None:
    files = sorted(folder.glob("*.jgn"))
    originals = [f.read_bytes() for f in files]
    wanted = [results(load(f, 1)) for f in files]
    refused = 0
    for n in range(count):
        rng = random.Random(f"{seed}/{n}")
        which = rng.randrange(len(files))
        mutant = folder / "mutant"
        mutant.write_bytes(MUTATORS[kind](originals[which], rng))
        try:
            exe = load(mutant, 1)
            if kind == "bytes":
                for found, right in zip(results(exe), wanted[which], strict=True):
                    np.testing.assert_array_equal(found, right)
        except (ArtifactError, LoadError):
            refused += 1
        except BaseException:
            print(f"mutant {n} of seed {seed} ({kind}) of {files[which].name}", flush=True)
            raise
    print(f"{refused} of {count} refused")


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
