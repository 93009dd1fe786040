/* A model compiled for WebAssembly beside onnxruntime-web (SIMD, one thread), in Node, called in turns.

     npm install onnxruntime-web
     jangin compile model.onnx --target wasm32 --emit shared --name model -o out/
     node benchmarks/wasm.mjs out/ model.onnx [rounds]                                                    */
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { resolve } from "node:path";
import { pathToFileURL } from "node:url";

const [folder, file, rounds = "15"] = process.argv.slice(2);
const { load } = await import(pathToFileURL(resolve(folder, "model.mjs")));
const required = createRequire(resolve("package.json")).resolve("onnxruntime-web/wasm");
const { default: imported, ...named } = await import(pathToFileURL(required));
const ort = imported ?? named;
ort.env.wasm.numThreads = 1;

const model = await load();
const session = await ort.InferenceSession.create(readFileSync(file), { executionProviders: ["wasm"] });
const { shape } = session.inputMetadata[0];
const x = Float32Array.from({ length: shape.reduce((a, b) => a * b) }, () => Math.random() - 0.5);
const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", x, shape) };

const ours = async () => model.run([x])[0];
const theirs = async () => (await session.run(feeds))[session.outputNames[0]].data;
const timed = async (call) => {
  const start = performance.now();
  await call();
  return performance.now() - start;
};
const median = (list) => list.sort((a, b) => a - b)[list.length >> 1];

const expected = await theirs();
const wrong = (await ours()).reduce((most, y, n) => Math.max(most, Math.abs(y - expected[n])), 0);
const scale = expected.reduce((most, y) => Math.max(most, Math.abs(y)), 0);
for (let n = 0; n < 5; ++n) await ours(), await theirs();
const times = [[], []];
for (let n = 0; n < Number(rounds); ++n) {
  times[0].push(await timed(ours));
  times[1].push(await timed(theirs));
}
const [a, b] = times.map(median);
console.log(`${file}: ${a.toFixed(1)} ms, onnxruntime-web ${b.toFixed(1)} ms, ${(b / a).toFixed(2)} times as fast; ` +
            `largest difference ${(wrong / scale).toExponential(1)} of the largest output; V8 ${process.versions.v8}`);
