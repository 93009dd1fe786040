/* Runs the model on the bytes of input.bin and writes output.bin, by the debugger's files. */
#include "semihosting.h"

#include "model.h"

static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES], input[INPUT_BYTES], output[OUTPUT_BYTES];

int main(void) {
  const void *inputs[1] = {input};
  void *outputs[1] = {output};
  if (!transferred(READ, opened("input.bin", 9, BINARY_READ), input, sizeof input)) return 2;
  if (model_run((const void *)inputs, (const void *)outputs, 0, arena, sizeof arena, 1)) return 3;
  return transferred(WRITE, opened("output.bin", 10, BINARY_WRITE), output, sizeof output) ? 0 : 4;
}
