"""Measure whether real runs take their steps under a memory cap: whole training processes, with log and
observers.

`python -m tests.bench.capped_runs` reads settings, one JSON object per line, and answers with the exit code
of each run, one per line. Each is forked from a process that has imported torch, most of what a start takes.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from harness.run import EXIT_OK, execute
from harness.settings.resolve import resolve
from harness.store.home import Home
from harness.train.warming import load_lazy_parts


def run_capped(
    cases: Sequence[Mapping[str, Any]], environ: Mapping[str, str], timeout_s: float = 3000.0
) -> list[bool]:
    """Return whether each of the `cases` took all of its steps. `environ` is added to this process's
    environment. Raises CalledProcessError when the process that runs them fails."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.capped_runs"],
        input="".join(json.dumps(case) + "\n" for case in cases),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environ},
        text=True,
        check=True,
        timeout=timeout_s,
    )
    return [int(line) == EXIT_OK for line in done.stdout.splitlines()]


def main() -> int:
    """Answer line by line, each from a fork. Nothing before it may use torch's threads."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    load_lazy_parts(torch.device("cpu"))
    with tempfile.TemporaryDirectory(prefix="stepscope-bench-") as folder:
        for line in sys.stdin:
            child = os.fork()
            if child == 0:
                torch.set_num_threads(threads)
                _run(json.loads(line), Path(folder))
            _, status = os.waitpid(child, 0)
            print(os.waitstatus_to_exitcode(status), flush=True)
    return 0


def _run(values: Mapping[str, Any], folder: Path) -> None:
    """Be a training process, and end with its exit code."""
    code = 1
    try:
        run = Home(folder).create(None, resolve(values), time.time_ns())
        code = execute(run)
    finally:
        os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
