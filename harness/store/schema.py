"""The tables of a run's two files as append-only migrations, and the description made from them.

`python -m harness.store.schema` prints docs/schema.md.
"""

import re
import sqlite3

from harness.store.rollups import DEVICE_ROLLUPS, STEP_ROLLUPS, rollup_columns

LOG_APPLICATION_ID = 0x53544550  # "STEP"
CONTROL_APPLICATION_ID = 0x53544354  # "STCT"

_LOG_1 = f"""
-- One row: who this run is, and its own last word on how it does.
CREATE TABLE run (
    run_id TEXT NOT NULL, -- the run's id, the name of its folder when it was created
    name TEXT NOT NULL, -- the name a person gave it
    started_unix_ns INTEGER NOT NULL, -- wall time of the start; every t_ns counts from here
    harness_version TEXT NOT NULL, -- the version of Stepscope that wrote the log
    settings TEXT NOT NULL, -- the settings asked for, JSON
    device TEXT NOT NULL, -- facts of the device trained on, JSON
    model_parameters INTEGER, -- number of trainable parameters
    versions TEXT NOT NULL, -- versions of Python, torch, CUDA, driver, …, JSON
    host TEXT NOT NULL, -- the machine's name
    simulated INTEGER NOT NULL, -- 1: written by the demo, nothing was trained
    state TEXT NOT NULL, -- launching, running, paused, …, finished, failed
    state_message TEXT NOT NULL, -- one sentence about the state
    ended_unix_ns INTEGER -- wall time of the end
) STRICT;

-- One row an optimizer step.
CREATE TABLE steps (
    step INTEGER PRIMARY KEY, -- the step's number, strictly increasing
    t_ns INTEGER NOT NULL, -- end of the step, since the run's start
    step_ns INTEGER NOT NULL, -- duration of the step on the CPU clock
    data_wait_ns INTEGER NOT NULL, -- waiting for the loader
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
    samples INTEGER NOT NULL, -- samples trained on
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
    flags INTEGER NOT NULL -- bits: 1 warm-up, 2 transition, 4 profiled, 8 untimed
) STRICT;

-- Steps in buckets of 8, 32, 128, … 2^21, kept by the writer: least, most, sum, number of values.
CREATE TABLE step_rollups (
    id INTEGER NOT NULL, -- bucket - (level - 1) * 2^40, where bucket = step / (2 * 4^level)
{rollup_columns(STEP_ROLLUPS)}
    PRIMARY KEY (id)
) STRICT;

-- What a device said about itself, about once a second.
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

-- The host and the training process, about once a second.
CREATE TABLE host_samples (
    seq INTEGER PRIMARY KEY, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    cpu_pct REAL, -- all cores together, 100 is all of them
    process_cpu_pct REAL, -- the training process, 100 a core
    rss_bytes INTEGER, -- resident memory of the training process
    peak_rss_bytes INTEGER, -- most resident memory so far
    workers_rss_bytes INTEGER, -- resident memory of the loader's workers
    ram_used_bytes INTEGER, -- memory used on the host
    ram_total_bytes INTEGER -- memory of the host
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

_LOG_2 = """
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
    reason TEXT NOT NULL, -- start, asked, leak, out of memory
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

_LOG_3 = """
-- More of what a device said, beside its sample of the same number; counters since the driver was loaded.
CREATE TABLE device_details (
    device TEXT NOT NULL, -- the device's UUID
    seq INTEGER NOT NULL, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    energy_j REAL, -- energy used, cumulative
    pcie_sent_bytes INTEGER, -- sent by the device over PCIe, cumulative
    pcie_received_bytes INTEGER, -- received by the device over PCIe, cumulative
    pcie_sent_bytes_per_s REAL, -- rate of the same
    pcie_received_bytes_per_s REAL, -- rate of the same
    pcie_method TEXT, -- counters: since the sample before; window: over 20 ms, by the driver
    held_power_ns INTEGER, -- clocks held back by the power limit, cumulative
    held_thermal_ns INTEGER, -- clocks held back by software against heat, cumulative
    held_hw_thermal_ns INTEGER, -- clocks halved by hardware against heat, cumulative
    held_power_brake_ns INTEGER, -- clocks halved by the power supply's signal, cumulative
    held_sync_boost_ns INTEGER, -- clocks held to those of a group of GPUs, cumulative
    ecc_corrected INTEGER, -- memory errors corrected, cumulative
    ecc_uncorrected INTEGER, -- memory errors not corrected, cumulative
    processes INTEGER, -- processes that use the device
    processes_bytes INTEGER, -- device memory they hold together
    sm_active_pct REAL, -- multiprocessors that were busy, over time (GPM)
    sm_occupancy_pct REAL, -- warps in flight, of the most there could be (GPM)
    tensor_active_pct REAL, -- time in which tensor cores worked (GPM)
    dram_active_pct REAL, -- memory bandwidth used, of the most there is (GPM)
    PRIMARY KEY (device, seq)
) STRICT;

-- Who uses a device: all its processes, whenever they or their memory changed.
CREATE TABLE device_processes (
    device TEXT NOT NULL, -- the device's UUID
    seq INTEGER NOT NULL, -- number of the sample
    pid INTEGER NOT NULL, -- as NVML says it: in a container the host's number
    t_ns INTEGER NOT NULL, -- since the run's start
    name TEXT, -- the program's name
    memory_bytes INTEGER, -- device memory it holds
    is_own INTEGER, -- 1: the training process; NULL: numbers cannot be matched
    PRIMARY KEY (device, seq, pid)
) STRICT, WITHOUT ROWID;

-- More of the host and the training process, beside the host's sample of the same number.
CREATE TABLE host_details (
    seq INTEGER PRIMARY KEY, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    workers INTEGER NOT NULL, -- worker processes of the loader
    workers_cpu_pct REAL, -- all workers together, 100 a core
    disk_read_bytes_per_s REAL, -- read from disks by the training process and its workers
    disk_written_bytes_per_s REAL, -- written to disks by them
    network_received_bytes_per_s REAL, -- received by the whole host
    network_sent_bytes_per_s REAL, -- sent by the whole host
    sampling_wall_ns INTEGER NOT NULL, -- how long taking this sample took
    sampling_cpu_ns INTEGER NOT NULL, -- processor time it took
    sampling_pct REAL -- of one core, since the sample before
) STRICT;

-- The loader's workers one by one, every few seconds.
CREATE TABLE worker_samples (
    seq INTEGER NOT NULL, -- number of the sample
    pid INTEGER NOT NULL, -- the worker
    t_ns INTEGER NOT NULL, -- since the run's start
    cpu_pct REAL, -- of one core, since its row before
    rss_bytes INTEGER, -- resident memory, shared pages in full
    PRIMARY KEY (seq, pid)
) STRICT, WITHOUT ROWID;
"""

