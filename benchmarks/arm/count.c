/* A plugin for QEMU's user mode that counts executed guest instructions, block by block.

   The program says what to count with two hints that every processor takes for no operation: `hint #0x70`
   (on RISC-V `slti x0, x0, 0x70`) clears the counts, and `hint #0x71` appends what has been counted since to the file of the argument `out`:
   a line `region`, then for each block of instructions that ran its address, how often it ran, and how many of
   its instructions are of each kind, in the order of `kinds`.

   What an instruction is, its disassembly tells, on RISC-V its bits. The counters aren't atomic: one thread at a time.
   The plugin interface is version 1 (QEMU 5.2 to 8.2), declared here as far as it is used. */

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct machine { const char *name; struct { int least, own; } version; bool whole_system; };

size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *);
char *qemu_plugin_insn_disas(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_vcpu_insn_exec_cb(struct qemu_plugin_insn *, void (*)(unsigned, void *), int, void *);

enum kind { FMA, VECTOR, VECTOR_LOAD, VECTOR_STORE, LOAD, STORE, SCALAR_FLOAT, BRANCH, OTHER, KINDS };

struct block {
    uint64_t runs, address;
    unsigned of[KINDS];
    struct block *next;
};

static struct block *blocks;
static const char *path;
static bool wide, is_riscv;

static bool begins(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (!strncmp(text, *words, strlen(*words)))
            return true;
    return false;
}

/* Kinds of AArch64. `to`: the first operand, which tells a vector register (v, q, d, s) from a general one. */
static enum kind kind64(const char *name, const char *to)
{
    static const char *const multiply_adds[] = {"fmla", "fmls", "bfdot", "bfmmla", "sdot", "udot", "usdot", "mla ",
                                                "mls ", "smlal", "umlal", "smmla", "ummla", "usmmla", 0};
    static const char *const loads[] = {"ld", 0}, *const stores[] = {"st", 0};
    static const char *const branches[] = {"b.", "b ", "bl", "br", "cbz", "cbnz", "tbz", "tbnz", "ret", 0};
    static const char *const floats[] = {"f", "scvtf", "ucvtf", 0};
    bool lanes = *to == '{' || *to == 'v', register_ = lanes || *to == 'q' || *to == 'd' || *to == 's' || *to == 'h';
    if (*to == 's' && to[1] == 'p')
        register_ = false;
    if (lanes && begins(name, multiply_adds))
        return FMA;
    if (begins(name, loads))
        return register_ ? VECTOR_LOAD : LOAD;
    if (begins(name, stores))
        return register_ ? VECTOR_STORE : STORE;
    if (begins(name, branches))
        return BRANCH;
    if (lanes)
        return VECTOR;
    return begins(name, floats) ? SCALAR_FLOAT : OTHER;
}

/* Whether an instruction of AArch64 adds up products of bytes or of floats of 16 bits: QEMU's disassembler doesn't know all. */
static bool adds_up(uint32_t word)
{
    static const struct {
        uint32_t mask, bits;
    } known[] = {
        {0xbfe0fc00, 0x0e809c00}, {0xbfc0f400, 0x0f80f000}, {0xbfc0f400, 0x0f00f000}, /* usdot, sudot */
        {0xdfe0f400, 0x4e80a400},                                                     /* smmla, ummla, usmmla */
        {0xbfe0fc00, 0x2e40fc00}, {0xbfc0f400, 0x0f40f000}, {0xffe0fc00, 0x6e40ec00}, /* bfdot, bfmmla */
        {0xbfe0fc00, 0x0e20ec00}, {0xbfc0f400, 0x0f800000},                           /* fmlal */
        {0xbfe0fc00, 0x2e20cc00}, {0xbfc0f400, 0x2f808000},                           /* fmlal2 */
    };
    for (size_t n = 0; n < sizeof known / sizeof *known; n++)
        if ((word & known[n].mask) == known[n].bits)
            return true;
    return false;
}

/* Kinds of 32-bit Arm, whose vector instructions all begin with v; those of a single float have an s register, or
   one type f64. */
static enum kind kind32(const char *name, const char *to)
{
    static const char *const multiply_adds[] = {"vfma", "vfms", "vmla", "vmls", 0};
    static const char *const vloads[] = {"vld", "vpop", 0}, *const vstores[] = {"vst", "vpush", 0};
    static const char *const loads[] = {"ldr", "ldm", "pop", 0}, *const stores[] = {"str", "stm", "push", 0};
    static const char *const branches[] = {"b ", "b.", "bl", "bx", "beq", "bne", "bge", "bgt", "ble", "blt", "bhi",
                                           "bhs", "blo", "bls", "bcc", "bcs", "bmi", "bpl", "cbz", "cbnz", 0};
    if (*name == 'v') {
        if (begins(name, vloads))
            return VECTOR_LOAD;
        if (begins(name, vstores))
            return VECTOR_STORE;
        if (*to != 'q' && (*to != 'd' || strstr(name, ".f64")))
            return SCALAR_FLOAT;
        return begins(name, multiply_adds) ? FMA : VECTOR;
    }
    if (begins(name, loads))
        return LOAD;
    if (begins(name, stores))
        return STORE;
    return begins(name, branches) ? BRANCH : OTHER;
}

/* Kinds of RISC-V, of whose vector instructions QEMU's disassembler may know nothing. */
static enum kind riscv(uint32_t word)
{
    unsigned opcode = word & 0x7f, width = word >> 12 & 7, function = word >> 26;
    bool vector_width = !width || width > 4;
    switch (opcode) {
    case 0x03: return LOAD;
    case 0x23: return STORE;
    case 0x07: return vector_width ? VECTOR_LOAD : LOAD;
    case 0x27: return vector_width ? VECTOR_STORE : STORE;
    case 0x43: case 0x47: case 0x4b: case 0x4f: case 0x53: return SCALAR_FLOAT;
    case 0x57: return (width == 1 || width == 5) && function >= 0x28 && function <= 0x2f ? FMA : VECTOR;
    case 0x63: case 0x67: case 0x6f: return BRANCH;
    }
    return (word & 3) == 1 && (word >> 13 & 7) > 4 ? BRANCH : OTHER; /* of 16 bits: c.j, c.beqz, c.bnez */
}

static enum kind kind(const struct qemu_plugin_insn *insn)
{
    uint32_t word = 0;
    memcpy(&word, qemu_plugin_insn_data(insn), qemu_plugin_insn_size(insn));
    if (is_riscv)
        return riscv(word);
    if (wide && adds_up(word))
        return FMA;
    char *text = qemu_plugin_insn_disas(insn);
    const char *name = text + strspn(text, " \t");
    const char *to = name + strcspn(name, " \t");
    enum kind found = (wide ? kind64 : kind32)(name, to + strspn(to, " \t"));
    free(text);
    return found;
}

static void begin(unsigned cpu, void *unused)
{
    (void)cpu, (void)unused;
    for (struct block *b = blocks; b; b = b->next)
        b->runs = 0;
}

static void end(unsigned cpu, void *unused)
{
    FILE *file = fopen(path, "a");
    (void)cpu, (void)unused;
    if (!file)
        return;
    fprintf(file, "region\n");
    for (struct block *b = blocks; b; b = b->next) {
        if (!b->runs)
            continue;
        fprintf(file, "%llx %llu", (unsigned long long)b->address, (unsigned long long)b->runs);
        for (int k = 0; k < KINDS; k++)
            fprintf(file, " %u", b->of[k]);
        fprintf(file, "\n");
    }
    fclose(file);
}

static void translated(plugin_id id, struct qemu_plugin_tb *tb)
{
    struct block *block = calloc(1, sizeof *block);
    uint32_t hint = is_riscv ? 0x2013 : wide ? 0xd503201f : 0xe320f000, shift = is_riscv ? 20 : wide ? 5 : 0;
    (void)id;
    if (!block)
        abort();
    block->address = qemu_plugin_tb_vaddr(tb);
    block->next = blocks;
    blocks = block;
    for (size_t n = 0; n < qemu_plugin_tb_n_insns(tb); n++) {
        struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, n);
        uint32_t word = 0;
        block->of[kind(insn)]++;
        if (qemu_plugin_insn_size(insn) == sizeof word)
            memcpy(&word, qemu_plugin_insn_data(insn), sizeof word);
        if (word == (hint | 0x70u << shift))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, begin, 0, NULL);
        if (word == (hint | 0x71u << shift))
            qemu_plugin_register_vcpu_insn_exec_cb(insn, end, 0, NULL);
    }
    qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &block->runs, 1);
}

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

__attribute__((visibility("default"))) int
qemu_plugin_install(plugin_id id, const struct machine *machine, int count, char **arguments)
{
    for (int n = 0; n < count; n++)
        if (!strncmp(arguments[n], "out=", 4))
            path = strdup(arguments[n] + 4);
    wide = !strcmp(machine->name, "aarch64");
    is_riscv = !strcmp(machine->name, "riscv64");
    if (!path)
        return 1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    return 0;
}
