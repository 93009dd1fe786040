/* Checks shaders by Tint, without an adapter: node tint.mjs FOLDER_OF_NPMS_PACKAGE_webgpu

   Dawn's null back end has all features and runs nothing. The input is a list of shaders' texts in JSON. The
   output is a list of the errors of each. */

import { readFileSync } from "node:fs";
import { pathToFileURL } from "node:url";

const { create, globals } = await import(pathToFileURL(`${process.argv[2]}/index.js`).href);
Object.assign(globalThis, globals);
const gpu = globalThis.kept = create(["backend=null"]); // Dawn ends if this is collected
const adapter = await gpu.requestAdapter();
const device = await adapter.requestDevice({ requiredFeatures: ["shader-f16", "subgroups"] });
device.onuncapturederror = () => {};
const alive = setInterval(() => {}, 100);
const found = [];
for (const code of JSON.parse(readFileSync(0, "utf8"))) {
  const { messages } = await device.createShaderModule({ code }).getCompilationInfo();
  found.push(messages.filter((m) => m.type === "error").map((m) => `line ${m.lineNum}: ${m.message}`));
}
console.log(JSON.stringify(found));
clearInterval(alive);
process.exit(0);
