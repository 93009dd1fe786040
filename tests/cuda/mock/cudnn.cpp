// A library with those functions of cuDNN that Jangin calls, written from NVIDIA's headers of it. It checks what
// it is given, and convolves on the CPU, in double precision, on the mock driver's streams.
#include <cstdint>
#include <string>
#include <dlfcn.h>

enum Status { SUCCESS = 0, BAD_PARAM = 2000, MISMATCH = 2008, NOT_SUPPORTED = 3000, NO_MEMORY = 4004, FAILED = 5000 };
enum { REAL_32F = 0, FMA_ONLY = 3, ALL_WAYS = 8, GEMM = 0, PRECOMPUTED = 1 };
struct Library { void *stream; };
struct Tensor { int n, c, h, w, sn, sc, sh, sw; };
struct Filter { int last, k, c, h, w; };
struct Windows { int ph, pw, sh, sw, dh, dw, groups, math; };
struct Way { int number, status; float time; size_t memory; int same_bits, products, reserved[3]; };
static_assert(sizeof(Way) == 48, "cudnnConvolutionFwdAlgoPerf_t");
struct Job { Tensor x, y; Filter f; Windows v; float alpha, beta; const float *in, *weights; float *out; };

#include "alive.h"

static int out_of(int size, int pad, int dilation, int window, int stride) {
  return 1 + (size + 2 * pad - ((window - 1) * dilation + 1)) / stride;
}
// Sizes fit each other, and both images have the same order.
static int fits(const Tensor &x, const Filter &f, const Windows &v, const Tensor &y) {
  if (v.groups < 1 || x.c != f.c * v.groups || f.k % v.groups || y.c != f.k || x.n != y.n) return MISMATCH;
  if (y.h != out_of(x.h, v.ph, v.dh, f.h, v.sh) || y.w != out_of(x.w, v.pw, v.dw, f.w, v.sw)) return MISMATCH;
  return (x.sc == 1) == (y.sc == 1) && (x.sc == 1) == (f.last == 1) ? SUCCESS : NOT_SUPPORTED;
}
static void *driver(const char *name) {  // of the driver beside this library's folder
  Dl_info here;
  dladdr((void *)driver, &here);
  std::string path(here.dli_fname);
  path = path.substr(0, path.rfind("/lib/")) + "/libcuda.so.1";
  return dlsym(dlopen(path.c_str(), RTLD_NOW), name);
}
static size_t bytes(const Tensor &t) {
  return 4 * (size_t)(1 + (t.n - 1) * t.sn + (t.c - 1) * t.sc + (t.h - 1) * t.sh + (t.w - 1) * t.sw);
}
static size_t bytes(const Filter &f) { return (size_t)4 * f.k * f.c * f.h * f.w; }
static int convolve(void *given) {
  const Job &j = *(Job *)given;
  const Tensor &x = j.x, &y = j.y;
  const Filter &f = j.f;
  const Windows &v = j.v;
  for (int n = 0; n < y.n; ++n) for (int k = 0; k < y.c; ++k) for (int h = 0; h < y.h; ++h) for (int w = 0; w < y.w; ++w) {
    double sum = 0;
    const int first = k / (f.k / v.groups) * f.c;
    for (int c = 0; c < f.c; ++c) for (int a = 0; a < f.h; ++a) for (int b = 0; b < f.w; ++b) {
      const int row = h * v.sh - v.ph + a * v.dh, column = w * v.sw - v.pw + b * v.dw;
      if (row < 0 || row >= x.h || column < 0 || column >= x.w) continue;
      const size_t at = f.last ? (((size_t)k * f.h + a) * f.w + b) * f.c + c : (((size_t)k * f.c + c) * f.h + a) * f.w + b;
      sum += (double)j.weights[at] * j.in[n * x.sn + (first + c) * x.sc + row * x.sh + column * x.sw];
    }
    float &to = j.out[n * y.sn + k * y.sc + h * y.sh + w * y.sw];
    to = j.alpha * sum + (j.beta ? j.beta * to : 0);
  }
  return 0;
}

