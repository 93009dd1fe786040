// CUDA C of Jangin's kernels on the CPU. The work-items of a group are fibers, which __syncthreads() switches.
//
// The compiler of tests/cuda/mock/nvrtc.cpp includes this before a kernel's text, and puts LAUNCHABLE(name)
// behind it. Groups run one after the other. ORDER decides in which order, for groups and for work-items:
// 0 by their numbers, else drawn by that number as a seed, anew between any two barriers.
#pragma once
#include <math.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

typedef float f32;
typedef unsigned short u16;
#define __forceinline__ inline __attribute__((always_inline))
#define __global__
#define __launch_bounds__(n)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("shim_shared")))
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }

struct Dim { unsigned x; };
static Dim threadIdx, blockIdx, gridDim;

// --- instructions, by the words of the PTX ISA manual

// min.NaN, max.NaN: the result is NaN if either input is, and +0.0 > -0.0.
static inline f32 min_nan(f32 x, f32 y) {
  if (x != x || y != y) return NAN;
  return x == y ? (signbit(x) ? x : y) : x < y ? x : y;
}
static inline f32 max_nan(f32 x, f32 y) {
  if (x != x || y != y) return NAN;
  return x == y ? (signbit(x) ? y : x) : x > y ? x : y;
}
// cvt.f32.f16: exact.
static inline f32 of_half(u16 h) {
  const int exponent = h >> 10 & 31, fraction = h & 1023;
  f32 v = exponent == 31 ? (fraction ? NAN : INFINITY)
        : exponent ? ldexp((f32)(1024 + fraction), exponent - 25) : ldexp((f32)fraction, -24);
  return h & 0x8000 ? -v : v;
}
// cvt.rn.f16.f32: to nearest, ties to even; NaN becomes 0x7fff.
static inline u16 to_half(f32 x) {
  if (x != x) return 0x7fff;
  const u16 sign = signbit(x) ? 0x8000 : 0;
  const double a = fabs((double)x);
  if (a == 0) return sign;
  if (a >= 65520.0) return sign | 0x7c00;  // half way to the number after the largest
  int exponent;
  frexp(a, &exponent);
  const int last = max(exponent - 11, -24);  // of the last bit
  const long units = lrint(ldexp(a, -last));
  if (last == -24) return sign | (u16)units;  // 1,024 units are the least normal number, as its bits are
  return sign | (u16)(((last + 24) << 10) + units);
}
// cvt.rn.bf16.f32: likewise.
static inline u16 to_bfloat(f32 x) {
  if (x != x) return 0x7fff;
  unsigned b;
  memcpy(&b, &x, 4);
  return (u16)((b + 0x7fff + (b >> 16 & 1)) >> 16);
}

// --- groups

extern "C" char __start_shim_shared[] __attribute__((weak));
extern "C" char __stop_shim_shared[] __attribute__((weak));

namespace shim {
enum { STACK = 256 << 10 };
struct Fiber { ucontext_t first; jmp_buf at; char *stack; bool begun, done; };
static Fiber fibers[1024];
static jmp_buf scheduler;
static ucontext_t origin;
static int current;
static void (*work)();
static bool uneven;

static void begin() {
  work();
  fibers[current].done = true;
  _longjmp(scheduler, 1);
}
static void go(int n) {
  Fiber &f = fibers[n];
  current = n;
  threadIdx.x = n;
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.at, 1);
  f.begun = true;
  swapcontext(&origin, &f.first);
}
static void barrier() {
  if (!_setjmp(fibers[current].at)) _longjmp(scheduler, 1);
}
// Numbers below n in an order that a seed draws, which goes on with each; the order of 0 is their own.
static void draw(unsigned *order, unsigned n, unsigned *seed) {
  for (unsigned i = 0; i < n; ++i) order[i] = i;
  for (unsigned i = n; *seed && i > 1; --i) {
    *seed ^= *seed << 13, *seed ^= *seed >> 17, *seed ^= *seed << 5;  // Marsaglia's xorshift
    const unsigned other = *seed % i, last = order[i - 1];
    order[i - 1] = order[other];
    order[other] = last;
  }
}
static void prepare(int n) {
  for (int i = 0; i < n; ++i) {
    Fiber &f = fibers[i];
    f.begun = f.done = false;
    getcontext(&f.first);
    if (!f.stack) f.stack = (char *)aligned_alloc(64, STACK);
    f.first.uc_stack.ss_sp = f.stack;
    f.first.uc_stack.ss_size = STACK;
    f.first.uc_link = nullptr;
    makecontext(&f.first, begin, 0);
  }
}
// Runs a group. All its work-items must end between the same barriers.
static void group(int threads, unsigned *seed) {
  if (__start_shim_shared) memset(__start_shim_shared, 0xff, __stop_shim_shared - __start_shim_shared);
  prepare(threads);
  unsigned order[1024];
  for (int left = threads; left;) {
    draw(order, threads, seed);
    const int before = left;
    for (int n = 0; n < threads; ++n) if (!fibers[order[n]].done) { go(order[n]); left -= fibers[order[n]].done; }
    if (left && left != before) { uneven = true; return; }
  }
}

template <size_t... I> struct Numbers {};
template <size_t N, size_t... I> struct Below : Below<N - 1, N - 1, I...> {};
template <size_t... I> struct Below<0, I...> { typedef Numbers<I...> T; };
template <class... A, size_t... I> static void call(void (*kernel)(A...), void **given, Numbers<I...>) {
  static void (*of)(A...);
  static void **with;
  of = kernel;
  with = given;
  work = [] { of(*(A *)with[I]...); };
}
// 0, or 1 if some work-items ended while others waited at a barrier.
template <class... A>
static int launch(void (*kernel)(A...), void **given, unsigned groups, unsigned threads, unsigned order) {
  call(kernel, given, typename Below<sizeof...(A)>::T());
  unsigned *numbers = (unsigned *)malloc(groups * sizeof *numbers);
  draw(numbers, groups, &order);
  gridDim.x = groups;
  uneven = false;
  for (unsigned n = 0; n < groups; ++n) { blockIdx.x = numbers[n]; group(threads, &order); }
  free(numbers);
  return uneven;
}
template <class... A> static unsigned arguments(void (*)(A...)) { return sizeof...(A); }
}  // namespace shim

static void __syncthreads() { shim::barrier(); }

#define LAUNCHABLE(name) \
  extern "C" int name##_launch(void **given, unsigned groups, unsigned threads, unsigned order) { \
    return shim::launch(name, given, groups, threads, order); } \
  extern "C" unsigned name##_arguments() { return shim::arguments(name); }
