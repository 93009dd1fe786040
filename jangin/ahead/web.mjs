/* <NAME>, compiled by Jangin for WebGPU.

   import { load } from "./<P>.mjs";
   const model = await load();                     // or load({ device }), a GPUDevice of your own
   const [y] = await model.run([x]);               // typed arrays or GPUBuffers, in the order of the inputs
   const [z] = await model.run([x], { readback: false });    // GPUBuffers, which the next run writes over

   <P>.wgsl and <P>.bin are read from beside this file, unless load({ code, weights }) has their contents. */

const MODEL = <MODEL>;
const IN_RANGE = 0x7fffffffffffffffn;
const padded = (bytes) => Math.max(4, Math.ceil(bytes / 4) * 4);

async function fetched(name) {
  const url = new URL(name, import.meta.url);
  if (url.protocol === "file:") return new Response(await (await import("node:fs/promises")).readFile(url));
  const response = await fetch(url);
  if (!response.ok) throw new Error(`${url}: ${response.status} ${response.statusText}`);
  return response;
}

/* What the model needs beyond the limits that each device has. */
function limits() {
  const bindings = MODEL.launches.flatMap((l) => l.bindings.map((b) => b[2]));
  return {
    maxBufferSize: Math.max(...Object.values(MODEL.buffers)),
    maxStorageBufferBindingSize: Math.max(4, ...bindings),
  };
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
  return adapter.requestDevice({ requiredLimits });
}

export async function load({ device, code, weights } = {}) {
  device ??= await opened();
  for (const [name, least] of Object.entries(limits())) {
    if (device.limits[name] < least) {
      throw new Error(`the model needs ${name} of ${least}, and the device has ${device.limits[name]}`);
    }
  }
  const [text, bytes] = await Promise.all([
    code ?? fetched("<P>.wgsl").then((r) => r.text()),
    weights ?? fetched("<P>.bin").then((r) => r.arrayBuffer()),
  ]);
  const model = new Model(device);
  await model.prepare(text, bytes);
  return model;
}

class Model {
  constructor(device) {
    this.device = device;
    this.lost = null;
    device.lost.then((info) => { this.lost = info.message || info.reason || "no reason is given"; });
    const described = ({ name, dtype, shape }) => ({ name, dtype, shape });
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

  prepare(text, bytes) {
    return this.guarded("<NAME> can't be loaded", async () => {
      this.fill(bytes);
      const pipelines = await this.compile(text);
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

  /* Pipelines by the shaders' names, all made at once. */
  async compile(text) {
    const { device } = this;
    const parts = text.split(/^\/\/# (.*)$/m);
    const texts = Object.fromEntries(parts.slice(1).flatMap((p, n, all) => (n % 2 ? [] : [[p, all[n + 1]]])));
    this.layouts = {};
    const users = new Map(MODEL.launches.map((l) => [l.shader, l]));
    const made = await Promise.all([...users].map(async ([name, launch]) => {
      const module = device.createShaderModule({ label: name, code: texts[name] });
      const refused = (message) => new Error(
        `the shader ${name}, which computes ${launch.nodes}, is refused: ${message}`);
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
    this.calls = MODEL.launches.map(({ shader, bindings, groups }, n) => {
      const entries = bindings.map(([name, offset, size], binding) => (
        { binding, resource: { buffer: this.buffers[name], offset, size } }));
      entries.push({ binding: bindings.length, resource: { buffer: numbers, offset: room * n, size: room } });
      const group = device.createBindGroup({ layout: this.layout(bindings.length), entries });
      return { pipeline: pipelines[shader], group, groups };
    });
  }

  /* The outputs as typed arrays, or with `readback: false` as GPUBuffers. */
  async run(inputs, { readback = true } = {}) {
    if (inputs.length !== MODEL.inputs.length) {
      throw new Error(`the inputs are ${MODEL.inputs.map((t) => t.name).join(", ")}, and ${inputs.length} are given`);
    }
    const wanted = readback ? MODEL.outputs : [];
    const reads = [...wanted, ...MODEL.checks.map((c) => ({ ...c, bytes: 8 }))];
    const { staging, places } = await this.guarded("<NAME> can't be run", () => this.submit(inputs, reads));
    if (!staging) return this.made();
    try {
      await staging.mapAsync(GPUMapMode.READ);
    } catch (error) {
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
    const commands = device.createCommandEncoder();
    MODEL.inputs.forEach((t, n) => this.give(commands, t, inputs[n]));
    const pass = commands.beginComputePass();
    for (const { pipeline, group, groups } of this.calls) {
      pass.setPipeline(pipeline);
      pass.setBindGroup(0, group);
      pass.dispatchWorkgroups(...groups);
    }
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
    const is = `the input ${tensor.name} is ${tensor.dtype}[${tensor.shape.join(", ")}], ${tensor.bytes} bytes`;
    if (value instanceof GPUBuffer) {
      if (value.size < padded(tensor.bytes)) throw new Error(`${is}, and the buffer has ${value.size}`);
      commands.copyBufferToBuffer(value, 0, to, 0, padded(tensor.bytes));
      return;
    }
    if (!ArrayBuffer.isView(value)) throw new Error(`${is}: give a typed array or a GPUBuffer`);
    if (value.byteLength !== tensor.bytes) throw new Error(`${is}, and the array has ${value.byteLength}`);
    let bytes = new Uint8Array(value.buffer, value.byteOffset, value.byteLength);
    if (bytes.length % 4) {
      const whole = new Uint8Array(padded(bytes.length));
      whole.set(bytes);
      bytes = whole;
    }
    if (bytes.length) this.device.queue.writeBuffer(to, 0, bytes);
  }

  destroy() {
    for (const buffer of Object.values(this.buffers)) buffer.destroy();
  }
}
