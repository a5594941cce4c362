"""Commands to a run, and the exit of its process."""

CONTROL_1 = """
-- Commands to the run.
CREATE TABLE commands (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of sending
    command_id TEXT NOT NULL UNIQUE, -- chosen by the sender; a command that is sent twice is one
    created_unix_ns INTEGER NOT NULL, -- wall time of the request
    kind TEXT NOT NULL, -- set, empty_cache, snapshot, profile, measure, end_measurement, pause, resume, stop
    payload TEXT NOT NULL, -- JSON object; of set: setting to value
    source TEXT NOT NULL -- the sender: shell, dashboard, …
) STRICT;

-- How the training process ended, as its parent saw it.
CREATE TABLE exits (
    id INTEGER PRIMARY KEY AUTOINCREMENT, -- in the order of writing
    pid INTEGER NOT NULL, -- the process
    observed_unix_ns INTEGER NOT NULL, -- wall time of the observation
    returncode INTEGER NOT NULL -- exit code, or minus the signal
) STRICT;
"""
