/** <NAME>, compiled by Jangin for WebGPU. The types of WebGPU come with the package @webgpu/types. */

export interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
}

export interface Model {
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
}

export function load(options?: Options): Promise<Model>;
