"""Predicts the memory of a run before it starts. `asking` is free of torch; the rest runs in a child."""
