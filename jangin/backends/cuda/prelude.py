"""The beginning of each CUDA C program: vectors with any number of lanes, and instructions for which the
language has no function."""

from __future__ import annotations

INTRINSICS = r"""
#ifdef __CUDA_ARCH__
#define INFINITY __int_as_float(0x7f800000)
#define NAN __int_as_float(0x7fffffff)
static __forceinline__ f32 min_nan(f32 x, f32 y) {
  f32 r; asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r;
}
static __forceinline__ f32 max_nan(f32 x, f32 y) {
  f32 r; asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(x), "f"(y)); return r;
}
static __forceinline__ f32 of_half(u16 x) {
  f32 r; asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x)); return r;
}
static __forceinline__ u16 to_half(f32 x) {
  u16 r; asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r;
}
static __forceinline__ u16 to_bfloat(f32 x) {
  u16 r; asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r) : "f"(x)); return r;
}
static __forceinline__ f32 to_tf32(f32 x) {
  u32 r; asm("cvt.rn.tf32.f32 %0, %1;" : "=r"(r) : "f"(x)); return __uint_as_float(r);
}
#define DP4A(name, type) static __forceinline__ i32 name(i32 x, i32 y, i32 z) { \
  i32 r; asm("dp4a." type ".s32 %0, %1, %2, %3;" : "=r"(r) : "r"(x), "r"(y), "r"(z)); return r; }
DP4A(dp4a_s8, "s32") DP4A(dp4a_u8, "u32")
#define MMA(name, types) static __forceinline__ void name(f32 *c, const u16 *a, const u16 *b) { \
  u32 x[4], y[2]; memcpy(x, a, sizeof x); memcpy(y, b, sizeof y); \
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." types ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
    "{%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) \
    : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1])); }
MMA(mma_bf16, "bf16.bf16") MMA(mma_f16, "f16.f16")
#define MMA_BYTES(name, type) static __forceinline__ void name(i32 *c, const i32 *a, const i32 *b) { \
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32." type ".s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, " \
    "{%8, %9}, {%0, %1, %2, %3};" : "+r"(c[0]), "+r"(c[1]), "+r"(c[2]), "+r"(c[3]) \
    : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1])); }
MMA_BYTES(mma_u8, "u8") MMA_BYTES(mma_s8, "s8")
static __forceinline__ void mma_tf32(f32 *c, const f32 *a, const f32 *b) {
  u32 x[4], y[2]; memcpy(x, a, sizeof x); memcpy(y, b, sizeof y);
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
    "{%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
    : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]));
}
template <int TO, int FROM> static __forceinline__ void copy_apart(void *to, const void *from, bool whole) {
  const u32 at = (u32)__cvta_generic_to_shared(to), size = whole ? 16 : 0;
  asm volatile("cp.async.cg.shared.global [%0 + %3], [%1 + %4], 16, %2;"
    :: "r"(at), "l"(__cvta_generic_to_global(from)), "r"(size), "n"(TO), "n"(FROM) : "memory");
}
#define OTHERS_GO_ON()
static __forceinline__ void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }
#define ASKED_SHARED(bytes) extern __shared__ __align__(16) u8 shared[]
#define LDMATRIX(kind) asm volatile("ldmatrix.sync.aligned.m8n8.x" kind
template <int N, bool TRANSPOSED, class T>
static __forceinline__ void load_matrices(T *to, const T *row) {
  u32 r[4]; const u32 at = (u32)__cvta_generic_to_shared(row);
  if constexpr (N == 4 && TRANSPOSED) LDMATRIX("4.trans.shared.b16 {%0, %1, %2, %3}, [%4];")
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  else if constexpr (N == 4) LDMATRIX("4.shared.b16 {%0, %1, %2, %3}, [%4];")
    : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
  else if constexpr (N == 2 && TRANSPOSED) LDMATRIX("2.trans.shared.b16 {%0, %1}, [%2];")
    : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
  else if constexpr (N == 2) LDMATRIX("2.shared.b16 {%0, %1}, [%2];")
    : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
  memcpy(to, r, 4 * N);
}
#endif"""
"""Functions for single instructions, as inline PTX. A compiler for another machine must be given functions of
the same names."""

ARRIVAL = """static __forceinline__ bool is_last(u32 *arrived, u32 groups) {
  int last = 0;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicInc(arrived, groups - 1) == groups - 1;
    __threadfence();
  }
  return __syncthreads_or(last);
}"""
"""Counts a group's arrival, and returns whether it is the last. The count then is 0 again.

The first fence and barrier put the group's stores before its arrival. The second pair puts the last group's
loads behind all arrivals (CUDA C++ Programming Guide, memory fence functions)."""

WAITING = """static __forceinline__ void wait_for_groups(u32 *arrived, u32 groups) {
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    volatile u32 *turn = arrived + 1;
    const u32 now = *turn;
    __threadfence();
    if (atomicInc(arrived, groups - 1) == groups - 1) *turn = now + 1;
    else while (*turn == now) OTHERS_GO_ON();
    __threadfence();
  }
  __syncthreads();
}"""
"""Waits until all groups of a launch have arrived. The count then is 0 again, and the number of the turn one
more. Fences put stores before the barrier and loads behind it, as in `ARRIVAL`."""