extern "C" {
size_t cudnnGetVersion() { return 92800; }
const char *cudnnGetErrorString(int status) { return status == NOT_SUPPORTED ? "CUDNN_STATUS_NOT_SUPPORTED" : "CUDNN_STATUS_OTHER"; }
int cudnnCreate(Library **made) { return make(made, Library{nullptr}); }
int cudnnSetStream(Library *l, void *stream) { if (!are({l})) return BAD_PARAM; l->stream = stream; return SUCCESS; }
int cudnnCreateTensorDescriptor(Tensor **made) { return make(made, Tensor{}); }
int cudnnDestroyTensorDescriptor(Tensor *t) { return end(t); }
int cudnnSetTensor4dDescriptorEx(Tensor *t, int type, int n, int c, int h, int w, int sn, int sc, int sh, int sw) {
  if (!are({t}) || type != REAL_32F || n < 1 || c < 1 || h < 1 || w < 1 || sn < 1 || sc < 1 || sh < 1 || sw < 1) return BAD_PARAM;
  *t = Tensor{n, c, h, w, sn, sc, sh, sw};
  return SUCCESS;
}
int cudnnCreateFilterDescriptor(Filter **made) { return make(made, Filter{}); }
int cudnnDestroyFilterDescriptor(Filter *f) { return end(f); }
int cudnnSetFilter4dDescriptor(Filter *f, int type, int format, int k, int c, int h, int w) {
  if (!are({f}) || type != REAL_32F || format < 0 || format > 1 || k < 1 || c < 1 || h < 1 || w < 1) return BAD_PARAM;
  *f = Filter{format, k, c, h, w};
  return SUCCESS;
}
int cudnnCreateConvolutionDescriptor(Windows **made) { return make(made, Windows{}); }
int cudnnDestroyConvolutionDescriptor(Windows *v) { return end(v); }
int cudnnSetConvolution2dDescriptor(Windows *v, int ph, int pw, int sh, int sw, int dh, int dw, int mode, int type) {
  if (!are({v}) || ph < 0 || pw < 0 || sh < 1 || sw < 1 || dh < 1 || dw < 1 || mode != 1 || type != REAL_32F) return BAD_PARAM;
  *v = Windows{ph, pw, sh, sw, dh, dw, 1, 0};
  return SUCCESS;
}
int cudnnSetConvolutionGroupCount(Windows *v, int groups) { if (!are({v})) return BAD_PARAM; v->groups = groups; return SUCCESS; }
int cudnnSetConvolutionMathType(Windows *v, int math) { if (!are({v})) return BAD_PARAM; v->math = math; return SUCCESS; }
// The first ways are those that mustn't be taken: one that failed, one of too much memory, one whose results
// vary, and one that rounds.
int cudnnGetConvolutionForwardAlgorithm_v7(
    Library *l, Tensor *x, Filter *f, Windows *v, Tensor *y, int asked, int *count, Way *ways) {
  if (!are({l, x, f, v, y}) || asked != ALL_WAYS) return BAD_PARAM;
  *count = 0;
  if (refuse) return refuse == NOT_SUPPORTED ? SUCCESS : refuse;
  if (const int bad = fits(*x, *f, *v, *y)) return bad;
  ways[0] = Way{6, NOT_SUPPORTED, -1, 0, 1, FMA_ONLY};
  ways[1] = Way{4, SUCCESS, 1, (size_t)1 << 40, 1, FMA_ONLY};
  ways[2] = Way{7, SUCCESS, 2, 0, 0, FMA_ONLY};
  ways[3] = Way{5, SUCCESS, 3, 0, 1, v->math == FMA_ONLY ? 1 : 0};
  ways[4] = Way{PRECOMPUTED, SUCCESS, 4, 4096, 1, v->math};
  *count = 5;
  return SUCCESS;
}
int cudnnConvolutionForward(
    Library *l, const float *alpha, Tensor *x, const float *in, Filter *f, const float *weights, Windows *v, int way,
    void *workspace, size_t size, const float *beta, Tensor *y, float *out) {
  static const auto holds = (int (*)(uint64_t, size_t))driver("mock_holds");
  static const auto enqueue = (int (*)(void *, int (*)(void *), void *))driver("mock_enqueue");
  if (!are({l, x, f, v, y}) || way != PRECOMPUTED || v->math != FMA_ONLY) return BAD_PARAM;
  if (const int bad = fits(*x, *f, *v, *y)) return bad;
  if (size < 4096 || !holds((uint64_t)workspace, size)) return BAD_PARAM;
  if (!holds((uint64_t)in, bytes(*x)) || !holds((uint64_t)weights, bytes(*f)) || !holds((uint64_t)out, bytes(*y))) return BAD_PARAM;
  // a graph with it may run at any time, so that it stays
  const int bad = enqueue(l->stream, convolve, new Job{*x, *y, *f, *v, *alpha, *beta, in, weights, out});
  return bad ? FAILED : SUCCESS;
}
}
