/* A plugin of QEMU's system emulators: how often each instruction of a bare-metal program is executed.

   gcc -O2 -shared -fPIC -o libcount.so count.c
   qemu-system-arm ... -plugin ./libcount.so,out=counts.txt

   At the end it writes a line for each address: the address in hexadecimal and the number. The declarations below
   are those of QEMU's plugin interface, version 1, of which distributions install no header. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct qemu_plugin_tb;
struct qemu_plugin_insn;
void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, void (*)(uint64_t, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_insn_exec_inline(struct qemu_plugin_insn *, int operation, void *, uint64_t);
void qemu_plugin_register_atexit_cb(uint64_t id, void (*)(uint64_t, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;
enum { PAGE = 1 << 23, PAGES = 256 }; /* an instruction begins at every second byte of 16 MB */
static uint64_t *counts[PAGES];
static char out[4096] = "counts.txt";

static void translated(uint64_t id, struct qemu_plugin_tb *block) {
  for (size_t n = 0; n < qemu_plugin_tb_n_insns(block); ++n) {
    struct qemu_plugin_insn *instruction = qemu_plugin_tb_get_insn(block, n);
    uint64_t at = qemu_plugin_insn_vaddr(instruction) & 0xFFFFFFFF, page = at >> 24;
    if (!counts[page] && !(counts[page] = calloc(PAGE, sizeof(uint64_t)))) abort();
    qemu_plugin_register_vcpu_insn_exec_inline(instruction, 0, &counts[page][at % (2 * PAGE) / 2], 1);
  }
}

static void ended(uint64_t id, void *unused) {
  FILE *file = fopen(out, "w");
  if (!file) abort();
  for (uint64_t page = 0; page < PAGES; ++page)
    for (uint64_t n = 0; counts[page] && n < PAGE; ++n)
      if (counts[page][n]) fprintf(file, "%" PRIx64 " %" PRIu64 "\n", page * 2 * PAGE + 2 * n, counts[page][n]);
  fclose(file);
}

__attribute__((visibility("default"))) int qemu_plugin_install(
    uint64_t id, const void *info, int argc, char **argv) {
  for (int n = 0; n < argc; ++n)
    if (!strncmp(argv[n], "out=", 4)) snprintf(out, sizeof out, "%s", argv[n] + 4);
  qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
  qemu_plugin_register_atexit_cb(id, ended, NULL);
  return 0;
}
