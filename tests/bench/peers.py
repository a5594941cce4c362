"""Other libraries on the same loop: `python -m tests.bench.peers NAME BATCH SECONDS OUTPUT FOLDER`.

Runs in the environment that `make bench-peers` sets up, so that nothing of theirs is ever imported by
Stepscope. Each is used as its own documentation says, at its defaults, and writes to FOLDER; OUTPUT takes the
turns as JSON.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path

from torch import nn

from tests.bench.blocks import Block, Costs, StepLog, Turn, logged_costs

NAMES = ("trackio", "TraceML", "TensorBoard")
_ROOT = Path(__file__).parents[2]
PEERS_PYTHON = _ROOT / ".venv-peers" / "bin" / "python"
_NOT_INSTALLED = "not installed: run make bench-peers"
_LIMIT_S = 120.0
"""Beyond the time that is measured: to import torch, and to write what is left."""


class _TrackioLog:
    def __init__(self) -> None:
        self._trackio = import_module("trackio")
        self._trackio.init(project="bench")

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        return None

    def log(self, step: int, values: dict[str, float]) -> None:
        self._trackio.log(values, step=step)

    def close(self) -> None:
        self._trackio.finish()


class _TensorBoardLog:
    def __init__(self) -> None:
        writer = import_module("torch.utils.tensorboard").SummaryWriter
        self._writer = writer("tensorboard")

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        return None

    def log(self, step: int, values: dict[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def close(self) -> None:
        self._writer.close()


class _TraceMlLog:
    """Times its steps by itself."""

    def __init__(self) -> None:
        traceml = import_module("traceml_ai")
        traceml.init(mode="auto")
        self._trace_step: Callable[..., AbstractContextManager[object]] = traceml.trace_step

    def step(self, model: nn.Module) -> AbstractContextManager[object] | None:
        return self._trace_step(model)

    def log(self, step: int, values: dict[str, float]) -> None:
        pass

    def close(self) -> None:
        pass


_Log = _TrackioLog | _TraceMlLog | _TensorBoardLog
_LOGS: Mapping[str, Callable[[], _Log]] = {
    "trackio": _TrackioLog,
    "TraceML": _TraceMlLog,
    "TensorBoard": _TensorBoardLog,
}


@contextmanager
def _open(name: str) -> Iterator[StepLog]:
    log = _LOGS[name]()
    try:
        yield log
    finally:
        log.close()


def peer_costs(name: str, batch: int, seconds: float, folder: Path) -> Costs | str:
    """Return what the library costs in a fresh process of its own; why it could not be measured, in a few
    words."""
    if not PEERS_PYTHON.exists():
        return _NOT_INSTALLED
    output = folder / "turns.json"
    arguments = [name, str(batch), str(seconds), str(output), str(folder)]
    command = [str(PEERS_PYTHON), "-m", "tests.bench.peers", *arguments]
    if name == "TraceML":
        # Launches scripts alone, whose folder comes first where modules are looked for: this one has a
        # `profile.py`.
        script = folder / "train.py"
        script.write_text("from tests.bench.peers import main\n\nmain()\n", encoding="utf-8")
        launcher = str(PEERS_PYTHON.with_name("traceml"))
        command = [launcher, "run", str(script), "--logs-dir", str(folder), "--args", *arguments]
    environment = {
        **os.environ,
        "PYTHONPATH": str(_ROOT),
        "TRACKIO_DIR": str(folder),
        "HF_HUB_OFFLINE": "1",
    }
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=2 * seconds + _LIMIT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"could not be run ({type(error).__name__})"
    if not output.exists():
        return _last_line(done.stderr) or f"ended with code {done.returncode} and no result"
    return _parsed(json.loads(output.read_text(encoding="utf-8")))


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")[:120]


def _parsed(result: list[list[list[list[float]]]]) -> Costs:
    return Costs(*([Turn(Block(*one), Block(*two)) for one, two in turns] for turns in result))


def main() -> None:
    """Measure one library in this process."""
    name, batch, seconds, output, folder = sys.argv[1:]
    os.chdir(folder)
    costs = logged_costs(int(batch), lambda: _open(name), float(seconds))
    Path(output).write_text(json.dumps(costs), encoding="utf-8")


if __name__ == "__main__":
    main()