_LOG_4 = """
-- Arithmetic of one sample, counted once before the first step: one row a way through the model.
CREATE TABLE flops (
    checkpointing INTEGER PRIMARY KEY, -- 1: with activation checkpointing
    flops_per_sample REAL NOT NULL, -- floating-point operations, forward and backward; a multiply-add is two
    uncounted TEXT NOT NULL, -- operations without a formula, JSON list; not empty: a lower bound
    batch_size INTEGER NOT NULL, -- the batch it was counted with
    settings TEXT NOT NULL, -- the settings that decide it, JSON object
    took_ns INTEGER NOT NULL -- how long counting took
) STRICT;
"""

_CONTROL_1 = """
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

LOG_MIGRATIONS = (_LOG_1, _LOG_2, _LOG_3, _LOG_4)
FLOPS_SINCE = LOG_MIGRATIONS.index(_LOG_4) + 1
"""The version of the log from which on it has the table `flops`."""
CONTROL_MIGRATIONS = (_CONTROL_1,)


def migrate(connection: sqlite3.Connection, migrations: tuple[str, ...], application_id: int) -> None:
    """Bring an open file to the newest version, all in one transaction; does nothing where it is there.

    The version is read inside the transaction, so that two openers at once cannot both migrate.
    """
    connection.execute("BEGIN IMMEDIATE")
    try:
        version = connection.execute("PRAGMA user_version").fetchone()[0]
        for script in migrations[version:]:
            for statement in statements(script):
                connection.execute(statement)
        if version < len(migrations):
            connection.execute(f"PRAGMA application_id = {application_id:d}")
            connection.execute(f"PRAGMA user_version = {len(migrations):d}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def statements(script: str) -> list[str]:
    """The script's statements, each with the comments before and in it."""
    found, rest = [], ""
    for line in script.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest.strip())
            rest = ""
    return found


_TABLE = re.compile(r"-- (?P<about>.*)\nCREATE TABLE (?P<name>\w+) \(\n(?P<body>.*)\n\) (?P<how>.*);", re.S)
_COLUMN = re.compile(r"^    (?P<name>[a-z_0-9]+) (?P<type>[A-Z ]+?),? -- (?P<about>.*)$", re.M)


def _tables(migrations: tuple[str, ...]) -> str:
    text = ""
    for script in migrations:
        for table in filter(None, (_TABLE.search(statement) for statement in statements(script))):
            text += f"\n### {table['name']}\n\n{table['about']} ({table['how']})\n\n"
            text += "| column | type | what |\n|---|---|---|\n"
            for column in _COLUMN.finditer(table["body"]):
                text += f"| `{column['name']}` | {column['type']} | {column['about']} |\n"
    return text


def render() -> str:
    """The description of both files as Markdown: docs/schema.md."""
    return f"""# Schema

Generated by `python -m harness.store.schema > docs/schema.md`; a test holds it equal to the migrations.

Base units only: nanoseconds, bytes, per cent, watts. NULL is "not measured"; 0 is a measured zero.
Every table is STRICT. A run's two files are plain SQLite: `sqlite3 -readonly log.sqlite3` reads them.

## log.sqlite3

Written by the training process alone. application_id {LOG_APPLICATION_ID:#010x},
user_version {len(LOG_MIGRATIONS)}, WAL while the run lives, one plain file after it.
{_tables(LOG_MIGRATIONS)}
## control.sqlite3

Written by whoever steers the run. application_id {CONTROL_APPLICATION_ID:#010x},
user_version {len(CONTROL_MIGRATIONS)}, rollback journal.
{_tables(CONTROL_MIGRATIONS)}"""


if __name__ == "__main__":
    print(render(), end="")
