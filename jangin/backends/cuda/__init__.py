"""The CUDA C back end. The C-like writer writes kernels for work-groups, and NVRTC compiles them."""
