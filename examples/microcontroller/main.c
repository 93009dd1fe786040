/* Runs the model on the bytes of input.bin and writes output.bin, by the debugger's files (Arm's semihosting
   interface, "Semihosting for AArch32 and AArch64", 2.0, which RISC-V has too), so that it runs on a board with a probe as well. */
#include "model.h"

enum { OPEN = 1, WRITE = 5, READ = 6, EXIT_EXTENDED = 0x20, FINISHED = 0x20026, BINARY_READ = 1, BINARY_WRITE = 5 };

static _Alignas(64) unsigned char arena[MODEL_ARENA_BYTES], input[INPUT_BYTES], output[OUTPUT_BYTES];

static int32_t debugger(int32_t operation, const void *arguments) {
#ifdef __riscv /* RISC-V Semihosting 1.0: three instructions that lie in one page */
  register int32_t r0 __asm__("a0") = operation;
  register const void *r1 __asm__("a1") = arguments;
  __asm__ volatile(".option push\n.option norvc\n.balign 16\nslli zero, zero, 0x1f\nebreak\n"
                   "srai zero, zero, 7\n.option pop" : "+r"(r0) : "r"(r1) : "memory");
#else
  register int32_t r0 __asm__("r0") = operation;
  register const void *r1 __asm__("r1") = arguments;
  __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
#endif
  return r0;
}

void leave(int status) {
  int32_t arguments[2] = {FINISHED, status};
  for (;;) debugger(EXIT_EXTENDED, arguments);
}

/* Fills or writes memory; what isn't done is an error. */
static int moved(int32_t operation, const char *name, int32_t letters, int32_t mode, void *data, uint32_t bytes) {
  const void *names[3] = {name, (void *)mode, (void *)letters};
  int32_t file = debugger(OPEN, names);
  const void *block[3] = {(void *)file, data, (void *)bytes};
  return file >= 0 && debugger(operation, block) == 0;
}

int main(void) {
  const void *inputs[1] = {input};
  void *outputs[1] = {output};
  if (!moved(READ, "input.bin", 9, BINARY_READ, input, sizeof input)) return 2;
  if (model_run((const void *)inputs, (const void *)outputs, 0, arena, sizeof arena, 1)) return 3;
  return moved(WRITE, "output.bin", 10, BINARY_WRITE, output, sizeof output) ? 0 : 4;
}
