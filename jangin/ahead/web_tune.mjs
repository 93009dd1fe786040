/* Candidates for the kernels of <P>.mjs, which loads this module.

   `load({ tune: true })` measures them until five seconds are over, or as many as `tune` says. A candidate that
   is begun is finished. What is quicker on the device is kept in the browser (IndexedDB) by the adapter and the
   model, and each later load takes it. `tune: "again"` measures anew, and `tune: false` takes the package's own
   kernels. */

const TUNING = <TUNING>;
const STORE = "tuned";
const SECONDS = 5;
/* A candidate takes at most this share of the time of the kernel whose place it takes. */
const GAIN = 0.95;
/* Milliseconds of work in a measurement. One of shorter kernels takes several runs. */
const LEAST = 5;
const TURNS = 3;

/* What a transaction gives, or undefined where the browser keeps nothing: not at all, or not for this page. */
function inStore(mode, work) {
  return new Promise((resolve) => {
    if (typeof indexedDB === "undefined") return resolve(undefined);
    const asked = indexedDB.open("jangin", 1);
    asked.onupgradeneeded = () => asked.result.createObjectStore(STORE);
    asked.onerror = asked.onblocked = () => resolve(undefined);
    asked.onsuccess = () => {
      const base = asked.result, ended = (value) => { base.close(); resolve(value); };
      try {
        const transaction = base.transaction(STORE, mode), request = work(transaction.objectStore(STORE));
        transaction.oncomplete = () => ended(request.result);
        transaction.onerror = transaction.onabort = () => ended(undefined);
      } catch {
        ended(undefined);
      }
    };
  }).catch(() => undefined);
}

/* The name of an adapter and of what it can do, with the model's digest. */
function place(device) {
  const { vendor = "", architecture = "", device: name = "", description = "" } = device.adapterInfo ?? {};
  return [vendor, architecture, name, description, [...device.features].sort().join("+"), TUNING.digest].join(" ");
}

const isChoice = (c) => Array.isArray(c) && TUNING.ways[c[1]]?.some(([n]) => n === c[0]);

/* Puts the winners in their places. `model.tuned` says where they are from, and how many there are. */
export async function tuned(model, tune) {
  const key = place(model.device), before = tune === "again" ? undefined : await inStore("readonly", (s) => s.get(key));
  const known = Array.isArray(before) && before.every(isChoice), none = { from: "", kernels: 0 };
  if (!known && !tune) return none;
  const candidates = new Candidates(model);
  if (known && await candidates.taken(before)) return { from: "stored", kernels: before.length };
  if (!tune) return none;
  const choices = await candidates.measured(typeof tune === "number" ? tune : SECONDS);
  await inStore("readwrite", (s) => s.put(choices, key));
  await candidates.take(choices);
  return { from: "measured", kernels: choices.length };
}

class Candidates {
  constructor(model) {
    Object.assign(this, { model, ready: new Map(), files: null });
    this.launches = TUNING.ways.map((way) => new Map(way));
  }

  /* The call of way `way` for launch `n`, with its shader and its weights. */
  async call(n, way) {
    const launch = this.launches[way].get(n), { model } = this;
    this.files ??= Promise.all([
      model.fetched("<P>_tune.wgsl").then((r) => r.text()), model.fetched("<P>_tune.bin").then((r) => r.arrayBuffer())]);
    const [text, bytes] = await this.files;
    if (!this.ready.has(launch.shader)) this.ready.set(launch.shader, (await model.compile(text, [launch]))[launch.shader]);
    let at = 0;
    for (const [name, size] of TUNING.weights) {
      if (!model.buffers[name] && launch.bindings.some((b) => b[0] === name)) {
        const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
        model.buffers[name] = model.device.createBuffer({ label: name, size, usage });
        model.device.queue.writeBuffer(model.buffers[name], 0, bytes, at, size);
      }
      at += size;
    }
    return model.call(launch, this.ready.get(launch.shader), model.numbers(launch));
  }

  /* Milliseconds of calls, one after the other. */
  async time(calls, repeats = 1) {
    const { device } = this.model, commands = device.createCommandEncoder(), pass = commands.beginComputePass();
    for (let n = 0; n < repeats; n++) this.model.dispatch(pass, calls);
    pass.end();
    const start = performance.now();
    device.queue.submit([commands.finish()]);
    await device.queue.onSubmittedWorkDone();
    if (this.model.lost !== null) throw new Error(`the device is lost (${this.model.lost}); load the model again`);
    return (performance.now() - start) / repeats;
  }

  /* The least times of two lists of calls, measured in turns. */
  async compared(one, other) {
    const first = await this.time(one), repeats = Math.min(50, Math.max(1, Math.ceil(LEAST / Math.max(first, 0.05))));
    await this.time(other);
    const times = [[], []];
    for (let turn = 0; turn < TURNS; turn++) {
      times[0].push(await this.time(one, repeats));
      times[1].push(await this.time(other, repeats));
    }
    return times.map((t) => Math.min(...t));
  }

  /* The launches with candidates, equal ones together, those first that take longest in all. */
  async groups() {
    const { model } = this, groups = new Map();
    model.launches.forEach((l, n) => {
      if (!this.launches.some((way) => way.has(n))) return;
      const key = JSON.stringify([l.shader, l.groups, l.numbers]);
      groups.set(key, [...(groups.get(key) ?? []), n]);
    });
    await this.time(model.calls);
    const timed = [];
    for (const numbers of groups.values()) timed.push([numbers.length * await this.time([model.calls[numbers[0]]]), numbers]);
    return timed.sort((a, b) => b[0] - a[0]).map(([, numbers]) => numbers);
  }

  /* The launches for which a way is quicker, each with the way's number. A candidate that the device refuses
     is none. */
  async measured(seconds) {
    const { model } = this, end = performance.now() + 1000 * seconds, choices = [], calls = [...model.calls];
    for (const numbers of await this.groups()) {
      const [n] = numbers;
      for (const [way, launches] of this.launches.entries()) {
        if (!launches.has(n)) continue;
        if (performance.now() > end) break;
        const call = await model.guarded("a candidate", () => this.call(n, way)).catch((error) => {
          if (model.lost !== null) throw error;
        });
        if (!call) continue;
        const [before, after] = await this.compared([calls[n]], [call]);
        if (after < GAIN * before) calls[n] = Object.assign(call, { way });
      }
      if (calls[n] === model.calls[n]) continue;
      for (const k of numbers) choices.push([k, calls[n].way]);
    }
    const whole = [...model.calls];
    for (const [n, way] of choices) whole[n] = await this.call(n, way);
    const [before, after] = choices.length ? await this.compared(model.calls, whole) : [0, 0];
    return after < before ? choices : [];
  }

  /* Takes stored winners, and says whether the device accepts them. A newer driver or browser may not. */
  async taken(choices) {
    const { model } = this, own = [...model.calls];
    try {
      await model.guarded("stored candidates", () => this.take(choices));
      return true;
    } catch (error) {
      if (model.lost !== null) throw error;
      model.calls = own;
      return false;
    }
  }

  /* Puts winners in their places, and gives back the weights of others. */
  async take(choices) {
    const { model } = this;
    for (const [n, way] of choices) model.calls[n] = await this.call(n, way);
    const used = new Set(choices.flatMap(([n, way]) => this.launches[way].get(n).bindings.map((b) => b[0])));
    for (const [name] of TUNING.weights) {
      if (used.has(name) || !model.buffers[name]) continue;
      model.buffers[name].destroy();
      delete model.buffers[name];
    }
  }
}
