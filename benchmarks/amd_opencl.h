// OpenCL's functions as LLVM's own for AMD's GPUs, for `gpu_compilers.py`.
#define get_local_id(n) ((size_t)__builtin_amdgcn_workitem_id_x())
#define get_group_id(n) ((size_t)__builtin_amdgcn_workgroup_id_x())
#define get_num_groups(n) ((size_t)(__builtin_amdgcn_grid_size_x() / __builtin_amdgcn_workgroup_size_x()))
#define barrier(f) (__builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup"), __builtin_amdgcn_s_barrier())
#define prefetch(p, n) ((void)0)
#define min(x, y) __builtin_elementwise_min(x, y)
#define max(x, y) __builtin_elementwise_max(x, y)
#define fabs(x) __builtin_elementwise_abs(x)
#define sqrt(x) __builtin_sqrtf(x)
#define fma(x, y, z) __builtin_fmaf(x, y, z)
#define OWN __attribute__((overloadable, always_inline))
typedef float4 loose4 __attribute__((aligned(4)));
OWN int all(int4 x) { return (x.s0 & x.s1 & x.s2 & x.s3) < 0; }
OWN void vstore4(float4 v, size_t n, __global float *p) { *(__global loose4 *)(p + 4 * n) = v; }
OWN float4 vload4(size_t n, const __global float *p) { return *(const __global loose4 *)(p + 4 * n); }
