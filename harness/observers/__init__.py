"""What watches a training run: one observer a file."""
