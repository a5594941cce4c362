"""The queue of runs, and the devices of the runs that it started."""

QUEUE_1 = """
-- The runs to start, one per device at a time.
CREATE TABLE entries (
    entry_id INTEGER PRIMARY KEY AUTOINCREMENT, -- never used again
    position INTEGER NOT NULL, -- from 1, in the order of the starts
    request_id TEXT NOT NULL UNIQUE, -- chosen by the requester, and the request of the run that it becomes
    added_unix_ns INTEGER NOT NULL, -- wall time of the request
    name TEXT, -- of the run; NULL: the name of its model or script, and a number
    settings TEXT NOT NULL, -- JSON object; {} for a script
    script TEXT, -- JSON object: command, arguments, folder and interpreter; NULL for a model
    device TEXT NOT NULL, -- auto, cpu, or the torch name or UUID of a GPU
    is_forced INTEGER NOT NULL, -- 1: starts although it is predicted not to fit
    state TEXT NOT NULL, -- waiting, paused, blocked
    reason TEXT NOT NULL, -- why it has not started
    starting_on TEXT -- the device, written before the start
) STRICT;

-- Runs that the queue started and that were not over at its last look.
CREATE TABLE placements (
    run_id TEXT PRIMARY KEY, -- the run
    device TEXT NOT NULL -- UUID or torch name
) STRICT;

-- The queue itself; one row.
CREATE TABLE queue (
    id INTEGER PRIMARY KEY CHECK (id = 1), -- 1
    is_paused INTEGER NOT NULL -- 1: nothing starts
) STRICT;

INSERT INTO queue (id, is_paused) VALUES (1, 0);
"""
