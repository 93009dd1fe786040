"""Write the JavaScript of a model whose launches several workers share, over one memory of WebAssembly.

Each worker has an instance of the module, with a stack of its own. A word of memory counts the launches. The
caller stores what is to be done, adds one to the word and wakes the workers. It does its own part, and waits
until the word of those still at work is 0.
"""

from __future__ import annotations

from jangin.ahead.model import Model

SPINS = 5_000
"""Times that a thread looks for what others do before it sleeps, about as long as it takes to wake. On a busy
machine more times cost more: one thread may keep the processor that another waits for."""

_GIVEN = "`code` and `weights`: the contents of <P>.wasm and <P>.bin, where they aren't beside this file."
_ALONE = f"/* {_GIVEN} */"
_ALONE += """
export async function load({ code, weights } = {}) {
  const [wasm, constants] = await Promise.all([code ?? bytes("<P>.wasm"), weights ?? bytes("<P>.bin")]);
  const module = await WebAssembly.compile(wasm)<REFUSED>;
  const instance = await WebAssembly.instantiate(module, { env: library });
  return new Model(instance.exports, constants);
}
"""

_SEVERAL = """const inNode = typeof process === "object" && !!process.versions?.node;
const sleeps = typeof document === "undefined";  // a page's own thread may not
const { Worker: Thread } = inNode ? await import("node:worker_threads") : { Worker: globalThis.Worker };
const processors = async () =>
  inNode ? (await import("node:os")).availableParallelism() : navigator.hardwareConcurrency;

/* <GIVEN>
   `threads`: how many threads a run takes, this one among them; by default one for each processor. */
export async function load({ code, weights, threads } = {}) {
  if (typeof SharedArrayBuffer === "undefined")
    throw new Error("threads need SharedArrayBuffer: the page's server must send the headers " +
      "Cross-Origin-Opener-Policy: same-origin and Cross-Origin-Embedder-Policy: require-corp, " +
      "or compile the model for wasm32, which takes one thread");
  const [wasm, constants] = await Promise.all([code ?? bytes("<P>.wasm"), weights ?? bytes("<P>.bin")]);
  const count = Math.max(1, Math.floor(threads ?? await processors()));
  const memory = new WebAssembly.Memory({ initial: <FIRST>, maximum: <MOST>, shared: true });
  const team = { parallel: undefined };
  const env = { ...library, memory, <P>_parallel: (...task) => team.parallel(...task) };
  const module = await WebAssembly.compile(wasm);
  const instance = await WebAssembly.instantiate(module, { env });
  const model = new Model(instance.exports, constants, memory, count);
  await model.begin(module, team);
  return model;
}

/* The words of memory that the threads share. */
const TURN = 0, LEFT = 1, TASK = 2, CONTEXT = 3, COUNT = 4, FAILED = 5, WORDS = 6;
"""

_START = """    this.threads = threads;
    this.control = this.place(64);
    this.stacks = Array.from({ length: threads - 1 }, () => this.place(<STACK>) + <STACK>);
"""

_METHODS = """
  /* Starts the workers, and waits until all have an instance. */
  async begin(module, team) {
    const words = new Int32Array(this.memory.buffer, this.control, WORDS), table = this.table();
    this.words = words;
    this.workers = this.stacks.map((stack, n) => {
      const worker = new Thread(new URL("<P>_worker.mjs", import.meta.url), { type: "module" });
      worker.postMessage({ module, memory: this.memory, stack, control: this.control, number: n + 1 });
      return worker;
    });
    await Promise.all(this.workers.map((worker) => new Promise((ready, failed) => {
      if (worker.once) worker.once("message", ready).once("error", failed);
      else (worker.onmessage = ready), (worker.onerror = failed);
    })));
    this.workers.forEach((worker) => worker.unref?.());
    team.parallel = (task, context, count) => {
      const run = table.get(task);
      words[TASK] = task;
      words[CONTEXT] = context;
      words[COUNT] = count;
      Atomics.store(words, LEFT, this.workers.length);
      Atomics.add(words, TURN, 1);
      Atomics.notify(words, TURN);
      try {
        run(context, 0);
      } finally {
        for (let left, n = 0; (left = Atomics.load(words, LEFT)); ++n)
          if (n > <SPINS> && sleeps) Atomics.wait(words, LEFT, left);
      }
      if (words[FAILED]) {
        words[FAILED] = 0;
        throw new Error("a worker's part of a launch failed");
      }
      for (let n = this.workers.length + 1; n < count; ++n) run(context, n);
    };
  }

  table() {
    return this.api.__indirect_function_table;
  }

  /* Ends the workers. No run may be going on. Later runs take this thread alone. */
  close() {
    this.workers.forEach((worker) => worker.terminate());
    this.workers = [];
  }
"""

WORKERS = (
    ("<LOAD>", _ALONE, _SEVERAL.replace("<GIVEN>", _GIVEN)),
    ("<MEMORY>", "api.memory", "memory"),
    ("<ARGUMENTS>", "", ", memory, threads"),
    ("<START>", "", _START),
    ("<METHODS>", "", _METHODS),
    ("<COUNT>", "1", "this.threads"),
)
"""Marks in the text of the loader, each with its text for one thread and for several."""


def worker(model: Model) -> str:
    """Return the text of the JavaScript module that each worker runs."""
    text = _WORKER.replace("<P>", model.prefix).replace("<SPINS>", str(SPINS))
    return text.replace("<NAME>", model.name.replace("*/", ""))


_WORKER = """/* A worker of <NAME>, which <P>.mjs starts. It does its part of each launch. */

const TURN = 0, LEFT = 1, TASK = 2, CONTEXT = 3, COUNT = 4, FAILED = 5, WORDS = 6;
const round = Math.fround;
const library = { pow: Math.pow, fmod: (a, b) => a % b };
library.powf = (a, b) => round(Math.pow(a, b));
library.fmodf = (a, b) => round(a % b);
const port = typeof process === "object" && process.versions?.node
  ? (await import("node:worker_threads")).parentPort : globalThis;

const given = await new Promise((ready) => {
  if (port.once) port.once("message", ready);
  else port.onmessage = ({ data }) => ready(data);
});
const { module, memory, stack, control, number } = given;
const alone = () => { throw new Error("a worker shares no launch"); };
const env = { ...library, memory, <P>_parallel: alone };
const { exports } = await WebAssembly.instantiate(module, { env });
exports.__stack_pointer.value = stack;
const words = new Int32Array(memory.buffer, control, WORDS), table = exports.__indirect_function_table;
let turn = Atomics.load(words, TURN);
port.postMessage("ready");
for (;;) {
  for (let n = 0; n < <SPINS> && Atomics.load(words, TURN) === turn; ++n) ;
  while (Atomics.load(words, TURN) === turn) Atomics.wait(words, TURN, turn);
  turn = (turn + 1) | 0;  // as the word in memory, it goes on with the least number
  try {
    if (number < words[COUNT]) table.get(words[TASK])(words[CONTEXT], number);
  } catch {  // a trap: the next launch finds the worker at work again
    exports.__stack_pointer.value = stack;
    words[FAILED] = 1;
  } finally {
    if (Atomics.sub(words, LEFT, 1) === 1) Atomics.notify(words, LEFT);
  }
}
"""
