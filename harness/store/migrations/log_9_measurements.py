"""Tables for measured effects of settings."""

LOG_9 = """
-- Measurements of the effect of a change of settings, by blocks of steps in randomized pairs.
CREATE TABLE measurements (
    number INTEGER PRIMARY KEY NOT NULL, -- counts from 1
    step INTEGER NOT NULL, -- the step before which it began
    t_ns INTEGER NOT NULL, -- since the run's start
    command_id TEXT NOT NULL, -- the request; also in the versions of settings that it made
    source TEXT NOT NULL, -- where the request came from
    before TEXT NOT NULL, -- values of the changed settings in arm A, as a JSON object
    after TEXT NOT NULL, -- values in arm B
    pairs INTEGER NOT NULL, -- pairs of blocks to be measured
    keeps_if_better INTEGER NOT NULL -- 1: the change is kept if it is faster
) STRICT;

-- The blocks of steps of a measurement.
CREATE TABLE measurement_blocks (
    measurement INTEGER NOT NULL, -- its number
    pair INTEGER NOT NULL, -- counts from 1
    position INTEGER NOT NULL, -- 1 or 2, in the order of time
    arm TEXT NOT NULL, -- A: the settings in effect before, B: the changed ones
    first_step INTEGER NOT NULL, -- the first step that counts; those right after the switch do not
    last_step INTEGER NOT NULL, -- the last step
    began_ns INTEGER NOT NULL, -- start of the first step, since the run's start
    t_ns INTEGER NOT NULL, -- end of the last step, since the run's start
    settings_version INTEGER NOT NULL, -- the settings in effect
    began_energy_j REAL, -- energy used by the device at the start, cumulative
    energy_j REAL, -- energy used by the device at the end, cumulative
    PRIMARY KEY (measurement, pair, position)
) STRICT, WITHOUT ROWID;

-- How measurements ended.
CREATE TABLE measurement_ends (
    measurement INTEGER PRIMARY KEY NOT NULL, -- its number
    step INTEGER NOT NULL, -- the step before which it ended
    t_ns INTEGER NOT NULL, -- since the run's start
    state TEXT NOT NULL, -- completed, stopped, changed, failed, out_of_memory or run_ended
    message TEXT NOT NULL -- one sentence
) STRICT;
"""
