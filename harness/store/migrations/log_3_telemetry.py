"""More of what devices and the host say about themselves, and who uses them."""

LOG_3 = """
-- More of what a device said, beside its sample of the same number; counters since the driver was loaded.
CREATE TABLE device_details (
    device TEXT NOT NULL, -- the device's UUID
    seq INTEGER NOT NULL, -- number of the sample
    t_ns INTEGER NOT NULL, -- since the run's start
    step INTEGER NOT NULL, -- the step under way
    energy_j REAL, -- energy used, cumulative
    pcie_sent_bytes INTEGER, -- sent by the device over PCIe, modulo 4 GiB; of older logs
    pcie_received_bytes INTEGER, -- received by the device over PCIe, modulo 4 GiB; of older logs
    pcie_sent_bytes_per_s REAL, -- sent by the device over PCIe, per second
    pcie_received_bytes_per_s REAL, -- received by the device over PCIe, per second
    pcie_method TEXT, -- gpm: since the sample before (counters, of older logs, too); window: over 20 ms
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
    workers_cpu_pct REAL, -- all workers together, 100 per core
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
