"""The C text that every library of BLAS has: its header, and the functions around kernels."""

HEADER = """/* BLAS compiled by Jangin: CBLAS's functions, and Fortran's. */
#ifndef JANGIN_BLAS_H
#define JANGIN_BLAS_H
#include <stddef.h>
#ifdef __cplusplus
extern "C" {
#endif
typedef enum { CblasRowMajor = 101, CblasColMajor = 102 } CBLAS_LAYOUT;
typedef enum { CblasNoTrans = 111, CblasTrans = 112, CblasConjTrans = 113 } CBLAS_TRANSPOSE;
typedef enum { CblasUpper = 121, CblasLower = 122 } CBLAS_UPLO;
typedef enum { CblasNonUnit = 131, CblasUnit = 132 } CBLAS_DIAG;
typedef enum { CblasLeft = 141, CblasRight = 142 } CBLAS_SIDE;
/* A program may define its own xerbla_, which Fortran's functions call with a name and a number. */
void xerbla_(const char *name, const int *info, size_t length);
void xerbla_array_(const char *name, const int *length, const int *info);
/* It may define this one too, which CBLAS's functions call. The message of `form` has the argument's number.
   `info` is the same number, except for a size or a step beside matrices in rows. It is then, as in
   Netlib's CBLAS, the number in the transposed call that Fortran's function would get, plus one. */
void cblas_xerbla(int info, const char *name, const char *form, ...);
int lsame_(const char *a, const char *b, size_t one, size_t other);
float scabs1_(const void *z);
double dcabs1_(const void *z);
float cblas_scabs1(const void *z);
double cblas_dcabs1(const void *z);
<DECLARATIONS>
#ifdef __cplusplus
}
#endif
#endif
"""

