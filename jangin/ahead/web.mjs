/* <NAME>, compiled by Jangin for WebGPU.

   import { load, pixels } from "./<P>.mjs";
   const model = await load();                     // or load({ device }), a GPUDevice of your own
   const [y] = await model.run([x]);               // typed arrays or GPUBuffers, in the order of the inputs
   const [z] = await model.run([x], { readback: false });    // GPUBuffers, which the next run writes over
   await model.run([pixels(picture, model.inputs[0])]);      // a picture, canvas or frame of a video

   <P>.wgsl and <P>.bin are read from beside this file, unless load({ code, weights }) has their contents. */

const MODEL = <MODEL>;
/* The module of the WebAssembly beside this file, or "" if there is none. */
const FALLBACK = "<FALLBACK>";
/* The module with candidates for the kernels, or "" if the package has none. */
const TUNING = "<TUNING>";
const IN_RANGE = 0x7fffffffffffffffn;
/* The files of the weights, each with its bytes and its SHA-256, or null if <P>.bin has all. */
const SHARDS = null;
const padded = (bytes) => Math.max(4, Math.ceil(bytes / 4) * 4);

async function fetched(name) {
  const url = new URL(name, import.meta.url);
  if (url.protocol === "file:") return new Response(await (await import("node:fs/promises")).readFile(url));
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

/* The contents of files that are read at once, one after the other. Each must have its bytes and its digest. */
async function joined(shards) {
  const whole = new Uint8Array(shards.reduce((all, [, bytes]) => all + bytes, 0));
  let end = 0;
  await Promise.all(shards.map(async ([name, bytes, digest]) => {
    const at = end;
    end += bytes;
    const piece = new Uint8Array(await (await fetched(name)).arrayBuffer());
    const found = new Uint8Array(await crypto.subtle.digest("SHA-256", piece));
    const is = Array.from(found, (n) => n.toString(16).padStart(2, "0")).join("");
    if (piece.length !== bytes || is !== digest) {
      throw new Error(`${name} is damaged: it has ${piece.length} bytes and the SHA-256 ${is}`);
    }
    whole.set(piece, at);
  }));
  return whole;
}

/* What the model needs beyond the limits that each device has. */
function limits() {
  const bindings = MODEL.launches.flatMap((l) => l.bindings.map((b) => b[2]));
  return {
    maxBufferSize: Math.max(...Object.values(MODEL.buffers)),
    maxStorageBufferBindingSize: Math.max(4, ...bindings),
  };
}

/* The features that shaders use, of those that a device or an adapter has. */
function used({ features }) {
  const known = { "shader-f16": true, subgroups: navigator.gpu.wgslLanguageFeatures?.has("subgroup_id") };
  return Object.keys(known).filter((name) => known[name] && features.has(name));
}

async function opened() {
  const gpu = globalThis.navigator?.gpu;
  if (!gpu) throw new Error("there is no WebGPU here: use another browser, or load the model's WebAssembly");
  const adapter = await gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new Error("WebGPU has no adapter here: load the model's WebAssembly");
  const requiredLimits = {};
  for (const [name, least] of Object.entries(limits())) {
    if (adapter.limits[name] < least) {
      throw new Error(`the model needs ${name} of ${least}, and the adapter has ${adapter.limits[name]}`);
    }
    requiredLimits[name] = least;
  }
  return adapter.requestDevice({ requiredLimits, requiredFeatures: used(adapter) });
}

/* `wasm` says when WebAssembly computes: "never", "instead" of a WebGPU that isn't there or can't run the
   model, or "first" until WebGPU's shaders are compiled. `model.on` names what computes, and `model.reason`
   says why WebGPU doesn't.

   `tune: true` measures candidates for the kernels, if none were measured before on this adapter, and takes
   the winners. `tune` may also be the seconds for it, "again", or false to take none. */
export async function load({ device, code, weights, wasm = "never", tune } = {}) {
  if (tune && !TUNING) throw new Error("the package has no candidates: compile the model with --candidates");
  if (!["never", "instead", "first"].includes(wasm)) {
    throw new Error(`wasm is "never", "instead" or "first", not ${JSON.stringify(wasm)}`);
  }
  if (wasm !== "never" && !FALLBACK) {
    throw new Error("the package has no WebAssembly: compile the model with --target webgpu+wasm32");
  }
  const gpu = onGpu({ device, code, weights, tune });
  if (wasm === "never") return gpu;
  if (wasm === "instead") return gpu.catch((error) => Processor.load(error.message));
  gpu.catch(() => {});
  return new First(gpu, await Processor.load("the shaders are being compiled"));
}

async function onGpu({ device, code, weights, tune }) {
  device ??= await opened();
  if (!device.limits) throw new Error("the device that is given is no GPUDevice");
  for (const [name, least] of Object.entries(limits())) {
    if (device.limits[name] < least) {
      throw new Error(`the model needs ${name} of ${least}, and the device has ${device.limits[name]}`);
    }
  }
  const model = new Model(device);
  await model.prepare(
    Promise.resolve(code ?? fetched("<P>.wgsl").then((r) => r.text())),
    Promise.resolve(weights ?? (SHARDS ? joined(SHARDS) : fetched("<P>.bin").then((r) => r.arrayBuffer()))),
  );
  if (TUNING && tune !== false) {
    const { tuned } = await import(new URL(TUNING, import.meta.url).href);
    model.tuned = await model.guarded("<NAME> can't be tuned", () => tuned(model, tune));
  }
  return model;
}

const described = ({ name, dtype, shape }) => ({ name, dtype, shape });
const stated = (t) => `the input ${t.name} is ${t.dtype}[${t.shape.join(", ")}], ${t.bytes} bytes`;

/* Fails unless there is a value for each input. */
function counted(inputs) {
  if (!Array.isArray(inputs)) throw new Error(`give the inputs as an array: [${MODEL.inputs.map((t) => t.name).join(", ")}]`);
  if (inputs.length !== MODEL.inputs.length) {
    throw new Error(`the inputs are ${MODEL.inputs.map((t) => t.name).join(", ")}, and ${inputs.length} are given`);
  }
}

/* Fails unless a typed array has the type and the bytes of an input. `Uint8Array` may have the bytes of any type. */
function fitting(tensor, value, more) {
  const same = { Uint8Array: ["Uint8ClampedArray"], Uint16Array: tensor.dtype === "f16" ? ["Float16Array"] : [] };
  const kind = value?.[Symbol.toStringTag] ?? typeof value;
  if (![tensor.array, "Uint8Array", ...(same[tensor.array] ?? [])].includes(kind)) {
    throw new Error(`${stated(tensor)}: give a ${tensor.array}${more}, not ${kind}`);
  }
  if (value.byteLength !== tensor.bytes) throw new Error(`${stated(tensor)}, and the array has ${value.byteLength}`);
}

/* The values of an input from a picture: a canvas, VideoFrame, ImageBitmap, <img> or <video>. The input is
   described by `model.inputs[n]`, of shape [1, 3, height, width] or [1, height, width, 3].

   The middle of the picture fills the input ("cover"), or the whole picture is stretched over it ("fill").
   Of it, the share `crop` around the centre is taken (0.875 for networks that see 224 of 256 pixels).
   A value is (v / 255 - mean) / std by channel, in the order red, green, blue unless `bgr`. For inputs of
   bytes it is v itself. */
export function pixels(picture, { name, dtype, shape }, { mean = [0, 0, 0], std = [1, 1, 1], bgr = false, fit = "cover", crop = 1 } = {}) {
  const first = shape.length === 4 && shape[0] === 1 && shape[1] === 3;
  const last = shape.length === 4 && shape[0] === 1 && shape[3] === 3;
  if (!(first || last) || !["f32", "u8"].includes(dtype)) {
    throw new Error(`the input ${name} is ${dtype}[${shape.join(", ")}]: a picture needs f32 or u8, and [1, 3, height, width] or [1, height, width, 3]`);
  }
  if (!["cover", "fill"].includes(fit)) throw new Error(`fit is "cover" or "fill", not ${JSON.stringify(fit)}`);
  const [height, width] = first ? shape.slice(2) : shape.slice(1, 3);
  picture ??= {};
  const wide = picture.displayWidth ?? picture.videoWidth ?? picture.naturalWidth ?? picture.width;
  const high = picture.displayHeight ?? picture.videoHeight ?? picture.naturalHeight ?? picture.height;
  if (!(wide > 0 && high > 0)) throw new Error(`the picture for ${name} has no pixels yet: wait until it is loaded`);
  if (!(crop > 0 && crop <= 1)) throw new Error(`crop is above 0 and at most 1, not ${crop}`);
  const scale = Math.min(wide / width, high / height);
  const [w, h] = (fit === "cover" ? [scale * width, scale * height] : [wide, high]).map((n) => n * crop);
  const canvas = new OffscreenCanvas(width, height);
  const context = canvas.getContext("2d", { willReadFrequently: true });
  context.imageSmoothingQuality = "high";
  context.drawImage(picture, (wide - w) / 2, (high - h) / 2, w, h, 0, 0, width, height);
  const { data } = context.getImageData(0, 0, width, height);
  const count = width * height, values = new (dtype === "u8" ? Uint8Array : Float32Array)(3 * count);
  for (let channel = 0; channel < 3; channel++) {
    const from = bgr ? 2 - channel : channel;
    const [start, step] = first ? [channel * count, 1] : [channel, 3];
    const [factor, less] = dtype === "u8" ? [1, 0] : [1 / (255 * std[channel]), mean[channel] / std[channel]];
    for (let n = 0; n < count; n++) values[start + step * n] = data[4 * n + from] * factor - less;
  }
  return values;
}

/* The model on the processor, by WebAssembly. */
class Processor {
  constructor(model, reason) {
    Object.assign(this, { model, reason, on: "wasm" });
    this.inputs = MODEL.inputs.map(described);
    this.outputs = MODEL.outputs.map(described);
  }

  static async load(reason) {
    const { load } = await import(new URL(FALLBACK, import.meta.url).href);
    return new Processor(await load(), reason);
  }

  async run(inputs, { readback = true } = {}) {
    counted(inputs);
    if (!readback) throw new Error("WebAssembly computes, so there are no GPUBuffers to leave the outputs in");
    MODEL.inputs.forEach((t, n) => fitting(t, inputs[n], ", as WebAssembly computes"));
    return this.model.run(inputs).map((y) => y.slice());
  }

  destroy() {
    this.model = null;
  }
}

/* The model by WebAssembly until WebGPU is ready. Runs that need GPUBuffers wait for WebGPU. */
class First {
  constructor(gpu, processor) {
    Object.assign(this, { now: processor, inputs: processor.inputs, outputs: processor.outputs });
    this.ready = gpu.then((model) => { this.now = model; }, (error) => { processor.reason = error.message; });
    this.gpu = gpu;
  }

  get on() { return this.now.on; }
  get reason() { return this.now.reason; }

  async run(inputs, options = {}) {
    const buffers = typeof GPUBuffer !== "undefined" && inputs.some((x) => x instanceof GPUBuffer);
    const model = buffers || options.readback === false ? await this.gpu : this.now;
    return model.run(inputs, options);
  }

  destroy() {
    this.now.destroy();
    this.gpu.then((model) => model.destroy(), () => {});
  }
}

class Model {
  constructor(device) {
    Object.assign(this, { device, lost: null, on: "webgpu", reason: "", tuned: { from: "", kernels: 0 } });
    Object.assign(this, { launches: MODEL.launches, fetched, layouts: {}, destroyed: false });
    device.lost.then((info) => { this.lost = info.message || info.reason || "no reason is given"; });
    this.inputs = MODEL.inputs.map(described);
    this.outputs = MODEL.outputs.map(described);
  }

  /* What a piece of work gives. WebGPU's errors become exceptions that begin with `what`. */
  async guarded(what, work) {
    const { device } = this;
    for (const filter of ["internal", "out-of-memory", "validation"]) device.pushErrorScope(filter);
    let made, failure;
    try {
      made = await work();
    } catch (error) {
      failure = error;
    }
    const errors = await Promise.all([0, 1, 2].map(() => device.popErrorScope().catch(() => null)));
    if (this.lost !== null) throw new Error(`${what}: the device is lost (${this.lost}); load the model again`);
    const error = failure ?? errors.find((e) => e);
    if (error) throw new Error(`${what}: ${error.message}`);
    return made;
  }

  /* The shaders are compiled while the weights are still on their way. */
  prepare(text, bytes) {
    return this.guarded("<NAME> can't be loaded", async () => {
      const [pipelines] = await Promise.all([text.then((t) => this.compile(t)), bytes.then((b) => this.fill(b))]);
      this.bind(pipelines);
    });
  }

  /* Buffers, with the weights. */
  fill(bytes) {
    const { device } = this;
    const total = MODEL.weights.reduce((a, b) => a + b, 0);
    if (bytes.byteLength !== total) throw new Error(`the weights have ${bytes.byteLength} bytes, not ${total}`);
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST;
    this.buffers = {};
    for (const [name, size] of Object.entries(MODEL.buffers)) {
      this.buffers[name] = device.createBuffer({ label: name, size, usage });
    }
    let at = 0;
    MODEL.weights.forEach((size, n) => {
      const source = bytes.buffer ?? bytes;
      device.queue.writeBuffer(this.buffers[`weights ${n}`], 0, source, (bytes.byteOffset ?? 0) + at, size);
      at += size;
    });
  }

  /* The launches' pipelines by the shaders' names, all made at once. */
  async compile(text, launches = MODEL.launches) {
    const { device } = this;
    const parts = text.split(/^\/\/# (.*)$/m);
    const texts = Object.fromEntries(parts.slice(1).flatMap((p, n, all) => (n % 2 ? [] : [[p, all[n + 1]]])));
    const users = new Map(launches.map((l) => [l.shader, l]));
    const features = used(device);
    const forms = [features, ...features.map((f) => [f]), []];
    const made = await Promise.all([...users].map(async ([name, launch]) => {
      const code = texts[forms.map((f) => [name, ...f].join("+")).find((form) => form in texts)];
      const refused = (message) => new Error(
        `the shader ${name}, which computes ${launch.nodes}, is refused: ${message}`);
      if (code === undefined) throw refused("the code is another model's");
      const module = device.createShaderModule({ label: name, code });
      const wrong = (await module.getCompilationInfo()).messages.find((m) => m.type === "error");
      if (wrong) throw refused(`line ${wrong.lineNum}: ${wrong.message}`);
      const layout = device.createPipelineLayout({ bindGroupLayouts: [this.layout(launch.bindings.length)] });
      try {
        return [name, await device.createComputePipelineAsync({ layout, compute: { module, entryPoint: "main" } })];
      } catch (error) {
        throw refused(error.message);
      }
    }));
    return Object.fromEntries(made);
  }

  layout(count) {
    const entry = (binding, type) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer: { type } });
    return this.layouts[count] ??= this.device.createBindGroupLayout({
      entries: [...Array(count).keys()].map((n) => entry(n, "storage")).concat(entry(count, "uniform")),
    });
  }

  /* What each launch is given, which is the same in each run. */
  bind(pipelines) {
    const { device } = this;
    const room = 256 * Math.max(1, ...MODEL.launches.map((l) => Math.ceil(l.numbers.length / 64)));
    const usage = GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST;
    const numbers = this.buffers[" numbers"] = device.createBuffer({ size: Math.max(256, room * MODEL.launches.length), usage });
    const all = new Int32Array((room / 4) * MODEL.launches.length);
    MODEL.launches.forEach((launch, n) => all.set(launch.numbers, (room / 4) * n));
    device.queue.writeBuffer(numbers, 0, all);
    this.calls = MODEL.launches.map((launch, n) => (
      this.call(launch, pipelines[launch.shader], { buffer: numbers, offset: room * n, size: room })));
  }

  /* A launch with its pipeline, its memory, and the part of a buffer that has its numbers. */
  call({ bindings, groups }, pipeline, numbers) {
    const entries = bindings.map(([name, offset, size], binding) => (
      { binding, resource: { buffer: this.buffers[name], offset, size } }));
    entries.push({ binding: bindings.length, resource: numbers });
    const group = this.device.createBindGroup({ layout: this.layout(bindings.length), entries });
    return { pipeline, group, groups };
  }

  /* A new buffer with a launch's numbers. */
  numbers(launch) {
    const size = 16 * Math.ceil(launch.numbers.length / 4), all = new Int32Array(size / 4);
    const buffer = this.device.createBuffer({ size, usage: GPUBufferUsage.UNIFORM | GPUBufferUsage.COPY_DST });
    all.set(launch.numbers);
    this.device.queue.writeBuffer(buffer, 0, all);
    return { buffer };
  }

  dispatch(pass, calls) {
    for (const { pipeline, group, groups } of calls) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...groups);
    }
  }

  /* The outputs as typed arrays, or with `readback: false` as GPUBuffers. */
  async run(inputs, { readback = true } = {}) {
    counted(inputs);
    const wanted = readback ? MODEL.outputs : [];
    const reads = [...wanted, ...MODEL.checks.map((c) => ({ ...c, bytes: 8 }))];
    const { staging, places } = await this.guarded("<NAME> can't be run", () => this.submit(inputs, reads));
    if (!staging) return this.made();
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
      if (error.name === "AbortError") await this.device.lost;  // nobody else unmaps the buffer
      staging.destroy();
      throw new Error(`<NAME> can't be run: ${this.lost === null ? error.message : `the device is lost (${this.lost}); load the model again`}`);
    }
    const mapped = staging.getMappedRange();
    const copies = places.map(({ at, bytes }) => mapped.slice(at, at + bytes));
    staging.unmap();
    staging.destroy();
    MODEL.checks.forEach((check, n) => {
      const index = new BigInt64Array(copies[wanted.length + n])[0];
      if (index !== IN_RANGE) throw new RangeError(`${check.source}: index ${index} is out of range, which is ${check.range}`);
    });
    if (!readback) return this.made();
    return wanted.map((t, n) => new globalThis[t.array](copies[n]));
  }

  made() {
    return MODEL.outputs.map((t) => this.buffers[t.buffer]);
  }

  /* Hand over one command buffer for a run. Nothing waits in here, so that runs never mix. */
  submit(inputs, reads) {
    const { device } = this;
    if (this.lost !== null) throw new Error("the device is lost");
    if (this.destroyed) throw new Error("the model was destroyed; load it again");
    const commands = device.createCommandEncoder();
    MODEL.inputs.forEach((t, n) => this.give(commands, t, inputs[n]));
    const pass = commands.beginComputePass();
    this.dispatch(pass, this.calls);
    pass.end();
    let size = 0;
    const places = reads.map(({ bytes }) => {
      const place = { at: size, bytes };
      size += Math.ceil(padded(bytes) / 8) * 8;
      return place;
    });
    const staging = size ? device.createBuffer({ size, usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST }) : null;
    reads.forEach((t, n) => commands.copyBufferToBuffer(this.buffers[t.buffer], t.at, staging, places[n].at, padded(t.bytes)));
    device.queue.submit([commands.finish()]);
    return { staging, places };
  }

  give(commands, tensor, value) {
    const to = this.buffers[tensor.buffer];
    if (value instanceof GPUBuffer) {
      if (value.size < padded(tensor.bytes)) throw new Error(`${stated(tensor)}, and the buffer has ${value.size}`);
      commands.copyBufferToBuffer(value, 0, to, 0, padded(tensor.bytes));
      return;
    }
    fitting(tensor, value, " or a GPUBuffer");
    let bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    if (bytes.length % 4) {
      const whole = new Uint8Array(padded(bytes.length));
      whole.set(bytes);
      bytes = whole;
    }
    if (bytes.length) this.device.queue.writeBuffer(to, 0, bytes);
  }

  destroy() {
    this.destroyed = true;
    for (const buffer of Object.values(this.buffers)) buffer.destroy();
  }
}
