"""Weights of a package for WebGPU in several files, which the loader checks."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from built import small_network
from test_web import in_browser, in_node, needs_browser, packaged

import jangin
from jangin.ahead.web_shards import sharded

SIZE = 1 << 10
JOINED = """
const text = (await import("node:fs")).readFileSync("model.mjs", "utf8");
const made = text.replace("async function joined", "export async function joined")
  .replace("const SHARDS", "export const SHARDS");
(await import("node:fs")).writeFileSync("open.mjs", made);
const { joined, SHARDS } = await import("./open.mjs");
const bytes = await joined(SHARDS).then((b) => [...b], (error) => error.message);
console.log(JSON.stringify(bytes));
"""


def test_pieces_of_any_content() -> None:
    """Pieces have the size asked for, whatever the arrays are, and together all bytes. Equal pieces are one
    file."""
    random = np.random.default_rng(0)
    parts = [random.integers(0, 256, n).astype(np.uint8) for n in (0, 5, 4 * SIZE, 1, SIZE - 6, 700)]
    content = [*parts, np.zeros(2 * SIZE + 324, np.uint8), bytes(SIZE)]
    whole = b"".join(bytes(p) for p in content)
    package = json.dumps({"files": ["m.mjs", "m.bin"]}).encode()
    files = {"m.mjs": [b"a\nconst SHARDS = null;\nb"], "m.bin": content, "package.json": [package]}
    made = sharded(files, "m", SIZE)
    line = b"".join(map(bytes, made["m.mjs"])).split(b"\n")[1]
    listed = json.loads(line.removeprefix(b"const SHARDS = ").removesuffix(b";"))
    pieces = [b"".join(map(bytes, made[name])) for name, _, _ in listed]
    assert b"".join(pieces) == whole
    assert {len(p) for p in pieces[:-1]} == {SIZE} and 0 < len(pieces[-1]) <= SIZE
    for piece, (name, size, digest) in zip(pieces, listed, strict=True):
        assert hashlib.sha256(piece).hexdigest() == digest and len(piece) == size and digest[:16] in name
    assert len({name for name, _, _ in listed}) < len(listed), "two pieces of zeros are one file"
    kept = json.loads(made["package.json"][0])["files"]
    assert "m.bin" not in made and "m.bin" not in kept and {n for n, _, _ in listed} <= {*kept}


def emitted(folder: Path) -> list[Path]:
    """Write a package in shards, and return their files."""
    jangin.emit(small_network(), "web", "webgpu", name="model", shards=SIZE).save(folder)
    assert not (folder / "model.bin").exists()
    return sorted(folder.glob("model.*.bin"))


@pytest.mark.skipif(not shutil.which("node"), reason="Node isn't installed, which runs the package")
def test_the_loader_joins_and_checks_them(tmp_path: Path) -> None:
    shards = emitted(tmp_path / "shards")
    whole = packaged(small_network(), tmp_path / "whole")["model.bin"]
    assert len(shards) == -(-len(whole) // SIZE) > 2
    assert bytes(in_node(JOINED, tmp_path / "shards")) == whole
    raw = bytearray(shards[1].read_bytes())
    raw[7] ^= 1
    shards[1].write_bytes(raw)
    damaged = f"{shards[1].name} is damaged: it has {len(raw)} bytes and the SHA-256 "
    assert in_node(JOINED, tmp_path / "shards") == damaged + hashlib.sha256(raw).hexdigest()


def test_refusals() -> None:
    with pytest.raises(ValueError, match="shards of 1000 bytes are too small: 1,024 is the least"):
        jangin.emit(small_network(), "web", "webgpu", shards=1000)
    with pytest.raises(ValueError, match="shards= is for packages of the kind 'web'"):
        jangin.emit(small_network(), "c", shards=SIZE)


RUN = """
  const { load } = await import("./model.mjs");
  const x = new Float32Array(3 * 19 * 23).map((_, n) => Math.sin(n));
  const [y] = await (await load()).run([x]);
  await say({ y: [...y] });
"""


@needs_browser
def test_a_package_in_shards_runs(tmp_path: Path) -> None:
    emitted(tmp_path / "out")
    said = in_browser(tmp_path / "out", RUN, tmp_path / "profile")
    assert "error" not in said, said
    x = np.sin(np.arange(3 * 19 * 23)).astype(np.float32).reshape(1, 3, 19, 23)
    want = jangin.compile(small_network())(x)
    np.testing.assert_allclose(np.float32(said["y"]), want.ravel(), rtol=0, atol=1e-5)
