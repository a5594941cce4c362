"""The training loop, its clock and the workload it drives."""
