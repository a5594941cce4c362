"""Overhead of a run: blocks of unobserved steps, and their comparison with observed ones."""

LOG_6 = """
-- Steps taken with the observers switched off, for comparison; they have no rows among the steps.
CREATE TABLE unobserved_steps (
    first_step INTEGER PRIMARY KEY, -- the first of them
    last_step INTEGER NOT NULL, -- the last of them
    t_ns INTEGER NOT NULL, -- end of the last, since the run's start
    wall_ns INTEGER NOT NULL, -- from the start of the first to the end of the last, CPU clock
    samples INTEGER NOT NULL, -- samples trained on in all of them
    tokens INTEGER, -- tokens trained on in all of them, for text
    settings_version INTEGER NOT NULL -- the version of the settings in effect
) STRICT;

-- What observing a step costs, one row whenever more is known.
CREATE TABLE own_cost (
    id INTEGER PRIMARY KEY, -- in the order of writing
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the newest step looked at
    settings_version INTEGER NOT NULL, -- the version of the settings in effect
    comparisons INTEGER NOT NULL, -- blocks of unobserved steps compared with those before and after
    step_ns INTEGER NOT NULL, -- a step without observers, median of the blocks
    extra_ns INTEGER NOT NULL, -- what observers add to it, median of the differences
    low_ns INTEGER NOT NULL, -- lower end of its 95 % interval
    high_ns INTEGER NOT NULL, -- upper end of its 95 % interval
    message TEXT NOT NULL -- one sentence
) STRICT;
"""
