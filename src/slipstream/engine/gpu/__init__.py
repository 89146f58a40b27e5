"""The embedded engine on a GPU: Triton kernels, CUDA graphs and the thread that launches them."""
