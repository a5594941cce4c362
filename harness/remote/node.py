"""The node's side of a run: its folder on the node's own disk, the training process, and news about both."""

import ctypes
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pynvml
from platformdirs import user_data_dir

from harness.closing import Closing
from harness.device.nvml.driver import Nvml, NvmlUnavailableError
from harness.errors import StepscopeError
from harness.identity import identify, new_nonce, write_identity
from harness.records.script import ScriptOrigin
from harness.remote.protocol import GpuSize, News, NodeRequest, Pull
from harness.store.control import ControlLog
from harness.store.folder import RunFolder, RunRequest, write_request
from harness.store.replica import read_rows
from harness.store.vital_signs import read_vital_signs
from harness.supervisor.launch import (
    Process,
    Spawn,
    child_environment,
    script_command,
    spawn,
    training_command,
)

# Another folder than the home: the first node is often the machine of the home.
HOME_VARIABLE = "STEPSCOPE_NODE_HOME"
_MOST_OUTPUT_BYTES = 256 << 10
_END_S = 20.0
_POLL_S = 0.05
# prctl(2)
_PR_SET_PDEATHSIG = 1


def node_home(environ: Mapping[str, str]) -> Path:
    """Return the folder of the runs that this machine trains for others."""
    return Path(environ.get(HOME_VARIABLE) or user_data_dir("stepscope-node")).expanduser().absolute()


def smallest_gpu(library: Any = pynvml) -> GpuSize | None:
    """Return the smallest GPU of this machine, regardless of CUDA_VISIBLE_DEVICES; None if none responds.
    `library` is the module pynvml, or its fake."""
    try:
        with Nvml(library) as nvml:
            return min(map(GpuSize._make, nvml.sizes()), key=lambda gpu: gpu.memory_bytes, default=None)
    except NvmlUnavailableError:
        return None


def spawn_dependent(command: list[str], environ: Mapping[str, str], output: Path) -> Process:
    """Start `command` as `harness.supervisor.launch.spawn` does, except that it is ended (SIGTERM) with the
    thread that calls this: without its node nobody could stop it. Linux; elsewhere it goes on."""
    return spawn(command, environ, output, _end_with_parent() if sys.platform == "linux" else None)


def _end_with_parent() -> Callable[[], object]:
    prctl = ctypes.CDLL(None).prctl  # Before the fork: loading a library in the child could deadlock.
    return lambda: prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)


class NodeRun(Closing):
    """One run on this node."""

    def __init__(self, request: NodeRequest, home: Path, start: Spawn = spawn_dependent) -> None:
        """Create the folder and start the training. Raises StepscopeError."""
        self._folder = RunFolder(home / "runs" / request.run_id)
        try:
            self._folder.path.mkdir(mode=0o700, parents=True)
            run_id, name, created_unix_ns, settings_json, script = request
            row = RunRequest(run_id, name, created_unix_ns, settings_json, script=script)
            write_request(self._folder.path, row)
            nonce = new_nonce()
            environ = child_environment(os.environ, nonce)
            self._process = start(_command(self._folder, script), environ, self._folder.output)
        except OSError as error:
            raise StepscopeError(
                f"No run can start in {self._folder.path} on {socket.gethostname()}: "
                f"{error.strerror or error}; set {HOME_VARIABLE} there."
            ) from None
        identity = identify(self._process.pid, nonce)
        if identity is not None:
            write_identity(self._folder.process, identity)

    def pull(self, request: Pull) -> News:
        """Pass the commands on and return the news."""
        with ControlLog(self._folder) as control:
            for command in request.commands:
                control.send(command)
        # First: what a process wrote before it ended is in its files.
        returncode = self._process.poll()
        signs = read_vital_signs(self._folder.alive)
        return News(
            socket.gethostname(),
            request.commands_read,
            read_rows(self._folder.log, request.marks),
            _read_from(self._folder.output, request.output_bytes),
            0 if signs is None else signs.finished_step,
            returncode,
        )

    def signal(self, number: int) -> None:
        """Send a signal to the training process and its workers; nothing if it has ended."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)

    def close(self) -> None:
        """End the training: SIGTERM, and SIGKILL after 20 s. Idempotent."""
        self.signal(signal.SIGTERM)
        deadline_s = time.monotonic() + _END_S
        while self._process.poll() is None and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        self.signal(signal.SIGKILL)


def _command(folder: RunFolder, script: ScriptOrigin | None) -> list[str]:
    if script is None:
        return training_command(folder)
    # The interpreter of an environment that the node does not have is replaced by its own.
    python = script.python if os.access(script.python, os.X_OK) else sys.executable
    return script_command(folder, script._replace(python=python))


def _read_from(path: Path, start: int) -> bytes:
    try:
        with path.open("rb") as file:
            file.seek(start)
            return file.read(_MOST_OUTPUT_BYTES)
    except OSError:
        return b""
