"""Tracking of tensor allocations, for snapshots and for the prediction."""