COMMON = """/* BLAS's interfaces around kernels compiled by Jangin. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jangin_blas.h"

typedef struct {
  int32_t (*run)(const void *, const void *, const int64_t *, void *, int64_t, int32_t);
  int64_t (*arena_bytes)(const int64_t *, int32_t);
} kernel;

static const char ILLEGAL[] = "parameter number %2d had an illegal value\\n";

__attribute__((weak)) void xerbla_(const char *name, const int *info, size_t length) {
  fprintf(stderr, " ** On entry to %.*s ", (int)length, name);
  fprintf(stderr, ILLEGAL, *info);
}

__attribute__((weak)) void cblas_xerbla(int info, const char *name, const char *form, ...) {
  va_list values;
  fprintf(stderr, " ** On entry to %s ", name);
  va_start(values, form);
  vfprintf(stderr, form, values);
  va_end(values);
}

void xerbla_array_(const char *name, const int *length, const int *info) {
  xerbla_(name, info, (size_t)(*length > 0 ? *length : 0));
}

/* The sum of the magnitudes of a complex number's parts. */
#define CABS1(T, L)                                                                      \\
  T L##cabs1_(const void *z) {                                                           \\
    const T *parts = (const T *)z;                                                       \\
    return (parts[0] < 0 ? -parts[0] : parts[0]) + (parts[1] < 0 ? -parts[1] : parts[1]); \\
  }                                                                                      \\
  T cblas_##L##cabs1(const void *z) { return L##cabs1_(z); }
CABS1(float, s)
CABS1(double, d)

/* Whether two letters are equal but for their case. */
int lsame_(const char *a, const char *b, size_t one, size_t other) {
  (void)one, (void)other;
  return (*a | 32) == (*b | 32);
}

static void *memory(int64_t bytes) {
  void *found = malloc((size_t)bytes + 1);
  if (!found) {
    fprintf(stderr, "BLAS: there is no memory for %lld bytes\\n", (long long)bytes);
    abort();
  }
  return found;
}

static void run(const kernel *k, const void *inputs, void *outputs, const int64_t *sizes) {
  int64_t bytes = k->arena_bytes(sizes, 1);
  void *arena = bytes > 0 ? memory(bytes) : NULL;
  if (k->run(inputs, outputs, sizes, arena, bytes, 1)) {
    fprintf(stderr, "BLAS: a kernel refused its sizes\\n");
    abort();
  }
  free(arena);
}

/* The place of a letter among those that are accepted, or -1. */
static int option_of(char letter, const char *accepted) {
  const char upper = letter >= 'a' && letter <= 'z' ? (char)(letter - 32) : letter;
  const char *found = upper ? strchr(accepted, upper) : NULL;
  return found ? (int)(found - accepted) : -1;
}

/* The place of the i-th of n elements with a step. */
static inline int64_t place_of(int64_t i, int64_t n, int64_t step) {
  return (step < 0 ? i + 1 - n : i) * step;
}

static int64_t least(int64_t rows) { return rows > 1 ? rows : 1; }

/* A vector's elements side by side: the caller's memory if they lie so, else a copy. */
static void *side_by_side(const void *x, int64_t n, int64_t step, size_t size) {
  if (step == 1) return (void *)x;
  char *made = (char *)memory(n * (int64_t)size);
  const char *from = (const char *)x + (step < 0 ? (1 - n) * step * (int64_t)size : 0);
  for (int64_t i = 0; i < n; ++i) memcpy(made + i * (int64_t)size, from + i * step * (int64_t)size, size);
  return made;
}

static void put_vector(void *x, const void *made, int64_t n, int64_t step, size_t size) {
  if (step == 1) {
    if (x != made) memcpy(x, made, (size_t)n * size);
    return;
  }
  char *to = (char *)x + (step < 0 ? (1 - n) * step * (int64_t)size : 0);
  for (int64_t i = 0; i < n; ++i)
    memcpy(to + i * step * (int64_t)size, (const char *)made + i * (int64_t)size, size);
}

/* A copy of complex elements side by side, conjugate. */
#define CONJUGATED(T, L)                                                              \\
  static inline void *conjugated_##L(const void *x, int64_t n, int64_t step) {          \\
    const T *from = (const T *)x;                                                       \\
    T *made = (T *)memory(2 * (n > 0 ? n : 0) * (int64_t)sizeof(T));                    \\
    for (int64_t i = 0; i < n; ++i) {                                                   \\
      made[2 * i] = from[2 * place_of(i, n, step)];                                     \\
      made[2 * i + 1] = -from[2 * place_of(i, n, step) + 1];                            \\
    }                                                                                   \\
    return made;                                                                        \\
  }                                                                                     \\
  static inline void conjugate_##L(void *x, int64_t n, int64_t step) {                  \\
    T *at = (T *)x;                                                                     \\
    for (int64_t i = 0; i < n; ++i) at[2 * place_of(i, n, step) + 1] *= -1;             \\
  }
CONJUGATED(float, c)
CONJUGATED(double, z)

static void put_matrix(void *a, const void *made, int64_t rows, int64_t columns, int64_t ld, size_t size) {
  for (int64_t j = 0; j < columns; ++j)
    memcpy((char *)a + j * ld * (int64_t)size, (const char *)made + j * rows * (int64_t)size,
           (size_t)rows * size);
}

static inline char letter_of(int value) {
  switch (value) {
    case 111: return 'N';
    case 112: return 'T';
    case 113: return 'C';
    case 121: return 'U';
    case 122: return 'L';
    case 131: return 'N';
    case 132: return 'U';
    case 141: return 'L';
    case 142: return 'R';
    default: return '?';
  }
}

/* The one of two options that isn't given. */
static inline char exchanged(char option, char one, char other) {
  return option == one ? other : option == other ? one : '?';
}

/* The option that transposes a matrix in rows as a given one does a matrix in columns. */
static inline char turned(char option) {
  switch (option) {
    case 'N': return 'T';
    case 'T': return 'N';
    case 'C': return 'N';
    default: return option;
  }
}
"""
