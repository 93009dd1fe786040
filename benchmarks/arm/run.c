/* Runs a compiled model's entry between the two hints that `count.c` knows: run IMAGE OUTPUTS.

   IMAGE is what benchmarks/arm.py writes: 64-bit words, then the contents of the memory's beginning. The words:
   buffers, symbols, bytes of memory, bytes given, where scratch memory lies and its size, where the outputs lie and
   their size; then where each buffer lies, and each symbol's value. The first run warms up. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#ifdef __arm__ /* whose assembler has no name for most hints */
#define HINT(number) __asm__ volatile(".inst 0xe320f000 + " #number ::: "memory")
#elif defined __riscv
#define HINT(number) __asm__ volatile("slti x0, x0, " #number ::: "memory")
#else
#define HINT(number) __asm__ volatile("hint #" #number ::: "memory")
#endif

int32_t jangin_entry(void **buffers, int64_t *symbols, void *pool, void *scratch, int64_t stride);

enum { BUFFERS, SYMBOLS, BYTES, GIVEN, SCRATCH, STRIDE, OUTPUTS, OUTPUT_BYTES, WORDS };

static void need(int done, const char *what)
{
    if (!done) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

int main(int count, char **arguments)
{
    uint64_t head[WORDS];
    need(count == 3, "run IMAGE OUTPUTS");
    FILE *image = fopen(arguments[1], "rb");
    need(image && fread(head, sizeof *head, WORDS, image) == WORDS, "the image can't be read");
    int64_t *words = malloc((head[BUFFERS] + head[SYMBOLS] + 1) * sizeof *words);
    void **buffers = malloc((head[BUFFERS] + 1) * sizeof *buffers);
    char *memory = aligned_alloc(64, head[BYTES]);
    need(words && buffers && memory, "out of memory");
    need(fread(words, sizeof *words, head[BUFFERS] + head[SYMBOLS], image) == head[BUFFERS] + head[SYMBOLS] &&
             fread(memory, 1, head[GIVEN], image) == head[GIVEN], "the image is short");
    for (uint64_t n = 0; n < head[BUFFERS]; n++)
        buffers[n] = memory + words[n];
    for (int round = 0; round < 2; round++) {
        HINT(0x70);
        jangin_entry(buffers, words + head[BUFFERS], NULL, memory + head[SCRATCH], head[STRIDE]);
        HINT(0x71);
    }
    FILE *outputs = fopen(arguments[2], "wb");
    need(outputs && fwrite(memory + head[OUTPUTS], 1, head[OUTPUT_BYTES], outputs) == head[OUTPUT_BYTES] &&
             !fclose(outputs), "the outputs can't be written");
    return 0;
}
