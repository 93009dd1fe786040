// CUDA C of Jangin's kernels on the CPU. The work-items of a group are fibers, which __syncthreads() switches.
//
// The compiler of tests/cuda/mock/nvrtc.cpp includes this before a kernel's text, and puts LAUNCHABLE(name)
// behind it. Groups run one after the other, or in turns if they may wait for one another. ORDER decides in which order, for groups and for work-items:
// 0 by their numbers, else drawn by that number as a seed, anew between any two barriers. An instruction that
// all lanes of a warp execute together (.sync.aligned) waits for the warp's 32 work-items.
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
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define __shared__ static __attribute__((section("shim_shared")))
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }

struct alignas(8) uint2 { unsigned x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
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

// dp4a.atype.btype: "Four-way byte dot product which is accumulated in 32-bit result": for each byte, va = the
// byte of a, sign- or zero-extended to 32 bits by atype; d += va * vb.
static inline int dp4a(bool is_signed, int a, int b, int c) {
  unsigned d = (unsigned)c;
  for (int i = 0; i < 4; ++i) {
    const unsigned byte = (unsigned)a >> 8 * i & 255;
    const int va = is_signed ? (int)(byte ^ 128) - 128 : (int)byte;
    const int vb = (int)(((unsigned)b >> 8 * i & 255) ^ 128) - 128;
    d += (unsigned)(va * vb);
  }
  return (int)d;
}
static inline int dp4a_s8(int a, int b, int c) { return dp4a(true, a, b, c); }
static inline int dp4a_u8(int a, int b, int c) { return dp4a(false, a, b, c); }

// --- groups

extern "C" char __start_shim_shared[] __attribute__((weak));
extern "C" char __stop_shim_shared[] __attribute__((weak));

namespace shim {
enum { STACK = 256 << 10 };
enum Waits { NOT, FOR_GROUP, FOR_WARP, FOR_OTHERS };
struct Fiber { ucontext_t first; jmp_buf at; char *stack; bool begun, done; Waits waits; };
static Fiber only[1024], *fibers = only;  // of the group that runs
static jmp_buf scheduler;
static ucontext_t origin;
static int current;
static void (*work)();
static bool uneven;
static unsigned asked;  // bytes of shared memory that the launch asks for
static int size;  // work-items of a group

static int copying[1024];  // copies of each that haven't arrived
static unsigned moves;  // ends, and waits for other than groups
static void begin() {
  work();
  if (copying[current]) __builtin_trap();  // it ends before its copies
  fibers[current].done = true;
  ++moves;
  _longjmp(scheduler, 1);
}
static void go(int n) {
  Fiber &f = fibers[n];
  current = n;
  threadIdx.x = n;
  f.waits = NOT;
  if (_setjmp(scheduler)) return;
  if (f.begun) _longjmp(f.at, 1);
  f.begun = true;
  swapcontext(&origin, &f.first);
}
static void wait(Waits what) {
  moves += what != FOR_OTHERS;
  fibers[current].waits = what;
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
    f.waits = NOT;
    getcontext(&f.first);
    if (!f.stack) f.stack = (char *)aligned_alloc(64, STACK);
    f.first.uc_stack.ss_sp = f.stack;
    f.first.uc_stack.ss_size = STACK;
    f.first.uc_link = nullptr;
    makecontext(&f.first, begin, 0);
  }
}
enum { WARP = 32 };
// Continues warps whose work-items all wait for their warp, until none does. Returns whether one waits for some
// that wait for the group or have ended.
static bool warps(int threads, unsigned *order, unsigned *seed) {
  for (bool more = true; more;) {
    more = false;
    bool left[1024 / WARP] = {};
    for (int w = 0; w < threads; w += WARP) {
      int waiting = 0;
      const int end = w + WARP < threads ? w + WARP : threads;
      for (int n = w; n < end; ++n) waiting += !fibers[n].done && fibers[n].waits == FOR_WARP;
      if (waiting && waiting != WARP) return true;
      left[w / WARP] = waiting;
      more |= waiting > 0;
    }
    if (more) draw(order, threads, seed);
    for (int n = 0; n < threads; ++n) if (left[order[n] / WARP]) go(order[n]);
  }
  return false;
}
static bool for_others(int n) { return !fibers[n].done && fibers[n].waits == FOR_OTHERS; }
// Runs a group up to its next barrier, its end, or to where work-items wait for other groups. Only these go on
// next time. All its work-items must end between the same barriers. Returns those that are left, -1 if uneven.
static int advance(int threads, unsigned *seed, bool *waits) {
  unsigned order[1024];
  draw(order, threads, seed);
  bool some = false;
  for (int n = 0; n < threads; ++n) some |= for_others(n);
  for (int n = 0; n < threads; ++n)
    if (!fibers[order[n]].done && (!some || for_others(order[n]))) go(order[n]);
  if (warps(threads, order, seed)) return -1;
  int left = *waits = 0;
  for (int n = 0; n < threads; ++n) left += !fibers[n].done, *waits |= for_others(n);
  return *waits || !left || left == threads ? left : -1;
}
static size_t shared_size() { return __start_shim_shared ? __stop_shim_shared - __start_shim_shared : 0; }
static void group(int threads, unsigned *seed) {
  memset(__start_shim_shared, 0xff, shared_size());
  prepare(threads);
  size = threads;
  bool waits = false;
  for (int left = threads; left && !uneven;) {
    left = advance(threads, seed, &waits);
    uneven = left < 0 || waits;  // no other group runs beside it
  }
}
// Runs all groups in turns. They may wait for one another. It is an error if all wait.
static void together(unsigned groups, int threads, unsigned *numbers, unsigned *seed) {
  Fiber **of = (Fiber **)malloc(groups * sizeof *of);
  char *memory = (char *)malloc(groups * shared_size() + 1);
  bool *done = (bool *)calloc(groups, 1);
  memset(memory, 0xff, groups * shared_size());
  size = threads;
  for (unsigned n = 0; n < groups; ++n) {
    fibers = of[n] = (Fiber *)calloc(threads, sizeof(Fiber));
    prepare(threads);
  }
  unsigned live = groups;
  for (int idle = 0; live && idle < 2 && !uneven;) {
    ++idle;
    draw(numbers, groups, seed);
    for (unsigned i = 0; i < groups && !uneven; ++i) {
      const unsigned n = numbers[i];
      if (done[n]) continue;
      bool waits;
      fibers = of[n], blockIdx.x = n;
      memcpy(__start_shim_shared, memory + n * shared_size(), shared_size());
      int left;
      const unsigned before = moves;
      do left = advance(threads, seed, &waits); while (left > 0 && !waits);  // as far as it gets alone
      memcpy(memory + n * shared_size(), __start_shim_shared, shared_size());
      if (moves != before) idle = 0;
      uneven = left < 0;
      if (!left) done[n] = true, --live;
    }
  }
  uneven |= live > 0;
  for (unsigned n = 0; n < groups; ++n) {
    for (int i = 0; i < threads; ++i) free(of[n][i].stack);
    free(of[n]);
  }
  fibers = only;
  free(of), free(memory), free(done);
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
// 0, or 1 if some work-items ended while others waited at a barrier, or all wait. `at_once`: a cooperative launch.
template <class... A>
static int launch(void (*kernel)(A...), void **given, unsigned groups, unsigned threads, unsigned order,
                  unsigned shared, bool at_once) {
  asked = shared;
  call(kernel, given, typename Below<sizeof...(A)>::T());
  unsigned *numbers = (unsigned *)malloc(groups * sizeof *numbers);
  draw(numbers, groups, &order);
  gridDim.x = groups;
  uneven = false;
  if (at_once) together(groups, threads, numbers, &order);
  else for (unsigned n = 0; n < groups; ++n) { blockIdx.x = numbers[n]; group(threads, &order); }
  free(numbers);
  return uneven;
}
template <class... A> static unsigned arguments(void (*)(A...)) { return sizeof...(A); }
}  // namespace shim

static void __syncthreads() { shim::wait(shim::FOR_GROUP); }
#define OTHERS_GO_ON() shim::wait(shim::FOR_OTHERS)
// "identical to __syncthreads() with the additional feature that it evaluates predicate for all threads of the
// block and returns non-zero if and only if predicate evaluates to non-zero for any of them."
static int __syncthreads_or(int predicate) {
  static int any, read;
  any |= predicate;
  shim::wait(shim::FOR_GROUP);
  const int result = any != 0;
  if (++read == shim::size) any = read = 0;
  shim::wait(shim::FOR_GROUP);  // until all have read
  return result;
}
// Groups run one after the other, so all stores of earlier ones are visible. A group whose work-items haven't
// all stored before one of them arrives is found by the order of work-items.
static void __threadfence() {}
// "((old >= val) ? 0 : (old+1))", and returns old.
static unsigned atomicInc(unsigned *address, unsigned val) {
  const unsigned old = *address;
  *address = old >= val ? 0 : old + 1;
  return old;
}

// --- instructions of whole warps, by the words of the PTX ISA manual
//
// "Matrix Fragments for mma.m16n8k16 with floating point type", "Matrix fragments for mma.m16n8k8" and
// "ldmatrix" say which lane holds which elements. This is written from these words alone, apart from the
// compiler's own map.

namespace shim {
struct At { int row, col; };
static int lane() { return current % WARP; }
// groupID = %laneid >> 2; threadID_in_group = %laneid % 4
struct Holder { int groupID, threadID_in_group; };
static Holder holder(int laneid) { return {laneid >> 2, laneid % 4}; }

// .f16 and .bf16 of m16n8k16
static At a16(int laneid, int i) {
  const Holder h = holder(laneid);
  // row = groupID for ai where 0 <= i < 2 || 4 <= i < 6; groupID + 8 otherwise
  const int row = ((0 <= i && i < 2) || (4 <= i && i < 6)) ? h.groupID : h.groupID + 8;
  // col = (threadID_in_group * 2) + (i & 0x1) for ai where i < 4; that + 8 for ai where i >= 4
  const int col = i < 4 ? h.threadID_in_group * 2 + (i & 0x1) : h.threadID_in_group * 2 + (i & 0x1) + 8;
  return {row, col};
}
static At b16(int laneid, int i) {
  const Holder h = holder(laneid);
  // row = (threadID_in_group * 2) + (i & 0x1) for bi where i < 2; that + 8 for bi where i >= 2; col = groupID
  const int row = i < 2 ? h.threadID_in_group * 2 + (i & 0x1) : h.threadID_in_group * 2 + (i & 0x1) + 8;
  return {row, h.groupID};
}
// .tf32 of m16n8k8
static At a8(int laneid, int i) {
  const Holder h = holder(laneid);
  // row = groupID for a0 and a2, groupID + 8 for a1 and a3
  // col = threadID_in_group for a0 and a1, threadID_in_group + 4 for a2 and a3
  return {i == 0 || i == 2 ? h.groupID : h.groupID + 8,
          i == 0 || i == 1 ? h.threadID_in_group : h.threadID_in_group + 4};
}
static At b8(int laneid, int i) {
  const Holder h = holder(laneid);
  // row = threadID_in_group for b0, threadID_in_group + 4 for b1; col = groupID
  return {i == 0 ? h.threadID_in_group : h.threadID_in_group + 4, h.groupID};
}
// .f32 of both: row = groupID for ci where i < 2, groupID + 8 for ci where i >= 2;
// col = (threadID_in_group * 2) + (i & 0x1)
static At c32(int laneid, int i) {
  const Holder h = holder(laneid);
  return {i < 2 ? h.groupID : h.groupID + 8, h.threadID_in_group * 2 + (i & 0x1)};
}

struct Matrices { f32 a[16][16], b[16][8], c[16][8]; };
static Matrices given[1024 / WARP];
// D = A * B + C of a warp. The manual leaves the order of the sum's terms open: this one adds them one by one.
static void mma(int terms, f32 *c, const f32 *a, int of_a, At (*at_a)(int, int), const f32 *b, int of_b,
                At (*at_b)(int, int)) {
  Matrices &m = given[current / WARP];
  for (int i = 0; i < of_a; ++i) { const At at = at_a(lane(), i); m.a[at.row][at.col] = a[i]; }
  for (int i = 0; i < of_b; ++i) { const At at = at_b(lane(), i); m.b[at.row][at.col] = b[i]; }
  for (int i = 0; i < 4; ++i) { const At at = c32(lane(), i); m.c[at.row][at.col] = c[i]; }
  wait(FOR_WARP);
  for (int i = 0; i < 4; ++i) {
    const At at = c32(lane(), i);
    f32 sum = m.c[at.row][at.col];
    for (int k = 0; k < terms; ++k) sum += m.a[at.row][k] * m.b[k][at.col];
    c[i] = sum;
  }
  wait(FOR_WARP);  // until all lanes have read
}
// ldmatrix .m8n8 .b16: threads 0-7 give the addresses of the first matrix's rows, 8-15 those of the second, and
// so on. An address is aligned to 16 bytes. Each row has 8 elements. Thread T holds two elements of row T / 4,
// the first at T % 4 * 2, or with .trans those of the transposed matrix.
static const u16 *rows[1024];
static void ldmatrix(int count, bool trans, u16 *to, const u16 *row) {
  rows[current] = row;
  if (lane() < 8 * count && (size_t)row % 16) __builtin_trap();
  wait(FOR_WARP);
  const u16 *const *const mine = rows + current / WARP * WARP;
  u16 got[8];
  for (int n = 0; n < count; ++n)
    for (int i = 0; i < 2; ++i) {
      const int line = lane() / 4, place = lane() % 4 * 2 + i;
      got[2 * n + i] = trans ? mine[8 * n + place][line] : mine[8 * n + line][place];
    }
  memcpy(to, got, 4 * count);
  wait(FOR_WARP);
}
}  // namespace shim

// cp.async .cg, cp-size 16, src-size: "a non-blocking instruction which initiates an asynchronous copy operation
// of data from" global to shared memory. Both addresses are aligned to 16 bytes. The bytes beyond src-size are
// zero. cp.async.wait_all waits for "all prior cp.async operations initiated by the executing thread". Here a
// copy is made as late as it may be, and until then its place has no number that means anything. A work-item
// must not end before its copies.
namespace shim {
struct Copy { char *to; const char *from; bool whole; };
static Copy copies[1024][256];
static void cp_async(void *to, const void *from, bool whole) {
  if ((size_t)to % 16 || (whole && (size_t)from % 16) || copying[current] == 256) __builtin_trap();
  copies[current][copying[current]++] = {(char *)to, (const char *)from, whole};
  memset(to, 0xff, 16);
}
static void wait_all() {
  for (int n = 0; n < copying[current]; ++n) {
    const Copy &c = copies[current][n];
    if (c.whole) memcpy(c.to, c.from, 16); else memset(c.to, 0, 16);
  }
  copying[current] = 0;
}
}  // namespace shim
template <int TO, int FROM> static void copy_apart(void *to, const void *from, bool whole) {
  shim::cp_async((char *)to + TO, (const char *)from + FROM, whole);
}
static void wait_copies() { shim::wait_all(); }

static f32 of_bfloat(u16 b) { const unsigned bits = (unsigned)b << 16; f32 v; memcpy(&v, &bits, 4); return v; }
static void mma_bf16(f32 *c, const u16 *a, const u16 *b) {
  f32 x[8], y[4];
  for (int i = 0; i < 8; ++i) x[i] = of_bfloat(a[i]);
  for (int i = 0; i < 4; ++i) y[i] = of_bfloat(b[i]);
  shim::mma(16, c, x, 8, shim::a16, y, 4, shim::b16);
}
static void mma_f16(f32 *c, const u16 *a, const u16 *b) {
  f32 x[8], y[4];
  for (int i = 0; i < 8; ++i) x[i] = of_half(a[i]);
  for (int i = 0; i < 4; ++i) y[i] = of_half(b[i]);
  shim::mma(16, c, x, 8, shim::a16, y, 4, shim::b16);
}
// "cvt.rn.tf32.f32": to the nearest, and to even where two are as near. tf32 has 10 bits of f32's fraction, and
// its exponents. Other numbers of the same sign become NaN or infinity as f32 would.
static f32 to_tf32(f32 v) {
  if (v != v || v - v != 0) return v;
  int power;
  const double part = frexp((double)v, &power), unit = ldexp(1.0, (power < -125 ? -125 : power) - 11);
  return (f32)(copysign(nearbyint(fabs((double)v) / unit), part) * unit);
}
// "mma with .tf32 operands": the operands are numbers that cvt.rna.tf32 or cvt.rn.tf32 has made. The layout of their lowest 13
// bits is the machine's own, so any other number ends the kernel.
static f32 of_tf32(f32 v) {
  unsigned bits;
  memcpy(&bits, &v, 4);
  if (v == v && (bits & 0x1fff)) __builtin_trap();
  return v;
}
static void mma_tf32(f32 *c, const f32 *a, const f32 *b) {
  f32 x[4], y[2];
  for (int i = 0; i < 4; ++i) x[i] = of_tf32(a[i]);
  for (int i = 0; i < 2; ++i) y[i] = of_tf32(b[i]);
  shim::mma(8, c, x, 4, shim::a8, y, 2, shim::b8);
}
// "Matrix Fragments for mma.m16n8k32" with .u8 or .s8: registers of four elements each, the first the lowest.
namespace shim {
// row = groupID for ai where 0 <= i < 4 || 8 <= i < 12, groupID + 8 otherwise
// col = (threadID_in_group * 4) + (i & 0x3) for ai where i < 8, that + 16 for ai where i >= 8
static At abyte(int laneid, int i) {
  const Holder h = holder(laneid);
  const int row = ((0 <= i && i < 4) || (8 <= i && i < 12)) ? h.groupID : h.groupID + 8;
  const int col = h.threadID_in_group * 4 + (i & 0x3);
  return {row, i < 8 ? col : col + 16};
}
// row = (threadID_in_group * 4) + (i & 0x3) for bi where i < 4, that + 16 for bi where i >= 4; col = groupID
static At bbyte(int laneid, int i) {
  const Holder h = holder(laneid);
  const int row = h.threadID_in_group * 4 + (i & 0x3);
  return {i < 4 ? row : row + 16, h.groupID};
}
static int byte_of(const int *words, int i, bool is_signed) {
  const unsigned byte = (unsigned)words[i / 4] >> 8 * (i % 4) & 255;
  return is_signed ? (int)(byte ^ 128) - 128 : (int)byte;
}
struct Bytes { int a[16][32], b[32][8], c[16][8]; };
static Bytes bytes[1024 / WARP];
// Without .satfinite the sums wrap.
static void mma_bytes(bool is_signed, int *c, const int *a, const int *b) {
  Bytes &m = bytes[current / WARP];
  for (int i = 0; i < 16; ++i) { const At at = abyte(lane(), i); m.a[at.row][at.col] = byte_of(a, i, is_signed); }
  for (int i = 0; i < 8; ++i) { const At at = bbyte(lane(), i); m.b[at.row][at.col] = byte_of(b, i, true); }
  for (int i = 0; i < 4; ++i) { const At at = c32(lane(), i); m.c[at.row][at.col] = c[i]; }
  wait(FOR_WARP);
  for (int i = 0; i < 4; ++i) {
    const At at = c32(lane(), i);
    unsigned sum = m.c[at.row][at.col];
    for (int k = 0; k < 32; ++k) sum += (unsigned)(m.a[at.row][k] * m.b[k][at.col]);
    c[i] = (int)sum;
  }
  wait(FOR_WARP);
}
}  // namespace shim
static void mma_u8(int *c, const int *a, const int *b) { shim::mma_bytes(false, c, a, b); }
static void mma_s8(int *c, const int *a, const int *b) { shim::mma_bytes(true, c, a, b); }
// An address of 32-bit elements is one of pairs of 16 bits.
template <int N, bool TRANS, class T> static void load_matrices(T *to, const T *row) {
  shim::ldmatrix(N, TRANS, (u16 *)to, (const u16 *)row);
}

// Shared memory that a launch asks for. A kernel that asked for less ends.
#define ASKED_SHARED(bytes) static __attribute__((section("shim_shared"), aligned(16))) unsigned char shared[bytes]; \
  if (shim::asked < bytes) __builtin_trap()

#define LAUNCHABLE(name) \
  extern "C" int name##_launch(void **given, unsigned groups, unsigned threads, unsigned order, unsigned shared, \
                               bool at_once) { \
    return shim::launch(name, given, groups, threads, order, shared, at_once); } \
  extern "C" unsigned name##_arguments() { return shim::arguments(name); }
