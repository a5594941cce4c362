"""The speed of the machine, by a fixed piece of work."""

LOG_7 = """
-- A fixed piece of work of the CPU on the training thread, some 25 times per second between two steps.
CREATE TABLE reference_work (
    step INTEGER PRIMARY KEY, -- the step that had just ended
    took_ns INTEGER NOT NULL -- duration of the work
) STRICT;
"""
