/* Trains the model on the batches of inputs.bin and labels.bin, one after another, up to their ends. Writes the
   losses and the state. */
#include "semihosting.h"

#include "model.h"

static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES], state[MODEL_STATE_BYTES];
static _Alignas(64) unsigned char input[INPUT_BYTES], label[LABEL_BYTES];

int main(void) {
  const void *batch[2] = {input, label};
  int32_t inputs = opened("inputs.bin", BINARY_READ), labels = opened("labels.bin", BINARY_READ);
  int32_t losses = opened("losses.bin", BINARY_WRITE);
  if (inputs < 0 || labels < 0 || losses < 0) return 2;
  if (model_init(state)) return 3;
  while (transferred(READ, inputs, input, sizeof input) && transferred(READ, labels, label, sizeof label)) {
    float loss;
    if (model_step(state, (const void *)batch, 0, &loss, arena, sizeof arena, 1)) return 4;
    if (!transferred(WRITE, losses, &loss, sizeof loss)) return 5;
  }
  return transferred(WRITE, opened("state.bin", BINARY_WRITE), state, sizeof state) ? 0 : 6;
}
