// A library with those functions of cuBLASLt that Jangin calls, written from NVIDIA's manual of it. It checks what
// it is given, and multiplies on the CPU, in double precision, on the mock driver's streams.
#include <cstdint>
#include <cstring>
#include <string>
#include <dlfcn.h>

enum Status { SUCCESS = 0, NOT_INITIALIZED = 1, ALLOC_FAILED = 3, INVALID_VALUE = 7, NOT_SUPPORTED = 15 };
enum { REAL_32F = 0, COMPUTE_32F = 68, FULL = 227 };
struct Library { int magic; };
struct Desc { int compute, scale, transposed[2]; };
struct Layout { int type; uint64_t rows, columns; int64_t lead; int32_t batch; int64_t step; };
struct Preference { uint64_t workspace; };
struct Way { uint64_t algorithm[8]; size_t workspace; int state; float waves; int reserved[4]; };
static_assert(sizeof(Way) == 96, "cublasLtMatmulHeuristicResult_t");
struct Product { Desc what; Layout a, b, c; float alpha, beta; const float *left, *right; float *out; };

#include "alive.h"

// Sizes fit each other: op(A) is m x k, op(B) is k x n, C is m x n, with as many of each.
static bool fits(const Desc &d, const Layout &a, const Layout &b, const Layout &c) {
  const uint64_t m = d.transposed[0] ? a.columns : a.rows, k = d.transposed[0] ? a.rows : a.columns;
  const uint64_t k2 = d.transposed[1] ? b.columns : b.rows, n = d.transposed[1] ? b.rows : b.columns;
  for (const Layout *l : {&a, &b, &c}) if (l->type != REAL_32F || l->lead < (int64_t)l->rows || l->batch != c.batch) return false;
  return d.compute == COMPUTE_32F && d.scale == REAL_32F && m == c.rows && n == c.columns && k == k2;
}
static void *driver(const char *name) {  // of the driver beside this library's folder
  Dl_info here;
  dladdr((void *)driver, &here);
  std::string path(here.dli_fname);
  path = path.substr(0, path.rfind("/lib/")) + "/libcuda.so.1";
  return dlsym(dlopen(path.c_str(), RTLD_NOW), name);
}
static size_t bytes(const Layout &l) {
  return 4 * ((l.batch - 1) * l.step + (l.columns - 1) * l.lead + l.rows);
}
static int multiply(void *given) {
  const Product &p = *(Product *)given;
  const uint64_t k = p.what.transposed[0] ? p.a.rows : p.a.columns;
  for (int n = 0; n < p.c.batch; ++n)
    for (uint64_t i = 0; i < p.c.rows; ++i)
      for (uint64_t j = 0; j < p.c.columns; ++j) {
        double sum = 0;
        for (uint64_t t = 0; t < k; ++t) {
          const float x = p.left[n * p.a.step + (p.what.transposed[0] ? i * p.a.lead + t : t * p.a.lead + i)];
          const float y = p.right[n * p.b.step + (p.what.transposed[1] ? t * p.b.lead + j : j * p.b.lead + t)];
          sum += (double)x * y;
        }
        float &out = p.out[n * p.c.step + j * p.c.lead + i];
        out = p.alpha * sum + (p.beta ? p.beta * out : 0);
      }
  return 0;
}

extern "C" {
size_t cublasLtGetVersion() { return 120304; }
int cublasLtCreate(Library **made) { return make(made, Library{1}); }
int cublasLtMatmulDescCreate(Desc **made, int compute, int scale) { return make(made, Desc{compute, scale, {0, 0}}); }
int cublasLtMatmulDescDestroy(Desc *d) { return end(d); }
int cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const int32_t *value, size_t size) {
  if (!are({d}) || size != 4 || (attribute != 3 && attribute != 4) || *value < 0 || *value > 1) return INVALID_VALUE;
  d->transposed[attribute - 3] = *value;
  return SUCCESS;
}
int cublasLtMatrixLayoutCreate(Layout **made, int type, uint64_t rows, uint64_t columns, int64_t lead) {
  return make(made, Layout{type, rows, columns, lead, 1, 0});
}
int cublasLtMatrixLayoutDestroy(Layout *l) { return end(l); }
int cublasLtMatrixLayoutSetAttribute(Layout *l, int attribute, const void *value, size_t size) {
  if (!are({l}) || size != (attribute == 5 ? 4 : 8) || (attribute != 5 && attribute != 6)) return INVALID_VALUE;
  if (attribute == 5) std::memcpy(&l->batch, value, 4);
  else std::memcpy(&l->step, value, 8);
  return SUCCESS;
}
int cublasLtMatmulPreferenceCreate(Preference **made) { return make(made, Preference{0}); }
int cublasLtMatmulPreferenceDestroy(Preference *p) { return end(p); }
int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const uint64_t *value, size_t size) {
  if (!are({p}) || attribute != 1 || size != 8) return INVALID_VALUE;
  p->workspace = *value;
  return SUCCESS;
}
int cublasLtMatmulAlgoGetHeuristic(
    Library *l, Desc *d, Layout *a, Layout *b, Layout *c, Layout *out, Preference *p, int asked, Way *ways, int *count) {
  if (!are({l, d, a, b, c, out, p}) || asked < 1) return INVALID_VALUE;
  *count = 0;
  if (refuse) return refuse == NOT_SUPPORTED ? SUCCESS : refuse;
  if (!fits(*d, *a, *b, *out)) return INVALID_VALUE;
  *ways = Way{{FULL}, p->workspace / 2, 0, 1.0f, {}};
  *count = 1;
  return SUCCESS;
}
int cublasLtMatmul(
    Library *l, Desc *d, const float *alpha, const float *left, Layout *a, const float *right, Layout *b,
    const float *beta, const float *, Layout *c, float *out, Layout *result, const Way *way, void *workspace, size_t size,
    void *stream) {
  static const auto holds = (int (*)(uint64_t, size_t))driver("mock_holds");
  static const auto enqueue = (int (*)(void *, int (*)(void *), void *))driver("mock_enqueue");
  if (!are({l, d, a, b, c, result}) || !fits(*d, *a, *b, *result) || way->algorithm[0] != FULL) return INVALID_VALUE;
  if (size < way->workspace || !holds((uint64_t)workspace, size)) return INVALID_VALUE;
  if (!holds((uint64_t)left, bytes(*a)) || !holds((uint64_t)right, bytes(*b)) || !holds((uint64_t)out, bytes(*result)))
    return INVALID_VALUE;
  // a graph with it may run at any time, so that it stays
  return enqueue(stream, multiply, new Product{*d, *a, *b, *result, *alpha, *beta, left, right, out});
}
}
