"""The file system behind the host's shared memory (Linux): loader workers pass their batches on in it, and
NCCL keeps buffers in it. Docker limits it to 64 MiB unless `--shm-size` says otherwise."""

import os

from harness.device.protocol import MemoryInfo

_FOLDER = "/dev/shm"  # The folder of shm_open.


def read_shared_memory() -> MemoryInfo:
    """Return its free and total bytes; None for what cannot be read."""
    try:
        status = os.statvfs(_FOLDER)
    except OSError:
        return MemoryInfo(None, None)
    return MemoryInfo(status.f_bavail * status.f_frsize, status.f_blocks * status.f_frsize)
