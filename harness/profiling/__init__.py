"""Profiles a few steps of a live run with PyTorch's profiler."""
