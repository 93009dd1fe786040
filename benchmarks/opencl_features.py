"""Compare sub-groups and images with work-groups, which Jangin's kernels use instead, on OpenCL devices.

    python benchmarks/opencl_features.py opencl:intel opencl:pocl

Rows are summed by a tree in local memory and by sub-groups. Matrices are multiplied by panels in local memory
and by broadcasts within sub-groups. They are also multiplied without local memory, with the right matrix in a
buffer and in an image, and by Jangin's kernel for the device. Results are compared. All are measured in turns
by the device's clock.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pyopencl as cl
from opencl import product

import jangin
from jangin.runtime.devices.opencl_devices import PREFIX, Found, select

SIZE = 512
ROWS = f"""
#define N {SIZE}
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void tree(__global const float *x, __global float *y) {{
    __local float s[64];
    int i = get_local_id(0), row = get_group_id(0);
    float t = 0;
    for (int k = i; k < N; k += 64) t += x[row * N + k];
    s[i] = t;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = 32; step; step >>= 1) {{
        if (i < step) s[i] += s[i + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }}
    if (i == 0) y[row] = s[0];
}}
#ifdef SUB_GROUPS
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void groups(__global const float *x, __global float *y) {{
    __local float s[64];
    int i = get_local_id(0), row = get_group_id(0);
    float t = 0;
    for (int k = i; k < N; k += 64) t += x[row * N + k];
    t = sub_group_reduce_add(t);
    if (get_sub_group_local_id() == 0) s[get_sub_group_id()] = t;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i == 0) {{
        for (uint n = 1; n < get_num_sub_groups(); n++) t += s[n];
        y[row] = t;
    }}
}}
#endif
"""
PRODUCTS = f"""
#define N {SIZE}
__kernel __attribute__((reqd_work_group_size(16, 16, 1)))
void panels(__global const float *a, __global const float *b, __global float *y) {{
    __local float left[16][64], right[16][64];
    int i = get_local_id(0), j = get_local_id(1), at = j * 16 + i;
    int row = get_group_id(1) * 64, column = get_group_id(0) * 64;
    float t[4][4] = {{{{0}}}};
    for (int k = 0; k < N; k += 16) {{
        for (int n = at; n < 1024; n += 256) {{
            left[n % 16][n / 16] = a[(row + n / 16) * N + k + n % 16];
            right[n / 64][n % 64] = b[(k + n / 64) * N + column + n % 64];
        }}
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int d = 0; d < 16; d++)
            for (int r = 0; r < 4; r++)
                for (int c = 0; c < 4; c++) t[r][c] += left[d][j * 4 + r] * right[d][c * 16 + i];
        barrier(CLK_LOCAL_MEM_FENCE);
    }}
    for (int r = 0; r < 4; r++)
        for (int c = 0; c < 4; c++) y[(row + j * 4 + r) * N + column + c * 16 + i] = t[r][c];
}}
__kernel __attribute__((reqd_work_group_size(16, 4, 1)))
void buffer(__global const float *a, __global const float *b, __global float *y) {{
    int row = get_global_id(1) * 4, column = get_global_id(0);
    float4 t[4] = {{0, 0, 0, 0}};
    for (int k = 0; k < N; k++) {{
        float4 v = vload4(column, b + k * N);
        for (int r = 0; r < 4; r++) t[r] += a[(row + r) * N + k] * v;
    }}
    for (int r = 0; r < 4; r++) vstore4(t[r], column, y + (row + r) * N);
}}
#ifdef IMAGES
__constant sampler_t nearest = CLK_NORMALIZED_COORDS_FALSE | CLK_ADDRESS_NONE | CLK_FILTER_NEAREST;
__kernel __attribute__((reqd_work_group_size(16, 4, 1)))
void image(__global const float *a, __read_only image2d_t b, __global float *y) {{
    int row = get_global_id(1) * 4, column = get_global_id(0);
    float4 t[4] = {{0, 0, 0, 0}};
    for (int k = 0; k < N; k++) {{
        float4 v = read_imagef(b, nearest, (int2)(column, k));
        for (int r = 0; r < 4; r++) t[r] += a[(row + r) * N + k] * v;
    }}
    for (int r = 0; r < 4; r++) vstore4(t[r], column, y + (row + r) * N);
}}
#endif
#ifdef SUB_GROUPS
__kernel __attribute__((reqd_work_group_size(64, 1, 1)))
void broadcasts(__global const float *a, __global const float *b, __global float *y) {{
    int row = get_group_id(1) * 8, column = get_global_id(0), lane = get_sub_group_local_id();
    int lanes = get_sub_group_size();
    float t[8] = {{0}};
    for (int k = 0; k < N; k += lanes) {{
        float v[8];
        for (int r = 0; r < 8; r++) v[r] = a[(row + r) * N + k + lane];
        for (int d = 0; d < lanes; d++) {{
            float w = b[(k + d) * N + column];
            for (int r = 0; r < 8; r++) t[r] += sub_group_broadcast(v[r], d) * w;
        }}
    }}
    for (int r = 0; r < 8; r++) y[(row + r) * N + column] = t[r];
}}
#endif
"""


class Bench:
    """A device's programs, and two matrices in its memory."""

    def __init__(self, device: Found) -> None:
        handle = cl.Device.from_int_ptr(device.handle)
        self.device, self.context = device, cl.Context([handle])
        how = cl.command_queue_properties.PROFILING_ENABLE
        self.queue = cl.CommandQueue(self.context, handle, how)
        known = handle.extensions.split()
        self.groups = "cl_khr_subgroups" in known or bool(handle.max_num_sub_groups)
        self.images = bool(handle.image_support)
        defines = ["-DSUB_GROUPS"] * self.groups + ["-DIMAGES"] * self.images
        self.programs = [
            cl.Program(self.context, text).build(["-cl-std=CL3.0", "-w", *defines], cache_dir=False)
            for text in (ROWS, PRODUCTS)
        ]
        rng = np.random.default_rng(0)
        self.a, self.b = (rng.standard_normal((SIZE, SIZE)).astype(np.float32) for _ in "ab")
        flags = cl.mem_flags.READ_ONLY | cl.mem_flags.COPY_HOST_PTR
        self.left, self.right = (cl.Buffer(self.context, flags, hostbuf=m) for m in (self.a, self.b))
        self.out = cl.Buffer(self.context, cl.mem_flags.WRITE_ONLY, self.a.nbytes)
        if self.images:
            kind = cl.ImageFormat(cl.channel_order.RGBA, cl.channel_type.FLOAT)
            self.image = cl.create_image(self.context, flags, kind, (SIZE // 4, SIZE), hostbuf=self.b)

    def run(self, program: int, name: str, given: list[Any], items: tuple[int, ...], local: Any) -> float:
        """Return the seconds of a kernel."""
        kernel = cl.Kernel(self.programs[program], name)
        for n, value in enumerate([*given, self.out]):
            kernel.set_arg(n, value)
        event = cl.enqueue_nd_range_kernel(self.queue, kernel, items, local)
        event.wait()
        return float(event.profile.end - event.profile.start) / 1e9

    def kernels(self) -> dict[str, tuple[Callable[[], float], Any]]:
        """Return, by name, a function that runs a kernel, and its expected result. The result is None if it
        is tested elsewhere."""
        sums, made = self.a.sum(1, np.float64), self.a.astype(np.float64) @ self.b
        both = [self.left, self.right]
        found = {
            "tree": (partial(self.run, 0, "tree", [self.left], (SIZE * 64,), (64,)), sums),
            "panels": (partial(self.run, 1, "panels", both, (SIZE // 4, SIZE // 4), (16, 16)), made),
            "buffer": (partial(self.run, 1, "buffer", both, (SIZE // 4, SIZE // 4), (16, 4)), made),
        }
        if self.groups:
            items = SIZE, SIZE // 8
            found["groups"] = partial(self.run, 0, "groups", [self.left], (SIZE * 64,), (64,)), sums
            found["broadcasts"] = partial(self.run, 1, "broadcasts", both, items, (64, 1)), made
        if self.images:
            given = [self.left, self.image]
            found["image"] = partial(self.run, 1, "image", given, (SIZE // 4, SIZE // 4), (16, 4)), made
        exe: Any = jangin.compile(product(SIZE), f"{PREFIX}:{self.device.number}")
        launches = exe.launches({"a": self.a, "b": self.b})
        found["jangin"] = (lambda: sum(map(launches.seconds, launches.calls))), None
        return found

    def check(self, name: str, want: Any) -> None:
        out = np.empty(want.shape, np.float32)
        cl.enqueue_copy(self.queue, out, self.out)
        np.testing.assert_allclose(out, want, atol=1e-5 * SIZE, err_msg=name)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("devices", nargs="*", default=["opencl:intel", "opencl:pocl"])
    parser.add_argument("--turns", type=int, default=15)
    given = parser.parse_args()
    for name in given.devices:
        bench = Bench(select(name.removeprefix(PREFIX).removeprefix(":")))
        kernels = bench.kernels()
        taken: dict[str, list[float]] = {n: [] for n in kernels}
        for turn in range(given.turns + 1):
            for kernel, (run, want) in kernels.items():
                taken[kernel].append(run())
                if not turn and want is not None:
                    bench.check(kernel, want)
        times = {n: statistics.median(t[1:]) for n, t in taken.items()}
        pairs = ("tree", "groups"), ("panels", "broadcasts"), ("buffer", "image"), ("panels", "jangin")
        for one, other in pairs:
            if other not in times:
                print(f"{name}: no {other}: the device lacks what it needs")
                continue
            a, b = times[one], times[other]
            print(f"{name}: {one} {a * 1e3:.3f} ms, {other} {b * 1e3:.3f} ms: {a / b:.2f} times as fast")


if __name__ == "__main__":
    main()
