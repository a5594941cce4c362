"""Tables for runs that train a person's own script."""

LOG_8 = """
-- Numbers that the script logged, at most one per name and step.
CREATE TABLE scalars (
    step INTEGER NOT NULL, -- the step under way, or the one that the script named
    name TEXT NOT NULL, -- as the script named it
    t_ns INTEGER NOT NULL, -- since the run's start
    value REAL, -- NULL with a value_state above 0 is not finite
    value_state INTEGER, -- 0 finite, 1 NaN, 2 infinite, 3 minus infinite; NULL: not measured
    PRIMARY KEY (name, step)
) STRICT, WITHOUT ROWID;

-- Settings that the script declared for itself. Their values are among the settings of the run.
CREATE TABLE declared_settings (
    name TEXT PRIMARY KEY NOT NULL, -- as the script named it
    declaration TEXT NOT NULL -- kind, default, low, high, choices and label, as JSON
) STRICT, WITHOUT ROWID;

-- Settings that this script cannot change.
CREATE TABLE unavailable_settings (
    name TEXT PRIMARY KEY NOT NULL, -- the name of the setting
    reason TEXT NOT NULL -- one sentence, with a way to have it where there is one; empty: available by now
) STRICT, WITHOUT ROWID;
"""
