"""Following tensors as they come and go: for the prediction, and for snapshots on the CPU."""
