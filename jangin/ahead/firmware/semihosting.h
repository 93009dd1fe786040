/* Files of the debugger (Arm's semihosting interface, "Semihosting for AArch32 and AArch64", 2.0, which RISC-V
   has too), so that a program runs on a board with a probe as well as in an emulator. */
#include <stdint.h>

enum { OPEN = 1, WRITE0 = 4, WRITE = 5, READ = 6, EXIT_EXTENDED = 0x20, FINISHED = 0x20026, BINARY_READ = 1, BINARY_WRITE = 5 };

static int32_t debugger(int32_t operation, const void *arguments) {
#ifdef __riscv /* RISC-V Semihosting 1.0: three instructions that lie in one page */
  register int32_t r0 __asm__("a0") = operation;
  register const void *r1 __asm__("a1") = arguments;
  __asm__ volatile(".balign 16\n.option push\n.option norvc\nslli zero, zero, 0x1f\nebreak\n"
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

/* Opens a file, and gives its number, or a negative one if that can't be done. */
static int32_t opened(const char *name, int32_t mode) {
  int32_t letters = 0;
  while (name[letters]) ++letters;
  const void *names[3] = {name, (void *)mode, (void *)letters};
  return debugger(OPEN, names);
}

/* Writes a text on the debugger's console. */
static void said(const char *text) { debugger(WRITE0, text); }

/* Writes a text, a number and the end of the line. */
static inline void told(const char *text, uint32_t number) {
  char digits[12] = {0}, *at = digits + 10;
  do *--at = (char)('0' + number % 10);
  while (number /= 10);
  digits[10] = '\n';
  said(text);
  said(at);
}

/* Fills or writes memory from a file's present place on; gives 1 if all of it is done. */
static int transferred(int32_t operation, int32_t file, const void *data, uint32_t bytes) {
  const void *block[3] = {(void *)file, data, (void *)bytes};
  return file >= 0 && debugger(operation, block) == 0;
}
