"""The last unsettled steps: which lines make the CPU wait for the GPU, and which tensors lie elsewhere."""
