/* Runs a model's layers by TensorFlow.js (see browser_layers.py). `tf` has its backend already. */

const explicit = (pads = []) => {
  const half = pads.length / 2;
  const ends = [...Array(2 - half).fill([0, 0]), ...Array.from({ length: half }, (_, n) => [pads[n], pads[half + n]])];
  return ends.flat().some((n) => n) ? [[0, 0], ...ends, [0, 0]] : "valid";
};
const pair = (values = [1]) => (values.length > 1 ? values : [1, values[0]]);

const OPS = (tf) => ({
  Conv([x, filter, bias], s) {
    const image = s.line ? tf.expandDims(tf.transpose(x, [0, 2, 1]), 1) : x;
    const told = {
      x: image, filter, bias, strides: pair(s.strides), dilations: pair(s.dilations), pad: explicit(s.pads),
      activation: s.activation, leakyreluAlpha: s.alpha,
    };
    const y = s.depthwise ? tf.fused.depthwiseConv2d(told) : tf.fused.conv2d(told);
    return s.line ? tf.transpose(tf.squeeze(y, [1]), [0, 2, 1]) : y;
  },
  MatMul([a, b, bias], s) {
    if (b.rank > 2 || !s.activation) return tf.matMul(a, b);
    const rows = tf.reshape(a, [-1, a.shape.at(-1)]);
    const y = tf.fused.matMul({ a: rows, b, bias, activation: s.activation });
    return tf.reshape(y, [...a.shape.slice(0, -1), b.shape[1]]);
  },
  Gemm([a, b, bias], s) { return tf.fused.matMul({ a, b, bias, activation: s.activation }); },
  MaxPool([x], s) { return tf.maxPool(x, s.kernel_shape, s.strides ?? [1, 1], pooled(x, s)); },
  AveragePool([x], s) { return tf.avgPool(x, s.kernel_shape, s.strides ?? [1, 1], pooled(x, s)); },
  GlobalAveragePool([x]) { return tf.mean(x, [1, 2], true); },
  Resize([x], { scales, sizes }) {
    const size = sizes?.length ? sizes.slice(2) : [x.shape[1] * scales[2], x.shape[2] * scales[3]];
    return tf.image.resizeNearestNeighbor(x, size);
  },
  LayerNormalization([x, scale, shift], { epsilon = 1e-5 }) {
    const centred = tf.sub(x, tf.mean(x, -1, true));
    const deviation = tf.rsqrt(tf.add(tf.mean(tf.square(centred), -1, true), epsilon));
    const y = tf.mul(tf.mul(centred, deviation), scale);
    return shift ? tf.add(y, shift) : y;
  },
  Add: ([a, b]) => tf.add(a, b),
  Sub: ([a, b]) => tf.sub(a, b),
  Mul: ([a, b]) => tf.mul(a, b),
  Div: ([a, b]) => tf.div(a, b),
  Erf: ([x]) => tf.erf(x),
  Relu: ([x]) => tf.relu(x),
  LeakyRelu: ([x], { alpha = 0.01 }) => tf.leakyRelu(x, alpha),
  Clip: ([x], { min, max }) => tf.clipByValue(x, min, max),
  Sigmoid: ([x]) => tf.sigmoid(x),
  Softmax: ([x], { axis = -1 }) => tf.softmax(x, axis),
  Concat: (values, { axis }) => tf.concat(values, axis),
  Gather: ([x, at], { axis = 0 }) => tf.gather(x, at, axis),
  Transpose: ([x], { perm }) => tf.transpose(x, perm),
  Reshape: ([x], { shape }) => tf.reshape(x, shape.map((n, axis) => (n === 0 ? x.shape[axis] : n))),
  Flatten: ([x], { axis = 1 }) => tf.reshape(x, [x.shape.slice(0, axis).reduce((a, b) => a * b, 1), -1]),
  Unsqueeze: ([x], { axes }) => axes.reduce((y, axis) => tf.expandDims(y, axis), x),
  Squeeze: ([x], { axes }) => tf.squeeze(x, axes),
  Cast: ([x], { kind }) => tf.cast(x, kind === 1 ? "float32" : "int32"),
  Pad: ([x], { ends, value = 0 }) => tf.pad(x, ends, Math.fround(value)),
  Identity: ([x]) => x,
});

function pooled({ shape }, { pads = [0, 0, 0, 0], strides = [1, 1], kernel_shape, ceil_mode }) {
  const rest = [0, 1].map((n) => (shape[n + 1] + pads[n] + pads[n + 2] - kernel_shape[n]) % strides[n]);
  if (ceil_mode && rest.some((n) => n)) throw new Error("the last windows of a pooling are partly outside");
  return explicit(pads);
}

/* A function from typed arrays to the outputs' values. */
export async function layers(tf, inputs) {
  const told = await (await fetch("layers.json")).json();
  const bytes = await (await fetch("layers.bin")).arrayBuffer();
  const weights = Object.fromEntries(Object.entries(told.weights).map(([name, [kind, at, shape]]) => {
    const count = shape.reduce((a, b) => a * b, 1);
    const values = new (kind === "int32" ? Int32Array : Float32Array)(bytes, at, count);
    return [name, tf.tensor(values, shape, kind)];
  }));
  const ops = OPS(tf);
  const unknown = told.steps.find(({ op }) => !ops[op]);
  if (unknown) throw new Error(`the operator ${unknown.op} isn't among the layers`);
  return async (arrays) => {
    const outputs = tf.tidy(() => {
      const values = { ...weights };
      told.inputs.forEach((name, n) => {
        const kind = arrays[n] instanceof Float32Array ? "float32" : "int32";
        const array = arrays[n] instanceof BigInt64Array ? Int32Array.from(arrays[n], Number) : arrays[n];
        values[name] = tf.tensor(array, inputs[n][2], kind);
      });
      for (const step of told.steps) values[step.to] = ops[step.op](step.of.map((name) => values[name]), step);
      return told.outputs.map((name) => values[name]);
    });
    const made = await Promise.all(outputs.map((y) => y.data()));
    outputs.forEach((y) => y.dispose());
    return made;
  };
}
