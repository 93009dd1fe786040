/** <NAME>, compiled by Jangin for WebGPU. The types of WebGPU come with the package @webgpu/types. */

export interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
}

export interface Model {
  /** What computes now, and why WebGPU doesn't ("" if it does). */
  readonly on: "webgpu" | "wasm";
  readonly reason: string;
  /** Whether candidates were measured in this load ("measured"), were known ("stored"), or neither (""), and
   * how many kernels they replace. WebAssembly has none. */
  readonly tuned?: { readonly from: "" | "measured" | "stored"; readonly kernels: number };
  readonly inputs: readonly Tensor[];
  readonly outputs: readonly Tensor[];
  run(inputs: readonly [<INPUTS>], options?: { readback?: true }): Promise<[<OUTPUTS>]>;
  /** The buffers are the model's own, and the next run writes over them. */
  run(inputs: readonly [<INPUTS>], options: { readback: false }): Promise<GPUBuffer[]>;
  destroy(): void;
}

export interface Options {
  /** The device to run on, instead of a new one. */
  device?: GPUDevice;
  /** The contents of <P>.wgsl and <P>.bin, instead of the files beside the module. */
  code?: string;
  weights?: ArrayBuffer | Uint8Array;
  /** When WebAssembly computes: never, instead of a WebGPU that isn't there or can't run the model, or first,
   * until WebGPU's shaders are compiled. The package needs WebAssembly for it (--target webgpu+wasm32). */
  wasm?: "never" | "instead" | "first";
  /** Whether candidates for the kernels are measured, if none were on this adapter before, and for how many
   * seconds. Known winners are taken unless it is false. The package needs --candidates for it. */
  tune?: boolean | number | "again";
}

/** How a picture becomes an input: (v / 255 - mean) / std by channel. */
export interface Pixels {
  mean?: readonly [number, number, number];
  std?: readonly [number, number, number];
  /** Whether the channels are blue, green, red. */
  bgr?: boolean;
  /** The picture's middle fills the input, or the whole picture is stretched over it. */
  fit?: "cover" | "fill";
  /** The share of it around the centre that is taken, above 0 and at most 1. */
  crop?: number;
}

/** The values of an input, of shape [1, 3, height, width] or [1, height, width, 3], from a picture. */
export function pixels(
  picture: CanvasImageSource, input: Tensor, options?: Pixels): Float32Array | Uint8Array;

export function load(options?: Options): Promise<Model>;
