"""Memory: samples, snapshots with their allocations and modules, verdicts on leaks, reports."""

LOG_2 = """
-- Where memory is, every few seconds: one moment a row, on the CPU of glibc's heap and the machine's RAM.
CREATE TABLE memory_samples (
    seq INTEGER PRIMARY KEY, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    allocated_bytes INTEGER, -- held by tensors
    reserved_bytes INTEGER, -- held by the allocator
    free_bytes INTEGER, -- of reserved: in segments that are wholly free
    split_free_bytes INTEGER, -- of reserved: free remainders of split blocks
    largest_free_bytes INTEGER, -- the largest free block
    live_blocks INTEGER, -- blocks handed out
    segments INTEGER, -- segments taken from the driver
    process_bytes INTEGER, -- of the device, held by this process with context and libraries
    used_bytes INTEGER, -- of the device, held by all processes
    total_bytes INTEGER -- size of the device's memory
) STRICT;

-- Looks at everything that was allocated.
CREATE TABLE snapshots (
    snapshot_id INTEGER PRIMARY KEY, -- counts from 1
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step before which it was taken
    reason TEXT NOT NULL, -- start, requested, leak, out of memory
    method TEXT NOT NULL, -- how it was taken, in words
    tracked_steps INTEGER NOT NULL, -- steps during which every allocation was followed
    allocated_bytes INTEGER, -- allocated at that moment
    reserved_bytes INTEGER, -- reserved at that moment
    explained_bytes INTEGER, -- of allocated: found in the allocations, before anything was cut
    sites INTEGER NOT NULL, -- allocation sites found
    took_ns INTEGER NOT NULL, -- how long training waited
    slowdown REAL, -- a tracked step's duration over an ordinary one's
    file TEXT, -- the raw snapshot in the folder captures
    file_bytes INTEGER, -- its size
    message TEXT NOT NULL -- one sentence
) STRICT;

-- What each allocation site held at a snapshot.
CREATE TABLE allocations (
    snapshot_id INTEGER NOT NULL, -- the snapshot
    rank INTEGER NOT NULL, -- 1 is the largest
    category TEXT NOT NULL, -- weights, gradients, optimizer state, activations, …
    module TEXT, -- path of the module
    site TEXT NOT NULL, -- file:line function, or what it is
    stack TEXT NOT NULL, -- one frame a line, innermost first
    held_bytes INTEGER NOT NULL, -- held
    blocks INTEGER NOT NULL, -- in so many blocks
    grown_bytes INTEGER, -- of these allocated in the tracked steps and never freed
    grown_blocks INTEGER, -- in so many blocks
    PRIMARY KEY (snapshot_id, rank)
) STRICT, WITHOUT ROWID;

-- What each module held at a snapshot, without its children.
CREATE TABLE module_memory (
    snapshot_id INTEGER NOT NULL, -- the snapshot
    module TEXT NOT NULL, -- its path; empty: the model itself
    kind TEXT NOT NULL, -- its class
    parameter_bytes INTEGER NOT NULL, -- its weights
    buffer_bytes INTEGER NOT NULL, -- its buffers
    gradient_bytes INTEGER, -- gradients of its weights
    optimizer_bytes INTEGER, -- optimizer state of its weights
    activation_bytes INTEGER, -- most it saved for backward in a tracked step
    PRIMARY KEY (snapshot_id, module)
) STRICT, WITHOUT ROWID;

-- Verdicts on leaks, one row whenever one changes.
CREATE TABLE leaks (
    id INTEGER PRIMARY KEY, -- in the order of writing
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the newest step looked at
    series TEXT NOT NULL, -- allocated, fragmentation, host, workers
    verdict TEXT NOT NULL, -- too early, warm-up, steady, sawtooth, watch, leak
    since_step INTEGER NOT NULL, -- the first step looked at
    bytes_per_step REAL, -- slope by Theil and Sen
    low REAL, -- lower end of its 95 % interval
    high REAL, -- upper end of its 95 % interval
    risen_bytes INTEGER, -- how much it rose
    steps_to_oom INTEGER, -- until the limit at this slope
    detection_limit REAL, -- the smallest slope that would have been seen
    message TEXT NOT NULL, -- one sentence
    cause TEXT -- the usual cause where the pattern fits one
) STRICT;

-- Why memory ran out.
CREATE TABLE oom_reports (
    id INTEGER PRIMARY KEY, -- in the order of writing
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step that failed
    outcome TEXT NOT NULL, -- what was done, in words
    report TEXT NOT NULL -- JSON object
) STRICT;
"""
