"""The first row of a run's log: its identity, its device, and what it runs on: versions, cores and the limit
of the process on memory."""

import json
import os
import platform
import socket
import time

import torch

import harness
from harness.device.cuda.cudnn import read_cudnn_version
from harness.device.host.cores import usable_cores
from harness.device.protocol import Device
from harness.records.run import DeviceKind, RunRow, RunState


def first_row(run_id: str, name: str, settings_json: str, device: Device) -> RunRow:
    """Return the row of a run that starts now. `settings_json` are its settings, as a JSON object."""
    on_cpu = device.facts.kind is DeviceKind.CPU  # Elsewhere the reading lists all blocks, for nothing.
    # A torch built for CUDA loads cuDNN for its number, and aborts the process where memory does not suffice.
    cudnn = None if on_cpu else read_cudnn_version()
    versions = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "cpu_cores": os.cpu_count(),
        "usable_cores": usable_cores(),
        "torch_threads": torch.get_num_threads(),
        "process_limit_bytes": device.read_allocator().most_within_process_limit_bytes if on_cpu else None,
        "cudnn": cudnn if isinstance(cudnn, int) else None,
    }
    return RunRow(
        run_id=run_id,
        name=name,
        started_unix_ns=time.time_ns(),
        harness_version=harness.__version__,
        settings=settings_json,
        device=json.dumps(device.facts._asdict()),
        model_parameters=None,
        versions=json.dumps(versions),
        host=socket.gethostname(),
        simulated=0,
        state=RunState.LAUNCHING,
        state_message="Building the model.",
        ended_unix_ns=None,
    )
