/* Runs the model on a board with a debugger's probe, or in an emulator.
   input_N.bin has the raw numbers of input N, of one step or of several one after another. An input without a file is
   zeros. The program runs step by step until a file ends, and writes output_N.bin alike. */
#include "semihosting.h"

#include "<P>.h"

enum { INPUTS = <INPUTS>, OUTPUTS = <OUTPUTS>, ARENA = <ARENA> };
static _Alignas(64) unsigned char arena[ARENA];
<MEMORY>
static const int64_t sizes[] = {<SIZES>};
static void *const in[INPUTS + 1] = {<IN>}, *const out[OUTPUTS + 1] = {<OUT>};
static const uint32_t in_bytes[INPUTS + 1] = {<IN_BYTES>}, out_bytes[OUTPUTS + 1] = {<OUT_BYTES>};
static const char *const in_files[INPUTS + 1] = {<IN_FILES>}, *const out_files[OUTPUTS + 1] = {<OUT_FILES>};

static void refuse(const char *text) {
  said(text);
  said("\n");
  leave(1);
}

/* The stack below is painted before a run, so that its deepest place can be seen afterwards. */
enum { PAINTED = 4096, PAINT = 0x5A, OWN_FRAME = 64 };
extern unsigned char bss_end;

static __attribute__((noinline)) unsigned char *painted(void) {
  unsigned char *frame = __builtin_frame_address(0), *to = frame - OWN_FRAME;
  unsigned char *from = (uint32_t)(to - &bss_end) > PAINTED ? to - PAINTED : &bss_end;
  for (volatile unsigned char *at = from; at < to; ++at) *at = PAINT;
  return from;
}

static __attribute__((noinline)) uint32_t run_once(void) {
  unsigned char *deepest = painted(), *frame = __builtin_frame_address(0);
  int32_t code = <P>_run(<STATE, >(const void *)in, (const void *)out, sizes, arena, ARENA, 1);
  if (code) refuse(<P>_error_text(code));
  while (deepest < frame && *(volatile unsigned char *)deepest == PAINT) ++deepest;
  return (uint32_t)(frame - deepest);
}

int main(void) {
  int32_t given[INPUTS + 1], made[OUTPUTS + 1], several = 0;
  uint32_t stack = 0;
<RESET>
  for (int32_t n = 0; n < INPUTS; ++n) several |= (given[n] = opened(in_files[n], BINARY_READ)) >= 0;
  for (int32_t n = 0; n < OUTPUTS; ++n) made[n] = opened(out_files[n], BINARY_WRITE);
  for (int32_t step = 0;; ++step) {
    for (int32_t n = 0; n < INPUTS; ++n)
      if (given[n] >= 0 && !transferred(READ, given[n], in[n], in_bytes[n])) {
        if (step == 0) refuse("a file is shorter than its input");
        told("bytes of stack: ", stack);
        return 0;
      }
    uint32_t taken = run_once();
    stack = taken > stack ? taken : stack;
    for (int32_t n = 0; n < OUTPUTS; ++n)
      if (!transferred(WRITE, made[n], out[n], out_bytes[n])) refuse("an output can't be written");
    if (!several) {
      told("bytes of stack: ", stack);
      return 0;
    }
  }
}
