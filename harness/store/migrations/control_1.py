"""Commands to a run, and the exit of its process."""

CONTROL_1 = """
-- What people asked of the run.
CREATE TABLE commands (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of asking
    command_id TEXT NOT NULL UNIQUE, -- chosen by the asker; asking twice is asking once
    created_unix_ns INTEGER NOT NULL, -- wall time of asking
    kind TEXT NOT NULL, -- set, empty_cache, snapshot, pause, resume, stop
    payload TEXT NOT NULL, -- JSON object; for set: setting to value
    source TEXT NOT NULL -- who asked: shell, dashboard, …
) STRICT;

-- How the training process ended, as its parent saw it.
CREATE TABLE exits (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of writing
    pid INTEGER NOT NULL, -- the process
    observed_unix_ns INTEGER NOT NULL, -- wall time of the observation
    returncode INTEGER NOT NULL -- exit code, or minus the signal
) STRICT;
"""
