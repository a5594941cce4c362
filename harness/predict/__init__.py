"""Prediction of a run's memory before it starts. `asking` does not import torch; the rest runs in a child
process."""
