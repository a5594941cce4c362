"""NVIDIA's management library: driver, power, clocks, processes."""
