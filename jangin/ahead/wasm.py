"""Compile a model for browsers and Node: a WebAssembly module, and JavaScript that loads and runs it."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from jangin.ahead.declarations import signatures
from jangin.ahead.link import LinkError
from jangin.ahead.model import Model
from jangin.ahead.wasm_workers import SPINS, WORKERS
from jangin.files import writing

CODE = 10
"""The number of the section that holds functions' code (WebAssembly Core Specification 2.0, 5.5)."""
STACK = 1 << 18
"""Bytes of the stack, for values that don't fit in registers: a kernel's tile and the tables of a run."""
PAGE = 1 << 16
"""Bytes of a page of WebAssembly's memory (WebAssembly Core Specification 2.0, 4.2.8)."""
FIRST, MOST = 64, 1 << 15
"""Pages of a memory that workers share: at first, and at most (2 GB). Engines only reserve the latter."""
SHARED = (
    "--import-memory", "--shared-memory", "--export-table",
    f"--initial-memory={FIRST * PAGE}", f"--max-memory={MOST * PAGE}",
)  # fmt: skip
"""The linker's options for a memory that workers share."""


def is_wasm(model: Model) -> bool:
    return model.target.triple.startswith("wasm")


def wasm_module(model: Model, made: bytes) -> bytes:
    """Link an object file to a module that exports its memory and the C API, and return the module's bytes.
    Raises LinkError if there is no linker, or if it fails."""
    exported = [s.name for s, _ in signatures(model).values()]
    with tempfile.TemporaryDirectory() as folder:
        object_file, out = Path(folder) / "model.o", Path(folder) / "model.wasm"
        with writing(object_file):
            object_file.write_bytes(made)
        options = [
            "--no-entry",
            "--allow-undefined",
            "--gc-sections",
            "--strip-all",
            "-z",
            f"stack-size={STACK}",
        ]
        if model.has_workers:
            options += SHARED
            exported.append("__stack_pointer")
        names = [f"--export={name}" for name in (*exported, "__heap_base")]
        command = [*_linker(), *options, *names, "-o", str(out), str(object_file)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise LinkError(f"{' '.join(command[:3])} failed: {done.stderr.strip()[:2000]}")
        return out.read_bytes()


def _linker() -> list[str]:
    if find_spec("ziglang") is not None:
        return [sys.executable, "-m", "ziglang", "wasm-ld"]
    if path := shutil.which("wasm-ld"):
        return [path]
    raise LinkError("nothing here links WebAssembly: pip install 'jangin[aot]', or install lld")


def code_bytes(module: bytes) -> int:
    """Return the number of bytes of functions' code in an object file or module."""
    return sum(end - start for number, start, end in _sections(module) if number == CODE)


def _sections(module: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield each section's number, and the offsets of the begin and end of its contents."""
    at = 8
    while at < len(module):
        number, size, shift = module[at], 0, 0
        while True:
            at += 1
            size |= (module[at] & 0x7F) << shift
            shift += 7
            if module[at] < 0x80:
                break
        yield number, at + 1, at + 1 + size
        at += 1 + size


def loader(model: Model) -> str:
    """Return the text of the JavaScript module that loads the model and runs it."""
    kept = model.state is not None
    text = _LOADER.replace("<KEPT>\n", _KEPT if kept else "").replace("<RESET>\n", _RESET if kept else "")
    for mark, alone, several in WORKERS:
        text = text.replace(mark, several if model.has_workers else alone)
    text = text.replace("<REFUSED>", _REFUSED if model.target.has("relaxed-simd") else "")
    numbers = {"<FIRST>": FIRST, "<MOST>": MOST, "<STACK>": STACK, "<SPINS>": SPINS}
    for mark, number in numbers.items():
        text = text.replace(mark, str(number))
    text = text.replace("<STATE, >", "this.state, " if kept else "").replace("<P>", model.prefix)
    return text.replace("<NAME>", model.name.replace("*/", ""))


_REFUSED = """.catch((cause) => {
    throw new Error("this engine doesn't take the module, which needs Relaxed SIMD: " +
      "without it, compile the model for wasm32", { cause });
  })"""
_LOADER = """/* <NAME>, compiled by Jangin for WebAssembly.

   import { load } from "./<P>.mjs";
   const model = await load();                     // reads <P>.wasm and <P>.bin from beside this file
   const [y] = model.run([x]);                     // typed arrays in the order of the model's inputs
   model.run([x], { batch: 4 });                   // sizes that are known only at run time, by name

   An output is a view of the model's memory, which the next run writes over. */

const VIEWS = {
  f32: Float32Array, f64: Float64Array, i8: Int8Array, i16: Int16Array, i32: Int32Array, i64: BigInt64Array,
  u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, u64: BigUint64Array,
};
const view = (type) => VIEWS[type] ?? (type.endsWith("16") ? Uint16Array : Uint8Array);
/* Arrays that an input takes beside those of its own class. An Uint8Array may have the bytes of any type. */
const ALIKE = { Uint8Array: ["Uint8ClampedArray"], Uint16Array: ["Float16Array"] };
const round = Math.fround;

/* What C's mathematical library has and WebAssembly hasn't. */
const library = { pow: Math.pow, fmod: (a, b) => a % b };
library.powf = (a, b) => round(Math.pow(a, b));
library.fmodf = (a, b) => round(a % b);

async function bytes(name) {
  const url = new URL(name, import.meta.url);
  if (url.protocol === "file:") return (await import("node:fs/promises")).readFile(url);
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response.arrayBuffer();
}

<LOAD>
class Model {
  constructor(api, weights<ARGUMENTS>) {
    this.api = api;
    this.memory = <MEMORY>;
    this.end = api.__heap_base.value ?? api.__heap_base;
    const size = Number(api.<P>_weights_bytes());
    const at = this.place(size);
    const constants = new Uint8Array(weights.buffer ?? weights, weights.byteOffset ?? 0, weights.byteLength);
    new Uint8Array(this.memory.buffer).set(constants, at);
    this.check(api.<P>_use_weights(at, BigInt(weights.byteLength)));
    this.sizes = this.names("size");
    this.inputs = this.names("input");
    this.outputs = this.names("output");
<KEPT>
<START>    this.free = this.end;
  }
<RESET>
<METHODS>
  /* Memory at a multiple of 64 bytes behind all that was given out. */
  place(size) {
    const at = Math.ceil(this.end / 64) * 64;
    this.end = at + size;
    const missing = this.end - this.memory.buffer.byteLength;
    if (missing > 0) this.memory.grow(Math.ceil(missing / 65536));
    return at;
  }

  text(at) {
    const all = new Uint8Array(this.memory.buffer);
    return new TextDecoder().decode(all.slice(at, all.indexOf(0, at)));  // shared bytes can't be decoded
  }

  check(code) {
    if (code < 0) throw new Error(this.text(this.api.<P>_error_text(Number(code))));
    return Number(code);
  }

  names(kind) {
    const count = this.api[`<P>_${kind}_count`]();
    return Array.from({ length: count }, (_, n) => this.text(this.api[`<P>_${kind}_name`](n)));
  }

  type(kind, n) {
    return view(this.text(this.api[`<P>_${kind}_type`](n)));
  }

  /* The outputs as typed arrays. `named`: the value of each size that isn't fixed. */
  run(arrays, named = {}) {
    const { api } = this;
    if (arrays.length !== this.inputs.length) throw new Error(`the inputs are ${this.inputs.join(", ")}`);
    this.end = this.free;
    const sizes = this.place(8 * Math.max(1, this.sizes.length));
    this.sizes.forEach((name, n) => {
      if (!(name in named)) throw new Error(`the size ${name} isn't given`);
      new BigInt64Array(this.memory.buffer, sizes, this.sizes.length)[n] = BigInt(named[name]);
    });
    const places = (kind, names) => names.map((_, n) => {
      const size = this.check(api[`<P>_${kind}_bytes`](n, sizes));
      return { at: this.place(size), size };
    });
    const given = places("input", this.inputs);
    const made = places("output", this.outputs);
    const room = this.check(api.<P>_arena_bytes(sizes, <COUNT>));
    const arena = this.place(room);
    const tables = this.place(4 * (given.length + made.length) + 4);
    const addresses = new Uint32Array(this.memory.buffer, tables, given.length + made.length);
    addresses.set([...given, ...made].map((p) => p.at));
    given.forEach(({ at, size }, n) => {
      const { name } = this.type("input", n), kind = arrays[n]?.[Symbol.toStringTag] ?? typeof arrays[n];
      if (![name, ...(ALIKE[name] ?? []), "Uint8Array"].includes(kind)) {
        throw new Error(`${this.inputs[n]} is ${kind}: give a ${name}`);
      }
      if (arrays[n].byteLength !== size) throw new Error(`${this.inputs[n]} takes ${size} bytes`);
      new Uint8Array(this.memory.buffer, at, size).set(
        new Uint8Array(arrays[n].buffer, arrays[n].byteOffset, size));
    });
    this.check(api.<P>_run(<STATE, >tables, tables + 4 * given.length, sizes, arena, BigInt(room), <COUNT>));
    return made.map(({ at, size }, n) => {
      const View = this.type("output", n);
      return new View(this.memory.buffer, at, size / View.BYTES_PER_ELEMENT);
    });
  }
}
"""

_KEPT = """    this.state = this.place(Number(api.<P>_state_bytes()));
    this.reset();
"""
_RESET = """
  /* Fills the state that is kept from run to run as it is before the first. */
  reset() {
    this.check(this.api.<P>_reset(this.state));
  }
"""
