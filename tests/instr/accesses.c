/* Runs the kernels of `accesses` one after the other: accesses DATA OUTPUTS.

   DATA is what `accesses_emulated.py` writes, in words of 64 bits: the cases, the bytes of `pages` and those of `page`;
   `pages` for all types but bool, and for bool; then for each case the bytes of its table, those that it writes, the
   parameters of its kernel, the calls of it, whether what is read is bool (1 in pages, 2 in the array), and its table; then for each call a symbol's value
   and for each parameter the number of its region and how many bytes after its start it lies. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { PAGES, PLAIN, TABLE, OUT, REGIONS };
enum { TABLE_BYTES, OUT_BYTES, PARAMETERS, CALLS, BOOL, WORDS };
enum { GUARD = 0x5A, SCRATCH = 4096 };

typedef void Kernel(void **, int64_t *, int64_t, int64_t, void *);
extern Kernel *kernels[];

static void need(int done, const char *what)
{
    if (!done) {
        fprintf(stderr, "%s\n", what);
        exit(1);
    }
}

static void take(FILE *file, void *to, size_t bytes)
{
    need(fread(to, 1, bytes, file) == bytes, "the data is short");
}

/* Numbers in memory of which every second page can't be read, from the first on, or all can. */
static char *numbers(const char *from, size_t bytes, size_t page)
{
    char *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    need(made != MAP_FAILED, "out of memory");
    memcpy(made, from, bytes);
    for (size_t at = 0; page && at < bytes; at += 2 * page)
        need(mprotect(made + at, page, PROT_NONE) == 0, "a page can't be protected");
    return made;
}

int main(int count, char **arguments)
{
    int64_t head[3];
    char *pages[2], *plain[2];
    need(count == 3, "accesses DATA OUTPUTS");
    FILE *data = fopen(arguments[1], "rb"), *outputs = fopen(arguments[2], "wb");
    need(data && outputs, "a file can't be opened");
    take(data, head, sizeof head);
    char *given = malloc(head[1]), *scratch = aligned_alloc(SCRATCH, SCRATCH);
    need(given && scratch, "out of memory");
    for (int is_bool = 0; is_bool < 2; is_bool++) {
        take(data, given, head[1]);
        pages[is_bool] = numbers(given, head[1], head[2]);
        plain[is_bool] = numbers(given, head[1], 0);
    }
    for (int64_t n = 0; n < head[0]; n++) {
        int64_t words[WORDS], value, place[2];
        take(data, words, sizeof words);
        char *table = malloc(words[TABLE_BYTES]), *out = malloc(words[OUT_BYTES]);
        void **parameters = malloc(words[PARAMETERS] * sizeof *parameters);
        need(table && out && parameters, "out of memory");
        take(data, table, words[TABLE_BYTES]);
        memset(out, GUARD, words[OUT_BYTES]);
        for (int64_t call = 0; call < words[CALLS]; call++) {
            char *starts[REGIONS] = {pages[words[BOOL] & 1], plain[words[BOOL] >> 1], table, out};
            take(data, &value, sizeof value);
            for (int64_t p = 0; p < words[PARAMETERS]; p++) {
                take(data, place, sizeof place);
                parameters[p] = starts[place[0]] + place[1];
            }
            kernels[n](parameters, &value, 0, 1, scratch);
        }
        need(fwrite(out, 1, words[OUT_BYTES], outputs) == (size_t)words[OUT_BYTES] && !fflush(outputs),
             "the outputs can't be written");
        free(table), free(out), free(parameters);
    }
    return 0;
}