_EACH = '_Pragma("unroll") for (int n = 0; n < N; ++n)'

VECTORS = f"""
template <class T, int N> struct alignas(sizeof(T) * N > 16 ? 16 : sizeof(T) * N) Vec {{ T v[N]; }};
template <int B> struct Signed;
template <> struct Signed<1> {{ typedef i8 T; }};
template <> struct Signed<2> {{ typedef i16 T; }};
template <> struct Signed<4> {{ typedef i32 T; }};
template <> struct Signed<8> {{ typedef i64 T; }};
template <class T> struct Wrapping {{ typedef T U; }};
template <> struct Wrapping<i8> {{ typedef u32 U; }};
template <> struct Wrapping<i16> {{ typedef u32 U; }};
template <> struct Wrapping<u8> {{ typedef u32 U; }};
template <> struct Wrapping<u16> {{ typedef u32 U; }};
template <> struct Wrapping<i32> {{ typedef u32 U; }};
template <> struct Wrapping<i64> {{ typedef u64 U; }};
#define EACH(R, text) R r; {_EACH} r.v[n] = text; return r;
#define INFIX(op) template <class T, int N> \\
static __forceinline__ Vec<T, N> operator op(Vec<T, N> a, Vec<T, N> b) {{ \\
  typedef Vec<T, N> R; EACH(R, (T)(a.v[n] op b.v[n])) }}
#define WRAP(op) template <class T, int N> \\
static __forceinline__ Vec<T, N> operator op(Vec<T, N> a, Vec<T, N> b) {{ \\
  typedef Vec<T, N> R; typedef typename Wrapping<T>::U U; EACH(R, (T)((U)a.v[n] op (U)b.v[n])) }}
#define COMPARE(op) template <class T, int N> \\
static __forceinline__ Vec<typename Signed<sizeof(T)>::T, N> operator op(Vec<T, N> a, Vec<T, N> b) {{ \\
  typedef Vec<typename Signed<sizeof(T)>::T, N> R; EACH(R, -(a.v[n] op b.v[n])) }}
#define EXTREME(name, op) template <class T, int N> \\
static __forceinline__ Vec<T, N> name(Vec<T, N> a, Vec<T, N> b) {{ \\
  typedef Vec<T, N> R; EACH(R, (a.v[n] op b.v[n] ? a.v[n] : b.v[n])) }}
WRAP(+) WRAP(-) WRAP(*) WRAP(<<) INFIX(/) INFIX(%) INFIX(&) INFIX(|) INFIX(^) INFIX(>>)
COMPARE(<) COMPARE(<=) COMPARE(>) COMPARE(>=) COMPARE(==) COMPARE(!=)
EXTREME(min, <) EXTREME(max, >)
template <class T, int N> static __forceinline__ Vec<T, N> operator&(Vec<T, N> a, int b) {{
  typedef Vec<T, N> R; EACH(R, (T)(a.v[n] & (T)b)) }}
template <class T, int N> static __forceinline__ Vec<T, N> operator-(Vec<T, N> a) {{
  typedef Vec<T, N> R; EACH(R, -a.v[n]) }}
template <class T, int N> static __forceinline__ Vec<T, N> operator~(Vec<T, N> a) {{
  typedef Vec<T, N> R; EACH(R, (T)~a.v[n]) }}
template <class R, class T, int N> static __forceinline__ R convert(Vec<T, N> a) {{ EACH(R, a.v[n]) }}
template <class R, class F> static __forceinline__ R as(F from) {{
  R to; memcpy(&to, &from, sizeof to); return to; }}
template <class R, int N, class T> static __forceinline__ R loose(const T *at) {{ EACH(R, at[n]) }}
template <class T, int N> static __forceinline__ void put(T *at, Vec<T, N> a) {{ {_EACH} at[n] = a.v[n]; }}
template <int B> struct Word;
template <> struct Word<4> {{ typedef u32 T; }};
template <> struct Word<8> {{ typedef uint2 T; }};
template <> struct Word<16> {{ typedef uint4 T; }};
template <class R> static __forceinline__ R of_words(const void *at) {{
  return as<R>(*(const typename Word<sizeof(R)>::T *)at); }}
template <class R> static __forceinline__ void set_words(void *at, R v) {{
  typedef typename Word<sizeof(R)>::T T; *(T *)at = as<T>(v); }}"""
"""Vectors as arrays in registers. An operation on a vector is a separate operation for each lane, because the
GPU has no vector instructions. A comparison gives 0 or -1 for each lane.

A vector that is loaded or stored whole is aligned to its size, or to 16 bytes if it is larger. `loose` and
`put` are for all other addresses. Signed integers are added and multiplied as unsigned ones, because the
compiler assumes that signed integers never overflow."""
