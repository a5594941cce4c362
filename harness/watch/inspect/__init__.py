"""Inspection of the last transient steps: synchronizing lines and misplaced tensors."""
