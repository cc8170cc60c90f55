"""The CUDA extension: kernels from ``csrc/`` behind a C interface, built by ``build`` and opened by ``load``."""
