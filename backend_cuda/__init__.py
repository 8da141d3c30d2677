"""A backend on GPU and pinned host memory, written against a small runtime: CuPy's, or a simulator of streams.

plan -> CudaBackend.execute: swap_out on one stream, swap_in on another, copy on a third, in which the engine computes
"""
