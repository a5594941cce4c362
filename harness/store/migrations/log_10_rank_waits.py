"""The times in which a rank waits for others, as columns of steps."""

LOG_10 = """
-- end of the backward pass, from the rank's own gradients on: the wait for other ranks and for the all-reduce
ALTER TABLE steps ADD COLUMN all_reduce_wait_ns INTEGER;

-- begin of the forward pass: the wait for other ranks and for the broadcast of buffers
ALTER TABLE steps ADD COLUMN broadcast_wait_ns INTEGER;
"""
