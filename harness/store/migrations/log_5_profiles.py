"""Profiles: what was at work in a few steps, by operator and kernel, by module, by stack."""

LOG_5 = """
-- A few steps under PyTorch's profiler, or why there was no profile.
CREATE TABLE profiles (
    profile_id INTEGER PRIMARY KEY, -- counts from 1
    t_ns INTEGER NOT NULL, -- since the run's start
    first_step INTEGER NOT NULL, -- the first step recorded
    steps INTEGER NOT NULL, -- steps recorded; 0: the profile failed, message says why
    settings_version INTEGER NOT NULL, -- the version of the settings in effect
    reason TEXT NOT NULL, -- requested, schedule
    on_device INTEGER NOT NULL, -- 1: kernels on the device's clock; 0: operators on the CPU alone
    wall_ns INTEGER, -- how long the recorded steps took
    busy_ns INTEGER, -- of that: a kernel or copy ran on the device, or an operator on the CPU
    took_ns INTEGER, -- how long training waited while what was recorded was read and kept
    slowdown REAL, -- a recorded step's duration over that of an ordinary one before
    with_memory INTEGER NOT NULL, -- 1: what operators allocated was recorded
    with_stacks INTEGER NOT NULL, -- 1: the lines that called operators were recorded
    file TEXT, -- the trace in the folder captures
    file_bytes INTEGER, -- its size
    message TEXT NOT NULL, -- one sentence
    left_out TEXT NOT NULL -- what is not in it and why; empty when nothing is
) STRICT;

-- The operators and kernels of a profile, those of all its steps together.
CREATE TABLE profile_ops (
    profile_id INTEGER NOT NULL, -- the profile
    rank INTEGER NOT NULL, -- 1 has the most time of its own
    name TEXT NOT NULL, -- its name, as PyTorch or the device's library calls it
    kind TEXT NOT NULL, -- matrix multiply, convolution, attention, …
    is_kernel INTEGER NOT NULL, -- 1: a kernel, copy or fill on the device
    calls INTEGER NOT NULL, -- how often it ran
    self_cpu_ns INTEGER NOT NULL, -- CPU time without the operators it called
    total_cpu_ns INTEGER NOT NULL, -- CPU time with them
    self_device_ns INTEGER, -- device time of the kernels it launched itself, or its own
    total_device_ns INTEGER, -- device time with those of the operators it called
    self_bytes INTEGER, -- allocated minus freed by it; NULL unless requested (with_memory)
    PRIMARY KEY (profile_id, rank)
) STRICT, WITHOUT ROWID;

-- What each module took in each phase of a profile's steps.
CREATE TABLE profile_modules (
    profile_id INTEGER NOT NULL, -- the profile
    module TEXT NOT NULL, -- its path; empty: the model itself; in angle brackets: what belongs to no module
    phase TEXT NOT NULL, -- data_wait, h2d, forward, backward, optimizer, other
    class_name TEXT NOT NULL, -- its class; empty for what is no module
    calls INTEGER NOT NULL, -- how often it ran
    self_cpu_ns INTEGER NOT NULL, -- CPU time of operators, without its children's
    total_cpu_ns INTEGER NOT NULL, -- CPU time of operators, with its children's
    self_device_ns INTEGER, -- device time of their kernels, without its children's
    total_device_ns INTEGER, -- device time of their kernels, with its children's
    PRIMARY KEY (profile_id, module, phase)
) STRICT, WITHOUT ROWID;

-- Operators by the lines of Python that called them, where that was requested (with_stacks).
CREATE TABLE profile_stacks (
    profile_id INTEGER NOT NULL, -- the profile
    rank INTEGER NOT NULL, -- 1 has the most time of its own
    stack TEXT NOT NULL, -- one frame a line, outermost first, the operator last
    calls INTEGER NOT NULL, -- how often it ran
    self_cpu_ns INTEGER NOT NULL, -- CPU time of the operator
    self_device_ns INTEGER, -- device time of its kernels
    PRIMARY KEY (profile_id, rank)
) STRICT, WITHOUT ROWID;
"""
