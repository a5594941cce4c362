"""The arithmetic of one sample."""

LOG_4 = """
-- Arithmetic of one sample, counted once before the first step: one row per way through the model.
CREATE TABLE flops (
    checkpointing INTEGER PRIMARY KEY, -- 1: with activation checkpointing
    flops_per_sample REAL NOT NULL, -- floating-point operations, forward and backward; a multiply-add is two
    uncounted TEXT NOT NULL, -- operations without a formula, JSON list; not empty: a lower bound
    batch_size INTEGER NOT NULL, -- the batch it was counted with
    settings TEXT NOT NULL, -- the settings that decide it, JSON object
    took_ns INTEGER NOT NULL -- how long counting took
) STRICT;
"""
