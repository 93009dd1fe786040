"""CUDA C as a back end: kernels for work-groups as the C-like writer says them, compiled by NVRTC."""
