/* Runs packages for WebGPU by Dawn, outside of a browser: node dawn.mjs FOLDER_OF_NPMS_PACKAGE_webgpu

   Each line of the input is a request {folder, inputs}, and each line of the output its answer. Arrays are
   bytes in base 64. All packages share one device. */

import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const { create, globals } = await import(pathToFileURL(`${process.argv[2]}/index.js`).href);
Object.assign(globalThis, globals);
Object.defineProperty(globalThis, "navigator", { value: { gpu: create([]) }, configurable: true });

async function opened() {
  const adapter = await navigator.gpu.requestAdapter();
  if (!adapter) throw new Error("Dawn has no adapter here: name a driver by VK_ICD_FILENAMES");
  const wanted = ["shader-f16", "subgroups"].filter((name) => adapter.features.has(name));
  return { device: await adapter.requestDevice({ requiredFeatures: wanted }), name: adapter.info.description };
}

let open;
async function answer({ folder, inputs }) {
  open ??= await opened();
  if (!folder) return { adapter: open.name };
  const { load } = await import(pathToFileURL(`${folder}/model.mjs`).href);
  const model = await load({ device: open.device });
  try {
    const outputs = await model.run(inputs.map((text) => new Uint8Array(Buffer.from(text, "base64"))));
    return {
      outputs: outputs.map((y, n) => ({
        shape: model.outputs[n].shape,
        bytes: Buffer.from(y.buffer, y.byteOffset, y.byteLength).toString("base64"),
      })),
    };
  } finally {
    model.destroy();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const told = await answer(JSON.parse(line)).catch((error) => ({ error: error.message }));
  console.log(JSON.stringify(told));
}
process.exit(0);
