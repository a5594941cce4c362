"""The run, its steps and samples, what happened in it, and its settings."""

from harness.store.rollups import DEVICE_ROLLUPS, STEP_ROLLUPS, rollup_columns

LOG_1 = f"""
-- One row: who this run is, and its own last word on how it does.
CREATE TABLE run (
    run_id TEXT NOT NULL, -- the run's id, the name of its folder when it was created
    name TEXT NOT NULL, -- the name a person gave it
    started_unix_ns INTEGER NOT NULL, -- wall time of the start; every t_ns counts from here
    harness_version TEXT NOT NULL, -- the version of Stepscope that wrote the log
    settings TEXT NOT NULL, -- the requested settings, JSON
    device TEXT NOT NULL, -- facts of the device trained on, JSON
    model_parameters INTEGER, -- number of trainable parameters
    versions TEXT NOT NULL, -- versions of Python, torch, CUDA, driver, …, JSON
    host TEXT NOT NULL, -- the machine's name
    simulated INTEGER NOT NULL, -- 1: written by the demo, nothing was trained
    state TEXT NOT NULL, -- launching, running, paused, …, finished, failed
    state_message TEXT NOT NULL, -- one sentence about the state
    ended_unix_ns INTEGER -- wall time of the end
) STRICT;

-- One row per optimizer step.
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, -- the step's number, strictly increasing
    t_ns INTEGER NOT NULL, -- end of the step, since the run's start
    step_ns INTEGER NOT NULL, -- duration of the step on the CPU clock
    data_wait_ns INTEGER NOT NULL, -- waiting for the loader; of this and later phases 0: not measured
    h2d_ns INTEGER NOT NULL, -- copy to the device, CPU clock (issue time where asynchronous)
    forward_ns INTEGER NOT NULL, -- forward pass, CPU clock
    backward_ns INTEGER NOT NULL, -- backward pass, CPU clock
    optimizer_ns INTEGER NOT NULL, -- optimizer step, CPU clock
    device_step_ns INTEGER, -- duration of the step between device events
    device_h2d_ns INTEGER, -- copy to the device, device clock
    device_forward_ns INTEGER, -- forward pass, device clock
    device_backward_ns INTEGER, -- backward pass, device clock
    device_optimizer_ns INTEGER, -- optimizer step, device clock
    device_gap_ns INTEGER, -- end of the step before to this start: the device waited at least so long
    loss REAL, -- mean loss; NULL with a loss_state above 0 is not finite
    loss_state INTEGER, -- 0 finite, 1 NaN, 2 infinite, 3 minus infinite; NULL: not measured
    samples INTEGER NOT NULL, -- samples trained on; 0: unknown
    tokens INTEGER, -- tokens trained on, for text
    allocated_bytes INTEGER, -- held by tensors at the end of the step that was read last
    reserved_bytes INTEGER, -- held by the allocator at the end of that step
    active_bytes INTEGER, -- allocated, and not yet reusable
    peak_allocated_bytes INTEGER, -- most allocated since the reading before; short steps share one
    peak_reserved_bytes INTEGER, -- most reserved since the reading before; short steps share one
    inactive_split_bytes INTEGER, -- free parts of split blocks
    alloc_retries INTEGER, -- cumulative: the allocator gave its cache back and tried again
    ooms INTEGER, -- cumulative: allocations that failed
    rss_bytes INTEGER, -- resident memory of the process
    settings_version INTEGER NOT NULL, -- the version of the settings in effect
    flags INTEGER NOT NULL -- bits: 1 warm-up, 2 transition, 4 profiled, 8 untimed, 16 tracked for a snapshot
) STRICT;

-- Steps in buckets of 8, 32, 128, … 2^21, kept by the writer: least, most, sum, number of values.
CREATE TABLE step_rollups (
    id INTEGER NOT NULL, -- bucket - (level - 1) * 2^40, where bucket = step / (2 * 4^level)
{rollup_columns(STEP_ROLLUPS)}
    PRIMARY KEY (id)
) STRICT;

-- What a device reported, about once per second.
CREATE TABLE device_samples (
    device TEXT NOT NULL, -- the device's UUID, or "cpu"
    seq INTEGER NOT NULL, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    util_pct REAL, -- share of the time in which a kernel ran
    memory_util_pct REAL, -- share of the time in which memory was read or written
    memory_used_bytes INTEGER, -- used on the whole device, by every process
    memory_total_bytes INTEGER, -- size of the device's memory
    power_w REAL, -- power drawn
    power_limit_w REAL, -- power limit enforced
    temperature_c REAL, -- core temperature
    sm_clock_mhz REAL, -- clock of the multiprocessors
    memory_clock_mhz REAL, -- clock of the memory
    throttle_reasons INTEGER, -- NVML's bits of why clocks are held back
    PRIMARY KEY (device, seq)
) STRICT;
CREATE INDEX device_samples_by_step ON device_samples (device, step, seq);

-- Device samples in buckets of 8, 32, 128, … 2^21, as step_rollups.
CREATE TABLE device_rollups (
    device TEXT NOT NULL, -- the device's UUID, or "cpu"
    level INTEGER NOT NULL, -- the bucket holds 2 * 4^level samples
    bucket INTEGER NOT NULL, -- seq / (2 * 4^level)
{rollup_columns(DEVICE_ROLLUPS)}
    PRIMARY KEY (device, level, bucket)
) STRICT, WITHOUT ROWID;

-- The host and the training process, about once per second.
CREATE TABLE host_samples (
    seq INTEGER PRIMARY KEY, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    cpu_pct REAL, -- all cores together, 100 is all of them
    process_cpu_pct REAL, -- the training process, 100 per core
    rss_bytes INTEGER, -- resident memory of the training process
    peak_rss_bytes INTEGER, -- most resident memory so far
    workers_rss_bytes INTEGER, -- resident memory of the loader's workers
    ram_used_bytes INTEGER, -- used of it, by all processes
    ram_total_bytes INTEGER -- memory that the process can use: the host's, or the limit of its control groups
) STRICT;

-- What happened: changes of state and settings, trimming, out of memory, gaps, stalls, warnings, errors.
CREATE TABLE events (
    id INTEGER PRIMARY KEY, -- in the order of writing
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step it belongs to
    kind TEXT NOT NULL, -- what happened: state, setting, empty_cache, oom, leak, snapshot, gap, stall, …
    severity TEXT NOT NULL, -- info, warning, error
    label TEXT NOT NULL, -- short enough for a chart marker
    message TEXT NOT NULL, -- one sentence
    detail TEXT NOT NULL, -- JSON object
    command_id TEXT -- the command that caused it
) STRICT;

-- Every version of the settings that was in effect.
CREATE TABLE settings (
    version INTEGER PRIMARY KEY, -- counts from 0
    step INTEGER NOT NULL, -- the first step it was in effect
    t_ns INTEGER NOT NULL, -- since the run's start
    settings TEXT NOT NULL, -- all settings, JSON
    changed TEXT NOT NULL, -- what changed, JSON
    command_id TEXT -- the command that changed it
) STRICT;

-- The run's answers to commands; a command may be answered more than once (applied, then rolled back).
CREATE TABLE acks (
    id INTEGER PRIMARY KEY, -- in the order of writing
    command_id TEXT NOT NULL, -- the command answered
    state TEXT NOT NULL, -- applied, rejected, expired, rolled_back
    step INTEGER NOT NULL, -- the step from which it holds
    t_ns INTEGER NOT NULL, -- since the run's start
    message TEXT NOT NULL -- one sentence, the reason when rejected
) STRICT;
"""
